#pragma once

#include "cpu/amx_pack.h"
#include "cpu/amx_products.h"
#include "cpu/engine.h"

// FlashAttention backward on matrix tiles. Scores are formed transposed, [keys][queries]: lse and
// delta are then vectors, P^T and dS^T rounded to bf16 are the left operands of dv and dk as they
// are, and dS^T with its rows interleaved in pairs is the right operand of dq^T. A *step* is a
// block of keys against a block of queries of one head; steps form the pipeline of the forward:
//
//   step i, matrix unit:  dv += P^T dO, dk += dS^T Q, dq^T += K^T dS^T of i-1,
//                         then S^T = K Q^T and dP^T = V dO^T of i+1
//   step i, vector units: P^T(i) = exp2(c S^T - lse), dS^T(i) = P^T (dP^T - delta), rounding
namespace dfa::cpu::amx {
namespace {

struct BackwardStep {
  std::int64_t first_key = 0, first_query = 0;  // units
  int keys = 0, queries = 0;                    // units; none: no step
  int head = 0;                                 // of the group
  int squares() const { return keys * queries; }
};

// Four vectors of each kind: two key rows of one square.
struct GradientSlice {
  const std::byte* scores;
  const std::byte* products;  // dP^T
  std::byte* weights;         // P^T as A tiles
  std::byte* gradients;       // dS^T as A tiles
  std::byte* pairs;           // dS^T as B tiles; column c of tile t is query 8 (c/4) + 4 t + c%4
  const float* lse;           // of the step's first unit of queries
  std::size_t query_unit;     // bytes to the next unit's
  std::int64_t queries;       // units
  __m512 scale;
  mutable std::int64_t query = 0;

  [[gnu::always_inline]] const float* row_constants() const {
    return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(lse) +
                                          static_cast<std::size_t>(query) * query_unit);
  }

  [[gnu::always_inline]] void row(const std::byte* s, const std::byte* dp, const float* constants,
                                  std::int64_t at, __m512i& rounded) const {
    const __m512 p0 = exp2<3>(_mm512_fmsub_ps(_mm512_load_ps(s), scale, _mm512_load_ps(constants)));
    const __m512 p1 = exp2<3>(
        _mm512_fmsub_ps(_mm512_load_ps(s + kTileBytes), scale, _mm512_load_ps(constants + 16)));
    _mm512_store_si512(weights + at, to_bf16(p0, p1));
    const __m512 d0 = _mm512_sub_ps(_mm512_load_ps(dp), _mm512_load_ps(constants + 32));
    const __m512 d1 =
        _mm512_sub_ps(_mm512_load_ps(dp + kTileBytes), _mm512_load_ps(constants + 48));
    rounded = to_bf16(_mm512_mul_ps(p0, d0), _mm512_mul_ps(p1, d1));
    _mm512_store_si512(gradients + at, rounded);
  }

  [[gnu::always_inline]] void operator()(std::int64_t index) const {
    const std::int64_t at = (index >> 3) * 2048 + (index & 7) * 128;
    const float* constants = row_constants();
    __m512i even, odd;
    row(scores + at, products + at, constants, index * 128, even);
    row(scores + at + kRowBytes, products + at + kRowBytes, constants, index * 128 + 64, odd);
    std::byte* pair = pairs + (index >> 4) * 2048 + (index & 15) * 64;
    _mm512_store_si512(pair, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(pair + kTileBytes, _mm512_unpackhi_epi16(even, odd));
    if ((index & 15) == 15) query = query + 1 == queries ? 0 : query + 1;
  }
};

struct BackwardScratch {
  std::size_t dk, dv, scores, products, bf16, bf16_size, total;

