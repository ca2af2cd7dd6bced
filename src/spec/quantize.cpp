#include "spec/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/element.h"
#include "spec/descale.h"

namespace dfa {
namespace {

constexpr float kLargest = 448;

// What has one factor: batches and rows [begin, end) of a key head.
struct Part {
  std::int64_t batch_begin, batch_end, hk, row_begin, row_end;
};

// visit(element) of all of a part.
template <typename Visit>
void each_element(const Quantizable& t, const Part& part, const Visit& visit) {
  for (std::int64_t b = part.batch_begin; b < part.batch_end; ++b) {
    for (std::int64_t h = part.hk * t.group; h < (part.hk + 1) * t.group; ++h) {
      for (std::int64_t row = part.row_begin; row < part.row_end; ++row) {
        const std::int64_t first = b * t.strides.batch + h * t.strides.head + row * t.strides.row;
        for (std::int64_t x = 0; x < t.columns; ++x) visit(first + x);
      }
    }
  }
}

}  // namespace

Quantizable quantizable_q(const Problem& p) {
  return {p.q(), p.batches(), p.hq, p.q_rows(), p.d, p.hq / p.hk, !p.packed(), p.descale_rows};
}
Quantizable quantizable_k(const Problem& p) {
  return {p.k(), p.k_batches(), p.hk, p.k_rows(), p.d, 1, !p.packed(), p.descale_rows};
}
Quantizable quantizable_v(const Problem& p) {
  return {p.v(), p.k_batches(), p.hk, p.k_rows(), p.dv, 1, !p.packed(), p.descale_rows};
}

std::vector<float> quantize(const float* from, const Quantizable& tensor, void* to) {
  std::vector<float> factors;
  const std::int64_t step = tensor.by_batch ? 1 : tensor.b;
  const std::int64_t rows = tensor.block > 0 ? tensor.block : tensor.rows;
  for (std::int64_t b = 0; b < tensor.b; b += step) {
    for (std::int64_t hk = 0; hk < tensor.heads / tensor.group; ++hk) {
      for (std::int64_t row = 0; row < tensor.rows; row += rows) {
        const Part part{b, b + step, hk, row, std::min(row + rows, tensor.rows)};
        float largest = 0;
        each_element(tensor, part,
                     [&](std::int64_t at) { largest = std::max(largest, std::fabs(from[at])); });
        const float factor = largest > 0 ? largest / kLargest : 1.0f;
        each_element(tensor, part, [&](std::int64_t at) {
          store_element(to, DType::e4m3, at, from[at] / factor);
        });
        factors.push_back(factor);
      }
    }
  }
  return factors;
}

Descales descales_of(const Problem& p, const float* q, const float* k, const float* v) {
  const auto of = [&](const float* values, std::int64_t rows) {
    const std::int64_t head = descale_blocks(p, rows);
    return Descale{values, p.packed() ? 0 : p.hk * head, head, 1};
  };
  return {of(q, p.sq), of(k, p.sk), of(v, p.sk)};
}

}  // namespace dfa
