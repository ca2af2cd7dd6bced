#pragma once

#include "contract/backend.h"
#include "spec/target.h"

namespace dfa::cpu {

// Peak multiply-add rates from register-only loops of the given instruction set, on `threads`
// threads at once, and the copy rate of a buffer far larger than the last cache.
Ceilings measure_ceilings(Target target, int threads, double seconds);

}  // namespace dfa::cpu
