#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/engine.h"
#include "cpu/simd_blocks.h"
#include "cpu/simd_dropout.h"
#include "cpu/simd_kernel.h"
#include "cpu/simd_logits.h"
#include "cpu/simd_pack.h"

// FlashAttention forward of one query tile, on the vectors of Math::Isa:
//
//   for each block of keys that some row sees
//     scores:       S = q k^T, or the logits that softcap and alibi make of it
//     mask:         S = -inf where a row does not see a key (boundary tiles only)
//     text:         likewise where the caller's own mask hides it, by which tiles are left out
//     softmax_step: m' = max(m, rowmax S), P = exp(scale (S - m')), l = l exp(scale (m - m')) + sum
//     P
//                   o = o exp(scale (m - m'))  where m moved
//     accumulate:   o = o + P v, of the P that dropout keeps
//   o = o / l, lse = scale m + ln l
//
// Packed keys of a (b, hk): [block][k as columns: d/pack x block_k | v as steps: block_k/pack x
// dv].
namespace dfa::cpu {

template <class Math>
struct FlashForward {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  using Packing = Pack<Math>;
  using Dropout = SimdDropout<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kBatch = Isa::kBatch;
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kMinusInf = -__builtin_inff();

  // Sizes in words.
  struct Layout {
    int k_steps, v_steps, v_cols;
    std::ptrdiff_t k_words, block_words;
    std::ptrdiff_t q_words, s_words, o_words, state_words, dropout_words, shown_words;

    Layout(const ForwardConfig& c, const HeadShape& shape)
        : k_steps(Packing::words(shape.d)),
          v_steps(c.block_k / Math::kPack),
          v_cols(Packing::padded(shape.dv)),
          k_words(line(1LL * k_steps * c.block_k)),
          block_words(k_words + line(1LL * v_steps * v_cols)),
          q_words(line(1LL * c.block_q * k_steps)),
          s_words(line(1LL * c.block_q * c.block_k)),
          o_words(line(1LL * c.block_q * v_cols)),
          state_words(line(c.block_q) + line(1LL * c.block_q * kLanes)),
          dropout_words(
              shape.dropout.drops() ? line(Dropout::scratch_words(c.block_q, c.block_k, 1)) : 0),
          shown_words(shape.mask_text ? line(1LL * c.block_q * c.block_k / 4) : 0) {}

    static std::ptrdiff_t line(std::ptrdiff_t words) { return (words + 15) / 16 * 16; }
  };

  static std::size_t packed_kv_bytes(const ForwardConfig& c, const HeadShape& shape) {
    const std::int64_t blocks = (shape.sk + c.block_k - 1) / c.block_k;
    return static_cast<std::size_t>(blocks * Layout(c, shape).block_words) * sizeof(float);
  }

  static std::size_t scratch_bytes(const ForwardConfig& c, const HeadShape& shape) {
    const Layout l(c, shape);
    return static_cast<std::size_t>(l.q_words + l.s_words + l.o_words + l.state_words +
                                    l.dropout_words + l.shown_words) *
           sizeof(float);
  }

  static void pack_kv(const ForwardConfig& c, const HeadShape& shape, const PackKv& args) {
    const Layout layout(c, shape);
    const std::ptrdiff_t size = bytes_of(c.element);
    const auto rows = [&](const void* base, std::int64_t row, std::int64_t first, int dim,
                          const RowFactors& factors) {
      const std::int64_t left = args.key_end - first;
      return Rows{
          c.element,  static_cast<const std::byte*>(base) + (first - args.first) * row * size,
          row * size, static_cast<int>(left < c.block_k ? left : c.block_k),
          dim,        factors,
          first};
    };
    for (std::int64_t first = args.key_begin; first < args.key_end; first += c.block_k) {
      float* block = reinterpret_cast<float*>(args.packed) + first / c.block_k * layout.block_words;
      Packing::rows_as_columns(rows(args.k, shape.k_row, first, shape.d, args.k_factors), c.block_k,
                               block);
      Packing::rows_as_steps(rows(args.v, shape.v_row, first, shape.dv, args.v_factors), c.block_k,
                             block + layout.k_words);
    }
  }

