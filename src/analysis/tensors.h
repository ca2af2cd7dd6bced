#pragma once

#include "dfa/problem.h"
#include "spec/bias.h"

namespace dfa::analysis {

// Bytes of the tensors of a problem; strides are left out, only elements count.
struct Tensors {
  double q, k, v, o;
  double scores;                // one matrix like S, all query heads, in the element type
  double mask;                  // one byte a score: what a dropout keeps
  double row;                   // one fp32 a query row: lse, delta
  double dq_sums;               // dq in fp32
  double bias = 0, d_bias = 0;  // of logits, and its gradient in fp32, 0 where there is none

  explicit Tensors(const Problem& p) {
    const double element = bytes_of(p.dtype);
    const double query_rows = real(p.b) * real(p.hq) * real(p.sq);
    const double key_rows = real(p.b) * real(p.hk) * real(p.sk);
    q = element * query_rows * real(p.d);
    k = bytes_of(p.kv_dtype()) * key_rows * real(p.d);
    v = bytes_of(p.kv_dtype()) * key_rows * real(p.dv);
    o = bytes_of(p.o_dtype()) * query_rows * real(p.dv);
    mask = query_rows * real(p.sk);
    scores = element * mask;
    row = 4.0 * query_rows;
    dq_sums = 4.0 * query_rows * real(p.d);
    if (p.bias) {  // of lengths up to 2^40 the elements are no integer of 64 bits
      const BiasSizes sizes = bias_sizes(p);
      const double values = real(sizes.b) * real(sizes.hq) * real(sizes.sq) * real(sizes.sk);
      bias = bytes_of(p.bias->dtype) * values;
      d_bias = 4.0 * values;
    }
  }

 private:
  static double real(std::int64_t value) { return static_cast<double>(value); }
};

}  // namespace dfa::analysis
