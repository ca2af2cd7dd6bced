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

// How the right operand is read: kept near, or passing by.
enum class Reuse { near, none };

template <class Tiles, int tile, Reuse reuse>
[[gnu::always_inline]] inline void load_right(const std::byte* from) {
  if constexpr (reuse == Reuse::near) {
    Tiles::template load<tile>(from);
  } else {
    Tiles::template stream<tile>(from);
  }
}

// Sums += a b. a: two tiles, rows 0 to 15 and 16 to 31. b: two tiles, columns 0 to 15 and 16 to 31.
// Before sum i, the hook is told, so that it can exchange what tile i holds.
template <class Tiles, Reuse reuse, class Hook, class Vectors>
[[gnu::always_inline]] inline void multiply(const std::byte* a, const std::byte* b, Hook&& before,
                                            Vectors& vectors) {
  Tiles::template load<4>(a);
  load_right<Tiles, 6, reuse>(b);
  before.template sum<0>();
  Tiles::template dot<0, 4, 6>();
  vectors.template run<0>();
  load_right<Tiles, 7, reuse>(b + kTileBytes);
  before.template sum<1>();
  Tiles::template dot<1, 4, 7>();
  vectors.template run<1>();
  Tiles::template load<5>(a + kTileBytes);
  before.template sum<2>();
  Tiles::template dot<2, 5, 6>();
  vectors.template run<2>();
  before.template sum<3>();
  Tiles::template dot<3, 5, 7>();
  vectors.template run<3>();
}

// Keeps the sums of one square in the tiles while products are added. A store waits for its sum and
// then keeps the matrix unit as long as a dot does; so the sums of a square leave one by one while
// those of the next square begin.
template <class Tiles>
class Sums {
 public:
  // Begins a square that will be stored at `to`, from zero, with its first product.
  template <Reuse reuse, class Vectors>
  [[gnu::always_inline]] void begin(std::byte* to, const std::byte* a, const std::byte* b,
                                    Vectors& vectors) {
    turn<reuse, true>(to, a, b, vectors);
  }

  // Begins a square from what it holds in memory.
  template <Reuse reuse, class Vectors>
  [[gnu::always_inline]] void resume(std::byte* square, const std::byte* a, const std::byte* b,
                                     Vectors& vectors) {
    turn<reuse, false>(square, a, b, vectors);
  }

  template <Reuse reuse, class Vectors>
  [[gnu::always_inline]] void add(const std::byte* a, const std::byte* b, Vectors& vectors) {
    multiply<Tiles, reuse>(a, b, Keep{}, vectors);
  }

  // Puts the last square where it belongs: before anything but this class touches it.
  void finish() {
    if (to_ == nullptr) return;
    Tiles::template store<0>(to_);
    Tiles::template store<1>(to_ + kTileBytes);
    Tiles::template store<2>(to_ + 2 * kTileBytes);
    Tiles::template store<3>(to_ + 3 * kTileBytes);
    to_ = nullptr;
  }

 private:
  struct Keep {
    template <int tile>
    void sum() const {}
  };

  template <bool store, bool zero>
  struct Exchange {
    std::byte* to;
    const std::byte* from;
    template <int tile>
    [[gnu::always_inline]] void sum() const {
      if constexpr (store) Tiles::template store<tile>(to + tile * kTileBytes);
      if constexpr (zero) {
        Tiles::template zero<tile>();
      } else {
        Tiles::template load<tile>(from + tile * kTileBytes);
      }
    }
  };

  template <Reuse reuse, bool zero, class Vectors>
  [[gnu::always_inline]] void turn(std::byte* square, const std::byte* a, const std::byte* b,
                                   Vectors& vectors) {
    if (to_ != nullptr) {
      multiply<Tiles, reuse>(a, b, Exchange<true, zero>{to_, square}, vectors);
    } else {
      multiply<Tiles, reuse>(a, b, Exchange<false, zero>{to_, square}, vectors);
    }
    to_ = square;
  }

  std::byte* to_ = nullptr;  // of the square in the tiles; null: none
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
