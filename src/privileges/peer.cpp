#include "privileges/peer.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dfa::privileges {
namespace {

sensors::Value<Peer> unknown(const char* option) {
  return {std::nullopt, Verdict::no(fmt::format("the kernel does not tell {}: {}", option,
                                                std::strerror(errno)))};
}

}  // namespace

bool Peer::in_group(gid_t group) const {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

// SO_PEERCRED knows the group that a process runs as and not those that it is in beside.
sensors::Value<Peer> peer_of(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return unknown("SO_PEERCRED");
  Peer peer{who.pid, who.uid, {}};
  constexpr std::size_t kMostGroups = 65536;  // of the kernel
  peer.groups.resize(kMostGroups);
  size = static_cast<socklen_t>(kMostGroups * sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &size) != 0) {
    return unknown("SO_PEERGROUPS");
  }
  peer.groups.resize(size / sizeof(gid_t));
  peer.groups.push_back(who.gid);
  return {peer, {}};
}

}  // namespace dfa::privileges
