#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/engine.h"
#include "cpu/simd_blocks.h"
#include "cpu/simd_dropout.h"
#include "cpu/simd_kernel.h"
#include "cpu/simd_logits.h"
#include "cpu/simd_pack.h"

// FlashAttention backward of a range of keys, probabilities recomputed from lse:
//
//   for each block of keys, for each query head of the group, for each block of queries that sees
//   it
//     S = q k^T,  P = exp(scale S - lse)
//     dP = do v^T,  dS = P (dP - delta), which is the bias's gradient, times what softcap leaves of
//     it
//     where dropout keeps P: dP / (1 - p); elsewhere dP = 0, and P = 0 in dv
//     dv += P^T do,  dk += dS^T q,  dq += dS k      (scale joins dk and dq at the end)
//
// Every sum runs in one fixed order, so equal key ranges give equal bits.
//
// Packed keys, a block:    k as columns | v as columns | k as steps
// Packed queries, a block: q rows | do rows | q as steps | do as steps | lse | delta
// where with one element a word the rows serve as steps too.
namespace dfa::cpu {

template <class Math>
struct FlashBackward {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  using Packing = Pack<Math>;
  using Dropout = SimdDropout<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPack = Math::kPack;
  static constexpr bool kRowsAreSteps = kPack == 1;
  static constexpr int kBatch = Isa::kBatch / 2 / kPack;  // p and dS are alive at once
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kInf = __builtin_inff();

  // Sizes and offsets in words.
  struct Layout {
    int k_steps, v_steps;  // words of a row of k (or q), of v (or do)
    int k_cols, v_cols;    // the same as columns of a result
    int q_stride, do_stride;
    std::ptrdiff_t v_columns, k_rows, kv_words;                            // in a block of keys
    std::ptrdiff_t do_rows, q_as_steps, do_as_steps, lse, delta, q_words;  // in a block of queries
    std::ptrdiff_t dp, ds, dk, dv, derivatives, d_bias, shown, dropout,
        scratch_words;  // in scratch, after S

    Layout(const BackwardConfig& c, const HeadShape& shape)
        : k_steps(Packing::words(shape.d)),
          v_steps(Packing::words(shape.dv)),
          k_cols(Packing::padded(shape.d)),
          v_cols(Packing::padded(shape.dv)),
          q_stride(kRowsAreSteps ? k_cols : k_steps),
          do_stride(kRowsAreSteps ? v_cols : v_steps) {
      v_columns = line(1LL * k_steps * c.block_k);
      k_rows = v_columns + line(1LL * v_steps * c.block_k);
      kv_words = k_rows + line(1LL * (c.block_k / kPack) * k_cols);

      const int steps = kRowsAreSteps ? 0 : c.block_q / kPack;
      do_rows = line(1LL * c.block_q * q_stride);
      q_as_steps = do_rows + line(1LL * c.block_q * do_stride);
      do_as_steps = q_as_steps + line(1LL * steps * k_cols);
      lse = do_as_steps + line(1LL * steps * v_cols);
      delta = lse + line(c.block_q);
      q_words = delta + line(c.block_q);

      dp = line(1LL * c.block_q * c.block_k);
      ds = 2 * dp;
      dk = ds + (kRowsAreSteps ? 0 : line(1LL * c.block_q * c.block_k / kPack));
      dv = dk + line(1LL * c.block_k * k_cols);
      derivatives = dv + line(1LL * c.block_k * v_cols);
      d_bias = derivatives + (shape.chains() ? line(1LL * c.block_q * c.block_k) : 0);
      shown = d_bias + (shape.bias ? line(1LL * c.block_q * c.block_k) : 0);
      dropout = shown + (shape.mask_text ? line(1LL * c.block_q * c.block_k / 4) : 0);
      scratch_words =
          dropout +
          (shape.dropout.drops() ? line(Dropout::scratch_words(c.block_q, c.block_k, kPack)) : 0);
    }

    static std::ptrdiff_t line(std::ptrdiff_t words) { return (words + 15) / 16 * 16; }
  };

