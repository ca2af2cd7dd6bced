// Splits of keys of heads above 256 columns by Hopper's kernels, on a real device: dense, packed
// and in pages, whether plans take them or not.
#include "device/device_case.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

class SlicedSplits : public HopperDevice {
 protected:
  // The configuration that splits keys, with these changes.
  static PlanOptions split_of(const std::string& line, int num_splits = 0, int split_keys = 0) {
    const Problem p = with_pack_gqa(parse_problem(line));
    for (ForwardConfig c : sm90_candidates(p, cuda().limits())) {
      if (c.num_splits == 0 && num_splits == 0) continue;
      if (num_splits > 0) c.num_splits = num_splits;
      c.split_keys = split_keys;
      return {.backend = "cuda", .algorithm = Algorithm::flash, .config = to_text(c)};
    }
    ADD_FAILURE() << line << " has no splits";
    return {};
  }
  static void expect_checked(const std::string& line, int num_splits = 0, int split_keys = 0) {
    EXPECT_TRUE(checked(line, 3, split_of(line, num_splits, split_keys))) << line;
  }
};

TEST_F(SlicedSplits, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  expect_checked("fwd bf16 b1 hq16 hk1 sq1 sk700 d576 dv512", 4);
  expect_checked("fwd fp16 causal b1 hq2 hk1 sq70 sk330 d512", 5);
  expect_checked("fwd bf16 causal hq16 hk1 lens(4,1,0) lens_k(450,1,9) d576 dv512 page(16)", 3);
  expect_checked("fwd fp16 hq64 hk1 lens(1,2) lens_k(300,129) d512", 3);
}

TEST_F(SlicedSplits, DenseKeysMeetTheRule) {
  for (const int splits : {2, 66, 132}) {
    expect_checked("fwd bf16 b1 hq128 hk1 sq1 sk9001 d576 dv512", splits);
    expect_checked("fwd fp16 causal b3 hq16 hk2 sq5 sk3001 d512", splits);
    expect_checked("fwd bf16 causal b2 hq32 hk2 sq3 sk4100 d440 dv328 softcap(9) sink layout(bshd)",
                   splits);
  }
  expect_checked("fwd bf16 b80 hq128 hk1 sq1 sk150 d576 dv512", 132);  // behind whole rounds
  expect_checked("fwd bf16 window(900,0) b1 hq4 hk1 sq9 sk5000 d264", 40);
  // A latent cache.
  expect_checked("fwd bf16 b2 hq128 hk1 sq1 sk8192 d576 dv512 strides_v(4718592,4718592,576)");
}

const char* const kLens = " lens(1,2,1,0,16,1) lens_k(5001,64,1,30,300,0)";

class SlicedSplitsOfPages : public SlicedSplits, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Pages, SlicedSplitsOfPages,
                         testing::Values("", " page(64)", " page(16)", " page(8)", " page(256)"));

TEST_P(SlicedSplitsOfPages, MeetTheRule) {
  const auto line = [](const char* heads) {
    return std::string("fwd bf16 causal ") + heads + kLens + " d576 dv512" + GetParam();
  };
  expect_checked(line("hq128 hk1"));
  for (const char* heads : {"hq16 hk1", "hq6 hk2"}) {
    expect_checked(line(heads));
    expect_checked(line(heads), 1);
    expect_checked(line(heads), 17);
    expect_checked(line(heads), 40, 128);
  }
}

TEST_F(SlicedSplits, LogitsOfPackedKeysAndPagesMeetTheRule) {
  const std::string lens = kLens;
  expect_checked("fwd fp16 window(300,5) hq8 hk1 d512 page(48) softcap(9) sink" + lens);
  expect_checked("fwd fp16 causal hq4 hk1 d384 alibi sink" + lens);
  expect_checked("fwd bf16 causal hq4 hk1 lens(700,90) lens_k(900,3000) d512 page(64)");
  expect_checked(
      "fwd bf16 hq128 hk1 lens(1,1) lens_k(500,5000) d576 dv512 page(64) "
      "strides_v(36864,576,576)");
}

TEST_F(SlicedSplits, RunsLeaveTheSameBits) {
  for (const char* line :
       {"fwd bf16 b2 hq128 hk1 sq1 sk9001 d576 dv512",
        "fwd bf16 causal hq128 hk1 lens(1,2,1) lens_k(9001,64,3000) d576 dv512 page(64)"}) {
    expect_same_bits(line, split_of(line), 300);
    expect_same_bits_at_budgets(line, split_of(line), 5);
  }
}

}  // namespace
}  // namespace dfa
