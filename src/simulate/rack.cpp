#include "simulate/rack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/clock.h"
#include "base/random.h"
#include "power/rack.h"
#include "simulate/plant.h"

namespace dfa::simulate {
namespace {

constexpr double kTick = 0.01;
constexpr int kRoundTicks = 10;      // the coordinator's period
constexpr double kSettle = 2;        // after a change of the budget: a lease's life, and a second
constexpr double kLastSeconds = 10;  // over which cards are compared

// One card, its governor and its lease.
struct Card {
  Scenario scenario;  // with its own dynamic power
  std::unique_ptr<Plant> plant;
  std::unique_ptr<power::Governor> governor;
  power::Lease lease;
  double cap_w = 0;
  double work = 0, energy_j = 0;
  double rate = 0;  // work per second, smoothed over a second

  double lived_w(double now, double safe_w) const {
    return now <= lease.until_s ? lease.power_w : std::min(lease.power_w, safe_w);
  }
};

// What the coordinator sent and has not been told to be over.
struct Promise {
  double power_w = 0, sent_s = 0, until_s = 0;
};

class Rack {
 public:
  explicit Rack(const Scenario& scenario)
      : scenario_(scenario),
        rack_(*scenario.rack),
        random_(scenario.seed),
        budget_w_(rack_.budget_w) {
    const auto count = static_cast<std::size_t>(rack_.cards);
    promises_.resize(count);
    reports_.resize(count);
    for (std::size_t i = 0; i < count; ++i) cards_.push_back(make_card(i));
    const double safe = safe_w();
    for (std::size_t i = 0; i < count; ++i) {
      cards_[i]->lease = {safe, 0};
      promises_[i] = {{safe, -1, 1e9}};
      reports_[i] = {.heard_s = 0,
                     .lease_w = safe,
                     .power_w = safe,
                     .step_s = 1,
                     .least_w = least_w(),
                     .most_w = scenario_.card.limit_w};
    }
  }

  RackSample round(double now, bool coordinated) {
    events(now);
    report(now);
    if (coordinated && alive_) lead(now);
    if (!coordinated) share_equally(now);
    for (int tick = 0; tick < kRoundTicks; ++tick) {
      for (auto& card : cards_) advance(*card, now + tick * kTick);
    }
    return sample(now + kRoundTicks * kTick);
  }

 private:
  double safe_w() const { return power::safe_power(budget_w_, cards_count(), {}); }
  std::size_t cards_count() const { return static_cast<std::size_t>(rack_.cards); }
  double least_w() const { return scenario_.card.idle_w * 1.1; }
  bool lost() { return random_.uniform(draw_++) < rack_.loss; }

  std::unique_ptr<Card> make_card(std::size_t i) {
    auto card = std::make_unique<Card>();
    card->scenario = scenario_;
    const double place = rack_.cards > 1 ? 2.0 * static_cast<double>(i) / (rack_.cards - 1) - 1 : 0;
    for (TruePoint& point : card->scenario.points) point.dynamic_w *= 1 + rack_.spread * place;
    card->plant = std::make_unique<Plant>(card->scenario, scenario_.card, scenario_.seed + i);
    card->cap_w = power::safe_power(rack_.budget_w, cards_count(), {});
    card->governor = std::make_unique<power::Governor>(setup_of(card->scenario, scenario_.card),
                                                       power::Policy::power_cap(card->cap_w),
                                                       card->plant->telemetry(), *card->plant);
    return card;
  }

  void events(double now) {
    while (next_ < scenario_.events.size() && scenario_.events[next_].at_s <= now + 1e-9) {
      const Event& event = scenario_.events[next_++];
      if (event.budget_w) budget_w_ = *event.budget_w;
      if (event.coordinator) alive_ = *event.coordinator;
    }
  }

  void report(double now) {
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      if (lost()) continue;
      const double lived = cards_[i]->lived_w(now, safe_w());
      reports_[i].heard_s = now;
      reports_[i].lease_w = lived;
      if (cards_[i]->rate > 0) reports_[i].step_s = 1 / cards_[i]->rate;
      // What a card says it lives by replaces everything sent before.
      std::erase_if(promises_[i], [&](const Promise& p) { return p.sent_s < now; });
      promises_[i].push_back({lived, now, 1e9});
    }
  }

  void lead(double now) {
    std::vector<double> promised;
    for (const auto& sent : promises_) {
      double most = 0;
      for (const Promise& p : sent) {
        if (p.until_s >= now) most = std::max(most, p.power_w);
      }
      promised.push_back(most);
    }
    const power::RackSettings settings;
    const auto targets = power::share_power(budget_w_, reports_, settings);
    const auto leases = power::next_leases(now, budget_w_, targets, reports_, promised, settings);
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      promises_[i].push_back({leases[i].power_w, now, leases[i].until_s});
      if (!lost()) cards_[i]->lease = leases[i];
    }
  }

