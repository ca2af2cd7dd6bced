#pragma once

// 2^r on [0, 1) as 1 + r q(r): minimax in the relative error, exact at r = 0, rounded to fp32.
// Evaluated in fp32 the error is at most 6.5e-8 for the long one (degree 6), 3.0e-6 for the short
// one (degree 4): far below what rounding a probability to bf16 costs (2e-3), and within what lse
// is allowed.
namespace dfa::cpu {

// Several vectors go through each step together: one chain of dependent steps alone takes 50
// cycles, more than a processor looks ahead.
template <class Isa, bool kShort, int kCount>
void exp2_fraction(const typename Isa::Vec (&r)[kCount], typename Isa::Vec (&q)[kCount]) {
  constexpr float kLong[] = {0x1.c54176p-13f,
                             0x1.46d64cp-10f,
                             0x1.3d0b92p-7f,
                             0x1.c68912p-5f,
                             0x1.ebfd58p-3f,
                             0x1.62e42cp-1f,
                             1.0f};
  constexpr float kBrief[] = {0x1.b7f734p-7f, 0x1.abf868p-5f, 0x1.ee2452p-3f, 0x1.62d6c6p-1f, 1.0f};
  const auto horner = [&](const auto& terms) {
    bool first = true;
#pragma GCC unroll 8
    for (const float term : terms) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        q[i] = first ? Isa::splat(term) : Isa::fma(q[i], r[i], Isa::splat(term));
      }
      first = false;
    }
  };
  if constexpr (kShort) {
    horner(kBrief);
  } else {
    horner(kLong);
  }
}

}  // namespace dfa::cpu
