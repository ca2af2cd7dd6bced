// Hopper's backward on a processor: its own source, held against fp64.
#include "emulated/hopper_backward.h"

#include "plan/schedule.h"
// and then:
#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_pair_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

using enum DqAccumulation;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr BackwardConfig config(DType element, int dim, DqAccumulation dq = serialized) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = dim > 64 ? 64 : 128,
          .block_k = 128,
          .warps = 8,
          .stages = 2,
          .ctas = 1,
          .dq = dq};
}

template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  expect_gradients<kConfig>(line, {kLate, kCrossed},
                            [](const Sm90BackwardArgs& args) { sm90_backward<kConfig>(args); });
}

TEST(EmulatedHopperBackward, HeadsOf64) {
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 hq4 hk2 sq200 sk300 d64");
  expect_right<config(kBf16, 64)>("bwd bf16 b2 h1 sq129 sk257 d40 window(60,9) layout(bshd)");
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 h1 sq200 sk90 d64");  // rows without a key
  expect_right<config(kFp16, 64)>("bwd fp16 b1 h1 sq100 sk1 d64");
}

TEST(EmulatedHopperBackward, MoreHeadsThanAtOnce) {
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 h11 s140 d64");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, HeadsOf96And128) {
  expect_right<config(kBf16, 96)>("bwd bf16 causal b1 hq2 hk1 s200 d96");
  expect_right<config(kBf16, 128)>("bwd bf16 causal b1 hq2 hk1 s270 d128");
  expect_right<config(kFp16, 128)>("bwd fp16 b1 h1 sq150 sk200 d128 window(50,30)");
}

// Of up to 64 columns where blocks round dq.
TEST(EmulatedHopperBackward, TurnsPassedOnByASecondThread) {
  constexpr auto kBf = config(kBf16, 64, serialized_fused);
  constexpr auto kFp = config(kFp16, 64, serialized_fused);
  static_assert(kBf.early_release() && !config(kBf16, 64).early_release());
  expect_right<kBf>("bwd bf16 causal b1 hq4 hk2 sq200 sk300 d64");
  expect_right<kFp>("bwd fp16 b2 h1 sq300 sk400 d40 window(60,90)");
}
#endif

TEST(EmulatedHopperBackward, DqAsItComes) {
  expect_right<config(kBf16, 64, atomic)>("bwd bf16 causal b1 hq2 hk1 s300 d64");
  expect_right<config(kFp16, 128, atomic)>("bwd fp16 b1 h1 sq150 sk300 d128");
}

// By pairs of blocks.

constexpr BackwardConfig pairs(DType element, int dim, DqAccumulation dq = serialized) {
  BackwardConfig with = config(element, dim, dq);
  with.cluster = 2;
  return with;
}

template <BackwardConfig kConfig>
void expect_right_of_pairs(const std::string& line, int sms = 132) {
  expect_gradients<kConfig>(
      line, {kEager, kLate, kCrossed},
      [](const Sm90BackwardArgs& args) { sm90_pair_backward<kConfig>(args); }, sms);
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, PairsMakeDqOfBothAlternately) {
  expect_right_of_pairs<pairs(kBf16, 128)>("bwd bf16 b1 h1 sq64 sk256 d128");  // a tile
  expect_right_of_pairs<pairs(kBf16, 128)>("bwd bf16 b1 h1 sq128 sk256 d128");
  expect_right_of_pairs<pairs(kBf16, 128)>(
      "bwd bf16 b1 h1 sq300 sk520 d128");  // five, and a block of no keys
  expect_right_of_pairs<pairs(kBf16, 128)>("bwd bf16 causal b1 hq2 hk1 s600 d128");
  expect_right_of_pairs<pairs(kBf16, 96)>("bwd bf16 causal b1 hq2 hk2 sq200 sk300 d96");
  expect_right_of_pairs<pairs(kBf16, 128)>("bwd bf16 causal b1 h1 sq300 sk90 d128");
  expect_right_of_pairs<pairs(kFp16, 128)>("bwd fp16 b2 h1 sq150 sk400 d128 window(50,30)");
  expect_right_of_pairs<pairs(kFp16, 128, atomic)>("bwd fp16 b1 hq3 hk1 sq65 sk300 d128");
}
#endif

