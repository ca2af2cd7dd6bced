#pragma once

#include <cstddef>
#include <cstdint>

#include "spec/dropout.h"

// Which probabilities a dropout keeps (docs/design/0032-dropout.md), drawn for a tile at a time.
// One draw of Philox has 16 bits for each of eight pairs: queries i and i + 8 of sixteen and keys
// j, j + 8, j + 16, j + 24 of thirty-two. Eight draws beside each other, which the compiler makes
// vectors of, are a bit for each of 32 keys in two rows.
namespace dfa::cpu {

template <class Isa>
class SimdDropout {
 public:
  static constexpr int kQueries = 16, kKeys = 32;  // of eight draws

  // Counters, then what is drawn. A draw is a column.
  struct Draws {
    std::uint32_t words[4][8];
  };

  static void philox(Draws& x, std::uint32_t key0, std::uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 8; ++i) {
        const std::uint64_t even = 0xD2511F53ull * x.words[0][i];
        const std::uint64_t odd = 0xCD9E8D57ull * x.words[2][i];
        x.words[0][i] = static_cast<std::uint32_t>(odd >> 32) ^ x.words[1][i] ^ key0;
        x.words[1][i] = static_cast<std::uint32_t>(odd);
        x.words[2][i] = static_cast<std::uint32_t>(even >> 32) ^ x.words[3][i] ^ key1;
        x.words[3][i] = static_cast<std::uint32_t>(even);
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }

  // Floats of scratch for tiles of so many rows and keys, of which `at_once` rows are asked for
  // together.
  static std::ptrdiff_t scratch_words(int rows, int keys, int at_once) {
    return rows * bit_words(keys) + at_once * (keys + kKeys);
  }

  SimdDropout(const DropoutDraw& draw, int rows, int keys, std::byte* scratch)
      : draw_(draw),
        stride_(bit_words(keys)),
        width_(keys + kKeys),
        bits_(reinterpret_cast<std::uint32_t*>(scratch)),
        kept_(reinterpret_cast<float*>(scratch) + rows * stride_) {}

  // Of rows [row, row + rows) of query head `head`, all heads counted, and keys [key, key + keys).
  void draw(std::uint32_t head, std::int64_t row, int rows, std::int64_t key, int keys) {
    shift_ = static_cast<int>(key % kKeys);
    const int words = (shift_ + keys + kKeys - 1) / kKeys;
    for (std::int64_t sixteen = row / kQueries; sixteen * kQueries < row + rows; ++sixteen) {
      for (int of_eight = 0; of_eight < 8; ++of_eight) {
        const std::int64_t low = sixteen * kQueries + of_eight - row, high = low + 8;
        const bool has_low = low >= 0 && low < rows, has_high = high >= 0 && high < rows;
        if (!has_low && !has_high) continue;
        const auto query = static_cast<std::uint32_t>(sixteen * 8 + of_eight);
        for (int word = 0; word < words; ++word) {
          std::uint32_t bits[2];
          pairs(head, query, static_cast<std::uint32_t>(key / kKeys + word), bits);
          if (has_low) bits_[low * stride_ + word] = bits[0];
          if (has_high) bits_[high * stride_ + word] = bits[1];
        }
      }
    }
    keys_ = keys;
  }

  // 1 for a key that row number `row` of those keeps, and 0, in the place of `at_once`.
  const float* kept(int row, int at_once = 0) {
    float* to = kept_ + at_once * width_;
    for (int first = 0; first < shift_ + keys_; first += kKeys) {
      const std::uint32_t bits = bits_[row * stride_ + first / kKeys];
      for (int i = 0; i < kKeys; ++i) to[first + i] = static_cast<float>(bits >> i & 1u);
    }
    return to + shift_;
  }

  // The same for one row and 32 keys from a multiple of those on, without scratch.
  static void kept_of(const DropoutDraw& draw, std::uint32_t head, std::int64_t row,
                      std::int64_t key, float* to) {
    std::uint32_t bits[2];
    SimdDropout(draw, 0, 0, nullptr)
        .pairs(head, static_cast<std::uint32_t>(row / kQueries * 8 + row % 8),
               static_cast<std::uint32_t>(key / kKeys), bits);
    for (int i = 0; i < kKeys; ++i) {
      to[i] = static_cast<float>(bits[row / 8 % 2] >> i & 1u);
    }
  }

 private:
  static std::ptrdiff_t bit_words(int keys) { return keys / kKeys + 2; }

  // Eight draws: a bit for each of 32 keys of the query, and of the one eight behind it.
  void pairs(std::uint32_t head, std::uint32_t query, std::uint32_t keys,
             std::uint32_t (&bits)[2]) const {
    Draws x;
    for (std::uint32_t i = 0; i < 8; ++i) {
      x.words[0][i] = keys * 8 + i;
      x.words[1][i] = query;
      x.words[2][i] = head;
      x.words[3][i] = draw_.offset;
    }
    philox(x, draw_.key[0], draw_.key[1]);
    for (int half = 0; half < 2; ++half) {
      std::uint32_t all = 0;
      for (int word = 0; word < 2; ++word) {
        for (int i = 0; i < 8; ++i) {
          const std::uint32_t numbers = x.words[2 * half + word][i];
          const std::uint32_t low = (numbers & 0xffffu) < draw_.kept ? 1 : 0;
          const std::uint32_t high = (numbers >> 16) < draw_.kept ? 1 : 0;
          all |= (low | high << 8) << (16 * word + i);
        }
      }
      bits[half] = all;
    }
  }

  const DropoutDraw& draw_;
  std::ptrdiff_t stride_;  // words of a row
  int width_;
  std::uint32_t* bits_;
  float* kept_;
  int shift_ = 0;  // keys of the first word before the tile's
  int keys_ = 0;
};

}  // namespace dfa::cpu