  static std::size_t packed_kv_bytes(const BackwardConfig& c, const HeadShape& shape) {
    return bytes(Layout(c, shape).kv_words * ((shape.sk + c.block_k - 1) / c.block_k));
  }
  static std::size_t packed_q_bytes(const BackwardConfig& c, const HeadShape& shape) {
    return bytes(Layout(c, shape).q_words * ((shape.sq + c.block_q - 1) / c.block_q));
  }
  static std::size_t dq_sums_floats(const BackwardConfig& c, const HeadShape& shape) {
    return static_cast<std::size_t>(Layout::line(shape.sq * Layout(c, shape).k_cols));
  }
  static std::size_t scratch_bytes(const BackwardConfig& c, const HeadShape& shape) {
    return bytes(Layout(c, shape).scratch_words);
  }

  static void pack_kv(const BackwardConfig& c, const HeadShape& shape, const PackKv& args) {
    const Layout layout(c, shape);
    for (std::int64_t first = args.key_begin; first < args.key_end; first += c.block_k) {
      float* block = reinterpret_cast<float*>(args.packed) + first / c.block_k * layout.kv_words;
      const int count = least(args.key_end - first, c.block_k);
      const Rows k = rows(c.element, args.k, shape.k_row, first, count, shape.d);
      Packing::rows_as_columns(k, c.block_k, block);
      Packing::rows_as_columns(rows(c.element, args.v, shape.v_row, first, count, shape.dv),
                               c.block_k, block + layout.v_columns);
      Packing::rows_as_steps(k, c.block_k, block + layout.k_rows);
    }
  }

  static void pack_q(const BackwardConfig& c, const HeadShape& shape, const PackQ& args) {
    const Layout layout(c, shape);
    for (std::int64_t first = args.q_begin; first < args.q_end; first += c.block_q) {
      float* block = reinterpret_cast<float*>(args.packed) + first / c.block_q * layout.q_words;
      const int count = least(args.q_end - first, c.block_q);
      const Rows q = rows(c.element, args.q, shape.q_row, first, count, shape.d);
      const Rows d_o = rows(c.element, args.d_o, shape.o_row, first, count, shape.dv);
      const Rows o = rows(c.element, args.o, shape.o_row, first, count, shape.dv);
      Packing::rows_flat(q, c.block_q, layout.q_stride, block);
      Packing::rows_flat(d_o, c.block_q, layout.do_stride, block + layout.do_rows);
      if constexpr (!kRowsAreSteps) {
        Packing::rows_as_steps(q, c.block_q, block + layout.q_as_steps);
        Packing::rows_as_steps(d_o, c.block_q, block + layout.do_as_steps);
      }
      for (int row = 0; row < c.block_q; ++row) {
        // Rows that see nothing, and rows past the end, get P = exp2(-inf) = 0.
        const float lse = row < count ? args.lse[first + row] : -kInf;
        block[layout.lse + row] = lse == -kInf ? kInf : lse;
        block[layout.delta + row] = row < count ? dot(d_o, o, row) : 0.0f;
      }
    }
  }

  static void tile(const BackwardConfig& c, const HeadShape& shape, const BackwardTile& args) {
    Tile(c, shape, args).run();
  }

  static void finish_dq(const BackwardConfig& c, const HeadShape& shape, const FinishDq& args) {
    alignas(64) float sum[Packing::kMaxDim];
    const Layout layout(c, shape);
    for (std::int64_t i = args.q_begin; i < args.q_end; ++i) {
      const float* share = args.dq_sums + i * layout.k_cols;
      for (int col = 0; col < layout.k_cols; col += kLanes) {
        Vec total = Isa::load(share + col);
        for (int split = 1; split < args.splits; ++split) {
          total =
              total + Isa::load(share + static_cast<std::size_t>(split) * args.split_stride + col);
        }
        Isa::store(sum + col, total * Isa::splat(shape.scale));
      }
      write_row(c.element, args.dq, shape.q_row, i, shape.d, sum);
    }
  }

 private:
  static std::size_t bytes(std::ptrdiff_t words) {
    return static_cast<std::size_t>(words) * sizeof(float);
  }

