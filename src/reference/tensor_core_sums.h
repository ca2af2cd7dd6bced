#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/head.h"

// row · columns[begin, end) as Hopper's tensor cores sum it in e4m3, given the columns' transpose:
// a step adds 32 products to the sum before, and cuts what it adds below 14 bits of the largest.
// One H200 shows these errors of the log-sum-exp (docs/design/0035).
namespace dfa {

inline std::vector<float> tensor_core_sums(const float* row, const Matrix<float>& transposed,
                                           std::int64_t begin, std::int64_t end, SumOrder order) {
  constexpr std::int64_t kStep = 32;
  constexpr float kLastBit = 0x1p-13f;  // of 14, beside the first
  const auto unit_of = [](float largest) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(largest) & 0x7f800000u) * kLastBit;
  };
  const auto count = static_cast<std::size_t>(end - begin);
  std::vector<float> sums(count, 0), units(count);
  for (std::int64_t first = 0; first < transposed.rows; first += kStep) {
    const std::int64_t last = std::min(first + kStep, transposed.rows);
    for (std::size_t j = 0; j < count; ++j) units[j] = std::fabs(sums[j]);
    for (std::int64_t n = first; n < last; ++n) {
      const std::int64_t x = order.term(n, transposed.rows);
      const float* column = transposed.row(x) + begin;
      for (std::size_t j = 0; j < count; ++j) {
        units[j] = std::max(units[j], std::fabs(row[x] * column[j]));
      }
    }
    for (float& unit : units) unit = unit_of(unit);
    for (std::size_t j = 0; j < count; ++j) {
      sums[j] = units[j] > 0 ? std::trunc(sums[j] / units[j]) * units[j] : sums[j];
    }
    for (std::int64_t n = first; n < last; ++n) {
      const std::int64_t x = order.term(n, transposed.rows);
      const float* column = transposed.row(x) + begin;
      for (std::size_t j = 0; j < count; ++j) {
        const float product = row[x] * column[j];
        sums[j] += units[j] > 0 ? std::trunc(product / units[j]) * units[j] : product;
      }
    }
  }
  return sums;
}

}  // namespace dfa
