// Hopper's own backward with dropout, biases and logits, on a real device: named, so that nothing
// else runs in its place. Outputs are poisoned before.
#include "device/device_case.h"

namespace dfa {
namespace {

const std::string kVariants[] = {" dropout(0.1,7)", " bias(1,h)",
                                 " bias(b,1,fp32) dropout(0.9,18446744073709551615)",
                                 " softcap(5) alibi", " alibi bias(b,h) dropout(0.3,5) sink"};

class HopperBackwardVariants : public HopperDevice,
                               public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Variants, HopperBackwardVariants, testing::ValuesIn(kVariants),
                         [](const auto& of) { return std::to_string(of.index); });

class HopperBackwardOfVariants : public HopperDevice {};

TEST_P(HopperBackwardVariants, EveryProblemMeetsTheRule) {
  for (const char* rest : {"causal b2 hq8 hk2 sq500 sk700", "b2 hq4 hk4 sq500 sk90",
                           "b1 h2 sq130 sk1290 window(90,20)", "causal b1 hq4 hk1 s1100",
                           "b1 h1 sq70 sk3000 scale(-1)", "b1 hq8 hk2 sq1 sk3000",
                           "causal b1 hq4 hk2 sq700 sk500", "causal b1 hq4 hk2 s1000 chunk(300)",
                           "causal b2 hq4 hk2 s300 deterministic layout(bshd)"}) {
    for (const char* dims : {"bwd bf16 d64 ", "bwd fp16 d128 ", "bwd bf16 d96 "}) {
      EXPECT_TRUE(checked(dims + (rest + GetParam()), 5, on_hopper("")));
    }
  }
}

TEST_F(HopperBackwardOfVariants, DropoutOfWideHeadsMeetsTheRule) {
  for (const char* dims : {"bwd bf16 d192 ", "bwd fp16 d192 dv128 ", "bwd bf16 d256 "}) {
    for (const char* rest : {"causal b2 hq8 hk2 sq500 sk700", "b1 h2 sq130 sk1290 window(90,20)",
                             "b2 hq4 hk4 sq500 sk90"}) {
      EXPECT_TRUE(checked(std::string(dims) + rest + " dropout(0.3,5)", 5, on_hopper("")));
    }
  }
}

// Packed sequences, of no rows and of some, and edges of tiles.
TEST_P(HopperBackwardVariants, PackedSequencesMeetTheRule) {
  for (const char* rest : {"hq4 hk2 lens(70,1,0,1300,65) lens_k(150,1,9,1290,0)",
                           "causal hq8 hk8 lens(900,3,64,2000,17)", "hq2 hk1 lens(33,128,5)"}) {
    for (const char* dims : {"bwd bf16 d64 ", "bwd fp16 d128 "}) {
      EXPECT_TRUE(checked(dims + (rest + GetParam()), 6, on_hopper("")));
    }
  }
}

// By every way that dq is summed, by pairs and by single blocks.
TEST_P(HopperBackwardVariants, EveryWayToSumDqMeetsTheRule) {
  for (const char* more :
       {",cluster=1,dq=atomic,persistent=false", ",cluster=1,dq=serialized,persistent=false",
        ",cluster=2,dq=atomic,persistent=false", ",cluster=2,dq=atomic,persistent=true",
        ",cluster=2,dq=serialized,persistent=false",
        ",cluster=2,dq=serialized,persistent=false,gqa_inner_loop=true"}) {
    for (const char* dims : {"d64", "d128"}) {
      EXPECT_TRUE(
          checked(std::string("bwd bf16 causal b2 hq8 hk2 sq500 sk700 ") + dims + GetParam(), 3,
                  on_hopper(more)));
    }
  }
  EXPECT_TRUE(checked("bwd bf16 b2 hq8 hk2 sq500 sk700 d128" + GetParam(), 3,
                      on_hopper(",cluster=2,dq=atomic_fused,persistent=true")));
}

TEST_F(HopperBackwardOfVariants, TilesOfDropoutMeetTheRule) {
  for (const char* more :
       {",block_k=64,block_q=64,cluster=2,dq=atomic,persistent=false,masked=false",
        ",block_k=128,block_q=128,cluster=2,dq=atomic,persistent=true,masked=true",
        ",block_k=128,block_q=128,cluster=1,dq=serialized_fused,persistent=false,masked=false"}) {
    EXPECT_TRUE(
        checked("bwd bf16 causal b2 hq8 hk2 sq500 sk700 d64 dropout(0.3,7)", 3, on_hopper(more)));
  }
}

// Sums in a fixed order, and the mask, are the same in every run.
TEST_F(HopperBackwardOfVariants, BitsAreTheSameInEveryRun) {
  for (const char* line :
       {"bwd bf16 causal b2 hq16 hk2 s1500 d64 dropout(0.1,3) deterministic",
        "bwd bf16 causal b1 hq8 hk4 s1100 d128 bias(1,h) dropout(0.1,3) deterministic"}) {
    expect_same_bits(line, on_hopper(""), 100);
  }
}

// A forward and a backward by Hopper's own kernels draw the same mask.
TEST_P(HopperBackwardVariants, BothPassesMeetTheRule) {
  for (const char* rest : {"causal b2 hq8 hk2 sq500 sk700 d64", "b1 h4 s900 d128",
                           "causal hq4 hk2 lens(70,1,0,1300,65) lens_k(150,1,9,1290,0) d128"}) {
    EXPECT_TRUE(checked(std::string("fwdbwd bf16 ") + rest + GetParam(), 6, on_hopper("")));
  }
}

}  // namespace
}  // namespace dfa