  static int least(std::int64_t a, int b) { return a < b ? static_cast<int>(a) : b; }

  static Rows rows(DType type, const void* base, std::int64_t row, std::int64_t first, int count,
                   int dim) {
    const std::ptrdiff_t row_bytes = row * bytes_of(type);
    return {type, static_cast<const std::byte*>(base) + first * row_bytes, row_bytes, count, dim};
  }

  static void write_row(DType type, void* base, std::int64_t row, std::int64_t index, int dim,
                        const float* in) {
    Isa::write_row(type, static_cast<std::byte*>(base) + index * row * bytes_of(type), dim, in);
  }

  // do * o of one row in the very order and arithmetic of the products: where a row sees one key
  // only, o = v, and dP - delta is exactly zero.
  static float dot(const Rows& a, const Rows& b, int row) {
    alignas(64) float left[Packing::kMaxDim], right[Packing::kMaxDim];
    Math::stage_row(a.type, a.data + row * a.row_bytes, a.dim, left);
    Math::stage_row(b.type, b.data + row * b.row_bytes, b.dim, right);
    Vec sum = Isa::splat(0.0f);
    for (int i = 0; i < Packing::words(a.dim); ++i) {
      sum = Math::multiply_add(Isa::broadcast(left + i), Isa::broadcast(right + i), sum);
    }
    return Isa::first(sum);
  }

  class Tile {
   public:
    Tile(const BackwardConfig& c, const HeadShape& shape, const BackwardTile& args)
        : config_(c),
          shape_(shape),
          args_(args),
          layout_(c, shape),
          s_(reinterpret_cast<float*>(args.scratch)),
          dp_(s_ + layout_.dp),
          ds_(kRowsAreSteps ? dp_ : s_ + layout_.ds),
          dk_(s_ + layout_.dk),
          dv_(s_ + layout_.dv),
          derivatives_(shape.chains() ? s_ + layout_.derivatives : nullptr),
          d_bias_(args.bias.gradients == nullptr ? nullptr : s_ + layout_.d_bias),
          shown_(reinterpret_cast<std::uint8_t*>(s_ + layout_.shown)),
          dropout_(shape.dropout, c.block_q, c.block_k, args.scratch + bytes(layout_.dropout)) {}

    void run() {
      for (int head = 0; head < args_.group; ++head) {
        clear(dq_of(head), shape_.sq * layout_.k_cols);
      }
      for (std::int64_t key = args_.key_begin; key < args_.key_end; key += config_.block_k) {
        const int keys = least(args_.key_end - key, config_.block_k);
        const std::int64_t begin = shape_.mask.query_begin(key, shape_.sq, shape_.sk);
        const std::int64_t end = shape_.mask.query_end(key + keys - 1, shape_.sq, shape_.sk);
        clear(dk_, 1LL * keys * layout_.k_cols);
        clear(dv_, 1LL * keys * layout_.v_cols);
        for (int head = 0; head < args_.group; ++head) {
          for (std::int64_t block = begin / config_.block_q; block * config_.block_q < end;
               ++block) {
            if (!skips(head, block, key, keys)) step(head, block, key, keys);
          }
        }
        store(key, keys);
      }
    }

   private:
    float* dq_of(int head) const {
      return args_.dq_sums + static_cast<std::size_t>(head) * args_.dq_sums_stride;
    }

    // Do lists of blocks have none of the tile?
    bool skips(int head, std::int64_t block, std::int64_t key, int keys) const {
      if (args_.blocks == nullptr) return false;
      const std::int64_t first = block * config_.block_q;
      return SimdBlocks<Isa>(args_.blocks[head])
          .skip(first, first + least(shape_.sq - first, config_.block_q), key, key + keys);
    }

    static void clear(float* data, std::ptrdiff_t count) {
      for (std::ptrdiff_t i = 0; i < count; i += kLanes) Isa::store(data + i, Isa::splat(0.0f));
    }