  BackwardScratch(const BackwardConfig& config, int d, int dv_width) {
    const auto keys = static_cast<std::size_t>(config.block_k / kUnit);
    const auto squares = keys * static_cast<std::size_t>(config.block_q / kUnit);
    dk = 0;
    dv = dk + kSquareBytes * keys * static_cast<std::size_t>(units(d));
    scores = dv + kSquareBytes * keys * static_cast<std::size_t>(units(dv_width));
    products = scores + kSquareBytes * squares;
    bf16 = products + kSquareBytes * squares;
    bf16_size = kHalfSquareBytes * squares;  // of one of P^T, dS^T, pairs; all twice
    total = align64(bf16 + 6 * bf16_size);
  }
};

template <class Tiles>
class Backward {
 public:
  Backward(const BackwardConfig& config, const HeadShape& shape, const BackwardTile& tile)
      : shape_(shape),
        tile_(tile),
        kv_(shape.sk, shape.d, shape.dv),
        q_(shape.sq, shape.d, shape.dv),
        at_(config, shape.d, shape.dv),
        k_depth_(static_cast<int>(units(shape.d))),
        v_depth_(static_cast<int>(units(shape.dv))),
        key_block_(config.block_k / kUnit),
        query_block_(config.block_q / kUnit),
        scale_(shape.scale * kLog2E) {}

  void run() {
    for (int head = 0; head < tile_.group; ++head) {
      __builtin_memset(dq_of(head, 0), 0, dq_unit() * static_cast<std::size_t>(q_.count));
    }
    const std::int64_t end = units(tile_.key_end);
    for (std::int64_t key = tile_.key_begin / kUnit; key < end; key += key_block_) {
      const std::int64_t left = end - key;
      const int keys = static_cast<int>(left < key_block_ ? left : key_block_);
      __builtin_memset(scratch(0), 0, at_.scores);
      Tiles::configure();
      3 * k_depth_ + 2 * v_depth_ <= 5    ? steps<4>(key, keys)
      : 3 * k_depth_ + 2 * v_depth_ <= 10 ? steps<2>(key, keys)
                                          : steps<1>(key, keys);
      Tiles::release();
      store(key, keys);
    }
  }

 private:
  std::byte* scratch(std::size_t offset) const { return tile_.scratch + offset; }
  std::size_t dq_unit() const { return kSquareBytes * static_cast<std::size_t>(k_depth_); }
  std::byte* dq_of(int head, std::int64_t unit) const {
    return reinterpret_cast<std::byte*>(tile_.dq_sums +
                                        tile_.dq_sums_stride * static_cast<std::size_t>(head)) +
           dq_unit() * static_cast<std::size_t>(unit);
  }
  std::byte* bf16(int kind, int turn) const {  // kind 0: P^T, 1: dS^T, 2: pairs
    return scratch(at_.bf16 + at_.bf16_size * static_cast<std::size_t>(2 * kind + (turn & 1)));
  }
  const std::byte* k_of(std::int64_t unit) const {
    return tile_.packed_kv + kv_.unit * static_cast<std::size_t>(unit);
  }
  const std::byte* q_of(int head, std::int64_t unit) const {
    return tile_.packed_q + tile_.packed_q_stride * static_cast<std::size_t>(head) +
           q_.unit * static_cast<std::size_t>(unit);
  }
  std::int64_t query_begin(std::int64_t key) const {
    return shape_.mask.query_begin(key, shape_.sq, shape_.sk);
  }
  std::int64_t query_end(std::int64_t key) const {
    return shape_.mask.query_end(key, shape_.sq, shape_.sk);
  }
  std::int64_t last_key(std::int64_t unit) const {
    const std::int64_t last = unit * kUnit + kUnit - 1;
    return last < shape_.sk ? last : shape_.sk - 1;
  }

  BackwardStep next_step(std::int64_t first_key, int keys, int& head, std::int64_t& query) const {
    const std::int64_t begin = query_begin(first_key * kUnit) / kUnit;
    const std::int64_t end = units(query_end(last_key(first_key + keys - 1)));
    if (query < begin) query = begin;
    if (query >= end) {
      query = begin;
      ++head;
    }
    if (begin >= end || head >= tile_.group) return {};
    const std::int64_t left = end - query;
    const int queries = static_cast<int>(left < query_block_ ? left : query_block_);
    const BackwardStep step{first_key, query, keys, queries, head};
    query += queries;
    return step;
  }

