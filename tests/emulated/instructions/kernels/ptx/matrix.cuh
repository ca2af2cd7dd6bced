#pragma once

#include "base/float16.h"
#include "dfa/dtype.h"
#include "emulated/async.h"
#include "kernels/device.h"

namespace dfa::ptx {

inline void ldmatrix(unsigned (&r)[4], unsigned address) {
  const unsigned lane = emulated::lane();
  emulated::exchange(address, [&](auto said) {
    for (unsigned j = 0; j < 4; ++j) {
      std::memcpy(&r[j], smem + said(j * 8 + lane / 4) + lane % 4 * 4, 4);
    }
  });
}

inline void ldmatrix_trans(unsigned (&r)[4], unsigned address) {
  const unsigned lane = emulated::lane();
  emulated::exchange(address, [&](auto said) {
    for (unsigned j = 0; j < 4; ++j) {
      unsigned short two[2];
      for (unsigned i = 0; i < 2; ++i) {
        std::memcpy(&two[i], smem + said(j * 8 + lane % 4 * 2 + i) + lane / 4 * 2, 2);
      }
      r[j] = two[0] | static_cast<unsigned>(two[1]) << 16;
    }
  });
}

inline void store_matrices(unsigned address, const unsigned (&r)[4]) {
  const unsigned lane = emulated::lane();
  emulated::exchange(address, [&](auto said) {
    for (unsigned j = 0; j < 4; ++j) {
      emulated::store_word(said(j * 8 + lane / 4) + lane % 4 * 4, r[j]);
    }
  });
}

inline void store_matrices_trans(unsigned address, const unsigned (&r)[4]) {
  const unsigned lane = emulated::lane();
  struct Said {
    unsigned address, r[4];
  };
  // Row i of the transposed matrix is column i: two lanes' halves make a word.
  emulated::exchange(Said{address, {r[0], r[1], r[2], r[3]}}, [&](auto said) {
    const unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned j = 0; j < 4; ++j) {
      unsigned word = 0;
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned two = said((column + i) * 4 + row / 2).r[j];
        word |= (two >> (row % 2 * 16) & 0xffffu) << (16 * i);
      }
      emulated::store_word(said(j * 8 + row).address + column * 2, word);
    }
  });
}

inline void transpose(unsigned& r) {
  const unsigned row = emulated::lane() / 4, column = emulated::lane() % 4 * 2;
  emulated::exchange(r, [&](auto said) {
    unsigned word = 0;
    for (unsigned i = 0; i < 2; ++i) {
      word |= (said((column + i) * 4 + row / 2) >> (row % 2 * 16) & 0xffffu) << (16 * i);
    }
    r = word;
  });
}

// 16 x 8 x 16 on fp16 and bf16, 16 x 8 x 8 on tf32, summed in fp64 and rounded once.
template <DType kElement>
void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  constexpr bool kWide = kElement == DType::tf32;
  static_assert(kWide || kElement == DType::bf16 || kElement == DType::fp16);
  constexpr unsigned kDepth = kWide ? 8 : 16, kAWord = kWide ? 1 : 2;
  struct Operands {
    unsigned a[4], b[2];
  };
  const auto half = [](unsigned word, unsigned k) {
    if (kWide) return static_cast<double>(__uint_as_float(word & ~0x1fffu));
    if (kElement == DType::fp16) {
      return static_cast<double>(
          to_float(fp16{static_cast<std::uint16_t>(k % 2 == 0 ? word : word >> 16)}));
    }
    return static_cast<double>(__uint_as_float(k % 2 == 0 ? word << 16 : word & 0xffff0000u));
  };
  const unsigned lane = emulated::lane();
  emulated::exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](auto said) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = c[i];
      for (unsigned k = 0; k < kDepth; ++k) {
        const unsigned left =
            said(row % 8 * 4 + k % (4 * kAWord) / kAWord).a[row / 8 + k / (4 * kAWord) * 2];
        const unsigned right = said(column * 4 + k % (4 * kAWord) / kAWord).b[k / (4 * kAWord)];
        sum += half(left, k) * half(right, k);
      }
      c[i] = static_cast<float>(sum);
    }
  });
}

}  // namespace dfa::ptx
