#pragma once

#include "kernels/args.h"
#include "kernels/either.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/softmax/tile_mask.h"
#include "spec/gpu_tiles.h"

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

// A key, or an address in shared memory, once this score is there: left to itself the compiler
// reads all biases at once, or begins the texts of all keys, and spills. Keys are below 2^28
// (validate_lengths), what they are compared with never is.
DFA_DEVICE unsigned wait_for(float score, unsigned at) {
  const unsigned never = __float_as_uint(score) | 1u << 30;
  return at < never ? at : never;
}
DFA_DEVICE int wait_for(float score, int key) {
  return static_cast<int>(wait_for(score, static_cast<unsigned>(key)));
}

// The bias of a thread's two rows (i and i + 8 of its warp's 16) of one work tile of Hopper's
// kernels. Those of 16 bits, a key beside the other, a warp copies to shared memory a tile ahead of
// their use, eight keys at once or two, as they are aligned. All others are read where they are
// used, of fp32 two at once. Rows and keys behind the last read the last one's, or 0, and masks
// hide what becomes of those keys. `kKeys` is a tile's, `kExponents` whether sums are exponents of
// 2.
template <bool kBias, bool kFp32, int kKeys, bool kExponents>
class FragmentBias {
  static constexpr int kRows = 16, kRowBytes = bias_row_bytes(kKeys);

