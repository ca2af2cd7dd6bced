#pragma once

#include <functional>
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

// Adds that limit to another actuator's levers.
class LentLimit final : public Actuator {
 public:
  LentLimit(Actuator& inner, Limit limit)
      : inner_(inner), limit_(std::move(limit)), now_w_(limit_.usual_w) {}

  Levers levers() const override {
    Levers levers = inner_.levers();
    levers.limit_least_w = limit_.least_w;
    levers.limit_most_w = limit_.most_w;
    return levers;
  }

  void apply(const Action& action) override {
    inner_.apply(action);
    const double wanted = action.limit_w > 0 ? action.limit_w : limit_.usual_w;
    if (wanted == now_w_) return;
    now_w_ = wanted;
    limit_.set(wanted);
  }

 private:
  Actuator& inner_;
  const Limit limit_;
  double now_w_;
};

}  // namespace dfa::power
