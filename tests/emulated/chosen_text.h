#pragma once

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include "kernels/variant/user_text.cuh"

// The texts that kernels are given on a processor: one for a program, as for a kernel, is that
// which a test has chosen.
namespace dfa {

// clang-format off
#include "emulated/user_texts.h"
// clang-format on

namespace emulated {

inline int chosen_text = 0;
inline bool chosen_quick = true;  // as kernels of 16 bits are given it

inline constexpr const char* kTexts[] = {
    "mask_mod((kv_idx + b) % 5 != h % 5 && (q_idx ^ kv_idx) >> 6 <= 1) "
    "score_mod(score - 0.05f * abs(q_idx + sk - sq - kv_idx))",
    "score_mod(5.0f * tanh(score / 5.0f) + 0.1f * h + (kv_idx < 4 ? min(score, 0.5f) : max(-score, "
    "exp(-abs(score)))))",
    "mask_mod(kv_idx <= q_idx + sk - sq || kv_idx < sq / 4 && !(h == 1))",
    "score_mod(kv_idx % 7 == q_idx % 7 ? -INFINITY : sqrt(1 + score * score) - log(2 + cos(score)) "
    "+ "
    "pow(1 + score * score, 0.3f) / (2 + sin(score)) * int(0.5f * b + 1))",
    // Rows that see no key, scores that hide keys, NaN, of the slope too, where the mask_mod
    // hides, and behind the diagonal.
    "mask_mod(q_idx % 3 != 0 && kv_idx > 40) "
    "score_mod(kv_idx % 11 == 0 ? -2e30f : score * (1 + 0.01f * log(kv_idx - 40)))",
    "score_mod(score - 0.1f * log(1 + q_idx + sk - sq - kv_idx))"};

}  // namespace emulated

template <>
struct UserText<true> {
  static DFA_DEVICE float logit(float score, const UserTextPlace& at, float& share) {
    switch (emulated::chosen_text) {
      case 0: return Text0::logit(score, at, share);
      case 1:
        return emulated::chosen_quick ? QuickText1::logit(score, at, share)
                                      : Text1::logit(score, at, share);
      case 2: return Text2::logit(score, at, share);
      case 3: return Text3::logit(score, at, share);
      case 4: return Text4::logit(score, at, share);
      default: return Text5::logit(score, at, share);
    }
  }
};

}  // namespace dfa