TEST(EmulatedHopperBackward, PairsOfHeadsOf64) {
  expect_right_of_pairs<pairs(kBf16, 64)>("bwd bf16 b1 h1 sq128 sk256 d64");
  expect_right_of_pairs<pairs(kBf16, 64)>("bwd bf16 causal b1 hq4 hk2 sq200 sk300 d64");
  expect_right_of_pairs<pairs(kBf16, 64)>("bwd bf16 b2 h1 sq700 sk257 d40 layout(bshd)");
  expect_right_of_pairs<pairs(kBf16, 64)>("bwd bf16 b1 hq2 hk1 sq600 sk257 d64");
  expect_right_of_pairs<pairs(kFp16, 64)>("bwd fp16 b1 h1 sq600 sk400 d64 window(60,90)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, PairsOfMoreHeadsThanAtOnce) {
  expect_right_of_pairs<pairs(kBf16, 128)>("bwd bf16 causal b1 h11 s140 d128");
}
#endif

// With a warp that rounds dq, and blocks at the end.

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, BlocksAtTheEndRoundDq) {
  expect_right_of_pairs<pairs(kBf16, 128, serialized_fused)>("bwd bf16 b1 h1 sq64 sk256 d128");
  expect_right_of_pairs<pairs(kBf16, 128, serialized_fused)>(
      "bwd bf16 causal b1 hq6 hk3 sq600 sk300 d128 layout(bshd)");
  expect_right_of_pairs<pairs(kFp16, 64, serialized_fused)>("bwd fp16 b1 h1 sq300 sk90 causal d48");
  expect_right<config(kBf16, 128, serialized_fused)>(
      "bwd bf16 b1 h1 sq150 sk200 d128 window(50,30)");
}

// As many blocks as lie between, and heads whose dq is rounded by their warps.
TEST(EmulatedHopperBackward, AWarpRoundsDqOfHeadsBefore) {
  const auto expect = [](const std::string& line, auto config) {
    expect_gradients<config()>(line, {kCrossed}, [&](const Sm90BackwardArgs& args) {
      if constexpr (config().cluster == 2) {
        sm90_pair_backward<config()>(args);
      } else {
        sm90_backward<config()>(args);
      }
    });
  };
  expect("bwd bf16 b2 h53 sq130 sk20 d40", [] { return pairs(kBf16, 64, serialized_fused); });
  expect("bwd fp16 causal b1 hq50 hk25 sq70 sk1030 d96 layout(bshd)",
         [] { return pairs(kFp16, 96, serialized_fused); });
  expect("bwd bf16 causal b23 h9 s20 d64", [] { return config(kBf16, 64, serialized_fused); });
}
#endif

// Pairs that stay. Here the first that runs takes all work tiles.

constexpr BackwardConfig persistent(BackwardConfig with) {
  with.persistent = true;
  return with;
}

