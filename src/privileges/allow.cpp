#include "privileges/allow.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "dfa/error.h"

namespace dfa::privileges {
namespace {

constexpr double kMostWatts = 1e5, kMostMhz = 1e5, kMostSeconds = 1e7;

std::optional<id_t> number_of(const std::string& name) {
  id_t id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  const bool whole = !name.empty() && error == std::errc{} && end == name.data() + name.size();
  return whole && id != static_cast<id_t>(-1) ? std::optional(id) : std::nullopt;  // -1: nobody's
}

// One line in the reading.
class Line {
 public:
  Line(std::string_view text, const std::string& file, int number)
      : in_(std::string(text)), file_(file), number_(number) {}

  // Nothing of an empty line.
  std::optional<Grant> read() {
    Grant grant{.line = number_};
    std::string who, lever;
    if (!(in_ >> grant.card)) return std::nullopt;
    read_card(grant);
    if (!(in_ >> who)) refuse("no user or group", kWho);
    read_who(who, grant);
    while (in_ >> lever) read_lever(lever, grant);
    if (!grant.limit_w && !grant.clock_hz) refuse("no lever", kLevers);
    return grant;
  }

 private:
  static constexpr const char* kCard = "a PCI bus id, 0000:3b:00.0, or a UUID, GPU-…";
  static constexpr const char* kWho = "user:NAME or group:NAME, or their numbers";
  static constexpr const char* kLevers =
      "limit:350:700W, clock:900:1980MHz, lease:2h or lease:600s";

  [[noreturn]] void refuse(const std::string& what, const char* accepted) const {
    throw InvalidArgument(fmt::format("{}:{}: {}; accepted: {}", file_, number_, what, accepted));
  }

  void read_card(Grant& grant) const {
    std::string& card = grant.card;
    if (card.starts_with("GPU-")) return;
    for (char& c : card) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool pci = card.find_first_not_of("0123456789abcdef:.") == std::string::npos &&
                     std::count(card.begin(), card.end(), ':') == 2 &&
                     std::count(card.begin(), card.end(), '.') == 1;
    if (!pci) refuse("card '" + card + "'", kCard);
  }

  void read_who(const std::string& text, Grant& grant) const {
    grant.is_group = text.starts_with("group:");
    if (!grant.is_group && !text.starts_with("user:")) refuse("'" + text + "'", kWho);
    const std::string name = text.substr(text.find(':') + 1);
    const auto id = grant.is_group ? find_group(name) : find_user(name);
    if (!id) refuse("'" + text + "' is not known here", kWho);
    grant.id = *id;
  }

  void read_lever(const std::string& text, Grant& grant) {
    const std::string value = text.substr(std::min(text.find(':'), text.size() - 1) + 1);
    const auto once = [&](char mark) {
      if (seen_.find(mark) != std::string::npos) refuse("'" + text + "' comes twice", kLevers);
      seen_ += mark;
    };
    if (text.starts_with("limit:")) {
      once('l');
      grant.limit_w = range_with(value, "W");
      if (grant.limit_w && grant.limit_w->most <= kMostWatts) return;
    } else if (text.starts_with("clock:")) {
      once('c');
      const auto mhz = range_with(value, "MHz");
      if (mhz && mhz->most <= kMostMhz) {
        grant.clock_hz = Range{1e6 * mhz->least, 1e6 * mhz->most};
        return;
      }
    } else if (text.starts_with("lease:")) {
      once('t');
      const auto hours = number_with(value, "h");
      grant.lease_s = hours ? 3600 * *hours : number_with(value, "s").value_or(0);
      if (grant.lease_s >= 1 && grant.lease_s <= kMostSeconds) return;
    }
    refuse("'" + text + "'", kLevers);
  }

  std::istringstream in_;
  const std::string& file_;
  const int number_;
  std::string seen_;
};

void refuse_void(const std::vector<Grant>& grants, const Grant& next, const std::string& file) {
  for (const Grant& one : grants) {
    if (one.card != next.card || one.is_group != next.is_group || one.id != next.id) continue;
    throw InvalidArgument(fmt::format(
        "{}:{}: line {} is for the same card and the same {}; accepted: one line for both", file,
        next.line, one.line, next.is_group ? "group" : "user"));
  }
}

}  // namespace

std::optional<gid_t> find_group(const std::string& name) {
  const group* known = ::getgrnam(name.c_str());
  return known != nullptr ? std::optional(known->gr_gid) : number_of(name);
}

std::optional<uid_t> find_user(const std::string& name) {
  const passwd* known = ::getpwnam(name.c_str());
  return known != nullptr ? std::optional(known->pw_uid) : number_of(name);
}

bool Grant::is_for(const Peer& peer) const { return is_group ? peer.in_group(id) : peer.uid == id; }

std::vector<Grant> parse_allow_list(std::string_view text, const std::string& file) {
  std::vector<Grant> grants;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    line = line.substr(0, line.find('#'));
    const auto grant = Line(line, file, ++number).read();
    if (!grant) continue;
    refuse_void(grants, *grant, file);
    grants.push_back(*grant);
  }
  if (grants.empty()) {
    throw InvalidArgument(file +
                          ": it allows nothing to anybody; accepted: CARD WHO LEVERS a line, "
                          "as 0000:3b:00.0 group:ml limit:350:700W");
  }
  return grants;
}

std::vector<Grant> read_allow_list(const std::filesystem::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) {
    throw IoError("cannot read '" + file.string() + "': " + std::strerror(errno));
  }
  if (S_ISFIFO(found.st_mode)) {  // which would be waited for
    throw IoError("cannot read '" + file.string() + "': it is a pipe; accepted: a plain file");
  }
  const std::string text = read_file(file, 1 << 20);
  const bool ours = found.st_uid == 0 || found.st_uid == ::geteuid();
  if (!ours || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw IoError(
        fmt::format("'{}' says who may change a card, and others may write it; accepted: "
                    "a file of root or of whoever runs this, of mode 0644 or less",
                    file.string()));
  }
  return parse_allow_list(text, file.string());
}

}  // namespace dfa::privileges
