#pragma once

#include <cstddef>
#include <cstdint>

// The only place that names AMX instructions. Everything above is a template over a tile provider:
// this one, or the emulation that the tests use where a processor has no AMX. A tile is 16 rows of
// 64 bytes, always contiguous in memory: no stride can alias in the first-level cache.
namespace dfa::cpu::amx {

inline constexpr std::size_t kTileBytes = 1024;

// Any of our buffers may be read through it.
struct __attribute__((may_alias)) TileBytes {
  char bytes[kTileBytes];
};

namespace {  // Internal linkage: no copy of code with these instructions may be merged by the
             // linker.

struct HardwareTiles {
  // All eight tiles full size. May run only where cpuid.h grants cpu_amx.
  static void configure() {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t reserved[15] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }

  // Back to the initial state, so that a switch of threads saves no tiles.
  static void release() { asm volatile("tilerelease"); }

  template <int tile>
  [[gnu::always_inline]] static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }

  template <int tile>
  [[gnu::always_inline]] static void load(const std::byte* from) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(from), "r"(64L),
                 "m"(*reinterpret_cast<const TileBytes*>(from)));
  }

  // The same for what passes by once: it does not drive the scratch out of the first-level cache.
  template <int tile>
  [[gnu::always_inline]] static void stream(const std::byte* from) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(from), "r"(64L),
                 "m"(*reinterpret_cast<const TileBytes*>(from)));
  }

  template <int tile>
  [[gnu::always_inline]] static void store(std::byte* to) {
    asm volatile("tilestored %%tmm%c1, (%2,%3,1)"
                 : "=m"(*reinterpret_cast<TileBytes*>(to))
                 : "i"(tile), "r"(to), "r"(64L));
  }

  // sum += a b: 16 × 32 by 32 × 16 bf16, b as [pair of k][column][2], sums in fp32.
  template <int sum, int a, int b>
  [[gnu::always_inline]] static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
  }
};

}  // namespace
}  // namespace dfa::cpu::amx
