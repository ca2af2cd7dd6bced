#pragma once

#include <cstdint>

#include "dfa/dtype.h"

namespace dfa {

// Fills `count` elements with seeded normal values, rounded to the type. The same seed gives the
// same values on every machine that has IEEE fp32.
void fill_normal(void* data, DType type, std::int64_t count, std::uint64_t seed,
                 float deviation = 1.0f);

}  // namespace dfa
