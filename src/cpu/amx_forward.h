#pragma once

#include "cpu/amx_pack.h"
#include "cpu/amx_products.h"
#include "cpu/amx_softmax.h"
#include "cpu/engine.h"

// FlashAttention forward on matrix tiles. A *step* is 32 query rows against one block of keys;
// steps form a pipeline in which the vector units never wait for the matrix unit, nor it for them:
//
//   step i, matrix unit:  O += P(i-1) V(i-1), then S(i+1) = Q K(i+1)^T
//   step i, vector units: P(i) = exp2(c S(i) - m), row sums, rounding to bf16
//
// S(i+1) takes the place of S(i) square by square, as soon as the vectors are done with it.
//
// Most problems need no running maximum. If |q| |k| bounds all scores of a group by 2^±60, every
// exponential and sum is a normal number without one: m = 0, exact after normalisation. Otherwise m
// follows the row's maximum.
namespace dfa::cpu::amx {
namespace {

inline constexpr float kBoundedScore = 60.0f;                 // powers of two
inline constexpr float kLeastV = 0x1p-40f, kMostV = 0x1p40f;  // keep products of P and V normal
inline constexpr std::size_t kSumsBytes = kUnit * 64;
inline constexpr float kNoMax = -1e38f;  // finite: -inf minus it is -inf

// One step: group of query rows, units [first, first + count) of keys; count = 0: none.
struct ForwardStep {
  int group = 0;
  int count = 0;
  std::int64_t first = 0;
  bool begins = false;   // the group's first
  bool bounded = false;  // m = 0 will do for the group
};

// Offsets in the caller's scratch. A tile's groups pass through: Q is that of the group whose
// scores are next, the rest is of two groups in turn, one that ends and one that begins.
struct ForwardScratch {
  std::size_t o_group, o, sums, minus_m, scores, weights, weights_size, total;

  ForwardScratch(const ForwardConfig& config, int d, int dv) {
    const auto squares = static_cast<std::size_t>(config.block_k / kUnit);
    o_group = kSquareBytes * static_cast<std::size_t>(units(dv));
    o = tiles(2 * units(d));
    sums = o + 2 * o_group;
    minus_m = sums + 2 * kSumsBytes;
    scores = minus_m + 2 * kUnit * sizeof(float);
    weights = scores + kSquareBytes * squares;
    weights_size = kHalfSquareBytes * squares;
    total = align64(weights + 2 * weights_size);
  }
};

template <class Tiles>
class Forward {
 public:
  Forward(const ForwardConfig& config, const HeadShape& shape, const ForwardTile& tile)
      : shape_(shape),
        tile_(tile),
        kv_(shape.sk, shape.d, shape.dv, config.block_k),
        at_(config, shape.d, shape.dv),
        k_depth_(static_cast<int>(units(shape.d))),
        v_depth_(static_cast<int>(units(shape.dv))),
        block_(config.block_k / kUnit),
        groups_(static_cast<int>(units(tile.q_end - tile.q_begin))),
        scale_(shape.scale * kLog2E) {}

  void run() {
    bound_keys_and_values();
    Tiles::configure();
    const int load = k_depth_ + v_depth_;  // products a square
    if (load <= 2) {
      steps<8>();
    } else if (load <= 4) {
      steps<4>();
    } else if (load <= 7) {
      steps<3>();
    } else {
      steps<2>();
    }
    Tiles::release();
  }

 private:
  std::byte* scratch(std::size_t offset) const { return tile_.scratch + offset; }
  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(scratch(offset)); }
  std::byte* o_of(int group) const {
    return scratch(at_.o + at_.o_group * static_cast<std::size_t>(group & 1));
  }
  float* sums_of(int group) const { return floats(at_.sums) + (group & 1) * kUnit * 16; }
  float* minus_m_of(int group) const { return floats(at_.minus_m) + (group & 1) * kUnit; }
  std::int64_t first_row(int group) const { return tile_.q_begin + group * kUnit; }
  std::int64_t last_row(int group) const {
    const std::int64_t last = first_row(group) + kUnit - 1;
    return last < tile_.q_end ? last : tile_.q_end - 1;
  }
  std::int64_t key_begin(std::int64_t row) const {
    return shape_.mask.key_begin(row, shape_.sq, shape_.sk);
  }
  std::int64_t key_end(std::int64_t row) const {
    return shape_.mask.key_end(row, shape_.sq, shape_.sk);
  }