  static void tile(const ForwardConfig& c, const HeadShape& shape, const ForwardTile& args) {
    Tile(c, shape, args).run();
  }

 private:
  class Tile {
   public:
    Tile(const ForwardConfig& c, const HeadShape& shape, const ForwardTile& args)
        : config_(c),
          shape_(shape),
          args_(args),
          layout_(c, shape),
          rows_(static_cast<int>(args.q_end - args.q_begin)),
          magnitude_(__builtin_fabsf(shape.exponent_scale())),
          scale_log2_(magnitude_ * kLog2E),
          logits_(shape, args.slope, args.bias, args.text),
          dropout_(shape.dropout, c.block_q, c.block_k,
                   args.scratch + sizeof(float) * static_cast<std::size_t>(
                                                      layout_.q_words + layout_.s_words +
                                                      layout_.o_words + layout_.state_words)),
          blocks_(args.blocks) {
      q_ = reinterpret_cast<float*>(args.scratch);
      s_ = q_ + layout_.q_words;
      o_ = s_ + layout_.s_words;
      sum_ = o_ + layout_.o_words;
      max_ = sum_ + layout_.line(1LL * c.block_q * kLanes);
      shown_ = reinterpret_cast<std::uint8_t*>(o_ + layout_.o_words + layout_.state_words +
                                               layout_.dropout_words);
    }

    void run() {
      load_q();
      const std::int64_t keys_begin = key_begin(args_.q_begin);
      const std::int64_t keys_end = key_end(args_.q_end - 1);
      bool first = true;
      for (std::int64_t block = keys_begin / config_.block_k; block * config_.block_k < keys_end;
           ++block) {
        const std::int64_t key = block * config_.block_k;
        const std::int64_t end =
            key + config_.block_k < shape_.sk ? key + config_.block_k : shape_.sk;
        if (blocks_.skip(args_.q_begin, args_.q_end, key, end)) continue;
        const float* packed =
            reinterpret_cast<const float*>(args_.packed) + block * layout_.block_words;
        keys_ = seen(keys_end - key);
        if (shape_.mask_text && !show(key)) continue;
        scores(packed);
        if (shape_.transforms()) transform(key);
        if (!sees_all(key)) mask(key);
        if (blocks_.hide(args_.q_begin, args_.q_end, key, end)) hide_blocks(key);
        if (shape_.mask_text) hide_text();
        if (shape_.dropout.drops()) {
          dropout_.draw(args_.head, args_.q_begin, rows_, key, keys_);
          for (int row = 0; row < rows_; ++row) softmax_step<true>(row, first);
        } else {
          for (int row = 0; row < rows_; ++row) softmax_step<false>(row, first);
        }
        accumulate(packed + layout_.k_words, first);
        first = false;
      }
      for (int row = 0; row < rows_; ++row) store(row);
    }

   private:
    std::int64_t key_begin(std::int64_t i) const {
      return shape_.mask.key_begin(i, shape_.sq, shape_.sk);
    }
    std::int64_t key_end(std::int64_t i) const {
      return shape_.mask.key_end(i, shape_.sq, shape_.sk);
    }

    // Keys of a block that are worth a look, in whole vectors, where the last row sees `left` more.
    int seen(std::int64_t left) const {
      return left < config_.block_k ? Packing::padded(static_cast<int>(left)) : config_.block_k;
    }

    // Both ends move up with the row, so the last row sees least on the left, the first on the
    // right.
    bool sees_all(std::int64_t key) const {
      return key_begin(args_.q_end - 1) <= key && key + keys_ <= key_end(args_.q_begin);
    }

    // With a negative scale the queries change sign: a larger score is always a larger exponent.
    void load_q() {
      const std::ptrdiff_t size = bytes_of(config_.element);
      const auto* first =
          static_cast<const std::byte*>(args_.q) + args_.q_begin * shape_.q_row * size;
      Packing::rows_flat({config_.element, first, shape_.q_row * size, rows_, shape_.d,
                          args_.q_factors, args_.q_begin},
                         rows_, layout_.k_steps, q_);
      if (shape_.exponent_scale() < 0) Math::negate(q_, 1LL * rows_ * layout_.k_steps);
      for (int row = 0; row < rows_; ++row) {
        max_[row] = kMinusInf;
        Isa::store(sum_ + row * kLanes, Isa::splat(0.0f));
      }
    }

