#pragma once

#include "kernels/forward/split_kv_combine.cuh"
#include "kernels/tile/product_e4m3.cuh"

// What sm80_split_kv does otherwise where keys and values are in e4m3 beside queries of 16 bits.
// They lie in shared memory as they come, and each warp widens what it multiplies to fp16, which
// has all numbers of e4m3: products are of fp16 whatever the queries are.
//   q        in fp16; of bf16, whose range is wider, each row times a power of two that puts its
//            largest element just below 2^15: what is 2^-31 of that and more stays exact
//   scores   times a factor of their row, which undoes that and has k's: they are those of a cache
//            in q's type
//   weights  times 2^kLift and rounded to fp16: those of 2^-24 of the largest and more have at
//            least the bits that bf16 would have
//   output   of a split times v's factor, before splits are combined
namespace dfa {

template <ForwardConfig kConfig>
struct SplitKvE4m3 {
  using Combine = SplitKvCombine<kConfig>;
  using Work = typename Combine::Work;
  static constexpr DType kElement = kConfig.element;
  static constexpr int kTileRows = Combine::kTileRows, kHeadDim = Combine::kHeadDim;
  static constexpr int kRows = Combine::kRows, kValues = Combine::kValues;
  static_assert(kHeadDim % 32 == 0 && Combine::kValueDim % 32 == 0);

  // Weights are up to 2^8 otherwise (OnlineSoftmax), and fp16 ends below 2^16.
  static constexpr int kLift = 7;

  // A row's power of two and the one that undoes it, by the size of its largest element.
  struct RowScale {
    float factor, inverse;

    static DFA_DEVICE RowScale of(float most) {
      constexpr int kBias = 127, kTop = 14;
      if constexpr (kElement == DType::fp16) return {1.f, 1.f};
      const int exponent = static_cast<int>(__float_as_uint(most) >> 23);
      const int wanted = 2 * kBias + kTop - exponent;
      const int power = wanted < 2 * kBias - 1 ? wanted : 2 * kBias - 1;  // both are normal
      return {__uint_as_float(static_cast<unsigned>(power) << 23),
              __uint_as_float(static_cast<unsigned>(2 * kBias - power) << 23)};
    }
  };

  // The tile of queries, its pairs of neighbours in the order that products want, and factors. A
  // warp takes rows in turn, so many at a time.
  static DFA_DEVICE void load_queries(const SplitKvForwardArgs& all, const Work& work,
                                      unsigned smem) {
    constexpr int kOfWarp = kTileRows / Combine::kWarps, kAtOnce = kOfWarp < 4 ? kOfWarp : 4;
    constexpr int kPairs = (kHeadDim + 63) / 64;  // of a lane
    static_assert(kOfWarp % kAtOnce == 0);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int batch = work.seq.batch, head = work.kv_head(all.args);
    const float of_keys = kE4m3Unit * all.k_descale.of(batch, head);
    const float of_values = kE4m3Unit * all.v_descale.of(batch, head);
#pragma unroll 1
    for (int first = 0; first < kOfWarp; first += kAtOnce) {
      unsigned pairs[kAtOnce][kPairs];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        read_row(pairs[i], all.args, work, warp * kOfWarp + first + i);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        store_row(pairs[i], smem, warp * kOfWarp + first + i, of_keys);
      }
    }
    if (threadIdx.x == 0) store_factor(smem, kTileRows, of_values);
  }

  // Scores become those of numbers times their factors.
  template <int kKeys>
  static DFA_DEVICE void undo(Sum<kRows, kKeys>& scores, unsigned smem) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = ptx::load_shared_1(factor_of(smem, m * 16 + half * 8 + lane / 4));
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          scores[m][n][2 * half] *= factor;
          scores[m][n][2 * half + 1] *= factor;
        }
      }
    }
  }

  // As Combine::leave(), of columns as multiply_e4m3() leaves them: a lane has four neighbours.
  static DFA_DEVICE void leave(char* smem, const Sum<kRows, kValues>& output,
                               const float (&inverse)[kRows][2], const float (&lse)[kRows][2]) {
    const float of_values = ptx::load_shared_1(factor_of(ptx::shared_address(smem), kTileRows));
    Combine::leave_rows(smem, lse, [&](float* o, int row, int lane, int m, int half) {
      const float f = inverse[m][half] * of_values;
#pragma unroll
      for (int n = 0; n < kValues; n += 2) {
        const float(&even)[4] = output[m][n];
        const float(&odd)[4] = output[m][n + 1];
        *reinterpret_cast<float4*>(o + row * Combine::kOutputRow + n * 8 + lane % 4 * 4) =
            make_float4(even[2 * half] * f, odd[2 * half] * f, even[2 * half + 1] * f,
                        odd[2 * half + 1] * f);
      }
    });
  }

 private:
  // Of scores of a row; behind those of outputs.
  static DFA_DEVICE unsigned factor_of(unsigned smem, unsigned row) {
    return smem + Combine::kFactorsAt + 4 * row;
  }
  static DFA_DEVICE void store_factor(unsigned smem, unsigned row, float factor) {
    ptx::store_shared(factor_of(smem, row), __float_as_uint(factor));
  }

  // A lane's pairs of neighbours, every 32nd one.
  template <int kPairs>
  static DFA_DEVICE void read_row(unsigned (&pairs)[kPairs], const KernelArgs& args,
                                  const Work& work, int row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const long long at = work.seq.q_offset(args, args.q_strides) +
                         work.query_of(row) * args.q_strides.row +
                         work.head_of(row) * args.q_strides.head;
    const unsigned* const from =
        reinterpret_cast<const unsigned*>(static_cast<const char*>(args.q) + Combine::kBytes * at);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = lane + 32 * i;
      pairs[i] = work.has(args, row) && 2 * pair < args.d ? from[pair] : 0;
    }
  }

  template <int kPairs>
  static DFA_DEVICE void store_row(const unsigned (&pairs)[kPairs], unsigned smem, int row,
                                   float of_keys) {
    const unsigned lane = threadIdx.x % 32;
    float low[kPairs], high[kPairs], most = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      ptx::unpack<kElement>(pairs[i], low[i], high[i]);
      most = fmaxf(most, fmaxf(fabsf(low[i]), fabsf(high[i])));
    }
    if constexpr (kElement == DType::bf16) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        most = fmaxf(most, __shfl_xor_sync(ptx::kWholeWarp, most, lanes));
      }
    }
    const RowScale scale = RowScale::of(most);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const unsigned pair = lane + 32 * i;
      if (2 * pair >= kHeadDim) continue;
      const unsigned slot = e4m3_slot(pair);
      const unsigned at = Swizzle<kHeadDim>::offset(static_cast<unsigned>(row), slot / 4);
      ptx::store_shared(smem + at + slot % 4 * 4,
                        ptx::pack<DType::fp16>(low[i] * scale.factor, high[i] * scale.factor));
    }
    const float factor = scale.inverse * of_keys;
    if (lane == 0) store_factor(smem, static_cast<unsigned>(row), factor);
  }
};

}  // namespace dfa
