#pragma once

#include <string>

#include "dfa/problem.h"

namespace dfa {

// The problem as FlashAttention may work on it. Query heads that read the same keys are rows of one
// head where no mask tells them apart, memory has them at even distances (one query, or dense
// [b, h, s, d]) and they fill their tiles better so: with 8 heads to a key head a single query is 8
// rows of a tile instead of one of 8 tiles, and k and v are read once instead of 8 times. The same
// memory, every row's arithmetic the same; otherwise the problem itself.
Problem with_packed_heads(const Problem& problem);

// What a plan says of that, of the problem as asked and as it is worked on; nothing where they are
// the same.
std::string rows_of_heads(const Problem& asked, const Problem& worked_on);

}  // namespace dfa
