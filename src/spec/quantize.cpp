#include "spec/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/element.h"

namespace dfa {
namespace {

constexpr float kLargest = 448;

// visit(element) of all that has factor `hk` of batches [begin, end).
template <typename Visit>
void each_element(const Quantizable& t, std::int64_t begin, std::int64_t end, std::int64_t hk,
                  const Visit& visit) {
  for (std::int64_t b = begin; b < end; ++b) {
    for (std::int64_t h = hk * t.group; h < (hk + 1) * t.group; ++h) {
      for (std::int64_t row = 0; row < t.rows; ++row) {
        const std::int64_t first = b * t.strides.batch + h * t.strides.head + row * t.strides.row;
        for (std::int64_t x = 0; x < t.columns; ++x) visit(first + x);
      }
    }
  }
}

}  // namespace

Quantizable quantizable_q(const Problem& p) {
  return {p.q(), p.batches(), p.hq, p.q_rows(), p.d, p.hq / p.hk, !p.packed()};
}
Quantizable quantizable_k(const Problem& p) {
  return {p.k(), p.k_batches(), p.hk, p.k_rows(), p.d, 1, !p.packed()};
}
Quantizable quantizable_v(const Problem& p) {
  return {p.v(), p.k_batches(), p.hk, p.k_rows(), p.dv, 1, !p.packed()};
}

std::vector<float> quantize(const float* from, const Quantizable& tensor, void* to) {
  std::vector<float> factors;
  const std::int64_t step = tensor.by_batch ? 1 : tensor.b;
  for (std::int64_t b = 0; b < tensor.b; b += step) {
    for (std::int64_t hk = 0; hk < tensor.heads / tensor.group; ++hk) {
      float largest = 0;
      each_element(tensor, b, b + step, hk,
                   [&](std::int64_t at) { largest = std::max(largest, std::fabs(from[at])); });
      const float factor = largest > 0 ? largest / kLargest : 1.0f;
      each_element(tensor, b, b + step, hk,
                   [&](std::int64_t at) { store_element(to, DType::e4m3, at, from[at] / factor); });
      factors.push_back(factor);
    }
  }
  return factors;
}

Descales descales_of(const Problem& p, const float* q, const float* k, const float* v) {
  const std::int64_t batch = p.packed() ? 0 : p.hk;
  return {{q, batch, 1}, {k, batch, 1}, {v, batch, 1}};
}

}  // namespace dfa
