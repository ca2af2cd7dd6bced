#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dfa {

// A mask by blocks, as data: queries in blocks of block_q, keys in blocks of block_k, and lists of
// which see each other. They come with the pointers (BlockLists in dfa/attention.h). A query sees a
// key where the lists have their blocks, the blocks' bitmap, if they have one, has the pair, and
// Problem::mask lets it. Blocks that are in no list are not read and cost nothing, those without a
// bitmap are not masked.
struct BlockMask {
  std::int64_t block_q = 128;  // multiples of 16; the last block may have fewer rows
  std::int64_t block_k = 128;
  bool of_batch = false;  // lists of each batch; else one for all
  bool of_head = false;   // of each query head
  bool bitmaps = false;   // some blocks are seen in part
  // Where a problem line says the lists: what stands in its blocks(…), and of each block, [b, hq,
  // rows, columns] with 1 where it is one for all, kAbsentBlock, kFullBlock or the number of its
  // bitmap.
  // Tests, benchmarks and counts of operations go by it, kernels by the pointers. Else empty.
  std::string source{};
  std::vector<std::int32_t> states{};

  std::int64_t rows(std::int64_t sq) const { return (sq + block_q - 1) / block_q; }
  std::int64_t columns(std::int64_t sk) const { return (sk + block_k - 1) / block_k; }
  // Words of 32 keys in a row of a bitmap, and in all of it.
  std::int64_t row_words() const { return (block_k + 31) / 32; }
  std::int64_t bitmap_words() const { return block_q * row_words(); }

  friend bool operator==(const BlockMask&, const BlockMask&) = default;
};

}  // namespace dfa