TEST(EmulatedHopperBackward, PairsThatStay) {
  constexpr auto k128 = persistent(pairs(kBf16, 128)), k64 = persistent(pairs(kBf16, 64));
  expect_right_of_pairs<k128>("bwd bf16 b1 h3 sq64 sk200 d128", 2);  // a tile for each work tile
  expect_right_of_pairs<k128>("bwd bf16 b2 h3 sq130 sk600 d128", 4);
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq4 hk2 s600 d128", 2);
  expect_right_of_pairs<k128>("bwd bf16 causal b1 h2 sq300 sk900 d128", 1);
  // Keys that no query sees: under the mask, between work tiles that have some.
  expect_right_of_pairs<k128>("bwd bf16 b1 h3 sq100 sk1200 d128 window(70,0)", 2);
  expect_right_of_pairs<k64>("bwd bf16 causal b1 hq4 hk2 sq200 sk300 d64", 2);
  expect_right_of_pairs<k64>("bwd bf16 b2 h2 sq700 sk257 d40 layout(bshd)", 6);
  expect_right_of_pairs<k64>("bwd bf16 b3 h2 sq200 sk700 d64 window(100,0)", 2);
  expect_right_of_pairs<persistent(pairs(kFp16, 96))>("bwd fp16 causal b1 h11 s140 d96", 4);
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, PairsThatStayAddAsTheyCome) {
  constexpr auto k128 = persistent(pairs(kBf16, 128, atomic));
  constexpr auto k64 = persistent(pairs(kFp16, 64, atomic));
  expect_right_of_pairs<k128>("bwd bf16 b2 h3 sq130 sk600 d128", 4);
  expect_right_of_pairs<k128>("bwd bf16 b1 h3 sq100 sk1200 d128 window(70,0)", 2);
  expect_right_of_pairs<k64>("bwd fp16 causal b1 hq4 hk2 sq200 sk300 d64", 2);
  expect_right_of_pairs<k64>("bwd fp16 causal b2 hq4 hk2 s400 d64", 4);
  // Two heads at the end, one after the other before.
  expect_right_of_pairs<k64>("bwd fp16 causal b17 h2 s300 d64", 4);
}

TEST(EmulatedHopperBackward, PairsThatEndAddAsTheyCome) {
  constexpr auto k128 = pairs(kBf16, 128, atomic);
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq4 hk2 sq300 sk900 d128");
  expect_right_of_pairs<pairs(kBf16, 96, atomic)>("bwd bf16 causal b17 h2 s300 d96");
  expect_right_of_pairs<pairs(kFp16, 64, atomic)>("bwd fp16 b1 h2 sq200 sk300 d40 layout(bshd)");
}

TEST(EmulatedHopperBackward, PairsThatStayAndRoundDq) {
  constexpr auto k128 = persistent(pairs(kBf16, 128, serialized_fused));
  constexpr auto kFp64 = persistent(pairs(kFp16, 64, serialized_fused));
  constexpr auto kBf64 = persistent(pairs(kBf16, 64, serialized_fused));
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq6 hk3 sq600 sk300 d128 layout(bshd)", 4);
  expect_right_of_pairs<kFp64>("bwd fp16 causal b1 h11 s700 d48", 4);
  expect_right_of_pairs<kBf64>("bwd bf16 b2 h53 sq130 sk20 d40", 6);
}
#endif

// Without products of queries that see none of a warpgroup's keys; the second block's keys lie
// between those of the first one.

constexpr BackwardConfig masked(BackwardConfig with) {
  with.masked = true;
  return with;
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, PairsSkipWhatAWarpgroupDoesNotSee) {
  constexpr auto k128 = masked(pairs(kBf16, 128)), k64 = masked(pairs(kBf16, 64));
  expect_right_of_pairs<k128>("bwd bf16 b1 h1 sq300 sk520 d128");  // a block of few keys
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq4 hk2 s600 d128");
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq2 hk1 sq300 sk90 d128");
  // Hidden tiles at both ends of a head, from either block.
  expect_right_of_pairs<k128>("bwd bf16 b1 hq2 hk1 s700 d128 window(70,0)");
  expect_right_of_pairs<masked(pairs(kFp16, 128, atomic))>(
      "bwd fp16 b2 h1 sq150 sk400 d128 window(50,30)");
  expect_right_of_pairs<masked(pairs(kFp16, 96, atomic))>(
      "bwd fp16 b2 h1 sq150 sk400 d96 window(50,30)");
  expect_right_of_pairs<k64>("bwd bf16 causal b1 hq4 hk2 s600 d64");
  expect_right_of_pairs<masked(pairs(kFp16, 96, serialized_fused))>(
      "bwd fp16 causal b1 hq6 hk3 sq600 sk300 d96 layout(bshd)");
}

