#pragma once

#include "kernels/args.h"
#include "kernels/either.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/tile/product.cuh"
#include "kernels/variant/bias.cuh"
#include "kernels/variant/dropout_args.h"
#include "kernels/variant/user_text.cuh"

// What becomes of scores q k^T before masks and the softmax: nothing, with the scale in the
// exponents, or the logits that a text, softcap, ALiBi and a bias make of scale * score, with
// exponents of those. Pairs that a text hides have -inf.
// Kernels ask here for all of it, and pay for what their configuration names.
namespace dfa {

template <bool kSoftcap, bool kAlibi, bool kBias, bool kText>
class LogitTransform {
  static constexpr bool kChains = kSoftcap || kText;

 public:
  static constexpr bool kPlain = !kSoftcap && !kAlibi && !kBias && !kText;

  // Of the rows of one query head.
  template <bool kVarlen>
  DFA_DEVICE LogitTransform(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head) {
    if constexpr (kAlibi) {
      slope_ = args.logits.alibi_slopes[seq.batch * args.logits.slopes_of_batch + head];
      diagonal_ = seq.sk(args) - seq.sq(args);
    }
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      bias_ = seq.batch * bias.strides.batch + head * bias.strides.head;
    }
    if constexpr (kText) {
      batch_ = seq.batch + DropoutArgs::of(args).first_batch;
      head_ = head;
    }
    if constexpr (kBias || kText) {
      queries_ = seq.sq(args);
      keys_ = seq.sk(args);
    }
  }

  // In exponents.
  static DFA_DEVICE float scale(const KernelArgs& a) { return kPlain ? a.scale : 1.f; }
  static DFA_DEVICE float scale_log2(const KernelArgs& a) { return kPlain ? a.scale_log2 : kLog2E; }
  static DFA_DEVICE float magnitude_log2(const KernelArgs& a) {
    return kPlain ? a.magnitude_log2 : kLog2E;
  }
  // The score whose weight is 0 under a scale of either sign.
  static DFA_DEVICE float hidden(const KernelArgs& args) {
    return scale_log2(args) < 0 ? ptx::infinity() : -ptx::infinity();
  }

  // What of a logit's gradient goes to scale * score: all of it without a text and softcap.
  struct Whole {};
  template <int kRows, int kColumns>
  using Shares = Either<kChains, Sum<kRows, kColumns>, Whole>;

  // Rows are queries from `query` on, columns keys from `key` on, those of the warp's first score.
  // The second form leaves shares for chain().
  template <int kRows, int kColumns>
  DFA_DEVICE void apply(const KernelArgs& args, Sum<kRows, kColumns>& scores, int query,
                        int key) const {
    if constexpr (!kPlain) {
      each(scores, [&](float& score, int row, int column, int, int, int) {
        float unused;
        score = logit(args, score, query + row, key + column, unused);
      });
    }
  }
  template <int kRows, int kColumns>
  DFA_DEVICE void apply(const KernelArgs& args, Sum<kRows, kColumns>& scores, int query, int key,
                        Shares<kRows, kColumns>& shares) const {
    if constexpr (!kPlain) {
      each(scores, [&](float& score, int row, int column, int m, int n, int i) {
        float share;
        score = logit(args, score, query + row, key + column, share);
        if constexpr (kChains) shares[m][n][i] = share;
      });
    }
  }
  // Rows are keys, columns queries.
  template <int kRows, int kColumns>
  DFA_DEVICE void apply_transposed(const KernelArgs& args, Sum<kRows, kColumns>& scores, int key,
                                   int query, Shares<kRows, kColumns>& shares) const {
    if constexpr (!kPlain) {
      each(scores, [&](float& score, int row, int column, int m, int n, int i) {
        float share;
        score = logit(args, score, query + column, key + row, share);
        if constexpr (kChains) shares[m][n][i] = share;
      });
    }
  }

  // Gradients of logits become those of scale * score.
  template <int kRows, int kColumns>
  static DFA_DEVICE void chain(Sum<kRows, kColumns>& ds, const Shares<kRows, kColumns>& shares) {
    if constexpr (kChains) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            // What a text says where nobody looks may be no number.
            if (kText && ds[m][n][i] == 0) continue;
            ds[m][n][i] *= shares[m][n][i];
          }
        }
      }
    }
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  DFA_DEVICE float logit(const KernelArgs& args, float score, int query, int key,
                         float& share) const {
    float value = args.scale * score;
    if constexpr (kText) {
      share = 1;
      // Behind the last query and key nothing is said.
      if (query < queries_ && key < keys_) {
        value = UserText<kText>::logit(value, {batch_, head_, query, key, queries_, keys_}, share);
        if (value < kBiasHides) {
          share = 0;
          return -ptx::infinity();
        }
      }
    }
    if constexpr (kSoftcap) {
      const float t = tanhf(value * args.logits.inverse_softcap);
      share = kText ? share * (1 - t * t) : 1 - t * t;
      value = args.logits.softcap * t;
    }
    if constexpr (kAlibi) {
      const int after = key - query - diagonal_;
      value -= slope_ * static_cast<float>(after < 0 ? -after : after);
    }
    if constexpr (kBias) {
      // The bias has no more than the longest sequence as the problem has it.
      const bool known = query < args.sq && key < args.sk;
      if (query < queries_ && key < keys_ && known) {
        value = biased(args.logits.bias, value, query, key);
      }
    }
    return value;
  }

  DFA_DEVICE float biased(const BiasArgs& bias, float value, int query, int key) const {
    const float more =
        bias_value(bias.values, bias.type, bias_ + query * bias.strides.row + key * bias.key);
    return more < kBiasHides ? -ptx::infinity() : value + more;
  }

  // Visits a lane's values in the fragments of a product, with their places among the warp's.
  template <int kRows, int kColumns, typename Visit>
  static DFA_DEVICE void each(Sum<kRows, kColumns>& values, const Visit& visit) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          visit(values[m][n][i], m * 16 + i / 2 * 8 + lane / 4, n * 8 + lane % 4 * 2 + i % 2, m, n,
                i);
        }
      }
    }
  }

  float slope_ = 0;
  int diagonal_ = 0;    // from a query to the key that ALiBi puts beside it
  long long bias_ = 0;  // to the head's first value
  int queries_ = 0, keys_ = 0;
  int batch_ = 0, head_ = 0;  // of a text
};

using PlainLogits = LogitTransform<false, false, false, false>;

template <auto kConfig>
using LogitsOf = LogitTransform<kConfig.softcap, kConfig.alibi, kConfig.bias, kConfig.text>;

}  // namespace dfa