  template <int rate>
  void steps(std::int64_t first_key, int keys) {
    int head = 0;
    std::int64_t query = 0;
    BackwardStep last, now = next_step(first_key, keys, head, query);
    Idle idle;
    Sums<Tiles> sums;
    scores(now, sums, idle);
    for (int turn = 0; now.squares() > 0; ++turn) {
      const BackwardStep next = next_step(first_key, keys, head, query);
      sums.finish();
      hide_masked(now);
      Paced<GradientSlice, rate> vectors{
          {scratch(at_.scores), scratch(at_.products), bf16(0, turn), bf16(1, turn), bf16(2, turn),
           reinterpret_cast<const float*>(q_of(now.head, now.first_query) + q_.lse), q_.unit,
           now.queries, _mm512_set1_ps(scale_)},
          0,
          16 * now.squares()};
      gradients(last, turn + 1, sums, vectors);
      scores(next, sums, vectors);
      vectors.finish(vectors.count);
      last = now;
      now = next;
      if (now.squares() == 0) gradients(last, turn, sums, idle);
    }
    sums.finish();
  }

  // One square: to = a b over `depth` units of the inner dimension, tiles in order. The square
  // before is stored now: first the vectors must be done with what was there.
  template <class Vectors>
  [[gnu::always_inline]] static void form(const std::byte* a, const std::byte* b, int depth,
                                          std::byte* to, std::int64_t slices_before,
                                          Sums<Tiles>& sums, Vectors& vectors) {
    vectors.finish(slices_before);
    sums.template begin<Reuse::near>(to, a, b, vectors);
    for (int i = 1; i < depth; ++i) {
      a += kHalfSquareBytes;
      b += kHalfSquareBytes;
      sums.template add<Reuse::near>(a, b, vectors);
    }
  }

  template <class Vectors>
  [[gnu::always_inline]] void scores(const BackwardStep& step, Sums<Tiles>& sums,
                                     Vectors& vectors) {
    std::size_t done = 0;
    for (int u = 0; u < step.keys; ++u) {
      const std::byte* k = k_of(step.first_key + u);
      for (int t = 0; t < step.queries; ++t, ++done) {
        const std::byte* q = q_of(step.head, step.first_query + t);
        const auto slices = static_cast<std::int64_t>(16 * done);
        form(k, q, k_depth_, scratch(at_.scores) + kSquareBytes * done, slices, sums, vectors);
        form(k + kv_.v, q + q_.d_o, v_depth_, scratch(at_.products) + kSquareBytes * done,
             slices + 16, sums, vectors);
      }
    }
  }

  // sums[n] += left right[n] for the n of one unit of keys, over the step's queries.
  template <class Vectors>
  [[gnu::always_inline]] void add_key_sums(const BackwardStep& step, const std::byte* left,
                                           std::size_t right, int width, std::byte* square,
                                           Sums<Tiles>& sums, Vectors& vectors) {
    for (int n = 0; n < width; ++n, square += kSquareBytes) {
      const std::byte* a = left;
      const std::byte* b = q_of(step.head, step.first_query) + right +
                           kHalfSquareBytes * static_cast<std::size_t>(n);
      sums.template resume<Reuse::near>(square, a, b, vectors);
      for (int t = 1; t < step.queries; ++t) {
        a += kHalfSquareBytes;
        b += q_.unit;
        sums.template add<Reuse::near>(a, b, vectors);
      }
    }
  }

  template <class Vectors>
  [[gnu::always_inline]] void add_query_sums(const BackwardStep& step, const std::byte* pairs,
                                             Sums<Tiles>& sums, Vectors& vectors) {
    for (int t = 0; t < step.queries; ++t) {
      std::byte* dq = dq_of(step.head, step.first_query + t);
      for (int n = 0; n < k_depth_; ++n, dq += kSquareBytes) {
        const std::byte* a =
            k_of(step.first_key) + kv_.columns + kHalfSquareBytes * static_cast<std::size_t>(n);
        const std::byte* b = pairs + kHalfSquareBytes * static_cast<std::size_t>(t);
        const std::size_t b_step = kHalfSquareBytes * static_cast<std::size_t>(step.queries);
        sums.template resume<Reuse::near>(dq, a, b, vectors);
        for (int u = 1; u < step.keys; ++u) {
          a += kv_.unit;
          b += b_step;
          sums.template add<Reuse::near>(a, b, vectors);
        }
      }
    }
  }

