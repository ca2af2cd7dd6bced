#pragma once

#include "kernels/args.h"
#include "kernels/either.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/variant/dropout_args.h"
#include "kernels/variant/philox.h"

// Which probabilities a dropout keeps (docs/design/0032-dropout.md). Kernels ask here for all of
// it, and pay for it where their configuration names it.
//
// A draw of Philox has 16 bits for each of eight pairs, queries i and i + 8 of sixteen by keys j,
// j + 8, j + 16, j + 24 of thirty-two. In the fragments of a product a thread has rows i and i + 8
// and every eighth column: where rows are queries all eight are one thread's, where they are keys
// all eight of two row fragments, or half of them.
namespace dfa {

// The inverse of the share that is kept, which sums of kept probabilities take, and what gradients
// of scores make of it.
template <bool kDrops>
struct DropoutFactor {
  float factor = 1;

  static DFA_DEVICE DropoutFactor of(const KernelArgs& args) {
    if constexpr (!kDrops) return {};
    return {65536.f / static_cast<float>(DropoutArgs::of(args).kept)};
  }

  // The gradient of a score by that of its probability, which may be marked (DropoutMask).
  DFA_DEVICE float score_gradient(float p, float dp, float delta) const {
    if constexpr (kDrops) return fabsf(p) * ((is_marked(p) ? 0.f : dp * factor) - delta);
    return p * (dp - delta);
  }
  static DFA_DEVICE bool is_marked(float p) { return __float_as_uint(p) >> 31 != 0; }
};

template <bool kDrops>
class DropoutMask {
 public:
  // Of a batch, or of a packed sequence, and its query heads from `head` on.
  DFA_DEVICE DropoutMask(const KernelArgs& args, int batch, int head = 0) {
    if constexpr (kDrops) {
      const DropoutArgs dropout = DropoutArgs::of(args);
      const unsigned long long seed = dropout.state == nullptr ? dropout.seed : dropout.state[0];
      const unsigned long long offset = dropout.state == nullptr ? 0 : dropout.state[1];
      key0_ = static_cast<unsigned>(seed);
      key1_ = static_cast<unsigned>((seed ^ offset) >> 32);
      offset_ = static_cast<unsigned>(offset);
      factor_ = Factor::of(args);
      head_ = static_cast<unsigned>((dropout.first_batch + batch) * args.hq + head);
    }
  }

  DFA_DEVICE DropoutMask of_head(int head) const {
    DropoutMask mask = *this;
    if constexpr (kDrops) mask.head_ += static_cast<unsigned>(head);
    return mask;
  }

  using Factor = DropoutFactor<kDrops>;
  static DFA_DEVICE float factor(const KernelArgs& args) { return Factor::of(args).factor; }
  template <int kRows>
  static DFA_DEVICE void scale(const KernelArgs& args, float (&of_rows)[kRows][2]) {
    if constexpr (kDrops) {
      const float by = factor(args);
#pragma unroll
      for (int m = 0; m < kRows; ++m) of_rows[m][0] *= by, of_rows[m][1] *= by;
    }
  }

  static DFA_DEVICE void scale(const KernelArgs& args, float (&of_rows)[2]) {
    scale(args, reinterpret_cast<float(&)[1][2]>(of_rows));
  }

  // Probabilities that are dropped become 0. Rows are queries from `query` on, columns keys from
  // `key` on, those of the warp's first score: multiples of 16.
  template <int kRows, int kColumns>
  DFA_DEVICE void drop(const KernelArgs& args, Sum<kRows, kColumns>& p, int query, int key) const {
    if constexpr (kDrops) {
      each(args, p, query, key, [](float& value, bool kept) { value = kept ? value : 0.f; });
    }
  }

  // Marks those that are dropped by their sign: no probability is below 0.
  template <int kRows, int kColumns>
  DFA_DEVICE void mark(const KernelArgs& args, Sum<kRows, kColumns>& p, int query, int key) const {
    if constexpr (kDrops) each(args, p, query, key, set_sign);
  }
  // Rows are keys, columns queries.
  template <int kRows, int kColumns>
  DFA_DEVICE void mark_transposed(const KernelArgs& args, Sum<kRows, kColumns>& p, int key,
                                  int query) const {
    if constexpr (kDrops) each_transposed(args, p, key, query, set_sign);
  }

