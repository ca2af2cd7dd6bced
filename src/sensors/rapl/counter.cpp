#include "sensors/rapl/counter.h"

#include <fmt/format.h>

#include <algorithm>

namespace dfa::sensors {
namespace {

constexpr double kLargestPower = 2000;  // W: no package draws as much, nor its memory
constexpr double kFastestTurn = 0.2;    // s: real counters take half a minute or more
constexpr double kReadsInATurn = 20;    // so that a thread that wakes late loses no turn
constexpr double kLongestGap = 0.1;     // s: what a new start can hide grows with it
constexpr double kSlackUj = 10e6;       // counters are refreshed late, and read late
constexpr double kStandstill = 1;       // s: an idle processor's counter changes every millisecond

}  // namespace

TurningCounter::TurningCounter(double range_uj)
    : range_uj_(std::max(range_uj, 0.0)),
      largest_w_(range_uj_ > 0 ? std::min(kLargestPower, range_uj_ * 1e-6 / kFastestTurn)
                               : kLargestPower) {}

double TurningCounter::turn_s() const {
  return range_uj_ > 0 ? range_uj_ * 1e-6 / largest_w_ : kFastestTurn;
}

double TurningCounter::longest_gap_s() const {
  return std::min(turn_s() / kReadsInATurn, kLongestGap);
}

Verdict TurningCounter::add(double now_uj, double time_s) {
  double used_uj = 0;
  Verdict verdict = begun_ ? judge(now_uj, time_s, used_uj) : Verdict::yes();
  if (!begun_ || !verdict || now_uj != last_uj_) changed_s_ = time_s;
  begun_ = true;
  last_uj_ = now_uj;
  last_s_ = time_s;
  if (verdict) {
    used_uj_ += used_uj;
  } else {
    ++breaks_;
    break_reason_ = verdict.reason;
  }
  return verdict;
}

Verdict TurningCounter::judge(double now_uj, double time_s, double& used_uj) {
  const double seconds = time_s - last_s_;
  // A range that the counter has been beyond is not where it turns.
  if (range_uj_ > 0 && std::max(now_uj, last_uj_) > range_uj_) {
    return Verdict::no(
        fmt::format("the counter shows {:.3f} J, beyond its max_energy_range_uj of "
                    "{:.3f} J, so that its turns cannot be taken out",
                    std::max(now_uj, last_uj_) * 1e-6, range_uj_ * 1e-6));
  }
  if (seconds >= turn_s()) {
    return Verdict::no(
        fmt::format("the counter was not read for {:.2f} s, in which it may have "
                    "turned over unseen",
                    seconds));
  }
  if (now_uj == last_uj_ && time_s - changed_s_ >= kStandstill) {
    return Verdict::no(fmt::format("the counter stands still at {:.3f} J since {:.1f} s",
                                   now_uj * 1e-6, time_s - changed_s_));
  }
  used_uj = now_uj - last_uj_;
  if (used_uj < 0) {
    if (range_uj_ <= 0) {
      return Verdict::no(
          fmt::format("the counter went back from {:.3f} to {:.3f} J and tells no "
                      "max_energy_range_uj",
                      last_uj_ * 1e-6, now_uj * 1e-6));
    }
    used_uj += range_uj_;
  }
  if (used_uj <= largest_w_ * 1e6 * seconds + kSlackUj) return Verdict::yes();
  return Verdict::no(
      fmt::format("the counter went from {:.3f} to {:.3f} J in {:.3f} s, more than "
                  "{:.0f} W: it started anew",
                  last_uj_ * 1e-6, now_uj * 1e-6, seconds, largest_w_));
}

}  // namespace dfa::sensors
