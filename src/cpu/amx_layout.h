#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/amx_tile.h"

// Where things lie in the packed forms. The unit of everything is 32 rows (keys or queries), two
// tiles; d and dv are padded with zeros to multiples of 32.
namespace dfa::cpu::amx {
namespace {

inline constexpr int kUnit = 32;
inline constexpr std::size_t kRowBytes = 64;  // of a tile

constexpr std::int64_t units(std::int64_t rows) { return (rows + kUnit - 1) / kUnit; }
constexpr std::size_t tiles(std::int64_t count) {
  return static_cast<std::size_t>(count) * kTileBytes;
}
constexpr std::size_t align64(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// What bounds the scores and products of a unit of keys; +inf where anything is not finite.
struct UnitBounds {
  float k_norm2;  // largest squared length of a key
  float v_max;    // largest |v|
};

// Forward. All K units, then all V blocks, then all bounds.
//   K unit:  [d / 32][16 keys of 2]: B tiles of K^T, [pair of d][key][2]
//   V block: [dv / 32][unit of the block][dv half]: B tiles, [pair of keys][dv][2], in the order in
//            which they are read; a pair of keys is key i of the unit and key 16 + i, as the
//            weights have it
struct ForwardKv {
  std::int64_t count, block;
  std::size_t k_unit, v_unit;

  ForwardKv(std::int64_t sk, int d, int dv, int block_k)
      : count(units(sk)),
        block(block_k / kUnit),
        k_unit(tiles(2 * units(d))),
        v_unit(tiles(2 * units(dv))) {}
  std::size_t k(std::int64_t unit) const { return k_unit * static_cast<std::size_t>(unit); }
  // Columns 32 n to 32 n + 31; the same columns of the block's next unit follow.
  std::size_t v(std::int64_t unit, int n) const {
    const std::int64_t pair =
        unit / block * block * static_cast<std::int64_t>(v_unit / 2048) + n * block + unit % block;
    return k(count) + tiles(2 * pair);
  }
  std::size_t bounds() const { return v((count + block - 1) / block * block, 0); }
  std::size_t total() const {
    return align64(bounds() + sizeof(UnitBounds) * static_cast<std::size_t>(count));
  }
};

// Backward, one block a unit of keys.
//   rows of K: A tiles [d / 32][16 keys of 2]      rows of V: A tiles [dv / 32][16 keys of 2]
//   columns of K: A tiles [d / 16], [d][32 keys]
struct BackwardKv {
  std::size_t v, columns, unit;
  std::int64_t count;

  BackwardKv(std::int64_t sk, int d, int dv)
      : v(tiles(2 * units(d))),
        columns(v + tiles(2 * units(dv))),
        unit(columns + tiles(2 * units(d))),
        count(units(sk)) {}
  std::size_t total() const { return unit * static_cast<std::size_t>(count); }
};

// Backward, one block a unit of queries.
//   Q and dO along d: B tiles [d / 32][16 queries of 2], [pair of d][query][2]
//   Q and dO along queries: B tiles [d / 16], [pair of queries][d][2]
//   32 fp32 each: lse in powers of two (+inf for a query that sees nothing or is not there), delta
struct BackwardQ {
  std::size_t d_o, q_pairs, d_o_pairs, lse, delta, unit;
  std::int64_t count;

  BackwardQ(std::int64_t sq, int d, int dv)
      : d_o(tiles(2 * units(d))),
        q_pairs(d_o + tiles(2 * units(dv))),
        d_o_pairs(q_pairs + tiles(2 * units(d))),
        lse(d_o_pairs + tiles(2 * units(dv))),
        delta(lse + kUnit * sizeof(float)),
        unit(delta + kUnit * sizeof(float)),
        count(units(sq)) {}
  std::size_t total() const { return unit * static_cast<std::size_t>(count); }
};

// A product of 32 × 32 in fp32: four tiles, (row half, column half) in row order.
inline constexpr std::size_t kSquareBytes = 4 * kTileBytes;
// 32 × 32 in bf16: two tiles.
inline constexpr std::size_t kHalfSquareBytes = 2 * kTileBytes;

}  // namespace
}  // namespace dfa::cpu::amx