  // Which of a thread's pairs are kept, 64 queries as columns, keys as rows of a warp: bit 4 n + i
  // of element i of fragment n. Two warps whose keys are of the same draws make those of half of
  // the queries each (`second`: of the later half), for both: `own`, and what the other one is
  // told.
  DFA_DEVICE void draw_for_two(const KernelArgs& args, int key, int query, bool second,
                               unsigned& own, unsigned& others) const {
    constexpr int kFragments = 4;  // half of them
    own = others = 0;
    if constexpr (kDrops) {
      const int lane = static_cast<int>(ptx::thread_index() % 32);
      const int first = query + (second ? kFragments * 8 : 0) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kFragments; n += 2) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          PhiloxWords drawn = draw(first + n * 8 + side, key + lane / 4);
          if (second) {  // its keys are the draw's last ones
            swap(drawn.word[0], drawn.word[1]);
            swap(drawn.word[2], drawn.word[3]);
          }
#pragma unroll
          for (int part = 0; part < 4; ++part) {
            const int column = part / 2, half = part % 2;
            const unsigned bit = 1u << ((n + column) * 4 + 2 * half + side);
            if (is_kept(args, drawn, column, half)) own |= bit;
            if (is_kept(args, drawn, column, half + 2)) others |= bit;
          }
        }
      }
      const int later = second ? kFragments * 4 : 0;
      own <<= later;
      others <<= later;
    }
  }

  DFA_DEVICE float score_gradient(float p, float dp, float delta) const {
    return factor_.score_gradient(p, dp, delta);
  }

  // Marked probabilities become 0.
  template <int kRows, int kColumns>
  static DFA_DEVICE void drop_marked(Sum<kRows, kColumns>& p) {
    if constexpr (kDrops) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) p[m][n][i] = Factor::is_marked(p[m][n][i]) ? 0.f : p[m][n][i];
        }
      }
    }
  }

 private:
  static DFA_DEVICE void set_sign(float& value, bool kept) { value = kept ? value : -value; }
  static DFA_DEVICE void swap(unsigned& a, unsigned& b) {
    const unsigned before = a;
    a = b;
    b = before;
  }

  DFA_DEVICE PhiloxWords draw(int query, int key) const {
    const unsigned i = static_cast<unsigned>(query), j = static_cast<unsigned>(key);
    return philox({{j / 32 * 8 + j % 8, i / 16 * 8 + i % 8, head_, offset_}}, key0_, key1_);
  }

  // Is the pair kept that is in half `of_queries` and quarter `of_keys` of a draw?
  static DFA_DEVICE bool is_kept(const KernelArgs& args, const PhiloxWords& drawn, int of_queries,
                                 int of_keys) {
    const unsigned low = of_keys / 2 == 0 ? drawn.word[0] : drawn.word[1];
    const unsigned high = of_keys / 2 == 0 ? drawn.word[2] : drawn.word[3];
    const unsigned both = of_queries == 0 ? low : high;
    return (of_keys % 2 == 0 ? both & 0xffffu : both >> 16) < DropoutArgs::of(args).kept;
  }

  template <int kRows, int kColumns, typename Visit>
  DFA_DEVICE void each(const KernelArgs& args, Sum<kRows, kColumns>& p, int query, int key,
                       const Visit& visit) const {
    constexpr int kTogether = kColumns % 4 == 0 ? 4 : 2;  // fragments of one draw
    static_assert(kColumns % kTogether == 0);
    const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; n += kTogether) {
        const int first = key + n * 8, of_first = kTogether == 4 ? 0 : first / 16 % 2 * 2;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const auto drawn = draw(query + m * 16 + lane / 4, first + lane % 4 * 2 + side);
#pragma unroll
          for (int part = 0; part < 2 * kTogether; ++part) {
            const int half = part % 2, fragment = part / 2;
            visit(p[m][n + fragment][2 * half + side],
                  is_kept(args, drawn, half, of_first + fragment));
          }
        }
      }
    }
  }

  template <int kRows, int kColumns, typename Visit>
  DFA_DEVICE void each_transposed(const KernelArgs& args, Sum<kRows, kColumns>& p, int key,
                                  int query, const Visit& visit) const {
    constexpr int kKeys = kRows % 2 == 0 ? 2 : 1, kQueries = kColumns % 2 == 0 ? 2 : 1;
    const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
    for (int m = 0; m < kRows; m += kKeys) {
      const int first = key + m * 16, of_first = kKeys == 2 ? 0 : first / 16 % 2 * 2;
#pragma unroll
      for (int n = 0; n < kColumns; n += kQueries) {
        const int begin = query + n * 8, of_begin = kQueries == 2 ? 0 : begin / 8 % 2;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const auto drawn = draw(begin + lane % 4 * 2 + side, first + lane / 4);
#pragma unroll
          for (int part = 0; part < 2 * kKeys * kQueries; ++part) {
            const int half = part % 2, row = part / 2 % kKeys, column = part / 2 / kKeys;
            visit(p[m + row][n + column][2 * half + side],
                  is_kept(args, drawn, of_begin + column, of_first + 2 * row + half));
          }
        }
      }
    }
  }

  unsigned key0_ = 0, key1_ = 0, offset_ = 0, head_ = 0;
  Factor factor_;
};

template <auto kConfig>
using DropoutOf = DropoutMask<kConfig.dropout>;

}  // namespace dfa
