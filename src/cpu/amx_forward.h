#pragma once

#include "cpu/amx_pack.h"
#include "cpu/amx_products.h"
#include "cpu/engine.h"

// FlashAttention forward on matrix tiles. A *step* is 32 query rows against one block of keys;
// steps form a pipeline in which the vector units never wait for the matrix unit, nor it for them:
//
//   step i, matrix unit:  O += P(i-1) V(i-1), then S(i+1) = Q K(i+1)^T
//   step i, vector units: P(i) = exp2(c S(i) - m), row sums, rounding to bf16
//
// S(i+1) takes the place of S(i) square by square, as soon as the vectors are done with it.
//
// Most problems need no running maximum. If |q| |k| bounds all scores of a tile by 2^±60, every
// exponential and sum is a normal number without one: m = 0, exact after normalisation. Otherwise m
// follows the row's maximum.
namespace dfa::cpu::amx {
namespace {

inline constexpr int kMaxGroups = 512 / kUnit;
inline constexpr float kBoundedScore = 60.0f;                 // powers of two
inline constexpr float kLeastV = 0x1p-40f, kMostV = 0x1p40f;  // keep products of P and V normal
inline constexpr std::size_t kSumsBytes = kUnit * 64;
inline constexpr float kNoMax = -1e38f;  // finite: -inf minus it is -inf

// One step: group of query rows, units [first, first + count) of keys; count = 0: none.
struct ForwardStep {
  int group = 0;
  int count = 0;
  std::int64_t first = 0;
};

// Four vectors: two query rows of one square of scores.
struct SoftmaxSlice {
  const std::byte* scores;
  std::byte* weights;    // bf16 P as A tiles, keys in the order 0, 16, 1, 17, …
  float* sums;           // [32][16], partial sums of each row
  const float* minus_m;  // [32]
  __m512 scale;          // to powers of two

  [[gnu::always_inline]] __m512 weight(const std::byte* score, float shift) const {
    return exp2<4>(_mm512_fmadd_ps(_mm512_load_ps(score), scale, _mm512_set1_ps(shift)));
  }

  [[gnu::always_inline]] static void finish_row(__m512 p0, __m512 p1, float* sum, std::byte* to) {
    _mm512_store_si512(to, interleave_bf16(p0, p1));
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(p0, p1)));
  }

  [[gnu::always_inline]] void operator()(std::int64_t index) const {
    const std::byte* s = scores + (index >> 3) * 2048 + (index & 7) * 128;
    const std::int64_t row = (index & 15) * 2;
    const __m512 p00 = weight(s, minus_m[row]);
    const __m512 p01 = weight(s + kTileBytes, minus_m[row]);
    const __m512 p10 = weight(s + kRowBytes, minus_m[row + 1]);
    const __m512 p11 = weight(s + kTileBytes + kRowBytes, minus_m[row + 1]);
    finish_row(p00, p01, sums + row * 16, weights + index * 128);
    finish_row(p10, p11, sums + row * 16 + 16, weights + index * 128 + kRowBytes);
  }
};

// Offsets in the caller's scratch.
struct ForwardScratch {
  std::size_t q_group, o_group, o, sums, minus_m, scores, weights, weights_size, total;

  ForwardScratch(const ForwardConfig& config, int d, int dv) {
    const auto groups = static_cast<std::size_t>(config.block_q / kUnit);
    const auto squares = static_cast<std::size_t>(config.block_k / kUnit);
    q_group = tiles(2 * units(d));
    o_group = kSquareBytes * static_cast<std::size_t>(units(dv));
    o = q_group * groups;
    sums = o + o_group * groups;
    minus_m = sums + kSumsBytes * groups;
    scores = minus_m + kUnit * sizeof(float) * groups;
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
    prepare();
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
    for (int group = 0; group < groups_; ++group) store(group);
  }

