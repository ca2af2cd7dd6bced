#pragma once

#include "kernels/args.h"
#include "kernels/either.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/softmax/tile_mask.h"

// What is added to logits, as kernels read it.
namespace dfa {

DFA_DEVICE float bias_value(const void* values, DType type, long long at) {
  if (type == DType::fp32) return static_cast<const float*>(values)[at];
  const unsigned bits = static_cast<const unsigned short*>(values)[at];
  float low, high;
  if (type == DType::fp16) {
    ptx::unpack<DType::fp16>(bits, low, high);
  } else {
    ptx::unpack<DType::bf16>(bits, low, high);
  }
  return low;
}

// A key, once this score is there: left to itself the compiler reads all biases at once, or begins
// the texts of all keys, and spills. Keys are below 2^28 (validate_lengths), what they are compared
// with never is.
DFA_DEVICE int wait_for(float score, int key) {
  const unsigned never = __float_as_uint(score) | 1u << 30, at = static_cast<unsigned>(key);
  return static_cast<int>(at < never ? at : never);
}

// The bias of a thread's two rows (i and i + 8 of its warp's 16) of one work tile of Hopper's
// kernels. Two keys side by side are read at once where they are aligned to that. Rows and keys
// behind the last read the last one's, and masks hide what becomes of those keys.
template <bool kBias>
class FragmentBias {
 public:
  // `row` is the warp's first.
  template <bool kVarlen>
  DFA_DEVICE FragmentBias(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head,
                          int row) {
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      // The bias has no more than the longest sequence as the problem has it.
      const int queries = seq.sq(args), keys = seq.sk(args), bytes = bytes_of(bias.type);
      const int last = (queries < args.sq ? queries : args.sq) - 1;
      row += static_cast<int>(ptx::kept_thread_index() % 32 / 4);
      const char* of_head = static_cast<const char*>(bias.values) +
                            bytes * (seq.batch * bias.strides.batch + head * bias.strides.head);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row + half * 8;
        rows_[half] = of_head + bytes * ((query < last ? query : last) * bias.strides.row);
      }
      keys_ = keys < args.sk ? keys : args.sk;
      const auto begins = reinterpret_cast<unsigned long long>(of_head);
      paired_ = bias.key == 1 && bias.strides.row % 2 == 0 && begins % (2 * bytes) == 0;
    }
  }

  // Scores become factor * score and, in exponents of 2, the bias more. `key` is the first score's
  // of the warp, an even number. With `kTold` pairs may be hidden before, by -inf: whatever their
  // bias, they stay so.
  template <bool kTold, int kKeys>
  DFA_DEVICE void add(const KernelArgs& args, float (&scores)[kKeys][4], int key,
                      float factor) const {
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      const bool whole = key + kKeys * 8 <= keys_;
      key += static_cast<int>(ptx::kept_thread_index() % 4) * 2;
      if (!paired_ || !whole) {
        add_each<kTold>(bias, scores, key, factor);
      } else if (bias.type == DType::bf16) {
        add_pairs<kTold, DType::bf16>(scores, key, factor);
      } else if (bias.type == DType::fp16) {
        add_pairs<kTold, DType::fp16>(scores, key, factor);
      } else {
        add_pairs<kTold, DType::fp32>(scores, key, factor);
      }
    }
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  template <bool kTold>
  static DFA_DEVICE float sum(float score, float factor, float more) {
    if (kTold && score == -ptx::infinity()) return score;
    return more < kBiasHides ? -ptx::infinity() : fmaf(more, kLog2E, score * factor);
  }

  template <bool kTold, DType kType, int kKeys>
  DFA_DEVICE void add_pairs(float (&scores)[kKeys][4], int key, float factor) const {
    constexpr int kAtOnce = 16 / bytes_of(kType);
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if (n >= kAtOnce) key = wait_for(scores[n - kAtOnce][3], key);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* pair = rows_[half] + bytes_of(kType) * static_cast<long long>(key);
        float low, high;
        if constexpr (kType == DType::fp32) {
          const float2 two = reinterpret_cast<const float2*>(pair)[n * 4];
          low = two.x, high = two.y;
        } else {
          ptx::unpack<kType>(reinterpret_cast<const unsigned*>(pair)[n * 4], low, high);
        }
        float* two = scores[n] + 2 * half;
        two[0] = sum<kTold>(two[0], factor, low);
        two[1] = sum<kTold>(two[1], factor, high);
      }
    }
  }

  template <bool kTold, int kKeys>
  DFA_DEVICE void add_each(const BiasArgs& bias, float (&scores)[kKeys][4], int key,
                           float factor) const {
    constexpr int kAtOnce = 2;
    const int last = keys_ - 1;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if (n >= kAtOnce) key = wait_for(scores[n - kAtOnce][3], key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = key + n * 8 + i % 2;
        const float more = bias_value(rows_[i / 2], bias.type, (at < last ? at : last) * bias.key);
        scores[n][i] = sum<kTold>(scores[n][i], factor, more);
      }
    }
  }

  const char* rows_[2] = {};
  int keys_ = 0;
  bool paired_ = false;
};