  void bound_keys_and_values() {
    const auto* bounds = reinterpret_cast<const float*>(tile_.packed + kv_.bounds());
    __m512 largest = _mm512_setzero_ps();  // |k|^2 in even lanes, |v| in odd lanes
    for (std::int64_t i = 0; i < 2 * kv_.count; i += 16) {
      const auto lanes = static_cast<__mmask16>(first_lanes(2 * kv_.count - i));
      largest = _mm512_max_ps(largest, _mm512_maskz_loadu_ps(lanes, bounds + i));
    }
    const float v_max = _mm512_mask_reduce_max_ps(0xaaaa, largest);
    values_are_normal_ = v_max <= kMostV && (v_max >= kLeastV || v_max == 0);
    const float k_norm2 = _mm512_mask_reduce_max_ps(0x5555, largest);
    score_per_q_ = __builtin_sqrtf(k_norm2) * __builtin_fabsf(scale_);
  }

  // Returns whether all scores of the group are bounded.
  bool load_queries(int group) {
    const Piece rows{static_cast<const std::uint16_t*>(tile_.q) + first_row(group) * shape_.q_row,
                     shape_.q_row, tile_.q_end - first_row(group), shape_.d};
    const float norm2 = pack_queries(tile_.scratch, rows, shape_.d);
    return values_are_normal_ && __builtin_sqrtf(norm2) * score_per_q_ <= kBoundedScore;
  }

  void begin(const ForwardStep& step) {
    float* sums = sums_of(step.group);
    for (int i = 0; i < kUnit * 16; i += 16) _mm512_store_ps(sums + i, _mm512_setzero_ps());
    const __m512 minus_m = _mm512_set1_ps(step.bounded ? 0.0f : -kNoMax);
    _mm512_store_ps(minus_m_of(step.group), minus_m);
    _mm512_store_ps(minus_m_of(step.group) + 16, minus_m);
  }

  // The next step that has keys to see: all blocks of one group, then the next group, so that a
  // group's output stays near. Keys and values pass by from the second-level cache.
  ForwardStep next_step() {
    const bool begins = unit_ >= unit_end_;
    while (unit_ >= unit_end_) {
      if (++group_ >= groups_) return {};
      unit_ = key_begin(first_row(group_)) / kUnit;
      unit_end_ = units(key_end(last_row(group_)));
      if (unit_ >= unit_end_) store_blind(group_);
    }
    const std::int64_t first = unit_, end = (unit_ / block_ + 1) * block_;
    unit_ = end < unit_end_ ? end : unit_end_;
    return {group_, static_cast<int>(unit_ - first), first, begins};
  }

  // One round of the pipeline.
  struct Turn {
    const ForwardStep &last, &now, &next;
    unsigned turn;
    const Sight& sight;
    std::uint32_t edges;
  };

  template <int rate>
  void steps() {
    Idle idle;
    Sums<Tiles> sums;
    ForwardStep last, now = next_step();
    if (now.count == 0) return;
    now.bounded = load_queries(now.group);
    scores(now, sums, idle);
    begin(now);
    for (unsigned turn = 0; now.count > 0; ++turn) {
      ForwardStep next = next_step();
      next.bounded = next.begins ? load_queries(next.group) : now.bounded;
      const Sight sight{&shape_, first_row(now.group), last_row(now.group), now.first * kUnit};
      const Turn at{last, now, next, turn, sight, edges_of(now)};
      if (now.bounded) [[likely]] {
        // The last square of scores may stay in the tiles until products need them.
        if (now.count < 2 || last.count == 0) sums.finish();
        overlap<rate>(at, sums, BoundedWeight{{_mm512_set1_ps(scale_)}});
      } else {
        follow_max<rate>(at, sums);
      }
      if (now.begins && last.count > 0) {
        if (next.count == 0) sums.finish();
        store(last.group);
      }
      if (next.begins) begin(next);
      last = now;
      now = next;
      if (now.count == 0) values(last, weights_of(turn), sums, idle);
    }
    sums.finish();
    store(last.group);
  }

  template <int rate, class Weight>
  [[gnu::always_inline]] void overlap(const Turn& at, Sums<Tiles>& sums, const Weight& weight) {
    Paced<SoftmaxSlice<Weight>, rate> vectors{{scratch(at_.scores), weights_of(at.turn),
                                               sums_of(at.now.group), weight, &at.sight, at.edges},
                                              0,
                                              16 * at.now.count};
    values(at.last, weights_of(at.turn + 1), sums, vectors);
    scores(at.next, sums, vectors);
    vectors.finish(vectors.count);
  }

  template <int rate>
  [[gnu::noinline]] void follow_max(const Turn& at, Sums<Tiles>& sums) {
    sums.finish();
    hide_edges(at);
    float shrink[kUnit];
    const bool moved = move_max(at.now, shrink);
    overlap<rate>(at, sums, ShiftedWeight{_mm512_set1_ps(scale_), minus_m_of(at.now.group)});
    if (moved && !at.now.begins) {
      sums.finish();
      shrink_output(at.now.group, shrink);
    }
  }

