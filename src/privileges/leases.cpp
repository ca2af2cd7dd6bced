#include "privileges/leases.h"

#include <fmt/format.h>

#include <algorithm>

namespace dfa::privileges {

Verdict Leases::take(const std::string& card, const Lease& lease, double now_s) {
  const auto found = leases_.find(card);
  if (found == leases_.end()) {
    leases_.emplace(card, lease);
    return Verdict::yes();
  }
  Lease& held = found->second;
  if (held.connection != lease.connection) {
    return Verdict::no(fmt::format("process {} of user {} holds {} for {:.0f} s at most", held.pid,
                                   held.uid, card, std::max(0.0, held.until_s - now_s)));
  }
  held.until_s = lease.until_s;
  return Verdict::yes();
}

const Lease* Leases::of(const std::string& card) const {
  const auto found = leases_.find(card);
  return found == leases_.end() ? nullptr : &found->second;
}

Lease* Leases::held(const std::string& card, int connection) {
  const auto found = leases_.find(card);
  const bool theirs = found != leases_.end() && found->second.connection == connection;
  return theirs ? &found->second : nullptr;
}

std::vector<std::string> Leases::over(double now_s) const {
  std::vector<std::string> cards;
  for (const auto& [card, lease] : leases_) {
    if (lease.until_s <= now_s) cards.push_back(card);
  }
  return cards;
}

std::vector<std::string> Leases::held_by(int connection) const {
  std::vector<std::string> cards;
  for (const auto& [card, lease] : leases_) {
    if (lease.connection == connection) cards.push_back(card);
  }
  return cards;
}

std::optional<double> Leases::next_end_s() const {
  std::optional<double> next;
  for (const auto& [card, lease] : leases_)
    next = std::min(next.value_or(lease.until_s), lease.until_s);
  return next;
}

}  // namespace dfa::privileges
