// Hopper's forward with columns of q in registers, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class HeldColumns : public HopperDevice {};

constexpr const char* kAllHeld =
    ",q_columns_in_regs=96,block_q=192,block_k=64,warps=12,stages=3,q_stages=2";
constexpr const char* kSomeHeld =
    ",q_columns_in_regs=64,block_q=128,block_k=64,warps=8,stages=2,q_stages=1";
constexpr const char* kPairsHeld =
    ",q_columns_in_regs=96,block_q=128,block_k=64,warps=8,stages=2,q_stages=1,cluster=2";

TEST_F(HeldColumns, TileEdgesMeetTheRule) {
  for (const char* mask : {"", "causal "}) {
    for (const char* lengths :
         {"s1", "s63", "s64", "s65", "s127", "s128", "s193", "sq1 sk700", "sq700 sk1", "s641"}) {
      const std::string line = std::string("fwd bf16 ") + mask + "b2 hq4 hk2 " + lengths;
      EXPECT_TRUE(checked(line + " d96", 8, on_hopper(kAllHeld)));
      EXPECT_TRUE(checked(line + " d128", 8, on_hopper(kSomeHeld)));
      EXPECT_TRUE(checked(line + " d256", 8, on_hopper(kPairsHeld)));
    }
  }
}

// Where a left operand comes from changes no bit.
TEST_F(HeldColumns, TheBitsAreThoseOfAllOfQInSharedMemory) {
  const auto expect_same = [](const char* line, const std::string& held) {
    const std::string none = ",q_columns_in_regs=0" + held.substr(held.find(",block_q"));
    EXPECT_TRUE(
        same_bits(right_outputs(line, on_hopper(held)), right_outputs(line, on_hopper(none))))
        << line << held;
  };
  expect_same("fwd bf16 causal b2 h21 s700 d96", kAllHeld);
  expect_same("fwd bf16 b2 hq8 hk2 s333 d128", kSomeHeld);
  expect_same("fwd bf16 causal b2 h40 s777 d256", kPairsHeld);
  expect_same("fwd bf16 b1 h5 s777 d256 scale(4)", kPairsHeld);  // work tiles that are done again
}

TEST_F(HeldColumns, ThousandRunsGiveTheSameBits) {
  expect_same_bits("fwd bf16 causal b2 h21 s1000 d96", on_hopper(kAllHeld), 1000);
  expect_same_bits("fwd bf16 b2 h8 s515 d256", on_hopper(kPairsHeld), 1000);
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(HeldColumns, SmallProblemsMeetTheRule) {
  EXPECT_TRUE(checked("fwd bf16 causal b1 h2 s300 d96", 3, on_hopper(kAllHeld)));
  EXPECT_TRUE(checked("fwd bf16 b1 h1 s130 d256", 3, on_hopper(kPairsHeld)));
}

}  // namespace
}  // namespace dfa
