#pragma once

// 2^r on [0, 1) as 1 + r q(r): minimax in the relative error, exact at r = 0, rounded to fp32.
// Evaluated in fp32 the error is at most 1.5e-7 for the long one, 3.0e-6 for the short one, which
// is far below what rounding a probability to 16 bits costs (2e-3 bf16, 5e-4 fp16), and keeps the
// row sum within what lse is allowed.
namespace dfa::cpu {

template <class Isa, bool kShort>
typename Isa::Vec exp2_fraction(typename Isa::Vec r) {
  using Vec = typename Isa::Vec;
  const Vec one = Isa::splat(1.0f);
  if constexpr (kShort) {
    Vec q = Isa::splat(0x1.b7f734p-7f);
    q = Isa::fma(q, r, Isa::splat(0x1.abf868p-5f));
    q = Isa::fma(q, r, Isa::splat(0x1.ee2452p-3f));
    q = Isa::fma(q, r, Isa::splat(0x1.62d6c6p-1f));
    return Isa::fma(q, r, one);
  } else {
    Vec q = Isa::splat(0x1.c54176p-13f);
    q = Isa::fma(q, r, Isa::splat(0x1.46d64cp-10f));
    q = Isa::fma(q, r, Isa::splat(0x1.3d0b92p-7f));
    q = Isa::fma(q, r, Isa::splat(0x1.c68912p-5f));
    q = Isa::fma(q, r, Isa::splat(0x1.ebfd58p-3f));
    q = Isa::fma(q, r, Isa::splat(0x1.62e42cp-1f));
    return Isa::fma(q, r, one);
  }
}

}  // namespace dfa::cpu
