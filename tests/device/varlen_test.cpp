// Packed sequences on a real device, by the kernels that plans take and by those that they do not.
#include "device/device_case.h"

namespace dfa {
namespace {

class Varlen : public HopperDevice {};

TEST_F(Varlen, EverySequenceMeetsTheRule) {
  const int all = static_cast<int>(problem_lines("varlen.txt").size());
  EXPECT_EQ(ran_of({"varlen.txt"}, {.backend = "cuda"}), all);
  EXPECT_EQ(ran_of({"varlen.txt"}, {.backend = "cuda", .config = "target=cuda_sm80"}), all);
}

TEST_F(Varlen, BackwardsOfABlockAndOfPairsMeetTheRule) {
  for (const char* line : {"fwdbwd bf16 causal hq4 hk2 d128 lens(700,1,0,300,65)",
                           "fwdbwd fp16 causal hq2 hk2 d64 lens(33,512,5) lens_k(64,600,200)"}) {
    for (const char* how :
         {"dq=atomic,cluster=1,masked=false", "dq=atomic,cluster=2,masked=true",
          "dq=serialized,cluster=1,masked=false", "dq=serialized,cluster=2,masked=true"}) {
      EXPECT_TRUE(
          checked(line, 3,
                  {.backend = "cuda",
                   .config = std::string("BackwardConfig{") + "target=cuda_sm90," + how + "}"}));
    }
  }
}

}  // namespace
}  // namespace dfa
