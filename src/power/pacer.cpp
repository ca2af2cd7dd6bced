#include "power/pacer.h"

#include <algorithm>

namespace dfa::power {
namespace {

constexpr double kShortest = 1e-4;  // a sleep overshoots by some 60 us
constexpr double kLongest = 0.1;    // owed at most: a duty that rose takes effect soon

}  // namespace

void Pacer::apply(const Action& action) {
  point_.store(action.point, std::memory_order_relaxed);
  sms_.store(action.sms, std::memory_order_relaxed);
  duty_.store(action.duty, std::memory_order_relaxed);
}

void Gaps::pause(double run_s, Clock& clock) {
  const double duty = pacer_.duty();
  if (duty >= 1) {
    owed_s_ = 0;
    return;
  }
  owed_s_ = std::min(owed_s_ + run_s * (1 / duty - 1), kLongest);
  if (owed_s_ < kShortest) return;
  const double begin = clock.now_s();
  clock.sleep_s(owed_s_);
  owed_s_ -= clock.now_s() - begin;
}

}  // namespace dfa::power
