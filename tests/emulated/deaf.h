#pragma once

#include <functional>
#include <stdexcept>

#include "emulated/hopper.h"

// Kernels on a machine that is deaf to one kind of wait or fence.
namespace dfa::emulated {

struct WithDeaf {
  explicit WithDeaf(Deaf d) { deaf = d; }
  ~WithDeaf() { deaf = {}; }
};

// Does the launch end early, or what it leaves miss the rule?
inline bool is_wrong(Timing asked, Deaf to, const std::function<CheckReport()>& work) {
  const WithTiming timing_as_asked(asked);
  const WithDeaf with(to);
  try {
    return !work().ok;
  } catch (const std::runtime_error&) {
    return true;
  }
}

}  // namespace dfa::emulated
