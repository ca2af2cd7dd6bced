// Which kernels take keys in pages, and why not Hopper's where it does not.
#include <gtest/gtest.h>

#include "plan/hopper_plan.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

Problem prompts(const std::string& rest) {
  return parse_problem("fwd bf16 causal hq32 hk8 lens(4096,700) lens_k(4096,9000) " + rest);
}

TEST(PagedPlan, HopperHasTilesForPagesThatShareRowsWithThem) {
  for (const char* d : {"d64", "d96", "d128", "d192", "d256", "d192 dv128"}) {
    for (const int page : {8, 16, 24, 32, 48, 64, 128, 256, 528, 4096}) {
      const Problem p = prompts(std::string(d) + " page(" + std::to_string(page) + ")");
      const auto candidates = sm90_candidates(p, kHopper90);
      EXPECT_FALSE(candidates.empty()) << to_line(p);
      for (const ForwardConfig& c : candidates) {
        const int rows = page_box_rows(p, c);
        EXPECT_TRUE(c.paged && c.varlen);
        EXPECT_EQ(rows % kLeastBoxRows, 0);
        EXPECT_EQ(page % rows, 0);
        EXPECT_EQ(c.block_k % rows, 0);
        EXPECT_LE(c.block_k / rows, 32);  // a lane a box
        EXPECT_EQ(parse_config(to_text(c), ForwardConfig{}), c);
      }
    }
  }
}

TEST(PagedPlan, OtherPagesTakeThePortableKernelAndSayWhy) {
  for (const int page : {1, 2, 4, 7, 12, 20, 100}) {
    const Problem p = prompts("d128 page(" + std::to_string(page) + ")");
    EXPECT_EQ(select_forward(p, kHopper90).target, Target::cuda_sm80);
    EXPECT_EQ(sm90_fits(p, kHopper90).reason,
              "pages of " + std::to_string(page) +
                  " rows and tiles of block_k=64 have no common part in multiples of 8 rows, as "
                  "cuda_sm90 copies them");
  }
}

TEST(PagedPlan, RulesOfPages) {
  const auto reason = [](const char* strides) {
    return sm90_fits(prompts(std::string("d64 page(16) ") + strides), kHopper90).reason;
  };
  const std::string none = sm90_fits(prompts("d64 page(16)"), kHopper90).reason;
  EXPECT_EQ(reason("strides_k(16384,64,512)"), none);  // beside values in one page
  EXPECT_EQ(reason("strides_v(8192,1024,64)"), none);  // heads first
  EXPECT_NE(reason("strides_k(8200,64,512)").find("no whole numbers of rows apart"),
            std::string::npos);
  ForwardConfig wide = sm90_candidates(prompts("d256 page(16) softcap(9)"), kHopper90)[0];
  wide.block_k = 80;
  wide.block_q = 64;
  wide.warps = 4;
  wide.q_columns_in_regs = 0;
  EXPECT_NE(validate_config(wide, prompts("d256 page(16) softcap(9)"), kHopper90)
                .reason.find("pages with softcap"),
            std::string::npos);
  EXPECT_NE(reason("strides_v(8194,64,514)").find("strides of v"), std::string::npos);
}

TEST(PagedPlan, CachesInE4m3AndDropoutAreNotOfHoppers) {
  const auto reason = [](const char* rest) {
    return sm90_fits(prompts(std::string("d128 page(16) ") + rest), kHopper90).reason;
  };
  EXPECT_NE(reason("kv(e4m3)").find("no cache in e4m3"), std::string::npos);
  EXPECT_NE(reason("dropout(0.1,3)").find("no dropout"), std::string::npos);
  const Problem wide = prompts("d256 page(16) softcap(9) alibi");
  EXPECT_NE(sm90_fits(wide, kHopper90).reason.find("one head dim up to 192"), std::string::npos);
}

TEST(PagedPlan, FewQueriesKeepTheKernelThatSplitsKeys) {
  for (const char* line : {"b64 hq32 hk8 sq1 sk9000 d128 page(16)",
                           "hq32 hk8 lens(3,1,4) lens_k(900,7000,5) d128 page(64)",
                           "causal hq32 hk8 lens(4096,700) d128 page(16) batch_invariant"}) {
    const Problem p = parse_problem(std::string("fwd bf16 ") + line);
    EXPECT_TRUE(select_forward(p, kHopper90).split_kv) << line;
  }
}

TEST(PagedPlan, PromptsTakeHoppers) {
  for (const char* rest : {"d64 page(16)", "d128 page(64)", "d256 page(256) softcap(9) sink",
                           "d192 dv128 page(16) window(900,0)"}) {
    const Problem p = prompts(rest);
    const ForwardConfig chosen = select_forward(p, kHopper90);
    EXPECT_EQ(chosen.target, Target::cuda_sm90) << rest;
    EXPECT_TRUE(chosen.paged);
    EXPECT_EQ(chosen, sm90_candidates(p, kHopper90)[0]);
    EXPECT_EQ(chosen, forward_candidates(p, kHopper90)[0]);
    EXPECT_EQ(chosen, asked_forward("target=cuda_sm90", p, kHopper90));
    EXPECT_TRUE(sm90_fits(p, kHopper90));
  }
}

TEST(PagedPlan, RulesKeepKernelsOfPagesApart) {
  const Problem paged = prompts("d128 page(16)"), packed = prompts("d128");
  const ForwardConfig of_pages = sm90_candidates(paged, kHopper90)[0];
  const ForwardConfig of_rows = select_forward(packed, kHopper90);
  EXPECT_EQ(validate_config(of_pages, packed, kHopper90).reason,
            "paged=true is of keys in pages; this problem has none");
  EXPECT_EQ(validate_config(of_rows, paged, kHopper90).reason, "keys in pages take paged=true");
  const Problem single = parse_problem("fwd fp32 h2 s300 d64");
  ForwardConfig fp32 = select_forward(single, kHopper90);
  fp32.paged = true;
  EXPECT_NE(validate_config(fp32, single, kHopper90).reason.find("of 16 bits"), std::string::npos);
}

}  // namespace
}  // namespace dfa
