// Splits of keys of heads above 256 columns on Hopper: what they take, and why not.
#include <gtest/gtest.h>

#include "plan/hopper_plan.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/config_text.h"
#include "spec/values_in_keys.h"

namespace dfa {
namespace {

// The first that there would be, whether plans take it or not.
ForwardConfig first_of(const std::string& line) {
  const auto all = sm90_candidates(with_pack_gqa(parse_problem(line)), kHopper90);
  EXPECT_FALSE(all.empty()) << line;
  return all.empty() ? ForwardConfig{} : all[0];
}

std::string reason(const ForwardConfig& c, const std::string& line) {
  return validate_config(c, parse_problem(line), kHopper90).reason;
}

TEST(SlicedSplits, DenseKeysOfFewWorkTilesAreSplit) {
  const std::string latent = " d576 dv512 strides_v(";
  const auto splits = [&](int b, int hq, int sk) {
    const std::string batch = std::to_string(576 * sk);
    return first_of("fwd bf16 b" + std::to_string(b) + " hq" + std::to_string(hq) + " hk1 sq1 sk" +
                    std::to_string(sk) + latent + batch + "," + batch + ",576)")
        .num_splits;
  };
  EXPECT_EQ(splits(1, 128, 65536), 64);    // two work tiles
  EXPECT_EQ(splits(16, 128, 65536), 132);  // 32, and no whole number of parts of each
  EXPECT_EQ(splits(32, 16, 65536), 128);
  EXPECT_EQ(splits(64, 128, 65536), 0);  // fill a round
  EXPECT_EQ(splits(80, 128, 65536), 132);
  EXPECT_EQ(splits(32, 128, 1024), 0);
  EXPECT_EQ(first_of("fwd bf16 causal b1 hq8 s4096 d512").num_splits, 0);
  EXPECT_EQ(first_of("fwd bf16 causal b1 hq64 hk1 s4096 d576 dv512").num_splits, 0);
}

TEST(SlicedSplits, PackedSequencesOfFewQueriesAreDealtOutOnTheDevice) {
  const std::string lens = " lens(1,2,1) lens_k(4096,900,0) d576 dv512";
  for (const std::string& page :
       {std::string(), std::string(" page(64)"), std::string(" page(8)")}) {
    const std::string line = "fwd bf16 causal hq128 hk1" + lens + page;
    const ForwardConfig c = first_of(line);
    EXPECT_TRUE(c.split_kv && c.varlen);
    EXPECT_EQ(c.paged, !page.empty());
    EXPECT_EQ(c.pack_gqa, 64);
    EXPECT_EQ(c.num_splits, 66);  // times two heads of 64
    EXPECT_EQ(reason(c, line), "");
    EXPECT_EQ(parse_config(to_text(c), ForwardConfig{}), c);
  }
  EXPECT_EQ(first_of("fwd bf16 causal hq16 hk1 d576 dv512 lens(4,3) lens_k(90,900)").pack_gqa, 16);
  EXPECT_EQ(first_of("fwd bf16 hq96 hk1 d576 dv512 lens(1,1) lens_k(90,900)").pack_gqa, 48);
  EXPECT_EQ(first_of("fwd bf16 hq96 hk1 d576 dv512 lens(2,2) lens_k(90,900)").pack_gqa, 32);
  // Prompts take it in pages alone.
  EXPECT_FALSE(first_of("fwd bf16 causal hq4 hk1 d512 lens(700) lens_k(900)").split_kv);
  const ForwardConfig prompt =
      first_of("fwd bf16 causal hq4 hk1 d512 lens(700) lens_k(900) page(16)");
  EXPECT_TRUE(prompt.split_kv);
  EXPECT_EQ(prompt.pack_gqa, 1);
  EXPECT_EQ(prompt.num_splits, 33);
  EXPECT_EQ(
      first_of("fwd bf16 hq4 hk1 d512 lens(1) lens_k(900) page(16) batch_invariant").split_keys,
      1024);
}

TEST(SlicedSplits, RulesRefuseWithTheirReasons) {
  const std::string line = "fwd bf16 causal hq16 hk1 lens(1,2) lens_k(70,90) d576 dv512";
  const ForwardConfig good = first_of(line + " page(64)");
  const auto refused = [&](auto change, const std::string& more) {
    ForwardConfig c = good;
    change(c);
    return reason(c, line + more);
  };
  const auto none = [](auto&) {};
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? std::string() : "'" + text + "'";
  };
  EXPECT_EQ(refused(none, " page(64)"), "");
  EXPECT_EQ(says(refused(none, " page(12)"), "no common part in multiples of 8"), "");
  EXPECT_EQ(says(refused(none, ""), "paged=true is of keys in pages"), "");
  EXPECT_EQ(says(refused([](auto& c) { c.split_kv = false; }, " page(64)"),
                 "takes keys in pages with split_kv=true"),
            "");
  EXPECT_EQ(says(refused([](auto& c) { c.num_splits = 0; }, " page(64)"), "num_splits from 1 on"),
            "");
  EXPECT_EQ(
      says(refused([](auto& c) { c.split_keys = 100; }, " page(64)"), "no multiple of block_k"),
      "");
  EXPECT_EQ(says(refused([](auto& c) { c.pack_gqa = 128; }, " page(64)"), "pack_gqa up to 64"), "");
  EXPECT_EQ(says(refused(none, " page(64) batch_invariant"), "batch_invariant takes split_keys"),
            "");
  EXPECT_EQ(
      says(refused([](auto& c) { c.alibi = true; }, " page(64) alibi"), "no registers for alibi"),
      "");
  EXPECT_EQ(says(refused([](auto& c) { c.ranges = true; }, " page(64) chunk(9)"), "windows alone"),
            "");
  EXPECT_EQ(says(refused(none, " page(64) kv(e4m3)"), "no cache in e4m3"), "");
  // Dense keys are split by the host, and narrow heads by other kernels.
  EXPECT_EQ(says(refused([](auto& c) { c.varlen = c.paged = false; }, ""), "varlen"), "");
  const std::string dense = "fwd bf16 b1 h1 s64 d512";
  ForwardConfig of_dense = first_of(dense);
  of_dense.num_splits = 257;
  EXPECT_EQ(says(reason(of_dense, dense), "num_splits=257; 0 to 256"), "");
  ForwardConfig narrow = first_of("fwd bf16 h1 d128 lens(64,64)");
  narrow.split_kv = true;
  EXPECT_EQ(
      says(reason(narrow, "fwd bf16 h1 d128 lens(64,64)"), "split_kv=true of cuda_sm90 takes d"),
      "");
}

TEST(SlicedSplits, PlansTakeThem) {
  const std::string dense = "fwd bf16 b1 hq128 hk1 sq1 sk65536 d576 dv512",
                    paged = "fwd bf16 hq128 hk1 lens(1,1) lens_k(70,900) d576 dv512 page(64)";
  const ForwardConfig of_dense = select_forward(parse_problem(dense), kHopper90),
                      of_pages = select_forward(parse_problem(paged), kHopper90);
  EXPECT_GT(of_dense.num_splits, 0);
  EXPECT_EQ(of_pages.target, Target::cuda_sm90);
  EXPECT_TRUE(sm90_fits(parse_problem(paged), kHopper90));
  const ForwardConfig named = asked_forward("target=cuda_sm90", parse_problem(paged), kHopper90);
  EXPECT_TRUE(named.split_kv && named.num_splits == 66);
}

TEST(SlicedSplits, ValuesThatAreColumnsOfKeysAreToldByTheirStrides) {
  const auto in_keys = [](const std::string& rest) {
    return values_in_keys(parse_problem("fwd bf16 hq4 hk2 sq1 sk64 d576 dv512" + rest));
  };
  EXPECT_FALSE(in_keys(""));
  EXPECT_FALSE(in_keys(" layout(bshd)"));
  EXPECT_TRUE(in_keys(" strides_v(73728,36864,576)"));
  EXPECT_TRUE(in_keys(" layout(bshd) strides_v(73728,576,1152)"));
  // Side by side in one row, and as far apart.
  EXPECT_FALSE(in_keys(" strides_k(139264,69632,1088) strides_v(139264,69632,1088)"));
  EXPECT_FALSE(values_in_keys(parse_problem("fwd bf16 h2 s64 d64")));
}

}  // namespace
}  // namespace dfa
