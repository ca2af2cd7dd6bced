#include "cpu/select.h"

#include <algorithm>

#include "spec/block_tiles.h"

namespace dfa::cpu {
namespace {

// Rows of q in a tile, keys in a tile.
struct Tile {
  int q, k;
};

// Measured on one core of a Zen 5 server (48 KiB L1, 1 MiB L2), fp32, bf16 and fp16, d 64 to 256,
// lengths 1024 to 4096, 48 to 192 rows and 64 to 512 keys: the vector engines are flat within 3 %
// from 64 x 128 on. 64 rows lose least on a causal diagonal (192 rows lose 10 % at length 1024) and
// make most tasks. 256 keys beat 128 by 0 to 3 %, as the output is read and written half as often;
// 512 win nothing more. AVX-512, length 4096, in fp32 multiply-add peaks of the core:
//   forward   fp32 d64 0.85, d128 0.89, d256 0.91; bf16 1.55, 1.69, 1.77; causal fp32 d64 0.80
constexpr Tile kVectorForward{64, 256};

// The same sweep of the backward: 128 keys are within 3 % of 256, fit the cache at d 256 (256 keys
// lose 4 % there), and let a head be cut into twice as many key ranges for threads.
//   backward  fp32 d64 0.89, d128 0.89, d256 0.84; bf16 1.65, 1.70, 1.71
constexpr Tile kVectorBackward{64, 128};

// Every block of keys walks all queries and their dq sums. Where those outgrow the outer cache,
// twice the keys halve that traffic: fp32 gains 3 to 10 % from 8192 rows at d 64, 4096 at d 128.
// bf16 moves half the bytes and gains nothing.
constexpr Tile kVectorBackwardLong{64, 256};
constexpr std::int64_t kLongElements = 1 << 20;

// Wider heads take fewer keys, so that a tile fits a mebibyte of cache. Not measured.
constexpr Tile kWideForward{64, 128}, kWideBackward{64, 64};
constexpr std::int64_t kWideDims = 512;  // d + dv

// Measured on one core with AMX (48 KiB L1, 2 MiB L2), 2048 keys, bf16, one tile of all rows.
// The forward wants its scores, weights and output in L1: at d 64, microseconds for 32, 64, 96, 128
// and 160 keys are 865, 741, 722, 739, 802, and causal, where a row's last block is a part of one,
// 453, 393, 388, 403, 434; at d 128, 1496, 1187, 1210, 1263 for 32 to 128 keys, and causal 816,
// 670, 671, 702. (Another run has 128 keys level with 96 at d 64, full.) Its rows are what threads
// share. The backward lives in L2: 128 x 128 is within 4 % of the best of 20 tiles at d 64 and
// d 128, full and causal; 64 x 64 loses 6 to 23 % (results/tables/amx_speed_xeon.txt).
constexpr Tile kAmxForwardNarrow{64, 128};
constexpr Tile kAmxForwardNarrowMasked{64, 96};
constexpr Tile kAmxForwardWide{32, 64};
constexpr Tile kAmxBackward{128, 128};
constexpr std::int64_t kNarrowDims = 128;  // d + dv

int round_up_to(std::int64_t length, int step, int limit) {
  return static_cast<int>(std::min<std::int64_t>((length + step - 1) / step * step, limit));
}

// A tile that lies in one block is skipped with it, and never reads beside it.
Tile within_blocks(const Problem& p, Tile tile) {
  if (!p.blocks) return tile;
  const auto side = [](std::int64_t block, int most) {
    return static_cast<int>(side_within(block, most, 16));
  };
  return {side(p.blocks->block_q, tile.q), side(p.blocks->block_k, tile.k)};
}

// A short sequence needs no large tile: its rest would be packed and cleared for nothing.
template <typename Config>
Config default_tile(Target highest, const Problem& problem, Tile vectors, Tile amx) {
  const int step = problem.blocks ? 16 : 32;  // legal for every target that takes the problem
  const Target target = target_for(highest, problem);
  const Tile tile = within_blocks(problem, target == Target::cpu_amx ? amx : vectors);
  return {.target = target,
          .element = problem.dtype,
          .head_dim = static_cast<int>(problem.d),
          .value_dim = static_cast<int>(problem.dv),
          .block_q = round_up_to(problem.sq, step, tile.q),
          .block_k = round_up_to(problem.sk, step, tile.k)};
}

}  // namespace

Target target_for(Target highest, const Problem& p) {
  const bool amx = p.dtype == DType::bf16 && p.plain() && !p.blocks && !p.kv;
  return highest == Target::cpu_amx && !amx ? Target::cpu_avx512 : highest;
}

ForwardConfig default_forward(Target highest, const Problem& problem) {
  const bool narrow = problem.d + problem.dv <= kNarrowDims;
  const Tile narrow_tile = problem.mask.is_full() ? kAmxForwardNarrow : kAmxForwardNarrowMasked;
  const Tile vectors = problem.d + problem.dv > kWideDims ? kWideForward : kVectorForward;
  return default_tile<ForwardConfig>(highest, problem, vectors,
                                     narrow ? narrow_tile : kAmxForwardWide);
}

BackwardConfig default_backward(Target highest, const Problem& problem) {
  const std::int64_t dims = problem.d + problem.dv;
  if (dims > kWideDims) {
    return default_tile<BackwardConfig>(highest, problem, kWideBackward, kWideBackward);
  }
  const bool is_long = problem.dtype != DType::bf16 && problem.sq * dims >= kLongElements;
  const Tile vectors = is_long && dims <= 256 ? kVectorBackwardLong : kVectorBackward;
  return default_tile<BackwardConfig>(highest, problem, vectors, kAmxBackward);
}

}  // namespace dfa::cpu
