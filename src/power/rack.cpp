#include "power/rack.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dfa::power {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Cards by the time of a step, slowest first.
std::vector<std::size_t> slowest_first(const std::vector<CardReport>& cards) {
  std::vector<std::size_t> order(cards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cards[a].step_s > cards[b].step_s; });
  return order;
}

// Takes what is too much from the fastest, gives what is left to the slowest.
void fit_budget(std::vector<double>& targets, double budget_w, const std::vector<CardReport>& cards,
                const std::vector<std::size_t>& order) {
  double left = budget_w - sum(targets);
  if (left < 0) {
    const double above = std::inner_product(
        targets.begin(), targets.end(), cards.begin(), 0.0, std::plus<>(),
        [](double target, const CardReport& card) { return target - card.least_w; });
    const double share = above > 0 ? std::max(0.0, 1 + left / above) : 0;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      targets[i] = cards[i].least_w + share * (targets[i] - cards[i].least_w);
    }
    return;
  }
  for (const std::size_t i : order) {
    const double more = std::min(left, cards[i].most_w - targets[i]);
    targets[i] += more;
    left -= more;
  }
}

}  // namespace

double safe_power(double budget_w, std::size_t cards, const RackSettings& settings) {
  return settings.safe_share * budget_w / static_cast<double>(cards);
}

std::vector<double> share_power(double budget_w, const std::vector<CardReport>& cards,
                                const RackSettings& settings) {
  const std::vector<std::size_t> order = slowest_first(cards);
  std::vector<double> targets;
  for (const CardReport& card : cards) {
    targets.push_back(std::clamp(card.lease_w, card.least_w, card.most_w));
  }
  fit_budget(targets, budget_w, cards, order);
  const std::size_t slowest = order.front(), fastest = order.back();
  const double difference = cards[slowest].step_s / cards[fastest].step_s - 1;
  if (difference > settings.worth) {
    const double step = std::min({settings.step_w * std::min(1.0, 10 * difference),
                                  targets[fastest] - cards[fastest].least_w,
                                  cards[slowest].most_w - targets[slowest]});
    targets[fastest] -= step;
    targets[slowest] += step;
  }
  return targets;
}

std::vector<Lease> next_leases(double now_s, double budget_w, const std::vector<double>& targets,
                               const std::vector<CardReport>& cards,
                               const std::vector<double>& promised_w,
                               const RackSettings& settings) {
  double left = std::max(0.0, budget_w - sum(promised_w));
  std::vector<Lease> leases(targets.size());
  for (const std::size_t i : slowest_first(cards)) {
    const double more = std::clamp(targets[i] - promised_w[i], 0.0, left);
    left -= more;
    leases[i] = {std::min(targets[i], promised_w[i] + more), now_s + settings.lease_s};
  }
  return leases;
}

}  // namespace dfa::power