  template <class Vectors>
  [[gnu::always_inline]] void gradients(const BackwardStep& step, int turn, Sums<Tiles>& sums,
                                        Vectors& vectors) {
    for (int u = 0; u < step.keys; ++u) {
      const auto row = static_cast<std::size_t>(u);
      const std::size_t squares = kHalfSquareBytes * row * static_cast<std::size_t>(step.queries);
      add_key_sums(step, bf16(0, turn) + squares, q_.d_o_pairs, v_depth_,
                   scratch(at_.dv + kSquareBytes * row * static_cast<std::size_t>(v_depth_)), sums,
                   vectors);
      add_key_sums(step, bf16(1, turn) + squares, q_.q_pairs, k_depth_,
                   scratch(at_.dk + kSquareBytes * row * static_cast<std::size_t>(k_depth_)), sums,
                   vectors);
    }
    add_query_sums(step, bf16(2, turn), sums, vectors);
  }

  // Where the mask hides a pair, P^T and dS^T must come out as 0 whatever was multiplied.
  void hide_masked(const BackwardStep& step) {
    float* s = reinterpret_cast<float*>(scratch(at_.scores));
    float* dp = reinterpret_cast<float*>(scratch(at_.products));
    for (int u = 0; u < step.keys; ++u) {
      for (int t = 0; t < step.queries; ++t, s += 1024, dp += 1024) {
        hide_masked(step.first_key + u, (step.first_query + t) * kUnit, s, dp);
      }
    }
  }

  void hide_masked(std::int64_t key_unit, std::int64_t query, float* s, float* dp) {
    const std::int64_t first = key_unit * kUnit, last = last_key(key_unit);
    const bool whole = first + kUnit <= shape_.sk;
    const std::int64_t end = query + kUnit < shape_.sq ? query + kUnit : shape_.sq;
    if (whole && query_begin(last) <= query && query_end(first) >= end) return;
    const __m512 hidden = _mm512_set1_ps(scale_ > 0 ? -__builtin_inff() : __builtin_inff());
    for (int r = 0; r < kUnit; ++r) {
      const std::int64_t key = first + r;
      const std::uint32_t seen =
          key > last ? 0
                     : first_lanes(query_end(key) - query) & ~first_lanes(query_begin(key) - query);
      for (int half = 0; half < 2; ++half) {
        const int at = (r >> 4) * 512 + half * 256 + (r & 15) * 16;
        const auto lanes = static_cast<__mmask16>(~seen >> (16 * half));
        _mm512_mask_store_ps(s + at, lanes, hidden);
        _mm512_mask_store_ps(dp + at, lanes, _mm512_setzero_ps());
      }
    }
  }

  void store(std::int64_t first_unit, int keys) {
    const std::int64_t end =
        tile_.key_end < (first_unit + keys) * kUnit ? tile_.key_end : (first_unit + keys) * kUnit;
    for (std::int64_t key = first_unit * kUnit; key < end; ++key) {
      const std::int64_t r = key - first_unit * kUnit;
      store_row(tile_.dk, key * shape_.k_row, at_.dk, r, k_depth_, shape_.d, shape_.scale);
      store_row(tile_.dv, key * shape_.v_row, at_.dv, r, v_depth_, shape_.dv, 1.0f);
    }
  }

  void store_row(void* head, std::int64_t offset, std::size_t sums, std::int64_t r, int depth,
                 int width, float scale) {
    auto* to = static_cast<std::uint16_t*>(head) + offset;
    const float* sum = reinterpret_cast<const float*>(scratch(sums)) + (r / kUnit) * depth * 1024 +
                       (r / 16 % 2) * 512 + r % 16 * 16;
    for (int n = 0; n < depth; ++n, sum += 1024) {
      const __m512 times = _mm512_set1_ps(scale);
      const __m512i values = to_bf16(_mm512_mul_ps(_mm512_load_ps(sum), times),
                                     _mm512_mul_ps(_mm512_load_ps(sum + 256), times));
      _mm512_mask_storeu_epi16(to + kUnit * n, first_lanes(width - kUnit * n), values);
    }
  }