    void step(int head, std::int64_t block, std::int64_t key, int keys) {
      const float* kv = reinterpret_cast<const float*>(args_.packed_kv) +
                        key / config_.block_k * layout_.kv_words;
      const float* q =
          reinterpret_cast<const float*>(args_.packed_q +
                                         static_cast<std::size_t>(head) * args_.packed_q_stride) +
          block * layout_.q_words;
      const std::int64_t first = block * config_.block_q;
      const int count = least(shape_.sq - first, config_.block_q);
      const int rows = (count + kPack - 1) / kPack * kPack;
      const int block_k = config_.block_k;

      keys_ = least(shape_.mask.key_end(first + count - 1, shape_.sq, shape_.sk) - key, keys);
      const int cols = Packing::padded(keys_);
      if (shape_.mask_text && !show(head, first, count, key, cols)) return;

      Product<Math>::run({q, layout_.q_stride, 1}, {kv, block_k, layout_.k_steps, true},
                         {s_, block_k, false}, rows, cols, layout_.k_steps);
      Product<Math>::run({q + layout_.do_rows, layout_.do_stride, 1},
                         {kv + layout_.v_columns, block_k, layout_.v_steps, true},
                         {dp_, block_k, false}, rows, cols, layout_.v_steps);
      if (shape_.transforms()) transform(head, first, rows, key, cols);
      if (!sees_all(first, count, key, cols)) mask(first, count, key, cols);
      if (args_.blocks != nullptr) hide_blocks(head, first, count, key, keys, cols);
      if (shape_.mask_text) hide_text(count, cols);
      if (shape_.score_text) clear_hidden(count, cols);
      const auto of_rows = [&]<bool kDrops>() {
        for (int row = 0; row < rows; row += kPack) {
          gradients<kDrops>(row, cols / kLanes, q + layout_.lse + row, q + layout_.delta + row);
        }
      };
      if (shape_.dropout.drops()) {
        dropout_.draw(args_.head + static_cast<std::uint32_t>(head), first, rows, key, cols);
        of_rows.template operator()<true>();
      } else {
        of_rows.template operator()<false>();
      }
      if (d_bias_ != nullptr) add_bias_gradients(head, first, count, key);
      const std::ptrdiff_t across = 1LL * kPack * block_k;
      Product<Math>::run({s_, 1, across}, do_steps(q), {dv_, layout_.v_cols, true}, keys_,
                         layout_.v_cols, rows / kPack);
      Product<Math>::run({dp_, 1, across}, q_steps(q), {dk_, layout_.k_cols, true}, keys_,
                         layout_.k_cols, rows / kPack);
      const int k_rows = block_k / kPack;
      Product<Math>::run({ds_, k_rows, 1}, {kv + layout_.k_rows, layout_.k_cols, k_rows, true},
                         {dq_of(head) + first * layout_.k_cols, layout_.k_cols, true}, count,
                         layout_.k_cols, cols / kPack);
    }

    RightOperand q_steps(const float* q) const {
      return {q + (kRowsAreSteps ? 0 : layout_.q_as_steps), layout_.k_cols, config_.block_q / kPack,
              !kRowsAreSteps};
    }
    RightOperand do_steps(const float* q) const {
      return {q + (kRowsAreSteps ? layout_.do_rows : layout_.do_as_steps), layout_.v_cols,
              config_.block_q / kPack, !kRowsAreSteps};
    }

    bool sees_all(std::int64_t first, int count, std::int64_t key, int cols) const {
      return shape_.mask.key_begin(first + count - 1, shape_.sq, shape_.sk) <= key &&
             key + cols <= shape_.mask.key_end(first, shape_.sq, shape_.sk);
    }

    void transform(int head, std::int64_t first, int rows, std::int64_t key, int cols) {
      const SimdLogits<Isa> logits(shape_, shape_.alibi ? args_.slopes[head] : 0.0f, args_.bias,
                                   args_.text, head);
      for (int row = 0; row < rows; ++row) {
        const std::ptrdiff_t at = 1LL * row * config_.block_k;
        logits.transform(s_ + at, cols, first + row, key,
                         derivatives_ == nullptr ? nullptr : derivatives_ + at);
      }
    }