    void scores(const float* k) {
      Product<Math>::run({q_, layout_.k_steps, 1}, {k, config_.block_k, layout_.k_steps, true},
                         {s_, config_.block_k, false}, rows_, keys_, layout_.k_steps);
    }

    void transform(std::int64_t key) {
      for (int row = 0; row < rows_; ++row) {
        logits_.transform(s_ + row * config_.block_k, keys_, args_.q_begin + row, key, nullptr);
      }
    }

    void mask(std::int64_t key) {
      const Vec hidden = Isa::splat(kMinusInf);
      for (int row = 0; row < rows_; ++row) {
        const int begin = within(key_begin(args_.q_begin + row) - key);
        const int end = within(key_end(args_.q_begin + row) - key);
        for (int i = 0; i < keys_; i += kLanes) {
          if (begin <= i && i + kLanes <= end) continue;
          float* s = s_ + row * config_.block_k + i;
          Isa::store(s, Isa::keep(Isa::load(s), begin - i, end - i, hidden));
        }
      }
    }

    void hide_blocks(std::int64_t key) {
      for (int row = 0; row < rows_; ++row) {
        blocks_.hide_row(s_ + row * config_.block_k, keys_, args_.q_begin + row, key, kMinusInf);
      }
    }

    // Which pairs of the tile the caller's mask shows. Is there one?
    bool show(std::int64_t key) {
      bool any = false;
      for (int row = 0; row < rows_; ++row) {
        any |= show_by_text(*shape_.text, {args_.text, args_.q_begin + row, key},
                            shown_ + row * config_.block_k, keys_);
      }
      return any;
    }

    void hide_text() {
      for (int row = 0; row < rows_; ++row) {
        for (int i = row * config_.block_k; i < row * config_.block_k + keys_; ++i) {
          if (shown_[i] == 0) s_[i] = kMinusInf;
        }
      }
    }

    int within(std::int64_t key) const {
      return static_cast<int>(key < 0 ? 0 : (key > keys_ ? keys_ : key));
    }

    template <bool kDrops>
    void softmax_step(int row, bool first) {
      float* s = s_ + row * config_.block_k;
      const int count = keys_ / kLanes;
      const Vec high = largest(s, count);
      if (Isa::any_greater(high, Isa::splat(max_[row])))
        raise_max(row, Isa::reduce_max(high), first);
      // A row that has seen nothing yet keeps p = exp2(-inf) = 0 only while m is finite.
      const Vec shift = Isa::splat(max_[row] == kMinusInf ? 0.0f : max_[row]);
      const Vec scale = Isa::splat(scale_log2_);
      Vec sum = Isa::load(sum_ + row * kLanes);
      const float* kept = kDrops ? dropout_.kept(row) : nullptr;
      int i = 0;
      for (; i + kBatch <= count; i += kBatch) {
        sum = sum + exponentials<kBatch, kDrops>(s, i, shift, scale, kept);
      }
      for (; i < count; ++i) sum = sum + exponentials<1, kDrops>(s, i, shift, scale, kept);
      Isa::store(sum_ + row * kLanes, sum);
    }

    // Of each lane, in four chains: one would wait for itself at every step.
    static Vec largest(const float* s, int count) {
      Vec high[4];
      for (Vec& chain : high) chain = Isa::load(s);
      int i = 0;
      for (; i + 4 <= count; i += 4) {
        for (int c = 0; c < 4; ++c) high[c] = Isa::max(high[c], Isa::load(s + (i + c) * kLanes));
      }
      for (; i < count; ++i) high[0] = Isa::max(high[0], Isa::load(s + i * kLanes));
      return Isa::max(Isa::max(high[0], high[1]), Isa::max(high[2], high[3]));
    }