TEST(EmulatedHopperBackward, PairsThatStaySkipLikewise) {
  constexpr auto k128 = masked(persistent(pairs(kBf16, 128, serialized_fused)));
  constexpr auto kBf64 = masked(persistent(pairs(kBf16, 64, serialized_fused)));
  constexpr auto kFp64 = masked(persistent(pairs(kFp16, 64, serialized_fused)));
  constexpr auto kLeft = masked(persistent(pairs(kFp16, 64)));
  constexpr auto kAsTheyCome = masked(persistent(pairs(kBf16, 64, atomic)));
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq4 hk2 s600 d128", 2);
  expect_right_of_pairs<k128>("bwd bf16 b1 h3 sq100 sk1200 d128 window(70,0)", 2);
  expect_right_of_pairs<kBf64>("bwd bf16 b3 hq4 hk2 sq200 sk700 d64 window(100,0)", 2);
  expect_right_of_pairs<kFp64>("bwd fp16 causal b2 h5 s700 d64", 4);
  expect_right_of_pairs<kLeft>("bwd fp16 causal b1 h11 s400 d48", 4);
  expect_right_of_pairs<kAsTheyCome>("bwd bf16 causal b1 hq4 hk2 s700 d64", 4);
}

// Sums as they come that a warp zeroes and rounds; other heads' as well, of so many blocks.
TEST(EmulatedHopperBackward, AWarpZeroesAndRoundsSumsAsTheyCome) {
  constexpr auto k128 = persistent(pairs(kBf16, 128, atomic_fused));
  constexpr auto k64 = persistent(pairs(kFp16, 64, atomic_fused));
  constexpr auto k96 = masked(persistent(pairs(kBf16, 96, atomic_fused)));
  expect_right_of_pairs<k128>("bwd bf16 b1 h3 sq64 sk256 d128", 4);
  expect_right_of_pairs<k128>("bwd bf16 b5 hq22 hk11 sq70 sk300 d128 layout(bshd)", 6);
  expect_right_of_pairs<masked(k128)>("bwd bf16 causal b1 h5 sq400 sk300 d128", 2);
  expect_right_of_pairs<k128>("bwd bf16 b35 h3 sq70 sk20 d128 window(20,0)", 8);
  expect_right_of_pairs<k64>("bwd fp16 b2 h53 sq130 sk20 d40", 6);
  expect_right_of_pairs<masked(k64)>("bwd fp16 causal b2 hq4 hk2 s530 d64", 4);
  expect_right_of_pairs<k96>("bwd bf16 causal b1 h9 sq140 sk520 d96", 4);
}

// 24 heads at the end where 22 alternate before.
TEST(EmulatedHopperBackward, SumsOfTheLastHeadsAreZeroedAndRoundedLikewise) {
  constexpr auto k96 = masked(persistent(pairs(kBf16, 96, atomic_fused)));
  expect_right_of_pairs<k96>("bwd bf16 causal b23 h2 sq140 sk520 d96", 4);
}
#endif

// The warp that counts ends of work tiles, and the one that zeroes and rounds, come late to all of
// them: work tiles of a tile, or of keys that no query sees.
TEST(EmulatedHopperBackward, HelpersOfSumsAsTheyComeMayBeLate) {
  constexpr auto k128 = persistent(pairs(kBf16, 128, atomic_fused));
  constexpr auto k64 = persistent(pairs(kFp16, 64, atomic_fused));
  for (const Timing& timing : {Timing{.late_warp = 2}, Timing{.late_warp = 3},
                               Timing{.late_copies = true, .late_warp = 2}}) {
    const auto keys_128 = [](const Sm90BackwardArgs& args) { sm90_pair_backward<k128>(args); };
    const auto keys_64 = [](const Sm90BackwardArgs& args) { sm90_pair_backward<k64>(args); };
    expect_gradients<k128>("bwd bf16 causal b3 h7 s1 d128", {timing}, keys_128);
    expect_gradients<k128>("bwd bf16 b1 h3 sq100 sk1200 d128 window(70,0)", {timing}, keys_128);
    expect_gradients<k64>("bwd fp16 causal b3 h7 sq1 sk300 d64", {timing}, keys_64);
    expect_gradients<k64>("bwd fp16 b3 h7 s129 d64", {timing}, keys_64);
  }
}