    void add_bias_gradients(int head, std::int64_t first, int count, std::int64_t key) {
      const HeadBias& bias = args_.bias;
      for (int row = 0; row < count; ++row) {
        float* to = bias.gradients + head * bias.gradient_head + (first + row) * bias.gradient_row +
                    key * bias.key;
        const float* from = d_bias_ + row * config_.block_k;
        for (int i = 0; i < keys_; ++i) to[i * bias.key] += from[i];
      }
    }

    // S = -inf or, with a negative scale, inf: exp2 gives 0.
    void mask(std::int64_t first, int count, std::int64_t key, int cols) {
      const Vec hidden = Isa::splat(shape_.exponent_scale() < 0 ? kInf : -kInf);
      for (int row = 0; row < count; ++row) {
        const int begin =
            within(shape_.mask.key_begin(first + row, shape_.sq, shape_.sk) - key, cols);
        const int end = within(shape_.mask.key_end(first + row, shape_.sq, shape_.sk) - key, cols);
        for (int i = 0; i < cols; i += kLanes) {
          if (begin <= i && i + kLanes <= end) continue;
          float* s = s_ + row * config_.block_k + i;
          Isa::store(s, Isa::keep(Isa::load(s), begin - i, end - i, hidden));
        }
      }
    }

    void hide_blocks(int head, std::int64_t first, int count, std::int64_t key, int keys,
                     int cols) {
      const SimdBlocks<Isa> blocks(args_.blocks[head]);
      if (!blocks.hide(first, first + count, key, key + keys)) return;
      const float hidden = shape_.exponent_scale() < 0 ? kInf : -kInf;
      for (int row = 0; row < count; ++row) {
        blocks.hide_row(s_ + row * config_.block_k, cols, first + row, key, hidden);
      }
    }

    // Which pairs of the tile the caller's mask shows. Is there one?
    bool show(int head, std::int64_t first, int count, std::int64_t key, int cols) {
      const TextHead of_head{args_.text.b, args_.text.h + head};
      bool any = false;
      for (int row = 0; row < count; ++row) {
        any |= show_by_text(*shape_.text, {of_head, first + row, key},
                            shown_ + row * config_.block_k, cols);
      }
      return any;
    }

    void hide_text(int count, int cols) {
      const float hidden = shape_.exponent_scale() < 0 ? kInf : -kInf;
      for (int row = 0; row < count; ++row) {
        for (int i = row * config_.block_k; i < row * config_.block_k + cols; ++i) {
          if (shown_[i] == 0) s_[i] = hidden;
        }
      }
    }

    // What a text's derivative is where nobody looks may be no number, which P = 0 would not undo.
    void clear_hidden(int count, int cols) {
      for (int row = 0; row < count; ++row) {
        for (int i = 0; i < cols; i += kLanes) {
          const std::ptrdiff_t at = 1LL * row * config_.block_k + i;
          const Vec derivative = Isa::load(derivatives_ + at);
          const Vec zero = Isa::splat(0.0f);
          Isa::store(derivatives_ + at,
                     Isa::load(s_ + at) == Isa::splat(-kInf) ? zero : derivative);
        }
      }
    }

    static int within(std::int64_t key, int cols) {
      return static_cast<int>(key < 0 ? 0 : (key > cols ? cols : key));
    }

    // P replaces S and dS replaces dP in kPack rows, as left operands whose sum runs over the rows;
    // ds_ gets dS as one whose sum runs over the keys.
    template <bool kDrops>
    void gradients(int row, int count, const float* lse, const float* delta) {
      const float* kept[kPack] = {};
      for (int r = 0; kDrops && r < kPack; ++r) kept[r] = dropout_.kept(row + r, r);
      int i = 0;
      for (; i + kBatch <= count; i += kBatch) {
        gradients_at<kBatch, kDrops>(row, i, lse, delta, kept);
      }
      for (; i < count; ++i) gradients_at<1, kDrops>(row, i, lse, delta, kept);
    }

