
#include "plan/pack_gqa.h"

#include <gtest/gtest.h>

namespace dfa {
namespace {

Problem packed(const char* line) { return with_pack_gqa(parse_problem(line)); }

bool stays(const char* line) { return packed(line) == parse_problem(line); }

TEST(PackedHeads, ASingleQueryOfEachHeadIsARow) {
  for (const char* line : {"fwd bf16 b3 hq32 hk4 sq1 sk700 d128",
                           "fwd bf16 causal b3 hq32 hk4 sq1 sk700 d128 layout(bshd)"}) {
    const Problem p = packed(line);
    EXPECT_EQ(to_line(p).substr(0, 35), "fwd bf16 b3 hq4 hk4 sq8 sk700 d128 ") << line;
    const Strides expected{.batch = 32 * 128, .head = 8 * 128, .row = 128};
    EXPECT_EQ(p.q(), expected) << line;
    EXPECT_EQ(p.o(), expected) << line;
    EXPECT_EQ(p.k(), parse_problem(line).k()) << line;
    EXPECT_EQ(p.v(), parse_problem(line).v()) << line;
    EXPECT_NO_THROW(validate(p)) << line;
  }
}

TEST(PackedHeads, DenseHeadsFollowOneAnother) {
  const Problem p = packed("fwd fp16 b2 hq6 hk2 sq20 sk300 d64 dv40 scale(0.3)");
  EXPECT_EQ(p.hq, 2);
  EXPECT_EQ(p.sq, 60);
  EXPECT_EQ(p.q(), (Strides{.batch = 6 * 20 * 64, .head = 3 * 20 * 64, .row = 64}));
  EXPECT_EQ(p.o(), (Strides{.batch = 6 * 20 * 40, .head = 3 * 20 * 40, .row = 40}));
  EXPECT_EQ(p.scale, 0.3);
}

TEST(PackedHeads, StridesOfTheCallersOwn) {
  const Problem p =
      packed("fwd bf16 b2 hq4 hk2 sq3 sk99 d16 strides_q(2000,72,24) strides_o(999,60,20)");
  EXPECT_EQ(p.q(), (Strides{.batch = 2000, .head = 144, .row = 24}));
  EXPECT_EQ(p.o(), (Strides{.batch = 999, .head = 120, .row = 20}));
}

TEST(PackedHeads, APlanSaysSo) {
  EXPECT_EQ(rows_of_heads(8), "; rows of a tile are of 8 query heads, which read the same keys");
  EXPECT_EQ(rows_of_heads(1), "");
}

// What Hopper's forward packs of problems that stay as they are.
TEST(PackedHeads, UnderAMaskAndInAnyLayout) {
  const auto heads = [](const char* line) { return select_pack_gqa(packed(line)); };
  EXPECT_EQ(heads("fwd bf16 causal b3 hq32 hk4 sq4 sk700 d128"), 8);
  EXPECT_EQ(heads("fwd bf16 b3 hq32 hk1 sq4 sk700 d128 layout(bshd)"), 16);  // twice
  EXPECT_EQ(heads("fwd bf16 b3 hq24 hk4 sq1 sk700 d128 window(100,0)"), 6);
  EXPECT_EQ(heads("fwd bf16 causal b3 hq28 hk4 sq4 sk700 d128"), 7);
  EXPECT_EQ(heads("fwd bf16 causal b3 hq48 hk4 sq8 sk700 d128"), 12);    // a tile, not three
  EXPECT_EQ(heads("fwd bf16 causal b3 hq48 hk4 sq64 sk700 d128"), 4);    // six tiles, not eight
  EXPECT_EQ(heads("fwd bf16 causal b3 hq12 hk4 sq60 sk700 d128"), 3);    // two tiles, not three
  EXPECT_EQ(heads("fwd bf16 causal b3 hq12 hk4 sq90 sk700 d128"), 1);    // three either way
  EXPECT_EQ(heads("fwd bf16 causal b3 hq68 hk4 sq1 sk700 d128"), 1);     // 17
  EXPECT_EQ(heads("fwd bf16 causal b3 hq32 hk4 s4096 d128"), 1);         // full tiles
  EXPECT_EQ(heads("fwd bf16 b3 hq32 hk4 sq1 sk700 d128"), 1);            // packed already
  EXPECT_EQ(heads("fwd bf16 causal b3 h32 sq4 sk700 d128"), 1);          // no groups
  EXPECT_EQ(heads("fwdbwd bf16 causal b3 hq32 hk4 sq4 sk700 d128"), 1);  // gradients
}

TEST(PackedHeads, UnderAWindow) {
  const auto heads = [](const char* line) { return pack_gqa_under_window(parse_problem(line)); };
  EXPECT_EQ(heads("fwd bf16 b2 hq64 hk8 s8192 d64 window(127,0) sink"), 8);
  EXPECT_EQ(heads("fwdbwd bf16 b2 hq64 hk8 s8192 d64 window(127,0) sink"), 8);
  EXPECT_EQ(heads("fwd bf16 b2 hq64 hk2 s8192 d64 chunk(128)"), 16);
  EXPECT_EQ(heads("fwd bf16 b2 hq24 hk2 s8192 d64 window(127,0)"), 4);
  EXPECT_EQ(heads("fwd bf16 b2 hq9 hk3 s8192 d64 window(127,0)"), 1);
  EXPECT_EQ(heads("fwd bf16 b2 h8 s8192 d64 window(127,0)"), 1);  // no groups
  EXPECT_EQ(heads("fwd bf16 causal b2 hq64 hk8 s8192 d64"), 1);   // no window
  EXPECT_EQ(heads("fwd bf16 b2 hq64 hk8 s8192 d64 window(127,0) bias(1,h)"), 1);
  EXPECT_EQ(heads("fwd bf16 hq64 hk8 d64 window(127,0) lens(500,20)"), 1);
}

TEST(PackedHeads, OfATileEitherWay) {
  const auto heads = [](const char* line) { return heads_of_a_tile(parse_problem(line)); };
  EXPECT_EQ(heads("fwd bf16 b3 hq28 hk4 sq1 sk700 d128"), 7);
  EXPECT_EQ(heads("fwd bf16 causal b3 hq32 hk4 sq4 sk700 d128"), 8);
  EXPECT_EQ(heads("fwd bf16 causal b3 hq32 hk4 s4096 d128"), 1);
}

TEST(PackedHeads, ArePricedAsRows) {
  const Problem p =
      priced_with_pack_gqa(parse_problem("fwd bf16 b3 hq24 hk4 sq5 sk700 d128 window(100,0)"));
  EXPECT_EQ(to_line(p), "fwd bf16 b3 hq4 hk4 sq40 sk105 d128");
  const Problem apart = parse_problem("fwd bf16 causal b3 hq32 hk4 s4096 d128");
  EXPECT_EQ(priced_with_pack_gqa(apart), apart);
}

TEST(PackedHeads, OtherProblemsStayAsTheyAre) {
  EXPECT_TRUE(stays("fwd bf16 b3 h32 sq1 sk700 d128"));                         // no groups
  EXPECT_TRUE(stays("bwd bf16 b3 hq32 hk4 sq1 sk700 d128"));                    // gradients
  EXPECT_TRUE(stays("fwdbwd bf16 b3 hq32 hk4 sq1 sk700 d128"));                 // likewise
  EXPECT_TRUE(stays("fwd bf16 causal b3 hq32 hk4 sq2 sk700 d128"));             // a mask
  EXPECT_TRUE(stays("fwd bf16 b3 hq32 hk4 sq1 sk700 d128 window(100,0)"));      // likewise
  EXPECT_TRUE(stays("fwd bf16 b1 hq8 hk2 sq128 sk700 d128"));                   // full tiles
  EXPECT_TRUE(stays("fwd bf16 b1 hq8 hk2 s4000 d128"));                         // nearly
  EXPECT_TRUE(stays("fwd bf16 b1 hq8 hk2 sq3 sk700 d128 layout(bshd)"));        // uneven rows
  EXPECT_TRUE(stays("fwd bf16 b1 hq8 hk2 sq1 sk700 d64 strides_q(64,0,64)"));   // expanded
  EXPECT_TRUE(stays("fwd bf16 b1 hq4 hk2 sq3 sk9 d16 strides_o(999,100,20)"));  // a gap
}

}  // namespace
}  // namespace dfa