  std::byte* weights_of(unsigned turn) const {
    return scratch(at_.weights + at_.weights_size * (turn & 1u));
  }

  template <class Vectors>
  [[gnu::always_inline]] void scores(const ForwardStep& step, Sums<Tiles>& sums, Vectors& vectors) {
    const std::byte* k = tile_.packed + kv_.k(step.first);
    for (int u = 0; u < step.count; ++u) {
      const std::byte* q = tile_.scratch;
      vectors.finish(16 * u);  // what is stored now is square u - 1
      sums.template begin<Reuse::none>(
          scratch(at_.scores) + kSquareBytes * static_cast<std::size_t>(u), q, k, vectors);
      k += kHalfSquareBytes;
      for (int i = 1; i < k_depth_; ++i, k += kHalfSquareBytes) {
        q += kHalfSquareBytes;
        sums.template add<Reuse::none>(q, k, vectors);
      }
    }
  }

  template <class Vectors>
  [[gnu::always_inline]] void values(const ForwardStep& step, const std::byte* weights,
                                     Sums<Tiles>& sums, Vectors& vectors) {
    if (step.count == 0) return;
    std::byte* o = o_of(step.group);
    for (int n = 0; n < v_depth_; ++n, o += kSquareBytes) {
      const std::byte* p = weights;
      const std::byte* v = tile_.packed + kv_.v(step.first, n);
      if (step.begins) {
        sums.template begin<Reuse::none>(o, p, v, vectors);
      } else {
        sums.template resume<Reuse::none>(o, p, v, vectors);
      }
      for (int u = 1; u < step.count; ++u) {
        p += kHalfSquareBytes;
        v += kHalfSquareBytes;
        sums.template add<Reuse::none>(p, v, vectors);
      }
    }
  }

  std::uint32_t edges_of(const ForwardStep& step) const {
    const std::int64_t begin = key_begin(last_row(step.group));
    const std::int64_t end = key_end(first_row(step.group));
    std::uint32_t edges = 0;
    for (int u = 0; u < step.count; ++u) {
      const std::int64_t key = (step.first + u) * kUnit;
      if (begin > key || end < key + kUnit) edges |= 1u << u;
    }
    return edges;
  }

  // Hidden scores become what the scale turns into -inf, for the maximum's sake.
  void hide_edges(const Turn& at) {
    const __m512 hidden = _mm512_set1_ps(scale_ > 0 ? -__builtin_inff() : __builtin_inff());
    for (int u = 0; u < at.now.count; ++u) {
      if ((at.edges >> u & 1u) == 0) continue;
      for (int r = 0; r < kUnit; ++r) {
        const std::uint32_t seen = at.sight.keys(u, r);
        float* s = floats(at_.scores) + u * 1024 + (r >> 4) * 512 + (r & 15) * 16;
        _mm512_mask_store_ps(s, static_cast<__mmask16>(~seen), hidden);
        _mm512_mask_store_ps(s + 256, static_cast<__mmask16>(~seen >> 16), hidden);
      }
    }
  }

