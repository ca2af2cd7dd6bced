#pragma once

#include <cstdint>
#include <string>

#include "dfa/problem.h"

namespace dfa {

// The problem as a forward of FlashAttention works on it. Query heads that read the same keys are
// rows of one head where no mask tells them apart, memory has them at even distances (one query, or
// dense [b, h, s, d]) and they fill their tiles better so: with 8 heads to a key head a single
// query is 8 rows of a tile instead of one of 8 tiles, and k and v are read once instead of 8
// times. The same memory, every row's arithmetic the same. Otherwise the problem itself, and where
// a gradient is asked for, since sums over a group's queries would come in another order, or where
// blocks of a head's rows have factors.
Problem with_pack_gqa(const Problem& problem);

// Query heads that Hopper's forward takes as neighbouring rows of a tile where the problem itself
// is not packed, under a mask or where memory has heads and queries otherwise
// (ForwardConfig::pack_gqa): of the parts of a group, up to 16, the largest power of two, or
// one that takes fewer tiles than that by a tenth; 1 where tiles fill no better so.
int select_pack_gqa(const Problem& problem);

// Those that may be rows of one tile to see fewer keys under a window, since the tile's queries are
// fewer: as above a power of two; 1 where the problem has no window, where they fill tiles better
// anyway, or where they cannot be.
int pack_gqa_under_window(const Problem& problem);

// Query heads that are rows of a tile of Hopper's forward because they fill it better, one way or
// the other.
std::int64_t heads_of_a_tile(const Problem& problem);

// A problem with as many rows and work tiles as one whose heads are packed so, for what it costs.
Problem priced_with_pack_gqa(const Problem& problem);

// What a plan says of so many heads; nothing of one.
std::string rows_of_heads(std::int64_t heads);

}  // namespace dfa
