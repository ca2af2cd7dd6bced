#include "spec/block_lists.h"

#include <algorithm>
#include <string>

#include "dfa/error.h"
#include "spec/blocks.h"

namespace dfa {
namespace {

// One direction's lists, by queries or by keys.
struct Side {
  const char* name;
  const std::int32_t *counts, *indices, *bitmaps;
  std::int64_t maps, lists, entries;  // lists of a map, blocks that a list may have

  [[noreturn]] void bad(const char* what, std::int64_t list, const std::string& text) const {
    throw InvalidArgument("blocks: " + std::string(name) + what + ", list " +
                          std::to_string(list % lists) + " of map " + std::to_string(list / lists) +
                          ": " + text);
  }

  void require(std::int64_t bitmap_count) const {
    for (std::int64_t list = 0; list < maps * lists; ++list) {
      const std::int32_t count = counts[list];
      if (count < 0 || count > entries) {
        bad("_counts", list, std::to_string(count) + "; accepted: 0 to " + std::to_string(entries));
      }
      for (std::int64_t n = 0; n < count; ++n) require_entry(list, n, bitmap_count);
    }
  }

  void require_entry(std::int64_t list, std::int64_t n, std::int64_t bitmap_count) const {
    const std::int64_t at = list * entries + n;
    if (indices[at] < 0 || indices[at] >= entries) {
      bad("_indices", list,
          "block " + std::to_string(indices[at]) + "; there are " + std::to_string(entries));
    }
    if (n > 0 && indices[at] <= indices[at - 1]) {
      bad("_indices", list,
          "block " + std::to_string(indices[at]) + " behind " + std::to_string(indices[at - 1]) +
              "; blocks ascend, each once");
    }
    if (bitmaps == nullptr) return;
    if (bitmaps[at] < kFullBlock || bitmaps[at] >= bitmap_count) {
      bad("_bitmaps", list,
          "bitmap " + std::to_string(bitmaps[at]) + "; there are " + std::to_string(bitmap_count));
    }
  }

  // [lists, entries] of a map.
  std::vector<std::int32_t> states(std::int64_t map) const {
    std::vector<std::int32_t> all(static_cast<std::size_t>(lists * entries), kAbsentBlock);
    for (std::int64_t list = 0; list < lists; ++list) {
      const std::int64_t at = map * lists + list;
      for (std::int64_t n = 0; n < counts[at]; ++n) {
        all[static_cast<std::size_t>(list * entries + indices[at * entries + n])] =
            bitmaps == nullptr ? kFullBlock : bitmaps[at * entries + n];
      }
    }
    return all;
  }
};

Side side_of_queries(const Problem& p, const BlockLists& lists) {
  return {"kv",          lists.kv_counts,      lists.kv_indices,       lists.kv_bitmaps,
          block_maps(p), p.blocks->rows(p.sq), p.blocks->columns(p.sk)};
}

Side side_of_keys(const Problem& p, const BlockLists& lists) {
  return {"q",           lists.q_counts,          lists.q_indices,     lists.q_bitmaps,
          block_maps(p), p.blocks->columns(p.sk), p.blocks->rows(p.sq)};
}

// state(list, entry) as the lists of one direction.
template <typename State>
void list_blocks(std::int64_t lists, std::int64_t entries, const State& state,
                 std::vector<std::int32_t>& counts, std::vector<std::int32_t>& indices,
                 std::vector<std::int32_t>& bitmaps) {
  for (std::int64_t list = 0; list < lists; ++list) {
    const std::size_t begin = indices.size();
    std::int32_t count = 0;
    for (std::int64_t entry = 0; entry < entries; ++entry) {
      const std::int32_t block = state(list, entry);
      if (block == kAbsentBlock) continue;
      indices.push_back(static_cast<std::int32_t>(entry));
      bitmaps.push_back(block);
      ++count;
    }
    counts.push_back(count);
    indices.resize(begin + static_cast<std::size_t>(entries));
    bitmaps.resize(begin + static_cast<std::size_t>(entries), kFullBlock);
  }
}

}  // namespace

BlockArrays::BlockArrays(const Problem& p) {
  if (!p.blocks || p.blocks->states.empty()) return;
  const BlockMask& blocks = *p.blocks;
  const std::int64_t rows = blocks.rows(p.sq), columns = blocks.columns(p.sk);
  for (std::int64_t map = 0; map < block_maps(p); ++map) {
    const std::int32_t* states = blocks.states.data() + map * rows * columns;
    list_blocks(
        rows, columns, [&](std::int64_t i, std::int64_t j) { return states[i * columns + j]; },
        kv_counts, kv_indices, kv_bitmaps);
    list_blocks(
        columns, rows, [&](std::int64_t j, std::int64_t i) { return states[i * columns + j]; },
        q_counts, q_indices, q_bitmaps);
  }
  for (std::int32_t n = 0; blocks.bitmaps && n < kLineBitmaps; ++n) {
    const std::vector<std::uint32_t> bitmap = line_bitmap(blocks, n);
    bits.insert(bits.end(), bitmap.begin(), bitmap.end());
  }
}

BlockLists BlockArrays::pointers() const {
  if (kv_counts.empty()) return {};
  return {.kv_counts = kv_counts.data(),
          .kv_indices = kv_indices.data(),
          .kv_bitmaps = bits.empty() ? nullptr : kv_bitmaps.data(),
          .q_counts = q_counts.data(),
          .q_indices = q_indices.data(),
          .q_bitmaps = bits.empty() ? nullptr : q_bitmaps.data(),
          .bits = bits.empty() ? nullptr : bits.data(),
          .bitmaps = bits.empty() ? 0 : kLineBitmaps};
}

void require_block_lists(const Problem& p, const BlockLists& lists) {
  const Side queries = side_of_queries(p, lists), keys = side_of_keys(p, lists);
  queries.require(lists.bitmaps);
  if (lists.q_counts == nullptr) return;
  keys.require(lists.bitmaps);
  for (std::int64_t map = 0; map < queries.maps; ++map) {
    const auto by_query = queries.states(map), by_key = keys.states(map);
    for (std::int64_t n = 0; n < std::ssize(by_query); ++n) {
      const std::int64_t i = n / queries.entries, j = n % queries.entries;
      if (by_query[static_cast<std::size_t>(n)] ==
          by_key[static_cast<std::size_t>(j * keys.entries + i)])
        continue;
      throw InvalidArgument("blocks: the lists by keys are not those by queries at block " +
                            std::to_string(i) + ", " + std::to_string(j) + " of map " +
                            std::to_string(map));
    }
  }
}

std::vector<std::int32_t> states_of_head(const Problem& p, const BlockLists& lists, std::int64_t b,
                                         std::int64_t hq) {
  const std::int64_t heads = p.blocks->of_head ? p.hq : 1;
  return side_of_queries(p, lists).states((p.blocks->of_batch ? b * heads : 0) +
                                          (p.blocks->of_head ? hq : 0));
}

}  // namespace dfa