    template <int kCount, bool kDrops>
    void gradients_at(int row, int index, const float* lse, const float* delta,
                      const float* const (&kept)[kPack]) {
      const int block_k = config_.block_k;
      const Vec scale = Isa::splat(shape_.exponent_scale()), log2e = Isa::splat(kLog2E);
      Vec p[kPack * kCount], ds[kPack][kCount];
      for (int r = 0; r < kPack; ++r) {
        const float* s = s_ + (row + r) * block_k + index * kLanes;
        const Vec shift = Isa::splat(lse[r]);
        for (int i = 0; i < kCount; ++i) {
          // scale s is rounded, as the forward rounded scale m into lse.
          p[r * kCount + i] = (Isa::load(s + i * kLanes) * scale - shift) * log2e;
        }
      }
      Isa::template exp2<Math::kShortExp>(p);
      for (int r = 0; r < kPack; ++r) {
        const float* dp = dp_ + (row + r) * block_k + index * kLanes;
        const Vec mean = Isa::splat(delta[r]);
        for (int i = 0; i < kCount; ++i) {
          Vec& of_p = p[r * kCount + i];
          Vec of_dp = Isa::load(dp + i * kLanes);
          if constexpr (kDrops) {
            const Vec is_kept = Isa::load(kept[r] + (index + i) * kLanes);
            ds[r][i] = of_p * (of_dp * is_kept * Isa::splat(shape_.dropout.factor) - mean);
            of_p = of_p * is_kept;
          } else {
            ds[r][i] = of_p * (of_dp - mean);
          }
        }
        if (d_bias_ != nullptr) {
          float* d_bias = d_bias_ + (row + r) * block_k + index * kLanes;
          for (int i = 0; i < kCount; ++i) Isa::store(d_bias + i * kLanes, ds[r][i]);
        }
        if (derivatives_ == nullptr) continue;
        const float* derivatives = derivatives_ + (row + r) * block_k + index * kLanes;
        for (int i = 0; i < kCount; ++i) ds[r][i] = ds[r][i] * Isa::load(derivatives + i * kLanes);
      }
      float* s = s_ + row * block_k;
      float* dp = dp_ + row * block_k;
      if constexpr (kPack == 1) {
        Math::store_along(s, index, p);
        Math::store_along(dp, index, ds[0]);
      } else {
        for (int i = 0; i < kCount; ++i) {
          Math::store_across(s, index + i, p[i], p[kCount + i]);
          Math::store_across(dp, index + i, ds[0][i], ds[1][i]);
        }
        for (int r = 0; r < kPack; ++r) {
          Math::store_along(ds_ + (row + r) * (block_k / kPack), index, ds[r]);
        }
      }
    }

    void store(std::int64_t key, int keys) {
      const Vec scale = Isa::splat(shape_.scale);
      for (int j = 0; j < keys; ++j) {
        float* dk = dk_ + j * layout_.k_cols;
        for (int i = 0; i < layout_.k_cols; i += kLanes) {
          Isa::store(dk + i, Isa::load(dk + i) * scale);
        }
        write_row(config_.element, args_.dk, shape_.k_row, key + j, shape_.d, dk);
        float* dv = dv_ + j * layout_.v_cols;
        for (int i = 0; shape_.dropout.drops() && i < layout_.v_cols; i += kLanes) {
          Isa::store(dv + i, Isa::load(dv + i) * Isa::splat(shape_.dropout.factor));
        }
        write_row(config_.element, args_.dv, shape_.v_row, key + j, shape_.dv, dv);
      }
    }

    const BackwardConfig& config_;
    const HeadShape& shape_;
    const BackwardTile& args_;
    const Layout layout_;
    int keys_ = 0;  // of the current block that some row of the current queries sees
    float* s_;      // scores, then P
    float* dp_;     // do v^T, then dS
    float* ds_;     // dS once more where a word is a pair
    float* dk_;
    float* dv_;
    float* derivatives_;   // of score_mod and softcap, or null
    float* d_bias_;        // dS before those, or null
    std::uint8_t* shown_;  // of mask_mod: 1 where a pair is seen
    Dropout dropout_;
  };
};

}  // namespace dfa::cpu
