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
[[gnu::always_inline]] inline void store_sums(std::byte* square) {
  Tiles::template store<0>(square);
  Tiles::template store<1>(square + kTileBytes);
  Tiles::template store<2>(square + 2 * kTileBytes);
  Tiles::template store<3>(square + 3 * kTileBytes);
}

// Sums += a b. a: two tiles, rows 0 to 15 and 16 to 31. b: two tiles, columns 0 to 15 and 16 to 31.
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

// Keeps the sums of one square in the tiles while products are added. A store waits for its sum and
// then keeps the matrix unit as long as a dot does; so the sums of a square leave one by one while
// those of the next square begin.
template <class Tiles>
class Sums {
 public:
  // `spare`: a square that may be overwritten any time.
  explicit Sums(std::byte* spare) : to_(spare), spare_(spare) {}

  // Begins a square that will be stored at `to`, from zero, with its first product.
  template <class Vectors>
  [[gnu::always_inline]] void begin(std::byte* to, const std::byte* a, const std::byte* b,
                                    Vectors& vectors) {
    turn<true>(nullptr, a, b, vectors);
    to_ = to;
  }

  // Begins a square from what it holds in memory.
  template <class Vectors>
  [[gnu::always_inline]] void resume(std::byte* square, const std::byte* a, const std::byte* b,
                                     Vectors& vectors) {
    turn<false>(square, a, b, vectors);
    to_ = square;
  }

  // Puts the last square where it belongs: before anything but this class touches it.
  void finish() {
    store_sums<Tiles>(to_);
    to_ = spare_;
  }

 private:
  template <int sum, bool zero>
  [[gnu::always_inline]] void exchange(const std::byte* from) {
    constexpr std::size_t offset = sum * kTileBytes;
    Tiles::template store<sum>(to_ + offset);
    if constexpr (zero) {
      Tiles::template zero<sum>();
    } else {
      Tiles::template load<sum>(from + offset);
    }
  }

  template <bool zero, class Vectors>
  [[gnu::always_inline]] void turn(const std::byte* from, const std::byte* a, const std::byte* b,
                                   Vectors& vectors) {
    Tiles::template load<4>(a);
    Tiles::template load<6>(b);
    exchange<0, zero>(from);
    Tiles::template dot<0, 4, 6>();
    vectors.template run<0>();
    Tiles::template load<7>(b + kTileBytes);
    exchange<1, zero>(from);
    Tiles::template dot<1, 4, 7>();
    vectors.template run<1>();
    Tiles::template load<5>(a + kTileBytes);
    exchange<2, zero>(from);
    Tiles::template dot<2, 5, 6>();
    vectors.template run<2>();
    exchange<3, zero>(from);
    Tiles::template dot<3, 5, 7>();
    vectors.template run<3>();
  }

  std::byte* to_;
  std::byte* spare_;
};

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
