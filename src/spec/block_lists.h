#pragma once

#include <cstdint>
#include <vector>

#include "dfa/attention.h"

// Lists of blocks on the host.
namespace dfa {

// The lists and bitmaps of a problem line's states; empty where it has none.
struct BlockArrays {
  std::vector<std::int32_t> kv_counts, kv_indices, kv_bitmaps, q_counts, q_indices, q_bitmaps;
  std::vector<std::uint32_t> bits;

  BlockArrays() = default;
  explicit BlockArrays(const Problem& problem);
  BlockLists pointers() const;
};

// Throws InvalidArgument naming the list and the entry where counts, blocks or bitmaps are out of
// range, entries do not ascend, or the lists by keys, if given, are not those by queries. Host
// pointers.
void require_block_lists(const Problem& problem, const BlockLists& lists);

// Of one batch and query head: [rows, columns] of kAbsentBlock, kWhole or the number of a
// bitmap. Requires lists as above.
std::vector<std::int32_t> states_of_head(const Problem& problem, const BlockLists& lists,
                                         std::int64_t b, std::int64_t hq);

}  // namespace dfa
