#pragma once

#include <string>
#include <string_view>

#include "dfa/problem.h"

// Masks by blocks in a problem line, and how many pairs they show.
namespace dfa {

// Parses what stands in blocks(…); states are filled later, as they take the problem's sizes.
// Throws InvalidArgument.
BlockMask block_mask_of(std::string_view text);
std::string block_mask_text(const BlockMask& blocks);

// Fills the states of a line that draws or names them. Throws InvalidArgument.
void fill_states(Problem& problem);

// Throws InvalidArgument where blocks and the rest of the problem do not go together.
void require_blocks(const Problem& problem);

// Maps of states that the problem has: of batches times of query heads.
std::int64_t block_maps(const Problem& problem);

// Bitmap `number` of those that lines name: 0 has the keys up to the query, 1 every second pair,
// drawn once for all. Rows of row_words(), as in BlockLists.
inline constexpr std::int32_t kLineBitmaps = 2;
std::vector<std::uint32_t> line_bitmap(const BlockMask& blocks, std::int32_t number);

// (query, key) pairs that a query head of a batch sees, in the mean; 0 where the states are not
// known.
double pairs_of_blocks(const Problem& problem);

}  // namespace dfa
