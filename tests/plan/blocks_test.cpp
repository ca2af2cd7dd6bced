// What is chosen for lists of blocks on a GPU.
#include <gtest/gtest.h>

#include "plan/select.h"
#include "plan/validate.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// Whatever the blocks' sides are, tiles divide them, and some are legal.
TEST(BlocksOnGpu, TilesDivideBlocks) {
  int seen = 0;
  for (const int capability : {75, 80, 86, 90}) {
    const Limits limits = gpu_limits(capability);
    for (const char* type : {"fp16", "fp32"}) {
      for (const int d : {16, 64, 128, 256}) {
        for (const char* sides : {"16x16", "16x128", "128x16", "48x80", "64x64", "96x160",
                                  "128x128", "256x512", "1040x16"}) {
          // Warps that share the many columns share 32 queries at least, in 16 bits.
          const Problem plain = parse_problem(std::string("fwdbwd ") + type + " causal h2 s3000 d" +
                                              std::to_string(d));
          if (d == 256 && std::string(type) == "fp16" && std::string(sides) != "128x128") continue;
          if (!validate_config(select_backward(plain, limits), plain, limits)) continue;
          const std::string line = std::string("fwdbwd ") + type + " causal h2 s3000 d" +
                                   std::to_string(d) + " blocks(" + sides + ",partial)";
          const Problem p = parse_problem(line);
          const ForwardConfig forward = select_forward(p, limits);
          const BackwardConfig backward = select_backward(p, limits);
          EXPECT_TRUE(validate_config(forward, p, limits))
              << line << " " << validate_config(forward, p, limits).reason;
          EXPECT_TRUE(validate_config(backward, p, limits))
              << line << " " << validate_config(backward, p, limits).reason;
          EXPECT_EQ(p.blocks->block_q % forward.block_q, 0);
          EXPECT_EQ(p.blocks->block_k % backward.dq_block_k, 0);
          EXPECT_LE(forward.target, Target::cuda_sm80);
          ++seen;
        }
      }
    }
  }
  EXPECT_GE(seen, 4 * 2 * 3 * 9);
}

TEST(BlocksOnGpu, WhatDoesNotFitIsRefusedWithAReason) {
  const Limits limits = gpu_limits(90);
  const Problem p = parse_problem("fwdbwd bf16 h2 s256 d64 blocks(64x64)");
  ForwardConfig forward = select_forward(p, limits);
  forward.block_q = 128;
  EXPECT_NE(
      validate_config(forward, p, limits).reason.find("does not divide the blocks of 64 queries"),
      std::string::npos);
  forward = select_forward(p, limits);
  forward.blocks = false;
  EXPECT_NE(validate_config(forward, p, limits).reason.find("lists of blocks take blocks=true"),
            std::string::npos);
  BackwardConfig backward = select_backward(p, limits);
  backward.dq = DqAccumulation::serialized;
  EXPECT_NE(validate_config(backward, p, limits).reason.find("dq=separate"), std::string::npos);
  const Problem biased = parse_problem("fwdbwd bf16 h2 s256 d64 bias(1,1) blocks(64x64)");
  EXPECT_NE(validate_config(select_backward(biased, limits), biased, limits)
                .reason.find("has no backward on a GPU"),
            std::string::npos);
  EXPECT_NE(sm90_fits(p, limits).reason.find("no lists of blocks"), std::string::npos);
  EXPECT_NE(sm90_backward_fits(p, limits).reason.find("no lists of blocks"), std::string::npos);
}

}  // namespace
}  // namespace dfa
