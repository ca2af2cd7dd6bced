#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "sensors/gpu/card.h"

namespace dfa::privileges {

// Who is at the other end of a Unix socket, as the kernel has it from the moment of connecting:
// nothing that the other end says.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<gid_t> groups;  // all that the process is in

  bool in_group(gid_t group) const;
};

// A reason where the kernel does not tell: then nobody knows, and nothing may be lent.
sensors::Value<Peer> peer_of(int socket);

}  // namespace dfa::privileges
