#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <sstream>

#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"

// Plans by what holds of all of them: they are legal, there is one for every problem that some
// kernel can serve, and prices order them.
namespace dfa {
namespace {

constexpr int kDrawn = 400;

class Draw {
 public:
  Problem problem() {
    Problem p{.pass = any({Pass::forward, Pass::backward, Pass::forward_backward}),
              .dtype = any({DType::bf16, DType::fp16, DType::fp32}),
              .mask = any({kFull, kCausal, Mask{127, 0}, Mask{64, 64}}),
              .b = any<std::int64_t>({1, 2, 8}),
              .hk = any<std::int64_t>({1, 3, 8}),
              .sq = any<std::int64_t>({1, 63, 129, 1024, 5000}),
              .sk = any<std::int64_t>({1, 64, 1000, 4096, 16384}),
              .d = 8 * any<std::int64_t>({1, 4, 8, 12, 16, 24, 32}),
              .deterministic = any({false, true})};
    p.hq = p.hk * any<std::int64_t>({1, 4, 7});
    p.dv = any({p.d, std::int64_t{64}});
    return p;
  }

  Limits limits() {
    Limits limits = gpu_limits(any({80, 86, 90}));
    limits.sm_count = any({16, 64, 132});
    return limits;
  }

 private:
  template <typename Value>
  Value any(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }

  std::mt19937 random_{46};
};

template <typename Config>
void expect_legal(const std::vector<Config>& candidates, const Config& selected, const Problem& p,
                  const Limits& limits) {
  ASSERT_FALSE(candidates.empty()) << to_line(p);
  EXPECT_EQ(candidates.front(), selected) << to_line(p);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    EXPECT_TRUE(validate_config(candidates[i], p, limits)) << to_line(p) << to_text(candidates[i]);
    EXPECT_EQ(std::count(candidates.begin(), candidates.end(), candidates[i]), 1) << to_line(p);
    EXPECT_EQ(parse_config(to_text(candidates[i]), Config{}), candidates[i]);
  }
}

TEST(Plans, EveryDrawnProblemHasALegalOneAndEveryCandidateIsLegalAndNamedOnce) {
  Draw draw;
  for (int i = 0; i < kDrawn; ++i) {
    const Problem p = draw.problem();
    const Limits limits = draw.limits();
    expect_legal(forward_candidates(p, limits), select_forward(p, limits), p, limits);
    expect_legal(backward_candidates(p, limits), select_backward(p, limits), p, limits);
  }
}

TEST(Plans, BothPassesOfAProblemMayRunTogether) {
  Draw draw;
  for (int i = 0; i < kDrawn; ++i) {
    const Problem p = draw.problem();
    const Limits limits = draw.limits();
    EXPECT_TRUE(validate_pair(select_forward(p, limits), select_backward(p, limits))) << to_line(p);
  }
}

TEST(Plans, WhereNoneIsLegalTheSelectedOneSaysWhy) {
  for (const char* line :
       {"fwdbwd bf16 h1 s300000000 d64", "fwdbwd bf16 b2 h1 s64 d64 strides_k(4100,4100,64)"}) {
    const Problem p = parse_problem(line);
    const Limits limits = gpu_limits(90);
    EXPECT_TRUE(forward_candidates(p, limits).empty()) << line;
    EXPECT_NE(validate_config(select_forward(p, limits), p, limits).reason, "") << line;
    EXPECT_NE(validate_config(select_backward(p, limits), p, limits).reason, "") << line;
  }
}

// Of each measured tile as a whole, without splits.
std::vector<PricedTile> whole_tiles(const Problem& p, int sm_count) {
  std::vector<PricedTile> tiles = priced_sm90_tiles(p, sm_count);
  std::erase_if(tiles, [](const PricedTile& priced) { return priced.tile.num_splits > 0; });
  std::sort(tiles.begin(), tiles.end(), [](const PricedTile& a, const PricedTile& b) {
    return std::tuple(a.tile.block_q, a.tile.block_k, a.tile.cluster) <
           std::tuple(b.tile.block_q, b.tile.block_k, b.tile.cluster);
  });
  return tiles;
}

TEST(Prices, MoreKeysMoreHeadsAndFewerMultiprocessorsCostNoLess) {
  for (const char* line :
       {"fwd bf16 b4 h16 s1024 d128", "fwd fp16 b2 h8 s700 d64", "fwd bf16 b1 h3 sq1 sk900 d256"}) {
    const Problem p = parse_problem(line);
    Problem longer = p, wider = p;
    longer.sk += 1000;
    wider.b *= 3;
    const auto of = whole_tiles(p, 132);
    const auto more_keys = whole_tiles(longer, 132), more_heads = whole_tiles(wider, 132);
    const auto fewer = whole_tiles(p, 64);
    ASSERT_FALSE(of.empty());
    for (std::size_t i = 0; i < of.size(); ++i) {
      EXPECT_GE(more_keys[i].us, of[i].us) << line;
      EXPECT_GE(more_heads[i].us, of[i].us) << line;
      EXPECT_GE(fewer[i].us, of[i].us) << line;
    }
  }
}

// Larger tiles come up to 3 % later than their price says.
TEST(Prices, TheSelectedTileIsTheCheapestUpToItsMargin) {
  Draw draw;
  for (int i = 0; i < kDrawn; ++i) {
    const auto priced = priced_sm90_tiles(draw.problem(), draw.limits().sm_count);
    for (std::size_t n = 1; n < priced.size(); ++n) {
      const double margin = priced[n].tile.pack_gqa > 1 ? 1.201 : 1.031;
      EXPECT_LE(priced[n - 1].us, margin * priced[n].us);
    }
  }
}

TEST(Prices, EveryRowNamesAFileThatIsThereAndACommit) {
  int sources = 0;
  for (const char* name : {"prices_forward.h", "prices_backward.h"}) {
    std::ifstream file(std::string(DFA_SOURCE_DIR "/src/plan/") + name);
    std::stringstream text;
    text << file.rdbuf();
    const std::string rows = std::regex_replace(text.str(), std::regex("\\s+"), " ");
    const std::regex source("Source \\w+\\{ ?\"([^\"]*)\", \"([^\"]*)\", \"([^\"]*)\"");
    for (std::sregex_iterator found(rows.begin(), rows.end(), source), end; found != end; ++found) {
      const std::string path = (*found)[2], commit = (*found)[3];
      EXPECT_TRUE(std::filesystem::exists(DFA_SOURCE_DIR "/" + path)) << path;
      EXPECT_TRUE(std::regex_match(commit, std::regex("[0-9a-f]{7}"))) << commit;
      ++sources;
    }
  }
  EXPECT_GE(sources, 15);
}

}  // namespace
}  // namespace dfa
