#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "contract/actuator.h"

namespace dfa::power {

// The power limit of a card whose owner lends it.
struct Limit {
  double usual_w = 0;  // where no policy asks for another
  double least_w = 0;
  double most_w = 0;
  std::function<void(double)> set{};  // does not wait
};

// The clocks of its multiprocessors, likewise.
struct Clocks {
  double least_hz = 0;
  double most_hz = 0;
  std::function<void(double)> lock{};  // 0: as they were found; does not wait
};

struct Lent {
  std::optional<Limit> limit{};
  std::optional<Clocks> clocks{};
  std::function<bool()> gone{};  // whoever lent them has put the card back; empty: never
};

// Adds those to another actuator's levers.
class LentLevers final : public Actuator {
 public:
  LentLevers(Actuator& inner, Lent lent) : inner_(inner), lent_(std::move(lent)) {
    if (lent_.limit) limit_w_ = lent_.limit->usual_w;
  }

  Levers levers() const override {
    Levers levers = inner_.levers();
    if (gone()) return levers;
    if (lent_.limit) {
      levers.limit_least_w = lent_.limit->least_w;
      levers.limit_most_w = lent_.limit->most_w;
    }
    if (lent_.clocks) {
      levers.clock_least_hz = lent_.clocks->least_hz;
      levers.clock_most_hz = lent_.clocks->most_hz;
    }
    return levers;
  }

  void apply(const Action& action) override {
    inner_.apply(action);
    if (gone()) {  // the card was put back
      limit_w_ = lent_.limit ? lent_.limit->usual_w : 0;
      clock_hz_ = 0;
      return;
    }
    if (lent_.limit) {
      const double wanted = action.limit_w > 0 ? action.limit_w : lent_.limit->usual_w;
      if (wanted != std::exchange(limit_w_, wanted)) lent_.limit->set(wanted);
    }
    if (lent_.clocks && action.clock_hz != std::exchange(clock_hz_, action.clock_hz)) {
      lent_.clocks->lock(action.clock_hz);
    }
  }

 private:
  bool gone() const { return lent_.gone && lent_.gone(); }

  Actuator& inner_;
  const Lent lent_;
  double limit_w_ = 0;
  double clock_hz_ = 0;
};

}  // namespace dfa::power
