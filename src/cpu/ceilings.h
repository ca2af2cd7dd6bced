#pragma once

#include "contract/diagnostics.h"
#include "spec/target.h"

namespace dfa::cpu {

// Peak multiply-add rates from register-only loops of the given instruction set, on `threads`
// threads at once: fp32; bf16 by its dot products where the level has them, else the fp32 rate;
// fp16 the fp32 rate, as fp16 is widened. And the copy rate, read plus write, of buffers of four
// times the last cache, at most 512 MiB together: where the cache is above 128 MiB it flatters the
// memory. Takes about `seconds`. Throws OutOfMemory.
Ceilings measure_ceilings(Target target, int threads, double seconds);

}  // namespace dfa::cpu
