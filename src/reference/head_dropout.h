#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "dfa/attention.h"

namespace dfa {

// Salmon and others' Philox-4x32-10 (Parallel Random Numbers: As Easy as 1, 2, 3; 2011), as they
// write it. No engine shares this.
class Philox {
 public:
  using Counter = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  static Counter draw(Counter counter, Key key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t even = std::uint64_t{0xD2511F53} * counter[0];
      const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * counter[2];
      counter = {high(odd) ^ counter[1] ^ key[0], low(odd), high(even) ^ counter[3] ^ key[1],
                 low(even)};
      key[0] += 0x9E3779B9;
      key[1] += 0xBB67AE85;
    }
    return counter;
  }

 private:
  static std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
  static std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
};

// What becomes of a query head's probabilities, by the definition of docs/design/0032-dropout.md.
template <typename Real>
class HeadDropout {
 public:
  HeadDropout(const Problem& p, const Logits& given, std::int64_t b, std::int64_t hq)
      : dropped_(p.dropout == 0 ? 0
                                : std::fmax(1, std::fmin(65535, std::round(p.dropout * 65536)))),
        seed_(p.dropout_seed),
        head_(static_cast<std::uint32_t>((given.dropout_batch + b) * p.hq + hq)) {
    if (given.dropout == nullptr) return;
    seed_ = given.dropout[0];
    offset_ = given.dropout[1];
  }

  // What the probability of key j for query i is multiplied with: 0, or the inverse of the share
  // that is kept.
  Real of(std::int64_t i, std::int64_t j) const {
    if (dropped_ == 0) return 1;
    if (number(i, j) >= 65536 - dropped_) return 0;
    return static_cast<Real>(65536 / (65536 - dropped_));
  }

 private:
  // Of 16 bits: the queries i and i + 8 of sixteen and the keys j, j + 8, j + 16, j + 24 of
  // thirty-two are the eight of one draw.
  std::uint32_t number(std::int64_t i, std::int64_t j) const {
    const auto group = [](std::int64_t at, std::int64_t size) {
      return static_cast<std::uint32_t>(at / size * 8 + at % 8);
    };
    const Philox::Counter words = Philox::draw(
        {group(j, 32), group(i, 16), head_, static_cast<std::uint32_t>(offset_)},
        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>((seed_ ^ offset_) >> 32)});
    const std::int64_t of_eight = i / 8 % 2 * 4 + j / 8 % 4;
    return words[static_cast<std::size_t>(of_eight / 2)] >> (of_eight % 2 * 16) & 0xffff;
  }

  double dropped_;  // of 65536
  std::uint64_t seed_, offset_ = 0;
  std::uint32_t head_;
};

}  // namespace dfa
