#pragma once

#include <optional>
#include <string>

#include "base/quantity.h"
#include "dfa/error.h"
#include "sensors/gpu/card.h"

namespace dfa::sensors {

struct PowerLimits {
  double found_w = 0;  // when the levers were opened
  double least_w = 0;
  double most_w = 0;
};

// Somebody who may change a card, for one who may not or must not: a process of our own that is the
// owner's, or a daemon. Whatever was changed is put back when this ends, in whatever way.
class CardControl {
 public:
  virtual ~CardControl() = default;

  // Takes the levers of a card by its PCI bus id or UUID.
  virtual Value<PowerLimits> open(const std::string& card) = 0;
  // That the levers are had for so long from now: a reason where they are lent for less.
  virtual Verdict keep(double seconds) = 0;
  virtual Verdict set_power_limit(double watts) = 0;
  virtual Verdict lock_clocks(double least_hz, double most_hz) = 0;
  virtual Verdict unlock_clocks() = 0;

  // Clocks that may be asked for, once a card is open; none where they are not lent.
  virtual std::optional<Range> clocks_hz() const = 0;

  // Ask without waiting for the answer; end() tells the first that was a refusal. 0 is what was
  // found, which may be more than what is lent.
  virtual void request_power_limit(double watts) = 0;
  virtual void request_clocks(double hz) = 0;

  // Puts everything back: why that could not be done.
  virtual Verdict end() = 0;
};

}  // namespace dfa::sensors
