#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/quantity.h"
#include "privileges/peer.h"

// Who may turn which levers of which card, and how far: the file that the card's owner writes.
//
//   # card        who        levers
//   0000:3b:00.0  group:ml   limit:350:700W clock:900:1980MHz lease:2h
//   GPU-5a7c…     user:1000  limit:500:700W
//
// A line a grant: a PCI bus id or UUID; a user or a group, by name or number; the range of the
// power limit or of locked clocks or both; how long a lease may be (an hour where nothing is said,
// s or h). Of several lines for one card the first that matches counts. What no line allows is
// refused.
namespace dfa::privileges {

struct Grant {
  int line = 0;
  std::string card{};
  bool is_group = false;
  id_t id = 0;
  std::optional<Range> limit_w{};
  std::optional<Range> clock_hz{};
  double lease_s = 3600;

  bool is_for(const Peer& peer) const;
};

// Throws InvalidArgument in one line that names the file, the line and what is accepted. At least
// one grant, and none that an earlier line makes void.
std::vector<Grant> parse_allow_list(std::string_view text, const std::string& file);

// By name or number; nothing where it is not known here.
std::optional<gid_t> find_group(const std::string& name);
std::optional<uid_t> find_user(const std::string& name);

// Throws IoError too where the file cannot be read or others than its owner and root may write it.
std::vector<Grant> read_allow_list(const std::filesystem::path& file);

}  // namespace dfa::privileges