constexpr BackwardConfig by_tile(BackwardConfig with) {
  with.gqa_inner_loop = true;
  return with;
}

#ifdef DFA_EVERY_CASE
// A tile of queries of all query heads, then the next: of pairs that stay and that do not, of tiles
// that some of their warpgroups have no products of.
TEST(EmulatedHopperBackward, PairsWalkTilesOfAllQueryHeads) {
  constexpr auto k128 = by_tile(masked(persistent(pairs(kBf16, 128, serialized_fused))));
  constexpr auto k64 = by_tile(masked(persistent(pairs(kFp16, 64, serialized_fused))));
  expect_right_of_pairs<k128>("bwd bf16 causal b1 hq6 hk2 s600 d128", 4);
  expect_right_of_pairs<k128>("bwd bf16 b1 hq4 hk2 sq300 sk700 d128 window(90,20)", 2);
  expect_right_of_pairs<k64>("bwd fp16 causal b2 hq9 hk3 sq700 sk500 d64", 4);
  expect_right_of_pairs<by_tile(masked(pairs(kBf16, 96)))>(
      "bwd bf16 causal b1 hq4 hk1 sq200 sk700 d96");
  expect_right_of_pairs<by_tile(pairs(kBf16, 128))>("bwd bf16 causal b1 hq4 hk2 s300 d128");
  expect_right_of_pairs<by_tile(persistent(pairs(kFp16, 96)))>(
      "bwd fp16 causal b1 hq4 hk2 s300 d96", 2);
}
#endif

// The work tiles of the last round in parts of their queries, where it has few.
constexpr BackwardConfig in_parts(BackwardConfig with) {
  with.split_q = true;
  return with;
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, WorksOfTheLastRoundAreInParts) {
  const auto expect = [](const std::string& line, int sms, int whole, int parts, auto config) {
    const SplitQ found = select_split_q(parse_problem(line), config(), sms);
    EXPECT_EQ(found.first, whole) << line;
    EXPECT_EQ(found.parts, parts) << line;
    expect_gradients<config()>(
        line, {kEager, kCrossed},
        [&](const Sm90BackwardArgs& args) { sm90_pair_backward<config()>(args); }, sms);
  };
  expect("bwd bf16 b1 h3 sq2000 sk600 d128", 8, 8, 4,
         [] { return in_parts(persistent(pairs(kBf16, 128, atomic_fused))); });
  expect("bwd bf16 b1 h1 sq900 sk200 d128", 12, 0, 5,  // of which four are added up at once
         [] { return in_parts(persistent(pairs(kBf16, 128, atomic_fused))); });
  expect("bwd bf16 b1 h5 sq1600 sk200 d64", 8, 4, 3,
         [] { return in_parts(persistent(pairs(kBf16, 64, atomic))); });
  expect("bwd fp16 b1 hq4 hk2 sq700 sk300 d96", 20, 0, 2,
         [] { return in_parts(persistent(pairs(kFp16, 96))); });
  expect("bwd bf16 b1 hq4 hk2 sq900 sk200 d64", 12, 0, 3,
         [] { return in_parts(persistent(pairs(kBf16, 64, serialized_fused))); });
  // Under a mask all of few work tiles: as they come, and in turn.
  expect("bwd bf16 causal b1 hq3 hk1 s1100 d64", 12, 0, 2,
         [] { return in_parts(masked(persistent(pairs(kBf16, 64, atomic)))); });
  expect("bwd bf16 causal b1 hq6 hk2 s800 d128", 24, 0, 3,
         [] { return in_parts(masked(persistent(pairs(kBf16, 128, atomic_fused)))); });
  expect("bwd bf16 causal b1 hq3 hk1 s1100 d64", 24, 0, 3,
         [] { return by_tile(in_parts(masked(persistent(pairs(kBf16, 64, serialized_fused))))); });
  expect("bwd fp16 b1 hq4 hk2 sq500 sk700 d96 window(-1,100)", 24, 0, 2,
         [] { return in_parts(masked(persistent(pairs(kFp16, 96, serialized_fused)))); });
}

