#pragma once

#include <cstdint>

#include "dfa/dtype.h"

namespace dfa {

// Fills `count` elements with seeded normal values, rounded to the type, on several threads where
// that pays. The same seed gives the same values wherever the C library's sin, cos and log do.
void fill_normal(void* data, DType type, std::int64_t count, std::uint64_t seed,
                 float deviation = 1.0f);

}  // namespace dfa
