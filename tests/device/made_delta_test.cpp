// Hopper's backward by pairs with a warp that makes delta of later heads, on a real device: of
// problems of so many heads that some are not ready before.
#include "device/device_case.h"

namespace dfa {
namespace {

class MadeDelta : public HopperDevice {
 protected:
  static PlanOptions making(const std::string& more) {
    return {.backend = "cuda",
            .algorithm = Algorithm::flash,
            .config = "BackwardConfig{target=cuda_sm90,cluster=2,early_turns=true,rounds_dq=true," +
                      more + "makes_delta=true}"};
  }
};

TEST_F(MadeDelta, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  for (const char* more : {"persistent=true,", "persistent=false,"}) {
    for (const char* line : {"bwd bf16 b6 h40 sq130 sk20 d64", "bwd fp16 causal b5 h40 s70 d128"}) {
      EXPECT_TRUE(checked(line, 3, making(more))) << line << " " << more;
    }
  }
}

TEST_F(MadeDelta, LongerOnesMeetTheRule) {
  for (const char* more : {"persistent=true,", "persistent=false,"}) {
    for (const char* line :
         {"bwd bf16 causal b4 h12 s1000 d128", "bwd fp16 b3 h20 sq520 sk1030 d64 layout(bshd)",
          "bwd bf16 b2 hq24 hk8 s1500 d128 window(50,20)", "bwd bf16 causal b3 h17 s1027 d48"}) {
      for (int time = 0; time < 3; ++time) {
        EXPECT_TRUE(checked(line, 8 + time, making(more))) << line << " " << more;
      }
    }
  }
}

TEST_F(MadeDelta, AThousandRunsGiveTheSameBits) {
  for (const char* line : {"bwd bf16 causal b4 h12 s600 d128", "bwd fp16 b4 h16 s512 d64"}) {
    expect_same_bits(line, making("persistent=true,"), 1000);
  }
  expect_same_bits("bwd bf16 b4 h12 s600 d128", making("persistent=false,"), 1000);
}

// Who makes delta changes no bit.
TEST_F(MadeDelta, TheBitsAreThoseOfItsKernel) {
  for (const char* line :
       {"bwd bf16 causal b4 h12 s600 d128", "bwd bf16 b4 h16 sq515 sk700 d64 layout(bshd)"}) {
    PlanOptions without = making("persistent=true,");
    without.config.replace(without.config.find("makes_delta=true"), 16, "makes_delta=false");
    EXPECT_TRUE(
        same_bits(right_outputs(line, making("persistent=true,")), right_outputs(line, without)))
        << line;
  }
}

}  // namespace
}  // namespace dfa