// The first lane of a warp may be phases ahead of the others: of the copying one, of any.
TEST(EmulatedHopperBackward, LanesOfAWarpMayBeLate) {
  const auto expect = [](const std::string& line, int warps, auto config) {
    for (int warp = 0; warp < warps; ++warp) {
      const Timing lanes{.late_warp = warp, .all_lanes_late = false};
      expect_gradients<config()>(line, {lanes}, [&](const Sm90BackwardArgs& args) {
        if constexpr (config().cluster == 2) {
          sm90_pair_backward<config()>(args);
        } else {
          sm90_backward<config()>(args);
        }
      });
    }
  };
  expect("bwd bf16 b1 h3 sq2000 sk200 d128", 12,
         [] { return in_parts(persistent(pairs(kBf16, 128, atomic_fused))); });
  expect("bwd bf16 b1 h3 sq100 sk1200 d128 window(70,0)", 1,
         [] { return masked(persistent(pairs(kBf16, 128, serialized_fused))); });
  expect("bwd bf16 b1 h2 sq500 sk400 d128", 1, [] { return pairs(kBf16, 128); });
  expect("bwd fp16 b1 h2 s700 d64", 1, [] { return pairs(kFp16, 64); });
  expect("bwd bf16 b1 h2 sq300 sk200 d128", 1, [] { return config(kBf16, 128); });
  expect("bwd bf16 b1 h2 sq700 sk200 d64", 1, [] { return config(kBf16, 64); });
}

TEST(EmulatedHopperBackward, SomeColumnsOfKeysInRegisters) {
  expect_right_of_pairs<pairs(kBf16, 96, serialized_fused)>("bwd bf16 b1 hq2 hk1 sq300 sk257 d96");
  constexpr auto kStay = masked(persistent(pairs(kFp16, 96, serialized_fused)));
  expect_right_of_pairs<kStay>("bwd fp16 causal b1 hq4 hk2 s600 d80", 2);
  expect_right_of_pairs<kStay>("bwd fp16 b1 h3 sq100 sk1200 d96 window(70,0)", 2);
  constexpr auto kAsTheyCome = persistent(pairs(kBf16, 96, atomic));
  expect_right_of_pairs<kAsTheyCome>("bwd bf16 b2 h3 sq130 sk600 d96", 4);
}
#endif

template <BackwardConfig kConfig>
Tensors gradients(const std::string& line) {
  Tensors t(line, 9);
  Problem forward = t.p;
  forward.pass = Pass::forward;
  const Backend& truth = reference_backend();
  truth.forward(truth.plan(forward, {.backend = "reference"}), t.forward_args(), {});
  run_backward<kConfig>(
      t, [](const Sm90BackwardArgs& args) { sm90_pair_backward<kConfig>(args); }, 4);
  return t;
}

// One of each way of the pairs that stay, of which `all` has every element, head dim and mask.
TEST(EmulatedHopperBackward, PairsRoundDqWalkAllQueryHeadsAndTakeParts) {
  constexpr auto kRounds = persistent(pairs(kFp16, 64, serialized_fused));
  expect_right_of_pairs<kRounds>("bwd fp16 causal b1 h3 s300 d48", 4);
  constexpr auto kByTile = by_tile(persistent(pairs(kFp16, 96)));
  expect_right_of_pairs<kByTile>("bwd fp16 causal b1 hq4 hk2 s300 d96", 2);
  constexpr auto kInParts = in_parts(masked(persistent(pairs(kBf16, 64, atomic))));
  const std::string line = "bwd bf16 causal b1 hq3 hk1 s1100 d64";
  EXPECT_EQ(select_split_q(parse_problem(line), kInParts, 12).parts, 2);
  expect_right_of_pairs<kInParts>(line, 12);
}