    // P replaces S in kCount vectors of a row from number `index` on; returns their sum, with those
    // that are dropped. (s - m) is exact near m, so that the largest score has p = 1.
    template <int kCount, bool kDrops>
    static Vec exponentials(float* s, int index, Vec shift, Vec scale, const float* kept) {
      Vec p[kCount];
      for (int i = 0; i < kCount; ++i) p[i] = (Isa::load(s + (index + i) * kLanes) - shift) * scale;
      Isa::template exp2<Math::kShortExp>(p);
      Vec sum = p[0];
      for (int i = 1; i < kCount; ++i) sum = sum + p[i];
      if constexpr (kDrops) {
        for (int i = 0; i < kCount; ++i) p[i] = p[i] * Isa::load(kept + (index + i) * kLanes);
      }
      Math::store_along(s, index, p);
      return sum;
    }

    void raise_max(int row, float higher, bool first) {
      Vec shrink[] = {Isa::splat((max_[row] - higher) * scale_log2_)};
      Isa::template exp2<Math::kShortExp>(shrink);
      max_[row] = higher;
      if (first) return;
      Isa::store(sum_ + row * kLanes, Isa::load(sum_ + row * kLanes) * shrink[0]);
      float* o = o_ + row * layout_.v_cols;
      for (int i = 0; i < layout_.v_cols; i += kLanes) {
        Isa::store(o + i, Isa::load(o + i) * shrink[0]);
      }
    }

    void accumulate(const float* v, bool first) {
      Product<Math>::run({s_, config_.block_k, 1}, {v, layout_.v_cols, layout_.v_steps, true},
                         {o_, layout_.v_cols, !first}, rows_, layout_.v_cols, keys_ / Math::kPack);
    }

    void store(int row) {
      const std::int64_t i = args_.q_begin + row;
      const float total = Isa::reduce_add(Isa::load(sum_ + row * kLanes));
      // The mask hides all keys, or a bias of -inf does, or lists of blocks, or a text.
      const bool more = shape_.bias || args_.blocks.states != nullptr || shape_.text != nullptr;
      const bool blind =
          key_begin(i) >= key_end(i) || (more && total == 0 && max_[row] == kMinusInf);
      const Denominator below = denominator(blind, max_[row] * magnitude_, total);
      const Vec share = Isa::splat(below.share * shape_.dropout.factor);
      float* o = o_ + row * layout_.v_cols;
      for (int col = 0; col < layout_.v_cols; col += kLanes) {
        Isa::store(o + col, blind ? Isa::splat(0.0f) : Isa::load(o + col) * share);
      }
      const DType stored = output_of(config_.element);
      auto* out = static_cast<std::byte*>(args_.o) + i * shape_.o_row * bytes_of(stored);
      Isa::write_row(stored, out, shape_.dv, o);
      if (args_.lse == nullptr) return;
      args_.lse[i] = below.lse;
    }

    struct Denominator {
      float share, lse;
    };
    // Of a row with this maximum of the logits, and the sum of exponentials above it.
    Denominator denominator(bool blind, float maximum, float total) const {
      if (blind) return {0.0f, args_.sink};
      // scale m rounded first, as the backward rounds scale s before it takes lse away: what the
      // largest score loses there then cancels, and a row that one key dominates has P = 1.
      if (args_.sink == kMinusInf) return {1.0f / total, maximum + __builtin_logf(total)};
      const float high = maximum > args_.sink ? maximum : args_.sink;
      const float own = __builtin_expf(maximum - high);
      const float all = total * own + __builtin_expf(args_.sink - high);
      return {own / all, high + __builtin_logf(all)};
    }

    const ForwardConfig& config_;
    const HeadShape& shape_;
    const ForwardTile& args_;
    const Layout layout_;
    const int rows_;
    const float magnitude_, scale_log2_;
    const SimdLogits<Isa> logits_;
    Dropout dropout_;
    const SimdBlocks<Isa> blocks_;
    int keys_ = 0;  // of the current block that some row sees
    float* q_;
    float* s_;    // scores, then probabilities in place
    float* o_;    // not yet divided by the row sum
    float* sum_;  // a vector a row: lanes are added up once, at the end
    float* max_;
    std::uint8_t* shown_;  // of a text: 1 where a pair is seen
  };
};

}  // namespace dfa::cpu