 private:
  std::byte* scratch(std::size_t offset) const { return tile_.scratch + offset; }
  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(scratch(offset)); }
  std::byte* q_of(int group) const {
    return scratch(at_.q_group * static_cast<std::size_t>(group));
  }
  std::byte* o_of(int group) const {
    return scratch(at_.o + at_.o_group * static_cast<std::size_t>(group));
  }
  float* sums_of(int group) const { return floats(at_.sums) + group * kUnit * 16; }
  float* minus_m_of(int group) const { return floats(at_.minus_m) + group * kUnit; }
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

  void prepare() {
    float q_norm2 = 0;
    for (int group = 0; group < groups_; ++group) {
      const Piece rows{static_cast<const std::uint16_t*>(tile_.q) + first_row(group) * shape_.q_row,
                       shape_.q_row, tile_.q_end - first_row(group), shape_.d};
      pack_row_tiles<pack_rows>(q_of(group), rows, shape_.d);
      const float norm2 = largest_norm2(rows);
      if (norm2 > q_norm2) q_norm2 = norm2;
      unit_begin_[group] = key_begin(first_row(group)) / kUnit;
      unit_end_[group] = units(key_end(last_row(group)));
    }
    bounded_ = scores_are_bounded(q_norm2);
    const auto groups = static_cast<std::size_t>(groups_);
    __builtin_memset(scratch(at_.o), 0, at_.o_group * groups);
    __builtin_memset(scratch(at_.sums), 0, kSumsBytes * groups);
    for (int i = 0; i < groups_ * kUnit; ++i) floats(at_.minus_m)[i] = bounded_ ? 0.0f : -kNoMax;
  }

  bool scores_are_bounded(float q_norm2) const {
    const auto* bounds = reinterpret_cast<const float*>(tile_.packed + kv_.bounds());
    __m512 largest = _mm512_setzero_ps();  // |k|^2 in even lanes, |v| in odd lanes
    for (std::int64_t i = 0; i < 2 * kv_.count; i += 16) {
      const auto lanes = static_cast<__mmask16>(first_lanes(2 * kv_.count - i));
      largest = _mm512_max_ps(largest, _mm512_maskz_loadu_ps(lanes, bounds + i));
    }
    const float k_norm2 = _mm512_mask_reduce_max_ps(0x5555, largest);
    const float v_max = _mm512_mask_reduce_max_ps(0xaaaa, largest);
    const float most =
        __builtin_sqrtf(q_norm2) * __builtin_sqrtf(k_norm2) * __builtin_fabsf(scale_);
    return most <= kBoundedScore && v_max <= kMostV && (v_max >= kLeastV || v_max == 0);
  }

  // The next step that has keys to see: all blocks of one group, then the next group, so that a
  // group's output stays near. Keys and values pass by from the second-level cache.
  ForwardStep next_step(std::int64_t& block, int& group) const {
    for (; group < groups_; ++group, block = 0) {
      if (block < unit_begin_[group] / block_) block = unit_begin_[group] / block_;
      const std::int64_t low = block * block_, high = low + block_;
      const std::int64_t first = low > unit_begin_[group] ? low : unit_begin_[group];
      const std::int64_t end = high < unit_end_[group] ? high : unit_end_[group];
      ++block;
      if (first < end) return {group, static_cast<int>(end - first), first};
    }
    return {};
  }

  template <int rate>
  void steps() {
    std::int64_t block = 0;
    int group = 0;
    ForwardStep last, now = next_step(block, group);
    Idle idle;
    Sums<Tiles> sums;
    scores(now, sums, idle);
    for (unsigned turn = 0; now.count > 0; ++turn) {
      const ForwardStep next = next_step(block, group);
      std::byte* weights = scratch(at_.weights + at_.weights_size * (turn & 1u));
      std::byte* last_weights = scratch(at_.weights + at_.weights_size * (~turn & 1u));
      // The last square of scores may stay in the tiles until products need them.
      const bool whole = is_whole(now);
      if (!whole || !bounded_ || now.count < 2 || last.count == 0) sums.finish();
      if (!whole) hide_masked(now);
      float shrink[kUnit];
      const bool moved = !bounded_ && move_max(now, shrink);
      Paced<SoftmaxSlice, rate> vectors{{scratch(at_.scores), weights, sums_of(now.group),
                                         minus_m_of(now.group), _mm512_set1_ps(scale_)},
                                        0,
                                        16 * now.count};
      values(last, last_weights, sums, vectors);
      scores(next, sums, vectors);
      vectors.finish(vectors.count);
      if (moved) {
        sums.finish();
        shrink_output(now.group, shrink);
      }
      last = now;
      now = next;
      if (now.count == 0) values(last, weights, sums, idle);
    }
    sums.finish();
  }

  template <class Vectors>
  [[gnu::always_inline]] void scores(const ForwardStep& step, Sums<Tiles>& sums, Vectors& vectors) {
    const std::byte* k = tile_.packed + kv_.k(step.first);
    for (int u = 0; u < step.count; ++u) {
      const std::byte* q = q_of(step.group);
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
      sums.template resume<Reuse::none>(o, p, v, vectors);
      for (int u = 1; u < step.count; ++u) {
        p += kHalfSquareBytes;
        v += kHalfSquareBytes;
        sums.template add<Reuse::none>(p, v, vectors);
      }
    }
  }

  bool is_whole(const ForwardStep& step) const {
    return key_begin(last_row(step.group)) <= step.first * kUnit &&
           key_end(first_row(step.group)) >= (step.first + step.count) * kUnit;
  }

  // Masked scores become what the scale turns into -inf.
  void hide_masked(const ForwardStep& step) {
    const std::int64_t first = first_row(step.group), last = last_row(step.group);
    const __m512 hidden = _mm512_set1_ps(scale_ > 0 ? -__builtin_inff() : __builtin_inff());
    for (int u = 0; u < step.count; ++u) {
      const std::int64_t key = (step.first + u) * kUnit;
      if (key_begin(last) <= key && key_end(first) >= key + kUnit) continue;
      for (int r = 0; r < kUnit; ++r) {
        const std::int64_t row = first + r < last ? first + r : last;
        const std::uint32_t seen =
            first_lanes(key_end(row) - key) & ~first_lanes(key_begin(row) - key);
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

  void store(int group) {
    alignas(64) float sums[kUnit];
    for (int half = 0; half < 2; ++half) {
      __m512i rows[16];
      const float* from = sums_of(group) + half * 256;
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(from + i * 16);
      _mm512_store_ps(sums + half * 16, sums_of_lanes(rows));
    }
    for (std::int64_t row = first_row(group); row <= last_row(group); ++row) {
      const int r = static_cast<int>(row - first_row(group));
      const float sum = sums[r];
      if (tile_.lse != nullptr) {
        tile_.lse[row] =
            sum == 0 ? -__builtin_inff() : (__builtin_log2f(sum) - minus_m_of(group)[r]) * kLn2;
      }
      store_row(group, row, r, sum == 0 ? 0.0f : 1.0f / weight_of_output(row, sum));
    }
  }

  // The one weight of a row that sees one key reached o rounded, and is not 1.
  float weight_of_output(std::int64_t row, float sum) const {
    if (key_end(row) - key_begin(row) != 1) return sum;
    const __m512i rounded = interleave_bf16(_mm512_set1_ps(sum), _mm512_setzero_ps());
    return _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
  }

  void store_row(int group, std::int64_t row, int r, float factor) {
    auto* to = static_cast<std::uint16_t*>(tile_.o) + row * shape_.o_row;
    const auto* o = reinterpret_cast<const float*>(o_of(group)) + (r >> 4) * 512 + (r & 15) * 16;
    for (int n = 0; n < v_depth_; ++n, o += 1024) {
      const __m512 times = _mm512_set1_ps(factor);
      const __m512i values = to_bf16(_mm512_mul_ps(_mm512_load_ps(o), times),
                                     _mm512_mul_ps(_mm512_load_ps(o + 256), times));
      _mm512_mask_storeu_epi16(to + kUnit * n, first_lanes(shape_.dv - kUnit * n), values);
    }
  }

  const HeadShape& shape_;
  const ForwardTile& tile_;
  const ForwardKv kv_;
  const ForwardScratch at_;
  const int k_depth_, v_depth_, block_, groups_;
  const float scale_;
  bool bounded_ = false;
  std::int64_t unit_begin_[kMaxGroups], unit_end_[kMaxGroups];
};

inline void pack_forward_kv(const ForwardConfig& config, const HeadShape& shape,
                            const PackKv& part) {
  const ForwardKv kv(shape.sk, shape.d, shape.dv, config.block_k);
  auto* bounds = reinterpret_cast<UnitBounds*>(part.packed + kv.bounds());
  for (std::int64_t unit = part.key_begin / kUnit; unit < units(part.key_end); ++unit) {
    const Piece k = unit_of(part.k, shape.k_row, shape.sk, unit, shape.d);
    const Piece v = unit_of(part.v, shape.v_row, shape.sk, unit, shape.dv);
    pack_row_tiles<pack_transposed>(part.packed + kv.k(unit), k, shape.d);
    pack_column_tiles<pack_far_pairs>(part.packed + kv.v(unit, 0), v, shape.dv,
                                      kHalfSquareBytes * static_cast<std::size_t>(kv.block));
    bounds[unit] = {largest_norm2(k), largest_magnitude(v)};
  }
}

}  // namespace
}  // namespace dfa::cpu::amx