  void share_equally(double now) {
    for (auto& card : cards_) card->lease = {budget_w_ / rack_.cards, now + 1};
  }

  void advance(Card& card, double now) {
    const double cap = card.lived_w(now, safe_w());
    if (std::abs(cap - card.cap_w) > 0.1) {
      card.cap_w = cap;
      card.governor->set_policy(power::Policy::power_cap(cap));
    }
    card.governor->tick(now, card.plant->activity);
    card.plant->gpu().advance(kTick);
  }

  RackSample sample(double now) {
    RackSample s{.time_s = now, .budget_w = budget_w_, .slowest = 1e30};
    for (auto& card : cards_) {
      const simulated::Gpu& gpu = card->plant->gpu();
      const double span = kRoundTicks * kTick;
      s.power_w += (gpu.energy_j() - card->energy_j) / span;
      const double rate = (gpu.work() - card->work) / span;
      card->rate += (card->rate > 0 ? 0.1 : 1.0) * (rate - card->rate);
      card->energy_j = gpu.energy_j();
      card->work = gpu.work();
      s.leases_w += card->lived_w(now, safe_w());
      s.slowest = std::min(s.slowest, rate);
      s.fastest = std::max(s.fastest, rate);
    }
    second_.push_back(s.power_w);
    if (second_.size() > 10) second_.erase(second_.begin());
    for (const double w : second_) s.second_w += w / static_cast<double>(second_.size());
    return s;
  }

  const Scenario& scenario_;
  const RackParameters& rack_;
  Random random_;
  std::uint64_t draw_ = 0;
  double budget_w_;
  bool alive_ = true;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Card>> cards_;
  std::vector<std::vector<Promise>> promises_;
  std::vector<power::CardReport> reports_;
  std::vector<double> second_;
};

RackRun run_cards(const Scenario& scenario, bool coordinated, const Interrupted& interrupted) {
  const double begin = monotonic_s();
  Rack rack(scenario);
  RackRun run;
  const auto rounds = std::llround(scenario.seconds / (kTick * kRoundTicks));
  for (long long i = 0; i < rounds; ++i) {
    run.samples.push_back(rack.round(static_cast<double>(i) * kTick * kRoundTicks, coordinated));
    if (interrupted && interrupted()) break;
  }
  run.host_s = monotonic_s() - begin;
  return run;
}

double work_in_step(const RackRun& run) {
  double work = 0;
  for (const RackSample& s : run.samples) work += s.slowest;
  return work;
}

}  // namespace

RackRun run_rack(const Scenario& scenario, const Interrupted& interrupted) {
  return run_cards(scenario, true, interrupted);
}

RackMetrics measure_rack(const Scenario& scenario, const RackRun& run,
                         const Interrupted& interrupted) {
  RackMetrics m;
  int settled = 0, above = 0, last = 0;
  double budget = 0, changed_s = 0;
  for (const RackSample& s : run.samples) {
    if (s.budget_w != budget) changed_s = s.time_s;
    budget = s.budget_w;
    if (s.time_s > scenario.seconds - kLastSeconds) {
      m.imbalance_pct += 100 * (s.fastest / s.slowest - 1);
      ++last;
    }
    if (s.time_s - changed_s < kSettle) continue;
    ++settled;
    if (s.second_w > s.budget_w) ++above;
    m.leases_over_w = std::max(m.leases_over_w, s.leases_w - s.budget_w);
  }
  m.violation_pct = settled > 0 ? 100.0 * above / settled : 0;
  m.imbalance_pct /= std::max(1, last);
  const RackRun equal = run_cards(scenario, false, interrupted);
  if (!interrupted || !interrupted()) m.work_vs_equal = work_in_step(run) / work_in_step(equal);
  return m;
}

std::vector<std::string> missed(const Scenario& scenario, const RackMetrics& m) {
  std::vector<std::string> texts;
  const MetricBounds& bounds = scenario.bounds;
  if (bounds.violation_pct && m.violation_pct > *bounds.violation_pct) {
    texts.push_back(fmt::format("violation_pct is {:.3g}, at most {:.3g} is asked for",
                                m.violation_pct, *bounds.violation_pct));
  }
  if (m.leases_over_w > 1e-6) {
    texts.push_back(fmt::format("leases were {:.3g} W above the budget", m.leases_over_w));
  }
  if (bounds.imbalance_pct && m.imbalance_pct > *bounds.imbalance_pct) {
    texts.push_back(fmt::format("imbalance_pct is {:.3g}, at most {:.3g} is asked for",
                                m.imbalance_pct, *bounds.imbalance_pct));
  }
  const double vs_equal = m.work_vs_equal.value_or(0);
  if (bounds.work_vs_equal && !(vs_equal >= *bounds.work_vs_equal)) {
    texts.push_back(fmt::format("work_vs_equal is {:.4f}, at least {:.4g} is asked for", vs_equal,
                                *bounds.work_vs_equal));
  }
  return texts;
}

}  // namespace dfa::simulate
