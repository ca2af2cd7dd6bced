#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dfa/dtype.h"

// Arrays of any element type seen as fp32: for references, checks and files, not for fast paths.
namespace dfa {

// Value of element `index`. tf32 is stored as fp32.
float load_element(const void* data, DType type, std::int64_t index);

// Rounds to the element type, to nearest even.
void store_element(void* data, DType type, std::int64_t index, float value);

// What `value` becomes when stored as `type` (tf32: rounded to 10 mantissa bits).
float round_to(DType type, float value);

}  // namespace dfa
