#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/quantity.h"
#include "dfa/error.h"
#include "privileges/peer.h"

namespace dfa::privileges {

// Who holds a card, until when, and what it has been set to.
struct Lease {
  int connection = 0;
  pid_t pid = 0;
  uid_t uid = 0;
  double until_s = 0;
  std::optional<double> limit_w{};
  std::optional<Range> clock_hz{};
};

// One lease a card. Plain values: it neither waits nor changes a card.
class Leases {
 public:
  // For a connection that holds it already: until then in place of before. Refused where another
  // holds it.
  Verdict take(const std::string& card, const Lease& lease, double now_s);
  void end(const std::string& card) { leases_.erase(card); }

  const Lease* of(const std::string& card) const;
  Lease* held(const std::string& card, int connection);  // null where it is another's

  std::vector<std::string> over(double now_s) const;       // cards whose lease has run out
  std::vector<std::string> held_by(int connection) const;  // cards
  std::optional<double> next_end_s() const;

 private:
  std::map<std::string, Lease> leases_;
};

}  // namespace dfa::privileges
