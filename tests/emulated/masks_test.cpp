// The portable kernels' own sources under chunked and prefix masks, on a processor, held against
// fp64.
#include "emulated/portable.h"

namespace dfa {
namespace {

using namespace emulated;

template <typename Config>
constexpr Config with_ranges(Config config) {
  config.ranges = true;
  return config;
}

template <DType kElement, int kDim, bool kVarlen = false>
void expect_right(const std::string& rest) {
  const std::string line =
      std::string("fwdbwd ") + name_of(kElement) + " " + rest + " d" + std::to_string(kDim);
  expect_both_right<with_ranges(portable_forward(kElement, kDim, kVarlen)),
                    with_ranges(portable_backward(kElement, kDim, kVarlen))>(line);
}

// Chunks of part of a tile, of one and of several, windows beside them, queries ahead of the first
// key; prefixes that end in a tile, at its end, and behind all keys.
TEST(EmulatedMasks, ChunksAndPrefixes) {
  for (const char* mask : {"causal chunk(7)", "causal chunk(64)", "chunk(50)",
                           "window(20,3) chunk(48)", "causal chunk(1000)", "causal prefix(1)",
                           "causal prefix(64)", "causal prefix(70)", "causal prefix(500)"}) {
    for (const char* sizes : {" b1 hq4 hk2 sq100 sk150", " b2 h1 sq140 sk60", " b1 h1 sq1 sk90"}) {
      expect_right<DType::bf16, 64>(std::string(mask) + sizes);
    }
    expect_right<DType::fp32, 32>(std::string(mask) + " b1 h2 sq100 sk130 scale(-2)");
  }
}

TEST(EmulatedMasks, OfPackedSequences) {
  for (const char* mask : {"causal chunk(40)", "causal prefix(70)"}) {
    expect_right<DType::bf16, 64, true>(std::string(mask) +
                                        " hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)");
  }
}

// Tiles of other chunks are not read.
TEST(EmulatedMasks, OtherChunksMayHoldAnything) {
  Tensors calm("fwdbwd bf16 causal chunk(64) b1 h1 s256 d64", 5);
  Tensors nan("fwdbwd bf16 causal chunk(64) b1 h1 s256 d64", 5);
  for (std::int64_t i = 0; i < 64 * 64; ++i) {
    nan.set(nan.k, i, std::nanf(""));
    nan.set(nan.v, i, std::nanf(""));
  }
  for (Tensors* t : {&calm, &nan}) run_forward<with_ranges(portable_forward(DType::bf16, 64))>(*t);
  const auto bytes = static_cast<std::ptrdiff_t>(calm.o.size() / 4);
  EXPECT_TRUE(std::equal(calm.o.begin() + bytes, calm.o.end(), nan.o.begin() + bytes));
  EXPECT_FALSE(calm.o == nan.o);
}

}  // namespace
}  // namespace dfa