TEST(EmulatedHopperBackward, WhatIsSkippedAddsNothing) {
  const auto expect_same = [](const std::string& line, long long products, auto config) {
    const auto counted_gradients = [&](auto gradients_of, long long& count) {
      counted = {};
      Tensors t = gradients_of(line);
      count = counted.shared + counted.registers;
      return t;
    };
    long long of_all = 0, of_some = 0;
    const Tensors all = counted_gradients(gradients<config()>, of_all);
    Tensors some = counted_gradients(gradients<masked(config())>, of_some);
    EXPECT_EQ(of_all - of_some, products) << line;
    // A query's dq adds up keys in another order, as the blocks' keys are others.
    expect_met(check_backward(some.p, some.backward_args()), line);
    EXPECT_EQ(all.dk, some.dk) << line;
    EXPECT_EQ(all.dv, some.dv) << line;
  };
  // Of a head's first two pairs the four warpgroups do not see 0, 1, 2 and 3 tiles of 64 queries,
  // of the third, whose last one has no keys, 0, 1, 2 and 3 likewise; at d 64, in tiles of 128, 0,
  // 0, 1 and 1, of the third 0, 0, 1 and 2. A warp's scores and dp of 64 queries are d / 16
  // products each, dv and dk four each.
  expect_same("bwd bf16 causal b1 h3 s700 d128", 3 * (6 + 6 + 6) * 4 * (8 + 8 + 4 + 4),
              [] { return pairs(kBf16, 128); });
  expect_same("bwd bf16 causal b1 h3 s700 d64", 3 * (2 + 2 + 3) * 2 * 4 * (4 + 4 + 4 + 4),
              [] { return persistent(pairs(kBf16, 64)); });
}

// Two heads of equal data, of which the second begins at an odd tile of its pair's: which block
// makes a tile's dq depends on the work tiles before, its bits do not.
template <BackwardConfig kConfig>
void expect_equal_heads(const std::string& line) {
  Tensors t(line, 9);
  const auto repeat = [](std::vector<std::byte>& both) {
    const auto half = static_cast<std::ptrdiff_t>(both.size() / 2);
    std::copy(both.begin(), both.begin() + half, both.begin() + half);
  };
  for (auto* tensor : {&t.q, &t.k, &t.v, &t.d_o}) repeat(*tensor);
  Problem forward = t.p;
  forward.pass = Pass::forward;
  const Backend& truth = reference_backend();
  truth.forward(truth.plan(forward, {.backend = "reference"}), t.forward_args(), {});
  run_backward<kConfig>(
      t, [](const Sm90BackwardArgs& args) { sm90_pair_backward<kConfig>(args); }, 2);
  for (auto* tensor : {&t.dq, &t.dk, &t.dv}) {
    const auto half = static_cast<std::ptrdiff_t>(tensor->size() / 2);
    EXPECT_TRUE(std::equal(tensor->begin(), tensor->begin() + half, tensor->begin() + half))
        << line;
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackward, BitsDoNotDependOnTheWorksBefore) {
  expect_equal_heads<persistent(pairs(kBf16, 128))>("bwd bf16 b1 h2 sq192 sk256 d128");
  expect_equal_heads<persistent(pairs(kBf16, 64))>("bwd bf16 b1 h2 sq384 sk256 d64");
  expect_equal_heads<masked(persistent(pairs(kBf16, 64)))>("bwd bf16 b1 h2 sq384 sk256 d64");
  expect_equal_heads<persistent(pairs(kFp16, 128, serialized_fused))>(
      "bwd fp16 causal b1 h2 s300 d128");
}
#endif

}  // namespace
}  // namespace dfa
