#include <gtest/gtest.h>

#include "dfa/error.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

constexpr Limits kBig{.highest = Target::cpu_amx, .cache_bytes = 2 << 20};

template <typename Config>
std::string error_of(const std::string& text) {
  try {
    parse_config(text, Config{});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigText, PrintingThenParsingIsTheIdentityForEveryCandidate) {
  const Problem p = parse_problem("fwdbwd bf16 causal b1 h4 s512 d72 dv40");
  const auto forward = forward_candidates(p, kBig);
  ASSERT_GT(forward.size(), 100u);
  for (const ForwardConfig& config : forward) {
    EXPECT_EQ(parse_config(to_text(config), ForwardConfig{}), config);
  }
  for (const BackwardConfig& config : backward_candidates(p, kBig)) {
    EXPECT_EQ(parse_config(to_text(config), BackwardConfig{}), config);
  }
}

TEST(ConfigText, PartialTextKeepsTheRest) {
  const ForwardConfig base{.head_dim = 128, .value_dim = 64, .block_q = 96};
  const ForwardConfig got = parse_config("target=cpu_avx2, .block_k=32", base);
  EXPECT_EQ(got.target, Target::cpu_avx2);
  EXPECT_EQ(got.block_k, 32);
  EXPECT_EQ(got.block_q, 96);
  EXPECT_EQ(got.head_dim, 128);
  EXPECT_EQ(parse_config("", base), base);
}

TEST(ConfigText, ErrorsNameTheFieldAndWhatIsAccepted) {
  EXPECT_NE(error_of<ForwardConfig>("block_q=x").find("an integer"), std::string::npos);
  EXPECT_NE(error_of<ForwardConfig>("block_q=0").find("block_q=0"), std::string::npos);
  EXPECT_NE(error_of<ForwardConfig>("target=cpu_neon").find("cpu_avx2"), std::string::npos);
  EXPECT_NE(error_of<ForwardConfig>("tiles=3").find("'tiles=3'"), std::string::npos);
  EXPECT_NE(error_of<ForwardConfig>("block_q").find("field=value"), std::string::npos);
  EXPECT_NE(error_of<BackwardConfig>("{block_q=64").find("brace"), std::string::npos);
}

TEST(Legality, EveryCandidateIsLegalAndFitsTheCache) {
  for (const char* line :
       {"fwd fp32 h1 s64 d8", "fwd fp16 h1 s64 d256", "fwd bf16 h1 s64 d64 dv8"}) {
    const Problem p = parse_problem(line);
    const auto candidates = forward_candidates(p, kBig);
    EXPECT_FALSE(candidates.empty()) << line;
    for (const ForwardConfig& config : candidates) {
      EXPECT_LE(config.tile_bytes(), kBig.cache_bytes);
      EXPECT_TRUE(config.target != Target::cpu_amx || p.dtype == DType::bf16);
    }
  }
}

TEST(Legality, EveryRuleRefusesWithItsReason) {
  const Problem p = parse_problem("fwd fp32 h1 s64 d64");
  const ForwardConfig good{.target = Target::cpu_avx512};
  ASSERT_TRUE(validate_config(good, p, kBig));
  const auto reason = [&](auto change) {
    ForwardConfig config = good;
    change(config);
    return validate_config(config, p, kBig).reason;
  };
  EXPECT_NE(reason([](auto& c) { c.target = Target::cpu_amx; }).find("bf16 only"),
            std::string::npos);
  EXPECT_NE(reason([](auto& c) { c.element = DType::bf16; }).find("element"), std::string::npos);
  EXPECT_NE(reason([](auto& c) { c.head_dim = 128; }).find("d=64"), std::string::npos);
  EXPECT_NE(reason([](auto& c) { c.value_dim = 32; }).find("dv=64"), std::string::npos);
  EXPECT_NE(reason([](auto& c) { c.block_q = 12; }).find("block_q=12"), std::string::npos);
  EXPECT_NE(reason([](auto& c) { c.block_k = 1024; }).find("block_k=1024"), std::string::npos);
  const Limits small{.highest = Target::cpu_avx2, .cache_bytes = 1 << 20};
  EXPECT_NE(validate_config(good, p, small).reason.find("cpu_avx2"), std::string::npos);
  const Limits tiny{.highest = Target::cpu_avx512, .cache_bytes = 1024};
  EXPECT_NE(validate_config(good, p, tiny).reason.find("1024"), std::string::npos);
  EXPECT_FALSE(validate_config(good, parse_problem("fwd tf32 h1 s64 d64"), kBig));
  EXPECT_FALSE(validate_config(good, parse_problem("fwd e4m3 h1 s64 d64"), kBig));
}

}  // namespace
}  // namespace dfa