  float row_max(const ForwardStep& step, int row) const {
    const float* s = floats(at_.scores) + (row >> 4) * 512 + (row & 15) * 16;
    const __m512 scale = _mm512_set1_ps(scale_);
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    for (int u = 0; u < step.count; ++u, s += 1024) {
      most = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(s), scale), most);
      most = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(s + 256), scale), most);
    }
    return _mm512_reduce_max_ps(most);
  }

  // Where a row's maximum moved: takes it, scales the row's sum, and says by
  // how much the row's output has to shrink once all weights of the old maximum are in it.
  bool move_max(const ForwardStep& step, float (&shrink)[kUnit]) {
    float* minus_m = minus_m_of(step.group);
    bool moved = false;
    for (int row = 0; row < kUnit; ++row) {
      const float most = row_max(step, row);
      shrink[row] = 1.0f;
      if (!(most > -minus_m[row])) continue;
      shrink[row] = __builtin_exp2f(-minus_m[row] - most);
      minus_m[row] = -most;
      float* sum = sums_of(step.group) + row * 16;
      _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), _mm512_set1_ps(shrink[row])));
      moved = true;
    }
    return moved;
  }

  void shrink_output(int group, const float (&shrink)[kUnit]) {
    for (int n = 0; n < v_depth_; ++n) {
      float* o = reinterpret_cast<float*>(o_of(group)) + n * 1024;
      for (int i = 0; i < 64; ++i) {
        const __m512 factor = _mm512_set1_ps(shrink[(i >> 5) * 16 + (i & 15)]);
        _mm512_store_ps(o + i * 16, _mm512_mul_ps(_mm512_load_ps(o + i * 16), factor));
      }
    }
  }

  // Of a group whose rows see nothing.
  void store_blind(int group) {
    for (std::int64_t row = first_row(group); row <= last_row(group); ++row) {
      auto* o = static_cast<std::uint16_t*>(tile_.o) + row * shape_.o_row;
      for (int column = 0; column < shape_.dv; ++column) o[column] = 0;
      if (tile_.lse != nullptr) tile_.lse[row] = -__builtin_inff();
    }
  }

  void store(int group) {
    alignas(64) float factors[kUnit];
    for (int half = 0; half < 2; ++half) {
      __m512 rows[16];
      const float* from = sums_of(group) + half * 256;
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_ps(from + i * 16);
      const __m512 sum = sums_of_lanes(rows);
      if (tile_.lse != nullptr) store_lse(group, half, sum);
      const __mmask16 seen = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      const __m512 weight = weight_of_output(first_row(group) + 16 * half, sum);
      _mm512_store_ps(factors + half * 16, _mm512_maskz_div_ps(seen, _mm512_set1_ps(1.0f), weight));
    }
    store_output(group, factors);
  }

  void store_lse(int group, int half, __m512 sum) {
    const std::int64_t row = first_row(group) + 16 * half;
    const __m512 minus_m = _mm512_load_ps(minus_m_of(group) + half * 16);
    const __m512 lse = _mm512_mul_ps(_mm512_sub_ps(log2(sum), minus_m), _mm512_set1_ps(kLn2));
    _mm512_mask_storeu_ps(tile_.lse + row, static_cast<__mmask16>(first_lanes(tile_.q_end - row)),
                          lse);
  }

  // Of 16 rows from `row` on. The one weight of a row that sees one key reached o rounded, and is
  // not 1.
  __m512 weight_of_output(std::int64_t row, __m512 sum) const {
    if (key_end(row) - key_begin(row + 15) > 1) return sum;  // ends move up with the row
    __mmask16 one_key = 0;
    for (int r = 0; r < 16; ++r) {
      if (key_end(row + r) - key_begin(row + r) == 1) one_key |= static_cast<__mmask16>(1u << r);
    }
    const __m512i rounded = interleave_bf16(sum, _mm512_setzero_ps());
    return _mm512_mask_mov_ps(sum, one_key, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
  }

  void store_output(int group, const float (&factors)[kUnit]) {
    const auto rows = static_cast<int>(last_row(group) - first_row(group) + 1);
    auto* to = static_cast<std::uint16_t*>(tile_.o) + first_row(group) * shape_.o_row;
    const auto* o = reinterpret_cast<const float*>(o_of(group));
    for (int n = 0; n < v_depth_; ++n, o += 1024, to += kUnit) {
      const __mmask32 columns = first_lanes(shape_.dv - kUnit * n);
      for (int r = 0; r < rows; ++r) {
        const float* from = o + (r >> 4) * 512 + (r & 15) * 16;
        const __m512 times = _mm512_set1_ps(factors[r]);
        const __m512i values = to_bf16(_mm512_mul_ps(_mm512_load_ps(from), times),
                                       _mm512_mul_ps(_mm512_load_ps(from + 256), times));
        _mm512_mask_storeu_epi16(to + r * shape_.o_row, columns, values);
      }
    }
  }

  const HeadShape& shape_;
  const ForwardTile& tile_;
  const ForwardKv kv_;
  const ForwardScratch at_;
  const int k_depth_, v_depth_, block_, groups_;
  const float scale_;
  bool values_are_normal_ = false;
  float score_per_q_ = 0;  // the largest score, in powers of two, of a query of length 1
  // Where next_step is.
  int group_ = -1;
  std::int64_t unit_ = 0, unit_end_ = 0;
};

inline void pack_forward_kv(const ForwardConfig& config, const HeadShape& shape,
                            const PackKv& part) {
  const ForwardKv kv(shape.sk, shape.d, shape.dv, config.block_k);
  auto* bounds = reinterpret_cast<UnitBounds*>(part.packed + kv.bounds());
  const std::int64_t rows = shape.sk - part.first;
  for (std::int64_t unit = part.key_begin / kUnit; unit < units(part.key_end); ++unit) {
    const std::int64_t at = unit - part.first / kUnit;
    const Piece k = unit_of(part.k, shape.k_row, rows, at, shape.d);
    const Piece v = unit_of(part.v, shape.v_row, rows, at, shape.dv);
    const std::size_t step = kHalfSquareBytes * static_cast<std::size_t>(kv.block);
    bounds[unit] = {pack_keys(part.packed + kv.k(unit), k, shape.d),
                    pack_values(part.packed + kv.v(unit, 0), v, shape.dv, step)};
  }
}

}  // namespace
}  // namespace dfa::cpu::amx
