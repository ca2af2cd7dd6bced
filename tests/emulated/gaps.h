#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tensors.h"

namespace dfa::emulated {

// q, k and v are NaN in rows that belong to no sequence: nothing of them may be read as a number.
struct Gaps {
  Tensors t;
  std::vector<std::int32_t> used_q, used_k;

  explicit Gaps(const std::string& line) : t(line, 7) {
    for (std::int64_t i = 0; i < t.p.b; ++i) {
      const auto n = static_cast<std::size_t>(i);
      used_q.push_back(cut(t.p.lens_q[n], 3));
      used_k.push_back(cut(t.p.lens_k[n], 5));
      poison(t.q, t.p.q(), t.p.hq, t.p.d, t.cu_seqlens_q, used_q, n);
      poison(t.k, t.p.k(), t.p.hk, t.p.d, t.cu_seqlens_k, used_k, n);
      poison(t.v, t.p.v(), t.p.hk, t.p.dv, t.cu_seqlens_k, used_k, n);
      poison(t.d_o, t.p.o(), t.p.hq, t.p.dv, t.cu_seqlens_q, used_q, n);
    }
  }
  template <typename Args>
  Args with(Args args) const {
    args.sequences.seqused_q = used_q.data();
    args.sequences.seqused_k = used_k.data();
    return args;
  }

 private:
  static std::int32_t cut(std::int64_t length, std::int64_t less) {
    return static_cast<std::int32_t>(std::max<std::int64_t>(0, length - less));
  }
  void poison(std::vector<std::byte>& tensor, const Strides& s, std::int64_t heads,
              std::int64_t columns, const std::vector<std::int32_t>& begins,
              const std::vector<std::int32_t>& used, std::size_t n) const {
    for (std::int64_t row = begins[n] + used[n]; row < begins[n + 1]; ++row) {
      for (std::int64_t at = 0; at < heads * columns; ++at) {
        t.set(tensor, row * s.row + at / columns * s.head + at % columns, std::nanf(""));
      }
    }
  }
};

}  // namespace dfa::emulated
