#pragma once

#include <algorithm>
#include <cstdint>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

// The rules of validate.h by the families of a GPU's kernels.
namespace dfa {

// cuda_sm80 and cuda_sm75.
Verdict validate_portable(const ForwardConfig& config, const Problem& problem,
                          const Limits& limits);
Verdict validate_portable(const BackwardConfig& config, const Problem& problem,
                          const Limits& limits);

// Hopper's in 16 bits.
Verdict validate_sm90(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict validate_sm90(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Hopper's in fp32, whose products are those of three bf16 planes.
Verdict validate_fp32x3(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict validate_fp32x3(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Hopper's in e4m3.
Verdict validate_e4m3(const ForwardConfig& config, const Problem& problem, const Limits& limits);

// Of cuda_sm80: kernels of a cache in e4m3 beside q of another type are of such problems, and such
// problems have no others.
Verdict validate_e4m3_cache(const ForwardConfig& config, const Problem& problem,
                            const Limits& limits);

// Columns of cuda_sm80's tiles. Those of a cache in e4m3 are read 32 at a time.
inline int portable_head_dim(const Problem& p, std::int64_t dim) {
  constexpr int kLeastOfE4m3 = 32;
  const int columns = gpu_head_dim(dim);
  return p.kv ? std::max(columns, kLeastOfE4m3) : columns;
}

// Queries of a tile where work tiles are cut along their keys (ForwardConfig::num_splits).
inline constexpr int kMostSharedQueries = 128;

// Heads up to here would be padded to twice their size and more: portable kernels run them.
inline constexpr int kPortableDim = 32;

// Columns of Hopper's tiles: gpu_head_dim(), but at least 64; 0 above kMostColumns.
int sm90_head_dim(std::int64_t dim);

// The same above kMostColumns, where two warpgroups share an output; 0 of others.
int sm90_sliced_dim(std::int64_t dim);
inline constexpr int kMostSlicedDims = 576, kMostSlicedValues = 512;

// Rows of the boxes that Hopper's forward copies keys in pages in: the most that divide a page and
// a tile.
int page_box_rows(const Problem& problem, const ForwardConfig& config);

// May a pair of these blocks walk queries of a tile for all query heads
// (BackwardConfig::gqa_inner_loop)?
bool takes_gqa_inner_loop(const BackwardConfig& config);

// What becomes of logits, as the problem says.
template <typename Config>
void set_logits(Config& c, const Problem& p) {
  c.softcap = p.softcap != 0;
  c.alibi = p.alibi;
  c.bias = p.bias.has_value();
  c.text = p.has_text();
  if constexpr (requires { c.sink; }) c.sink = p.sink;
  if constexpr (requires { c.bias_fp32; }) {
    c.bias_fp32 = c.target == Target::cuda_sm90 && p.bias && p.bias->dtype == DType::fp32;
  }
}

// What rules of several families ask for: shared memory of a block, one kind of sequences, rows and
// thread blocks that 32 bits count, and strides in steps of 16 bytes, which loads and stores move.
Verdict validate_smem(int bytes, const Limits& limits);
Verdict validate_registers(int needed, int there);
Verdict validate_varlen(bool varlen, const Problem& problem);
Verdict validate_plain_logits(const Problem& problem);  // scores as they come
Verdict validate_mask(const Problem& problem);          // windows alone
// A tile that a list's blocks are cut into.
Verdict validate_side(const char* field, int tile, const char* side, std::int64_t block);
Verdict validate_ranges_said(bool ranges, const Problem& problem);    // as the problem's mask is
Verdict validate_dropout_said(bool dropout, const Problem& problem);  // as the problem has it
Verdict validate_blocks_said(bool blocks, const Problem& problem);    // as the problem has them
Verdict validate_blocks(const ForwardConfig& config, const Problem& problem);  // tiles divide them
template <typename Config>
Verdict validate_logits(const Config& c, const Problem& p) {
  Config wanted = c;
  set_logits(wanted, p);
  return wanted == c
             ? Verdict::yes()
             : Verdict::no("softcap, alibi, bias, sink and text are not those of the problem");
}
Verdict validate_lengths(const Problem& problem);

// What rules of Hopper's in 16 and in 8 bits ask for: the dims of tiles, and strides that the copy
// engine steps by, in elements of 16 bytes.
Verdict validate_sm90_dim(const char* field, int value, const char* name, std::int64_t dim);
Verdict validate_sm90_map(const char* name, const Strides& strides, std::int64_t b, std::int64_t h,
                          std::int64_t rows, int step);
inline constexpr int kMostPackedHeads = 16;                       // rows that a warp stores at once
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 28;  // are counted in 32 bits

Verdict validate_strides(const Problem& problem);

}  // namespace dfa
