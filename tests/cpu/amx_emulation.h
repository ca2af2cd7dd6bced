#pragma once

#include <cstdint>

#include "cpu/amx_tile.h"

// The eight tiles in plain C++, so that the AMX engine's algorithm is tested on any processor with
// AVX-512. As the instruction does: products of bf16 pairs summed in fp32, round to nearest even at
// each addition, even k before odd, denormal inputs and results taken as zero.
namespace dfa::cpu::amx {
namespace {

struct EmulatedTiles {
  using Tile = float[16][16];
  static inline thread_local Tile tiles[8];
  static inline thread_local bool configured = false;

  static void configure() { configured = true; }
  static void release() {
    configured = false;
    // NaN: what is kept in a tile over a release shows
    __builtin_memset(tiles, 0xff, sizeof tiles);
  }

  template <int tile>
  static void zero() {
    static_assert(tile >= 0 && tile < 8);
    if (!configured) __builtin_abort();
    __builtin_memset(tiles[tile], 0, sizeof tiles[tile]);
  }
  template <int tile>
  static void load(const std::byte* from) {
    if (!configured) __builtin_abort();
    __builtin_memcpy(tiles[tile], from, sizeof tiles[tile]);
  }
  template <int tile>
  static void stream(const std::byte* from) {
    load<tile>(from);
  }
  template <int tile>
  static void store(std::byte* to) {
    if (!configured) __builtin_abort();
    __builtin_memcpy(to, tiles[tile], sizeof tiles[tile]);
  }

  static float flush(float x) { return __builtin_fabsf(x) < __FLT_MIN__ ? 0.0f * x : x; }
  static float low(std::uint32_t pair) { return flush(__builtin_bit_cast(float, pair << 16)); }
  static float high(std::uint32_t pair) {
    return flush(__builtin_bit_cast(float, pair & 0xffff0000u));
  }

  template <int sum, int a, int b>
  static void dot() {
    if (!configured) __builtin_abort();
    for (int m = 0; m < 16; ++m) {
      for (int k = 0; k < 16; ++k) {
        const auto x = __builtin_bit_cast(std::uint32_t, tiles[a][m][k]);
        for (int n = 0; n < 16; ++n) {
          const auto y = __builtin_bit_cast(std::uint32_t, tiles[b][k][n]);
          float& total = tiles[sum][m][n];
          total = flush(__builtin_fmaf(low(x), low(y), flush(total)));
          total = flush(__builtin_fmaf(high(x), high(y), total));
        }
      }
    }
  }
};

}  // namespace
}  // namespace dfa::cpu::amx