 public:
  // `row` is the warp's first, `copies` where those of its rows have their place.
  template <bool kVarlen>
  DFA_DEVICE FragmentBias(const KernelArgs& args, const SeqlenInfo<kVarlen>& seq, int head, int row,
                          unsigned copies) {
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      // The bias has no more than the longest sequence as the problem has it.
      const int queries = seq.sq(args), keys = seq.sk(args), bytes = bytes_of(bias.type);
      queries_ = queries < args.sq ? queries : args.sq;
      row_ = row;
      keys_ = keys < args.sk ? keys : args.sk;
      copies_ = copies;
      values_ = static_cast<const char*>(bias.values) +
                bytes * (seq.batch * bias.strides.batch + head * bias.strides.head);
      const auto begins = reinterpret_cast<unsigned long long>(values_);
      const auto aligned = [&](int keys) {
        return bias.key == 1 && bias.strides.row % keys == 0 && begins % (keys * bytes) == 0;
      };
      at_once_ = !kFp32 && aligned(8) ? 8 : aligned(2) ? 2 : 1;
    }
  }

  // Starts the copy of the tile from `key` on, once the warp is done with the one before.
  DFA_DEVICE void fetch(const KernelArgs& args, int key) const {
    if constexpr (kBias) {
      if (kFp32 || at_once_ == 1) return;
      __syncwarp();
      if (at_once_ == 8) {
        copy<8>(args, key);
      } else {
        copy<2>(args, key);
      }
      ptx::commit_copies();
    }
  }

  // Scores become factor * score and the bias more, log2(e) * the bias in exponents. `key` is the
  // first score's of the warp, an even number, of the tile that was fetched last. With `kTold`
  // pairs may be hidden before, by -inf: whatever their bias, they stay so.
  template <bool kTold>
  DFA_DEVICE void add(const KernelArgs& args, float (&scores)[kKeys / 8][4], int key,
                      float factor) const {
    if constexpr (kBias) {
      const BiasArgs& bias = args.logits.bias;
      if (!kFp32 && at_once_ > 1) {
        if (bias.type == DType::bf16) return add_copied<kTold, DType::bf16>(scores, factor);
        return add_copied<kTold, DType::fp16>(scores, factor);
      }
      const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
      const char* const rows[2] = {of_row(args, lane / 4), of_row(args, lane / 4 + 8)};
      const bool whole = key + kKeys <= keys_;
      key += lane % 4 * 2;
      if (kFp32 && at_once_ > 1 && whole) return add_pairs<kTold>(rows, scores, key, factor);
      add_each<kTold>(bias, rows, scores, key, factor);
    }
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  DFA_DEVICE const char* of_row(const KernelArgs& args, int row) const {
    const BiasArgs& bias = args.logits.bias;
    return values_ + bytes_of(bias.type) *
                         ((row_ + row < queries_ ? row_ + row : queries_ - 1) * bias.strides.row);
  }

  // Lanes have the same place in each of their rows.
  template <int kAtOnce>
  DFA_DEVICE void copy(const KernelArgs& args, int key) const {
    constexpr int kBytes = 2 * kAtOnce, kPlaces = kKeys / kAtOnce;
    constexpr int kLanes = kPlaces > 32 || 32 % kPlaces != 0 ? 32 : kPlaces, kStep = 32 / kLanes;
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32), first = lane / kLanes;
    const long long row_bytes = 2 * args.logits.bias.strides.row;
    const int rows = queries_ - row_ - first;
#pragma unroll
    for (int place = lane % kLanes; place < kPlaces; place += kLanes) {
      const int at = key + kAtOnce * place, there = 2 * (keys_ - at);
      const int bytes = there < 0 ? 0 : there < kBytes ? there : kBytes;
      const char* from = values_ + (row_ + first) * row_bytes + 2ll * at;
      const unsigned to = copies_ + static_cast<unsigned>(first * kRowBytes + kBytes * place);
#pragma unroll
      for (int i = 0; i < kRows; i += kStep, from += kStep * row_bytes) {
        ptx::copy_up_to<kBytes>(to + i * kRowBytes, from, i < rows ? bytes : 0);
      }
    }
  }

  // `more` is -inf where it hides its key.
  template <bool kTold>
  static DFA_DEVICE float sum(float score, float factor, float more) {
    if (kTold && score == -ptx::infinity()) return score;
    return kExponents ? fmaf(more, kLog2E, score * factor) : fmaf(score, factor, more);
  }
  static DFA_DEVICE float hiding(float more) { return more < kBiasHides ? -ptx::infinity() : more; }

  template <bool kTold, DType kType>
  DFA_DEVICE void add_copied(float (&scores)[kKeys / 8][4], float factor) const {
    const unsigned lane = ptx::kept_thread_index() % 32;
    unsigned from = copies_ + lane % 16 * kRowBytes + lane / 16 * 16;
    ptx::wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      unsigned words[4];
      if (n >= 2) from = wait_for(scores[n - 2][3], from);
      ptx::ldmatrix(words, from + n * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::unpack<kType>(kType == DType::bf16 ? ptx::infinite_below(words[i]) : words[i], low,
                           high);
        float* two = scores[n + i / 2] + i % 2 * 2;
        two[0] = sum<kTold>(two[0], factor, low);
        two[1] = sum<kTold>(two[1], factor, high);
      }
    }
  }

  // Of fp32.
  template <bool kTold>
  static DFA_DEVICE void add_pairs(const char* const (&rows)[2], float (&scores)[kKeys / 8][4],
                                   int key, float factor) {
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (n >= kAtOnce) key = wait_for(scores[n - kAtOnce][3], key);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = reinterpret_cast<const float2*>(rows[half] + 4ll * key)[n * 4];
        float* two = scores[n] + 2 * half;
        two[0] = sum<kTold>(two[0], factor, hiding(pair.x));
        two[1] = sum<kTold>(two[1], factor, hiding(pair.y));
      }
    }
  }

  template <bool kTold>
  DFA_DEVICE void add_each(const BiasArgs& bias, const char* const (&rows)[2],
                           float (&scores)[kKeys / 8][4], int key, float factor) const {
    constexpr int kAtOnce = 2;
    const int last = keys_ - 1;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (n >= kAtOnce) key = wait_for(scores[n - kAtOnce][3], key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = key + n * 8 + i % 2;
        const float more = bias_value(rows[i / 2], bias.type, (at < last ? at : last) * bias.key);
        scores[n][i] = sum<kTold>(scores[n][i], factor, hiding(more));
      }
    }
  }

  const char* values_ = nullptr;          // of the head
  int row_ = 0, queries_ = 0, keys_ = 0;  // the warp's first row, and how many there are
  int at_once_ = 1;                       // keys that are aligned to be read at once
  unsigned copies_ = 0;
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