// The biases of 64 keys as rows by 64 queries as columns, of a thread in Hopper's backward: two
// rows (i and i + 8 of its warp's 16) and two of every eight columns. They are asked for long
// before they are used. Rows and keys behind the last are the last one's: their weights are 0.
template <bool kBias>
class TransposedBias {
  static constexpr int kFragments = 8;

 public:
  // Of the thread's first key and first query.
  template <bool kVarlen>
  DFA_DEVICE void load(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head, int query,
                       int key) {
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      const int bytes = bytes_of(bias.type);
      const int last_query = least(seq.sq(args), args.sq) - 1;
      const int last_key = least(seq.sk(args), args.sk) - 1;
      const char* const of_head =
          static_cast<const char*>(bias.values) +
          bytes * (seq.batch * bias.strides.batch + head * bias.strides.head);
      const char* keys[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        keys[half] = of_head + bytes * (least(key + half * 8, last_key) * bias.key);
      }
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const long long row =
              bytes * (least(query + n * 8 + side, last_query) * bias.strides.row);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            values_[n][2 * half + side] = word(keys[half] + row, bytes);
          }
        }
      }
    }
  }

  // Values of 16 bits become those of 32.
  DFA_DEVICE void widen(const KernelArgs& args) {
    if constexpr (kBias) {
      const DType type = args.logits.bias.type;
      if (type == DType::fp32) return;
      if (type == DType::bf16) {
        widen<DType::bf16>();
      } else {
        widen<DType::fp16>();
      }
    }
  }

  // Adds ds, of the thread's pairs, to the gradient.
  template <bool kVarlen>
  static DFA_DEVICE void add_gradient(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq,
                                      int head, int query, int key,
                                      const float (&ds)[kFragments][4]) {
    const BiasArgs& bias = args.logits.bias;
    const int queries = TileMask::clamp(seq.sq(args), args.sq);
    const int keys = TileMask::clamp(seq.sk(args), args.sk);
    const KernelStrides& step = bias.gradient_strides;
    float* const to =
        bias.gradients + seq.batch * step.batch + head * step.head + query * step.row + key;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + i % 2, column = i / 2 * 8;
        if (query + row < queries && key + column < keys) {
          ptx::add(to + row * step.row + column, ds[n][i]);
        }
      }
    }
  }

  // In exponents of 2. What is hidden stays so, whatever its bias.
  DFA_DEVICE float more(float exponent, int n, int i) const {
    if constexpr (!kBias) return exponent;
    const float bias = __uint_as_float(values_[n][i]);
    const bool hidden = exponent == -ptx::infinity() || bias < kBiasHides;
    return hidden ? -ptx::infinity() : fmaf(bias, kLog2E, exponent);
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  static DFA_DEVICE int least(int a, int b) { return a < b ? a : b; }
  static DFA_DEVICE unsigned word(const char* at, int bytes) {
    if (bytes == 4) return *reinterpret_cast<const unsigned*>(at);
    return *reinterpret_cast<const unsigned short*>(at);
  }

  template <DType kType>
  DFA_DEVICE void widen() {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::unpack<kType>(values_[n][i], low, high);
        values_[n][i] = __float_as_uint(low);
      }
    }
  }

  unsigned values_[kBias ? kFragments : 1][4];
};

}  // namespace dfa
