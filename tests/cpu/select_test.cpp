#include "cpu/select.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa::cpu {
namespace {

TEST(Select, DefaultsAreLegalForEveryProblemInAMebibyteOfCache) {
  int checked = 0;
  for (const Target target : kTargets) {
    const Limits limits{.highest = target, .cache_bytes = 1LL << 20};
    for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
      for (int d = 8; d <= 576; d += 8) {
        for (const int dv : {8, std::min(d, 512), 256, 512}) {
          for (const std::int64_t length : {1, 31, 100, 16384}) {
            Problem p{.dtype = type, .sq = length, .sk = length, .d = d, .dv = dv};
            const ForwardConfig forward = default_forward(target, p);
            const BackwardConfig backward = default_backward(target, p);
            ASSERT_TRUE(validate_config(forward, p, limits)) << to_text(forward);
            ASSERT_TRUE(validate_config(backward, p, limits)) << to_text(backward);
            ++checked;
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 4 * 3 * 72 * 4 * 4);
}

TEST(Select, AmxServesBf16Only) {
  EXPECT_EQ(target_for(Target::cpu_amx, parse_problem("fwd bf16 h1 s8 d64")), Target::cpu_amx);
  EXPECT_EQ(target_for(Target::cpu_amx, parse_problem("fwd fp16 h1 s8 d64")), Target::cpu_avx512);
  EXPECT_EQ(target_for(Target::cpu_amx, parse_problem("fwd fp32 h1 s8 d64")), Target::cpu_avx512);
  EXPECT_EQ(target_for(Target::cpu_avx2, parse_problem("fwd bf16 h1 s8 d64")), Target::cpu_avx2);
  EXPECT_EQ(target_for(Target::cpu_amx, parse_problem("fwd bf16 h1 s8 d64 softcap(9)")),
            Target::cpu_avx512);
}

}  // namespace
}  // namespace dfa::cpu
