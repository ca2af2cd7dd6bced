#pragma once

#include "kernels/args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/variant/bias.cuh"
#include "kernels/variant/dropout_args.h"
#include "kernels/variant/user_text.cuh"

// What texts make of scores in Hopper's kernels.
namespace dfa {

// Of a thread's two rows (i and i + 8 of its warp's 16) of one work tile, which are of this head or
// of one of as many as are packed from it on, in so many rows of a query. Rows that are left have
// the last head's; masks hide what is said of keys behind the last.
template <bool kText, int kHeads, int kQueryRows>
class FragmentText {
 public:
  // `row` is the warp's first.
  template <bool kVarlen>
  DFA_DEVICE FragmentText(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head,
                          int row) {
    row += static_cast<int>(ptx::kept_thread_index() % 32 / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + half * 8, of_query = at % kQueryRows, last = kHeads - 1;
      queries_[half] = at / kQueryRows;
      heads_[half] = head * kHeads + (of_query < last ? of_query : last);
    }
    batch_ = seq.batch + DropoutArgs::of(args).first_batch;
    sq_ = seq.sq(args);
    sk_ = seq.sk(args);
  }

  // Scores become logits, -inf where a pair is hidden. `key` is the first score's of the warp.
  template <int kKeys>
  DFA_DEVICE void apply(const KernelArgs& args, float (&scores)[kKeys][4], int key) const {
    constexpr int kAtOnce = 1;
    key += static_cast<int>(ptx::kept_thread_index() % 4) * 2;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if (n >= kAtOnce) key = wait_for(scores[n - kAtOnce][3], key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const UserTextPlace at{batch_, heads_[i / 2], queries_[i / 2], key + n * 8 + i % 2, sq_,
                               sk_};
        float unused;
        const float logit = UserText<kText>::logit(args.scale * scores[n][i], at, unused);
        scores[n][i] = logit < kBiasHides ? -ptx::infinity() : logit;
      }
    }
  }

 private:
  int heads_[2] = {}, queries_[2] = {};
  int batch_ = 0, sq_ = 0, sk_ = 0;
};

template <int kHeads, int kQueryRows>
class FragmentText<false, kHeads, kQueryRows> {
 public:
  template <typename... All>
  explicit DFA_DEVICE FragmentText(const All&...) {}
};

// The same of keys as rows by queries as columns, of a thread in Hopper's backward: two rows (i and
// i + 8 of its warp's 16) and two of every eight columns.
template <bool kText>
class TransposedText {
 public:
  static constexpr float kToExponents = 1.4426950408889634f;  // of 2

  TransposedText() = default;
  // Of the thread's first query and first key.
  template <bool kVarlen>
  DFA_DEVICE TransposedText(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head,
                            int query, int key) {
    if constexpr (kText) {
      scale_ = args.scale;
      zero_ = static_cast<unsigned>(args.b) >> 31;
      batch_ = seq.batch + DropoutArgs::of(args).first_batch;
      head_ = head;
      query_ = query;
      key_ = key;
      sq_ = seq.sq(args);
      sk_ = seq.sk(args);
    }
  }

  // The scale and the first query, once these scores are there.
  struct Operands {
    float scale;
    int query;
  };
  DFA_DEVICE Operands operands() const { return {scale_, query_}; }
  DFA_DEVICE Operands operands_behind(const float (&scores)[4]) const {
    const unsigned last = __float_as_uint(scores[0]) | __float_as_uint(scores[1]) |
                          __float_as_uint(scores[2]) | __float_as_uint(scores[3]);
    const unsigned none = last & zero_;
    return {__uint_as_float(__float_as_uint(scale_) ^ none),
            static_cast<int>(static_cast<unsigned>(query_) ^ none)};
  }

  // The logit of a score of value i of a fragment of queries, and what of its gradient goes to
  // scale * score. Pairs are hidden by -inf: those that were before, those that the text hides, and
  // those behind the last query, of which nothing is said.
  DFA_DEVICE float logit(float score, const Operands& operands, int n, int i, float& share) const {
    const int query = operands.query + n * 8 + i % 2;
    const UserTextPlace at{batch_, head_, query, key_ + i / 2 * 8, sq_, sk_};
    const float logit = UserText<kText>::logit(operands.scale * score, at, share);
    const bool hidden = (score == -ptx::infinity()) | (query >= sq_) | (logit < kBiasHides);
    return hidden ? -ptx::infinity() : logit;
  }

 private:
  float scale_ = 0;
  unsigned zero_ = 0;
  int batch_ = 0, head_ = 0, query_ = 0, key_ = 0, sq_ = 0, sk_ = 0;
};

}  // namespace dfa
