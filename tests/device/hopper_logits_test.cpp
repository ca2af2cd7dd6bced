// Hopper's own forward with softcap, ALiBi and sinks, on a real device: named, so that nothing else
// runs in its place.
#include "device/device_case.h"

namespace dfa {
namespace {

class HopperLogits : public HopperDevice {};

TEST_F(HopperLogits, EveryProblemMeetsTheRule) {
  const int all = static_cast<int>(problem_lines("hopper_logits.txt").size());
  EXPECT_EQ(ran_of({"hopper_logits.txt"}, on_hopper("")), all);
}

struct Tile {
  int block_q, block_k, stages, q_stages;
  bool pingpong = false;
  int cluster = 1, q_columns_in_regs = 0, pack_gqa = 1, num_splits = 0;

  PlanOptions named() const {
    const auto field = [](const char* name, int value) {
      return std::string(",") + name + "=" + std::to_string(value);
    };
    return on_hopper(field("block_q", block_q) + field("block_k", block_k) +
                     field("warps", block_q / 16) + field("stages", stages) +
                     field("q_stages", q_stages) +
                     (pingpong ? ",pingpong=true" : ",pingpong=false") + field("cluster", cluster) +
                     field("q_columns_in_regs", q_columns_in_regs) + field("pack_gqa", pack_gqa) +
                     field("num_splits", num_splits));
  }
};

// By tiles of every kind: warpgroups that take turns or not, a place of its own for the output,
// columns of q in registers, pairs of blocks, heads in rows, keys in shares.
TEST_F(HopperLogits, EveryTileMeetsTheRule) {
  for (const char* logits : {"softcap(5)", "sink", "alibi", "alibi sink"}) {
    const auto meets = [&](const char* sizes, const Tile& tile) {
      EXPECT_TRUE(checked(std::string(sizes) + logits, 3, tile.named()));
    };
    for (const Tile& tile :
         {Tile{256, 64, 4, 2}, Tile{128, 128, 3, 2, true}, Tile{64, 128, 2, 1}}) {
      meets("fwd bf16 causal b2 hq8 hk2 sq500 sk700 d64 ", tile);
    }
    for (const Tile& tile :
         {Tile{192, 80, 2, 2}, Tile{192, 80, 2, 2, false, 2}, Tile{128, 64, 4, 2, false, 1, 128},
          Tile{128, 64, 2, 1, false, 1, 0, 4}, Tile{128, 64, 2, 1, false, 1, 0, 1, 20}}) {
      meets("fwd bf16 causal b2 hq8 hk2 sq500 sk700 d128 ", tile);
    }
    meets("fwd bf16 causal b2 hq8 hk2 sq500 sk700 d256 ", {128, 64, 2, 1, false, 1, 64});
  }
}

TEST_F(HopperLogits, PackedSequencesMeetTheRule) {
  for (const char* rest : {"hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)",
                           "hq2 hk1 lens(33,128,5)", "hq8 hk1 lens(900,3,64,2000,17)"}) {
    for (const char* logits : {" softcap(4)", " sink", " alibi", " softcap(4) sink"}) {
      for (const char* dims : {"fwd bf16 causal d64 ", "fwd fp16 causal d128 ",
                               "fwd bf16 window(100,0) d64 ", "fwd bf16 causal d256 "}) {
        EXPECT_TRUE(checked(std::string(dims) + rest + logits, 5, on_hopper("")));
      }
    }
  }
}

// Of sinks by every kernel of dense gradients that plans take, of softcap and ALiBi by those of
// wide heads.
TEST_F(HopperLogits, GradientsMeetTheRule) {
  const PlanOptions hopper{.backend = "cuda",
                           .algorithm = Algorithm::flash,
                           .config = "BackwardConfig{target=cuda_sm90}"};
  for (const char* line :
       {"bwd bf16 causal b2 hq8 hk2 s500 d64 sink", "bwd bf16 causal b1 hq16 hk2 s1024 d64 sink",
        "bwd bf16 causal b1 hq8 hk1 s1300 d64 window(127,0) sink",
        "bwd fp16 b1 h3 sq257 sk129 d128 window(90,20) sink",
        "bwd bf16 causal b2 hq8 hk8 sq300 sk100 d128 sink", "bwd bf16 causal b2 h4 s700 d256 sink",
        "bwd bf16 causal b1 hq8 hk2 s1024 d128 softcap(50)",
        "bwd fp16 b2 h4 sq300 sk500 d128 softcap(5) sink",
        "bwd bf16 b1 h3 sq65 sk777 d96 softcap(3)",
        "bwd bf16 causal b1 h5 sq400 sk777 d128 softcap(1e6)",
        "bwd bf16 causal b1 hq4 hk2 s900 d256 softcap(50)",
        "bwd bf16 causal b1 hq4 hk2 s900 d256 window(511,0) softcap(50) sink",
        "bwd bf16 causal b2 h8 s1000 d128 alibi", "bwd fp16 b2 h8 sq70 sk900 d128 scale(-2) alibi",
        "bwd bf16 causal b2 h6 s600 d192 softcap(4) alibi sink"}) {
    EXPECT_TRUE(checked(line, 6, hopper));
    EXPECT_TRUE(checked(std::string(line) + " deterministic", 7, hopper));
  }
  for (const char* line : {"bwd bf16 causal b2 hq16 hk2 s1500 d64 sink deterministic",
                           "bwd bf16 causal b1 hq8 hk4 s1100 d128 softcap(20) deterministic",
                           "bwd bf16 causal b1 h6 s900 d256 softcap(20) deterministic"}) {
    expect_same_bits(line, hopper, 100);
  }
}

TEST_F(HopperLogits, BitsAreTheSameInEveryRunAndOnAnyPartOfTheDevice) {
  for (const char* line : {"fwd bf16 causal b2 hq16 hk2 s1500 d64 sink",
                           "fwd bf16 causal b1 hq8 hk4 s1100 d128 softcap(20) sink",
                           "fwd fp16 b1 h6 s900 d256 softcap(20)"}) {
    expect_same_bits(line, on_hopper(""), 100);
    expect_same_bits_at_budgets(line, on_hopper(""), 13);
  }
}

}  // namespace
}  // namespace dfa
