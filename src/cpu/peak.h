#pragma once

// The roof: multiply-adds on registers alone, with as many chains as hide their latency.
namespace dfa::cpu {

struct PeakLoop {
  double flops;                   // of one iteration
  float (*run)(long iterations);  // returns a sum, so that nothing is optimised away
};

template <class Math>
struct Peak {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  static constexpr int kChains = 12;

  static float run(long iterations) {
    Vec sum[kChains];
    Vec a = Isa::splat(0.5f);
    const Vec b = Isa::splat(0.25f);
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = Isa::splat(static_cast<float>(i));  // equal chains would be merged into one
    }
    for (long n = iterations; n > 0; --n) {
      asm volatile("" : "+x"(a));  // a new value to the compiler: no product may leave the loop
#pragma GCC unroll 12
      for (int i = 0; i < kChains; ++i) sum[i] = Math::multiply_add(a, b, sum[i]);
    }
    Vec total = sum[0];
    for (int i = 1; i < kChains; ++i) total = total + sum[i];
    return Isa::reduce_add(total);
  }

  static constexpr PeakLoop loop() { return {2.0 * kChains * Isa::kLanes * Math::kPack, run}; }
};

const PeakLoop& portable_peak();
const PeakLoop& avx2_peak();
const PeakLoop& avx512_peak();
const PeakLoop& avx512_bf16_peak();
const PeakLoop& amx_peak();

}  // namespace dfa::cpu
