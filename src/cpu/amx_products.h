#pragma once

#include "cpu/amx_layout.h"

// Products of 32 × 32 × 32 by four dots, on all eight tiles: 0 to 3 hold the sums, 4 and 5 the rows
// of a, 6 and 7 the columns of b. Between the dots runs a quarter of `vectors`, work for the vector
// units that has nothing to do with this product: a dot keeps the matrix unit busy for 16 cycles,
// and the processor's window is too small to find work further away.
namespace dfa::cpu::amx {
namespace {

// No vector work: at the ends of the pipeline.
struct Idle {
  template <int quarter>
  void run() {}
  void finish(std::int64_t) {}
};

template <class Tiles>
[[gnu::always_inline]] inline void zero_sums() {
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  Tiles::template zero<2>();
  Tiles::template zero<3>();
}

template <class Tiles>
[[gnu::always_inline]] inline void load_sums(const std::byte* square) {
  Tiles::template load<0>(square);
  Tiles::template load<1>(square + kTileBytes);
  Tiles::template load<2>(square + 2 * kTileBytes);
  Tiles::template load<3>(square + 3 * kTileBytes);
}

template <class Tiles>
[[gnu::always_inline]] inline void store_sums(std::byte* square) {
  Tiles::template store<0>(square);
  Tiles::template store<1>(square + kTileBytes);
  Tiles::template store<2>(square + 2 * kTileBytes);
  Tiles::template store<3>(square + 3 * kTileBytes);
}

// a: two tiles, rows 0 to 15 and 16 to 31. b: two tiles, columns 0 to 15 and 16 to 31.
template <class Tiles, class Vectors>
[[gnu::always_inline]] inline void multiply(const std::byte* a, const std::byte* b,
                                            Vectors& vectors) {
  Tiles::template load<4>(a);
  Tiles::template load<6>(b);
  Tiles::template dot<0, 4, 6>();
  vectors.template run<0>();
  Tiles::template load<7>(b + kTileBytes);
  Tiles::template dot<1, 4, 7>();
  vectors.template run<1>();
  Tiles::template load<5>(a + kTileBytes);
  Tiles::template dot<2, 5, 6>();
  vectors.template run<2>();
  Tiles::template dot<3, 5, 7>();
  vectors.template run<3>();
}

// Paces slices of vector work: `rate` of them a product, until they are used up. Slice must have
// slice(index); 16 of them make one square.
template <class Slice, int rate>
struct Paced {
  Slice slice;
  std::int64_t next, count;

  template <int quarter>
  [[gnu::always_inline]] void run() {
    constexpr int slices = (quarter + 1) * rate / 4 - quarter * rate / 4;
    for (int i = 0; i < slices; ++i) {
      if (next < count) slice(next++);
    }
  }
  // Runs all slices up to `end` now: what comes next overwrites what they read.
  void finish(std::int64_t end) {
    for (const std::int64_t stop = end < count ? end : count; next < stop; ++next) slice(next);
  }
};

}  // namespace
}  // namespace dfa::cpu::amx
