#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/element.h"
#include "base/fill.h"
#include "dfa/attention.h"
#include "spec/bias.h"
#include "spec/block_lists.h"
#include "spec/lengths.h"
#include "spec/quantize.h"

namespace dfa {

// Host tensors of a problem, in its strides, filled with seeded normal values; outputs start as
// NaN. Of a paged problem the cache has pages in no order, as many as all lengths need, and is NaN
// behind the end of each.
struct Tensors {
  Problem p;
  std::vector<std::byte> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  // of packed sequences
  std::vector<std::int32_t> block_table, seqused_k;      // of paged ones
  std::vector<float> slopes, sinks, d_sinks;             // of [b, hq] for alibi, else of [hq]
  std::vector<std::byte> bias;
  std::vector<float> d_bias;
  const std::uint64_t* dropout = nullptr;  // seed and offset, in the place of the problem's seed
  BlockArrays blocks;
  HostDescales factors;  // of e4m3, [b, hk, blocks of rows], of packed sequences too

  explicit Tensors(const std::string& line, std::uint64_t seed = 1)
      : p(parse_problem(line)), blocks(p) {
    const std::int64_t b = p.batches(), q_rows = p.q_rows(), k_rows = p.k_rows();
    const std::int64_t q_count = extent(p.q(), b, p.hq, q_rows, p.d);
    const std::int64_t k_count = extent(p.k(), p.k_batches(), p.hk, k_rows, p.d);
    const std::int64_t v_count = extent(p.v(), p.k_batches(), p.hk, k_rows, p.dv);
    const std::int64_t o_count = extent(p.o(), b, p.hq, q_rows, p.dv);
    q = filled(p.dtype, q_count, seed);
    k = filled(p.kv_dtype(), k_count, seed + 1);
    v = filled(p.kv_dtype(), v_count, seed + 2);
    d_o = filled(p.o_dtype(), o_count, seed + 3);
    o = empty(p.o_dtype(), o_count);
    dq = empty(p.dtype, q_count);
    dk = empty(p.dtype, k_count);
    dv = empty(p.dtype, v_count);
    if (p.kv_dtype() == DType::e4m3) {
      factors = {p.kv ? std::vector<float>{} : quantized(q, quantizable_q(p), seed),
                 quantized(k, quantizable_k(p), seed + 1),
                 quantized(v, quantizable_v(p), seed + 2)};
    }
    lse.assign(static_cast<std::size_t>(b * p.hq * q_rows), std::nanf(""));
    if (p.alibi) slopes = floats(p.b * p.hq, seed + 4, 0.2f);
    if (p.sink) sinks = floats(p.hq, seed + 5, 1.5f);
    d_sinks.assign(sinks.size(), std::nanf(""));
    if (p.bias) {
      const std::int64_t count = bias_sizes(p).elements();
      bias.resize(static_cast<std::size_t>(count * bytes_of(p.bias->dtype)));
      fill_normal(bias.data(), p.bias->dtype, count, seed + 6);
      d_bias.assign(static_cast<std::size_t>(count), std::nanf(""));
    }
    if (p.packed() && !p.lens_q.empty()) {
      cu_seqlens_q = cu_seqlens_of(p.lens_q);
      cu_seqlens_k = cu_seqlens_of(p.lens_k);
    }
    if (p.paged()) lay_pages(seed + 6);
  }

  // On the host.
  Sequences sequences() const {
    if (!p.packed()) return {};
    if (p.paged()) {
      return {.cu_seqlens_q = cu_seqlens_q.empty() ? nullptr : cu_seqlens_q.data(),
              .seqused_k = seqused_k.data(),
              .block_table = block_table.data(),
              .table_row = p.table_columns()};
    }
    return {.cu_seqlens_q = cu_seqlens_q.data(), .cu_seqlens_k = cu_seqlens_k.data()};
  }

  Logits logits() const {
    return {.alibi_slopes = p.alibi ? slopes.data() : nullptr,
            .slopes_of_batch = p.alibi ? p.hq : 0,
            .sinks = p.sink ? sinks.data() : nullptr,
            .bias = p.bias ? bias.data() : nullptr,
            .bias_strides = p.bias ? bias_strides(p, {}) : Strides{},
            .dropout = dropout};
  }

