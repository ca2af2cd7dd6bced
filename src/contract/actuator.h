#pragma once

#include <cstddef>

namespace dfa {

// What a way of running attention lets be turned while it runs.
struct Levers {
  int sm_count = 0;  // multiprocessors of the card; 0: launches always use all
  int sm_least = 8;
  int sm_step = 2;
  bool pacing = true;        // gaps between launches
  double duty_least = 0.1;   // share of the time that launches may take at least
  double limit_least_w = 0;  // the card's own power limit, where its owner lends it; 0: not lent
  double limit_most_w = 0;
  double clock_least_hz = 0;  // clocks of the multiprocessors, likewise; 0: not lent
  double clock_most_hz = 0;

  bool operator==(const Levers&) const = default;
};

// How the next launches run.
struct Action {
  std::size_t point = 0;  // index into the operating points
  int sms = 0;            // 0: all
  double duty = 1;
  double limit_w = 0;   // of the card's own power limit; 0: as it was found
  double clock_hz = 0;  // that the multiprocessors are locked to; 0: as it was found

  bool operator==(const Action&) const = default;
};

// Takes effect at the next launch. Called from the governor's thread; never waits.
class Actuator {
 public:
  virtual ~Actuator() = default;
  virtual Levers levers() const = 0;  // those of the card's owner may end while it runs
  virtual void apply(const Action& action) = 0;
};

}  // namespace dfa
