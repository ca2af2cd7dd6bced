// Hopper's forward with groups of heads that are no power of two as rows of a tile, on a real
// device.
#include "device/device_case.h"

namespace dfa {
namespace {

class OddGroups : public HopperDevice {};

std::string packing(int heads) { return ",pack_gqa=" + std::to_string(heads); }

TEST_F(OddGroups, TileEdgesMeetTheRule) {
  for (const char* mask : {"causal ", ""}) {
    for (const char* lengths : {"sq2 sk700", "sq15 sk64", "sq16 sk65", "sq17 sk700", "sq33 sk20",
                                "sq127 sk129", "s300"}) {
      const std::string line = std::string(" ") + mask + "b2 ";
      const std::string rest = std::string(" layout(bshd) ") + lengths;
      for (const char* d : {" d64", " d96", " d128", " d256"}) {
        EXPECT_TRUE(checked("fwd bf16" + line + "hq6 hk2" + rest + d, 8, on_hopper(packing(3))));
      }
      EXPECT_TRUE(
          checked("fwd fp16" + line + "hq10 hk2" + rest + " d64", 8, on_hopper(packing(5))));
      EXPECT_TRUE(
          checked("fwd bf16" + line + "hq28 hk4" + rest + " d128", 8, on_hopper(packing(7))));
      EXPECT_TRUE(
          checked("fwd bf16" + line + "hq24 hk2" + rest + " d128", 8, on_hopper(packing(12))));
    }
  }
  EXPECT_TRUE(
      checked("fwd bf16 b3 hq28 hk4 sq5 sk900 d128 window(300,0)", 8, on_hopper(packing(7))));
  EXPECT_TRUE(
      checked("fwd bf16 causal b2 hq6 hk2 sq60 sk700 d64 scale(20)", 8, on_hopper(packing(3))));
}

TEST_F(OddGroups, ThousandRunsGiveTheSameBits) {
  expect_same_bits("fwd bf16 causal b8 hq28 hk4 sq20 sk1000 d128", on_hopper(packing(7)), 1000);
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(OddGroups, SmallProblemsMeetTheRule) {
  EXPECT_TRUE(checked("fwd bf16 causal b2 hq6 hk2 sq9 sk200 d64", 3, on_hopper(packing(3))));
}

}  // namespace
}  // namespace dfa