  const HeadShape& shape_;
  const BackwardTile& tile_;
  const BackwardKv kv_;
  const BackwardQ q_;
  const BackwardScratch at_;
  const int k_depth_, v_depth_, key_block_, query_block_;
  const float scale_;
};

inline void pack_backward_kv(const HeadShape& shape, const PackKv& part) {
  const BackwardKv kv(shape.sk, shape.d, shape.dv);
  for (std::int64_t unit = part.key_begin / kUnit; unit < units(part.key_end); ++unit) {
    const Piece k = unit_of(part.k, shape.k_row, shape.sk, unit, shape.d);
    const Piece v = unit_of(part.v, shape.v_row, shape.sk, unit, shape.dv);
    std::byte* to = part.packed + kv.unit * static_cast<std::size_t>(unit);
    pack_row_tiles<pack_rows>(to, k, shape.d);
    pack_row_tiles<pack_rows>(to + kv.v, v, shape.dv);
    pack_column_tiles<pack_columns>(to + kv.columns, k, shape.d);
  }
}

inline void pack_backward_q(const HeadShape& shape, const PackQ& part) {
  const BackwardQ layout(shape.sq, shape.d, shape.dv);
  for (std::int64_t unit = part.q_begin / kUnit; unit < units(part.q_end); ++unit) {
    const Piece q = unit_of(part.q, shape.q_row, shape.sq, unit, shape.d);
    const Piece o = unit_of(part.o, shape.o_row, shape.sq, unit, shape.dv);
    const Piece d_o = unit_of(part.d_o, shape.o_row, shape.sq, unit, shape.dv);
    std::byte* to = part.packed + layout.unit * static_cast<std::size_t>(unit);
    pack_row_tiles<pack_transposed>(to, q, shape.d);
    pack_row_tiles<pack_transposed>(to + layout.d_o, d_o, shape.dv);
    pack_column_tiles<pack_pairs>(to + layout.q_pairs, q, shape.d);
    pack_column_tiles<pack_pairs>(to + layout.d_o_pairs, d_o, shape.dv);
    auto* lse = reinterpret_cast<float*>(to + layout.lse);
    auto* delta = reinterpret_cast<float*>(to + layout.delta);
    for (int half = 0; half < 2; ++half) {
      _mm512_store_ps(delta + 16 * half, sums_of_products(o, d_o, half));
    }
    for (int r = 0; r < kUnit; ++r) {
      const std::int64_t row = unit * kUnit + r;
      const bool there = row < shape.sq && part.lse[row] != -__builtin_inff();
      lse[r] = there ? part.lse[row] * kLog2E : __builtin_inff();
      if (!there) delta[r] = 0.0f;
    }
  }
}

// dq^T tiles of 16 columns of d, summed over the splits and turned: 16 queries in the order of the
// tile's columns, 16 values of d each.
inline void sum_splits(const FinishDq& part, std::size_t offset, float scale, __m512i (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    const float* from = part.dq_sums + offset + i * 16;
    __m512 sum = _mm512_load_ps(from);
    for (int split = 1; split < part.splits; ++split) {
      sum = _mm512_add_ps(
          sum, _mm512_load_ps(from + part.split_stride * static_cast<std::size_t>(split)));
    }
    rows[i] = _mm512_castps_si512(_mm512_mul_ps(sum, _mm512_set1_ps(scale)));
  }
  transpose(rows);
}

inline void finish_dq_rows(const HeadShape& shape, const FinishDq& part) {
  for (std::int64_t unit = part.q_begin / kUnit; unit < units(part.q_end); ++unit) {
    for (int tile = 0; tile < 4 * units(shape.d); ++tile) {  // [d / 32][d half][query tile]
      __m512i rows[16];
      const std::size_t unit_floats = static_cast<std::size_t>(4 * units(shape.d)) * 256;
      const std::size_t offset =
          unit_floats * static_cast<std::size_t>(unit) + static_cast<std::size_t>(tile) * 256;
      sum_splits(part, offset, shape.scale, rows);
      const int column = (tile >> 1) * 16;
      for (int c = 0; c < 16; ++c) {
        const std::int64_t row = unit * kUnit + 8 * (c >> 2) + 4 * (tile & 1) + (c & 3);
        if (row >= part.q_end) continue;
        auto* to = static_cast<std::uint16_t*>(part.dq) + row * shape.q_row + column;
        const __m512i values = to_bf16(_mm512_castsi512_ps(rows[c]), _mm512_setzero_ps());
        _mm512_mask_storeu_epi16(to, first_lanes(shape.d - column) & 0xffffu, values);
      }
    }
  }
}

}  // namespace
}  // namespace dfa::cpu::amx
