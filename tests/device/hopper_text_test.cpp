// Hopper's own kernels with masks and logits that are texts, on a real device: named, so that
// nothing else runs in its place.
#include <string>
#include <vector>

#include "device/device_case.h"

namespace dfa {
namespace {

class HopperText : public HopperDevice, public testing::WithParamInterface<const char*> {};

constexpr const char* kTexts[] = {
    " mask_mod((kv_idx + b) % 5 != h % 5 && (q_idx ^ kv_idx) >> 6 <= 1) "
    "score_mod(score - 0.05f * abs(q_idx + sk - sq - kv_idx))",
    " score_mod(5.0f * tanh(score / 5.0f) + 0.1f * h + (kv_idx < 4 ? min(score, 0.5f) : "
    "max(-score, "
    "exp(-abs(score)))))",
    " mask_mod(kv_idx <= q_idx + sk - sq || kv_idx < sq / 4 && !(h == 1))",
    // Rows that see no key, scores that hide keys, NaN, of the slope too, where the mask_mod
    // hides.
    " mask_mod(q_idx % 3 != 0 && kv_idx > 40) "
    "score_mod(kv_idx % 11 == 0 ? -2e30f : score * (1 + 0.01f * log(kv_idx - 40)))"};

INSTANTIATE_TEST_SUITE_P(Texts, HopperText, testing::ValuesIn(kTexts),
                         [](const auto& of) { return std::to_string(of.index); });

PlanOptions on_forward(const char* rest) {
  PlanOptions options = on_hopper("");
  options.config = std::string("ForwardConfig{target=cuda_sm90") + rest + "}";
  return options;
}

TEST_P(HopperText, EveryTextMeetsTheRule) {
  for (const char* sizes :
       {"fwd bf16 causal b2 hq8 hk2 sq500 sk700 d64", "fwd fp16 b1 h3 sq257 sk129 d64 scale(-1)",
        "fwd bf16 causal b2 hq8 hk2 sq1500 sk1700 d128", "fwd fp16 b2 h4 sq300 sk500 d128",
        "fwd bf16 b1 h4 sq400 sk900 d96 window(90,20)", "fwd bf16 causal b1 h5 s600 d192",
        "fwd bf16 causal b1 hq4 hk2 s900 d256", "fwd bf16 causal b1 h2 s200 d64 scale(20)",
        "fwd bf16 causal b1 h4 s700 d128 softcap(10) alibi sink",
        "fwd bf16 b2 h4 sq300 sk500 d64 bias(1,h) sink",
        "fwd bf16 causal b1 h4 s900 d128 chunk(200)", "fwd bf16 b1 h4 s700 d64 dropout(0.2,7)",
        "fwd bf16 causal b1 hq32 hk4 sq9 sk3000 d128", "fwd bf16 b1 h2 sq70 sk16384 d128"}) {
    EXPECT_TRUE(checked(std::string(sizes) + GetParam(), 3, on_forward("")));
  }
}

TEST_P(HopperText, EveryTileMeetsTheRule) {
  for (const char* tile :
       {",block_q=128,block_k=128,warps=8,stages=2,q_stages=2,pingpong=true,cluster=1,"
        "q_columns_in_regs=0",
        ",block_q=128,block_k=128,warps=8,stages=2,q_stages=2,pingpong=false,cluster=2,"
        "q_columns_in_regs=0",
        ",block_q=128,block_k=64,warps=8,stages=4,q_stages=2,pingpong=false,cluster=1,"
        "q_columns_in_regs=128"}) {
    EXPECT_TRUE(checked(std::string("fwd bf16 causal b2 hq8 hk2 sq500 sk700 d128") + GetParam(), 3,
                        on_forward(tile)));
  }
}

TEST_P(HopperText, PackedSequencesMeetTheRule) {
  for (const char* rest :
       {" hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)", " hq8 hk1 lens(900,3,64,2000,17)"}) {
    for (const char* dims : {"fwd bf16 causal d64", "fwd fp16 d128", "fwd bf16 causal d256"}) {
      EXPECT_TRUE(checked(std::string(dims) + rest + GetParam(), 5, on_forward("")));
    }
  }
}

// The backward behind it is the portable kernels'.
TEST_P(HopperText, GradientsBehindItMeetTheRule) {
  for (const char* sizes :
       {"fwdbwd bf16 causal b2 hq8 hk2 sq300 sk400 d128", "fwdbwd fp16 b1 h3 sq257 sk129 d64"}) {
    EXPECT_TRUE(checked(std::string(sizes) + GetParam(), 6, on_forward("")));
  }
}

TEST_P(HopperText, GradientsMeetTheRule) {
  const PlanOptions hopper{.backend = "cuda",
                           .algorithm = Algorithm::flash,
                           .config = "BackwardConfig{target=cuda_sm90}"};
  for (const char* sizes :
       {"bwd bf16 causal b2 hq8 hk2 sq300 sk400 d64", "bwd fp16 b1 h3 sq257 sk129 d128 scale(-1)",
        "bwd bf16 causal b2 h4 s700 d128 sink", "bwd bf16 b1 h4 sq400 sk777 d96 window(90,20)",
        "bwd fp16 b2 h4 sq700 sk500 d64 window(90,20)", "bwd bf16 causal b1 h4 s600 d192",
        "bwd fp16 causal b1 hq4 hk2 s900 d256",
        "bwd bf16 causal hq4 hk2 d64 lens(70,1,0,130,65) lens_k(150,1,9,129,0)",
        "bwd bf16 causal hq8 hk1 d128 lens(900,3,64,2000,17)",
        "bwd fp16 causal hq8 hk1 d192 lens(900,3,64,17)",
        "bwd bf16 causal hq8 hk1 d256 lens(900,3,64,17)"}) {
    EXPECT_TRUE(checked(std::string(sizes) + GetParam(), 6, hopper));
    EXPECT_TRUE(checked(std::string(sizes) + GetParam() + " deterministic", 7, hopper));
  }
  EXPECT_TRUE(
      checked(std::string("bwd bf16 causal b1 h4 s900 d128 chunk(200)") + GetParam(), 6, hopper));
  expect_same_bits(std::string("bwd bf16 causal b2 hq16 hk2 s1500 d128 deterministic") + GetParam(),
                   hopper, 100);
}

// Of these problems, each in these ways.
void expect_ways(const char* text, const std::vector<const char*>& ways,
                 const std::vector<const char*>& problems) {
  for (const char* way : ways) {
    for (const char* sizes : problems) {
      const PlanOptions named{
          .backend = "cuda",
          .algorithm = Algorithm::flash,
          .config = std::string("BackwardConfig{target=cuda_sm90,") + way + "}"};
      EXPECT_TRUE(checked(std::string(sizes) + text, 8, named)) << way;
    }
  }
}

// Warpgroups that own a gradient each, or both of their keys, in pairs or not.
TEST_P(HopperText, EveryWayToSumDqMeetsTheRule) {
  expect_ways(GetParam(),
              {"block_k=64,block_q=64,cluster=1,persistent=false,masked=false,dq=atomic",
               "cluster=1,persistent=false,masked=false,split_q=false,dq=atomic",
               "cluster=1,persistent=false,masked=false,split_q=false,dq=serialized",
               "cluster=2,persistent=false,dq=atomic", "cluster=2,persistent=true,dq=atomic",
               "cluster=2,persistent=true,dq=atomic_fused",
               "cluster=2,persistent=true,dq=serialized_fused"},
              {"bwd bf16 causal b2 hq8 hk2 sq500 sk700 d64",
               "bwd fp16 causal b1 hq4 hk4 sq700 sk500 d128 scale(-1)"});
}

// Of wide heads, where a pair's share of dq is added a step later up to 192 columns.
TEST_P(HopperText, EveryWayToSumDqOfWideHeadsMeetsTheRule) {
  expect_ways(GetParam(),
              {"cluster=1,persistent=false,dq=atomic", "cluster=2,persistent=false,dq=atomic",
               "cluster=2,persistent=false,dq=serialized", "cluster=2,persistent=true,dq=atomic",
               "cluster=2,persistent=true,dq=atomic_fused"},
              {"bwd bf16 causal b2 hq8 hk2 sq500 sk700 d192",
               "bwd fp16 b1 hq4 hk4 sq700 sk500 d192 window(100,70) scale(-1)",
               "bwd bf16 causal b1 hq4 hk4 sq700 sk500 d256"});
}

TEST_P(HopperText, ListsOfBlocksBesideItMeetTheRule) {
  for (const char* sizes :
       {"fwd bf16 causal b2 hq8 hk2 sq500 sk700 d128 blocks(random,0.5,3,b,h,partial)",
        "fwd fp16 b1 h4 sq400 sk900 d64 window(300,20) blocks(random,0.7,4,64x64,partial)",
        "fwd bf16 b1 h4 s700 d256 sink blocks(random,0.5,5)",
        "fwd bf16 b1 h4 s700 d128 softcap(10) alibi blocks(random,0.5,6,partial)"}) {
    EXPECT_TRUE(checked(std::string(sizes) + GetParam(), 3, on_forward("")));
  }
  expect_ways(
      GetParam(), {"dq=atomic"},
      {"bwd bf16 causal b2 hq8 hk2 sq500 sk700 d128 blocks(random,0.5,3,b,h,partial)",
       "bwd fp16 b1 h4 sq400 sk900 d64 window(300,20) scale(-1) blocks(random,0.7,4,partial)",
       "bwd bf16 b1 hq4 hk1 s700 d96 dv64 sink blocks(random,0.5,5)"});
  expect_same_bits(
      std::string("fwd bf16 causal b2 hq16 hk2 s1500 d128 blocks(random,0.3,1,partial)") +
          GetParam(),
      on_forward(""), 100);
}

TEST_P(HopperText, BitsAreTheSameInEveryRunAndOnAnyPartOfTheDevice) {
  const std::string line = std::string("fwd bf16 causal b2 hq16 hk2 s1500 d128") + GetParam();
  expect_same_bits(line, on_forward(""), 100);
  expect_same_bits_at_budgets(line, on_forward(""), 13);
}

}  // namespace
}  // namespace dfa
