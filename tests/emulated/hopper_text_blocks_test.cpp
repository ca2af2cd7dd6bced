// Masks and logits that are texts beside lists of blocks, by Hopper's own kernels of both passes:
// their source on a processor, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/chosen_text.h"
#include "emulated/hopper_blocks.h"
#include "emulated/hopper_blocks_backward.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig with_text(ForwardConfig config) {
  config.text = true;
  return listed(config);
}
constexpr BackwardConfig with_text(BackwardConfig config) {
  config.text = true;
  return config;
}

// Bitmaps, heads with lists of their own, ragged edges, a window beside, rows that see no key,
// either sign. Text 4 hides the first keys, of which it makes NaN.
constexpr const char* kLists[] = {
    "causal b2 hq4 hk2 sq200 sk333 blocks(random,0.6,2,128x128,b,h,partial)",
    "b1 hq2 hk1 sq300 sk390 window(170,20) scale(-1) blocks(random,0.8,7,128x128,partial)"};
#ifdef DFA_EVERY_CASE
constexpr int kTextsTaken[] = {0, 1, 2, 4};
#else
constexpr int kTextsTaken[] = {0, 4};
#endif

template <ForwardConfig kConfig>
void expect_forward_right() {
  for (const int text : kTextsTaken) {
    chosen_text = text;
    for (const char* lists : kLists) {
      expect_right_and_same(
          forward_line<kConfig>(lists) + " " + kTexts[text],
          [](Tensors& t, unsigned blocks) { run_listed<kConfig>(t.p, t.forward_args(), blocks); });
    }
  }
}

template <BackwardConfig kConfig>
void expect_backward_right() {
  for (const int text : kTextsTaken) {
    chosen_text = text;
    for (const char* lists : kLists) expect_right<kConfig>(std::string(lists) + " " + kTexts[text]);
  }
}

TEST(EmulatedHopperTextBlocks, ForwardsMeetTheRule) {
  expect_forward_right<with_text(hopper_forward(kBf16, 64, 128, 64, 2, 2))>();
#ifdef DFA_EVERY_CASE
  expect_forward_right<with_text(hopper_forward(kFp16, 128, 64, 64, 2, 1))>();
  expect_forward_right<with_text(hopper_forward(kBf16, 256, 128, 64, 2, 1))>();
#endif
}

TEST(EmulatedHopperTextBlocks, BackwardsMeetTheRule) {
  expect_backward_right<with_text(listed(kBf16, 64, 64))>();
  expect_backward_right<with_text(listed(kFp16, 128, 128))>();
#ifdef DFA_EVERY_CASE
  expect_backward_right<with_text(listed(kBf16, 96, 64))>();
#endif
}

}  // namespace
}  // namespace dfa