  ForwardArgs forward_args() {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = lse.data(),
            .sequences = sequences(),
            .logits = logits(),
            .blocks = blocks.pointers(),
            .descales = descales()};
  }
  Descales descales() const {
    Descales all = descales_of(p, factors);
    if (p.packed()) all.q.batch = all.k.batch = all.v.batch = p.hk;
    return all;
  }
  BackwardArgs backward_args() {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = lse.data(),
            .d_o = d_o.data(),
            .dq = dq.data(),
            .dk = dk.data(),
            .dv = dv.data(),
            .sequences = sequences(),
            .logits = logits(),
            .d_sinks = p.sink ? d_sinks.data() : nullptr,
            .d_bias = d_bias.empty() ? nullptr : d_bias.data(),
            .d_bias_strides = p.bias ? bias_strides(p, {}) : Strides{},
            .blocks = blocks.pointers()};
  }

  // Row j of a sequence's keys, as a row of all pages.
  std::int64_t row_in_pages(std::int64_t sequence, std::int64_t j) const {
    const std::int64_t entry = sequence * p.table_columns() + j / p.page;
    return block_table[static_cast<std::size_t>(entry)] * p.page + j % p.page;
  }
  // Of k and v of a paged problem.
  void fill_row(std::int64_t row, float value) {
    for (std::int64_t h = 0; h < p.hk; ++h) {
      const std::int64_t page = row / p.page, at = row % p.page;
      for (std::int64_t x = 0; x < p.d; ++x) {
        set(k, page * p.k().batch + at * p.k().row + h * p.k().head + x, value);
      }
      for (std::int64_t x = 0; x < p.dv; ++x) {
        set(v, page * p.v().batch + at * p.v().row + h * p.v().head + x, value);
      }
    }
  }

  float at(const std::vector<std::byte>& t, std::int64_t index) const {
    return load_element(t.data(), type_of(t), index);
  }
  void set(std::vector<std::byte>& t, std::int64_t index, float value) const {
    store_element(t.data(), type_of(t), index, value);
  }
  std::int64_t count(const std::vector<std::byte>& t) const {
    return static_cast<std::int64_t>(t.size()) / bytes_of(type_of(t));
  }

 private:
  void lay_pages(std::uint64_t seed) {
    std::vector<std::int32_t> free(static_cast<std::size_t>(p.k_batches()));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937_64(seed));
    block_table.assign(static_cast<std::size_t>(p.b * p.table_columns()), -1);
    for (std::int64_t i = 0; i < p.b; ++i) {
      const std::int64_t rows = p.lens_k.empty() ? p.sk : p.lens_k[static_cast<std::size_t>(i)];
      seqused_k.push_back(static_cast<std::int32_t>(rows));
      for (std::int64_t j = 0; j < rows; j += p.page) {
        block_table[static_cast<std::size_t>(i * p.table_columns() + j / p.page)] = free.back();
        free.pop_back();
      }
      const std::int64_t end = (rows + p.page - 1) / p.page * p.page;
      for (std::int64_t j = rows; j < end; ++j) fill_row(row_in_pages(i, j), std::nanf(""));
    }
  }
  static std::vector<float> floats(std::int64_t count, std::uint64_t seed, float size) {
    std::vector<float> values(static_cast<std::size_t>(count));
    fill_normal(values.data(), DType::fp32, count, seed);
    for (float& value : values) value *= size;
    return values;
  }
  DType type_of(const std::vector<std::byte>& t) const {
    if (&t == &k || &t == &v) return p.kv_dtype();
    return &t == &o || &t == &d_o ? p.o_dtype() : p.dtype;
  }
  static std::vector<std::byte> empty(DType type, std::int64_t count) {
    return std::vector<std::byte>(static_cast<std::size_t>(count * bytes_of(type)),
                                  std::byte{0xff});
  }
  static std::vector<std::byte> filled(DType type, std::int64_t count, std::uint64_t seed) {
    std::vector<std::byte> data = empty(type, count);
    fill_normal(data.data(), type, count, seed);
    return data;
  }
  // Normal values in e4m3, and their factors, which differ so far that no head or block of rows
  // passes for another;
  // each packed sequence has its own.
  std::vector<float> quantized(std::vector<std::byte>& to, const Quantizable& tensor,
                               std::uint64_t seed) const {
    const std::vector<float> drawn = floats(std::ssize(to), seed, 1.0f);
    std::vector<float> own = quantize(drawn.data(), tensor, to.data());
    for (std::int64_t i = 1; p.packed() && i < p.b; ++i) {
      own.insert(own.end(), own.begin(), own.begin() + p.hk);
    }
    for (std::size_t n = 0; n < own.size(); ++n) own[n] *= 0.5f + 0.25f * static_cast<float>(n % 5);
    return own;
  }
};

}  // namespace dfa
