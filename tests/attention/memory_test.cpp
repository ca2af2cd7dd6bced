#include <gtest/gtest.h>

#include <memory>

#include "attention/variants.h"

namespace dfa {
namespace {

constexpr std::int64_t kLengths[] = {1024, 4096, 16384, 65536};

double workspace(const std::string& line, const PlanOptions& options) {
  return static_cast<double>(plan(parse_problem(line), options).workspace_bytes);
}

std::string problem(const char* pass, const char* type, std::int64_t s) {
  return std::string(pass) + " " + type + " b1 h1 s" + std::to_string(s) + " d64";
}

// The whole point: flash packs its inputs once more, which grows with N d. A forward packs k and
// v; a backward q, k, v and do, and keeps one fp32 dq. Tiles and staging do not grow.
TEST(Memory, FlashWorkspaceGrowsWithTheLengthOnEveryTarget) {
  constexpr double kTiles = 4 << 20;
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    for (const std::int64_t s : kLengths) {
      const double tensor = static_cast<double>(s) * 64 * sizeof(float);
      for (Variant variant : variants_of(parse_problem(problem("fwdbwd", type, s)))) {
        if (variant.options.algorithm == Algorithm::standard) continue;
        variant.options.threads = 1;
        EXPECT_LE(workspace(problem("fwd", type, s), variant.options), 3 * tensor + kTiles)
            << variant.name << " " << type << " " << s;
        EXPECT_LE(workspace(problem("fwdbwd", type, s), variant.options), 8 * tensor + kTiles)
            << variant.name << " " << type << " " << s;
      }
    }
  }
}

TEST(Memory, FourTimesTheLengthIsFourTimesTheFlashWorkspace) {
  for (const char* pass : {"fwd", "fwdbwd"}) {
    const PlanOptions one{.algorithm = Algorithm::flash, .threads = 1};
    const double at_16k = workspace(problem(pass, "bf16", 16384), one);
    const double at_64k = workspace(problem(pass, "bf16", 65536), one);
    EXPECT_LT(at_64k, 4.2 * at_16k) << pass;
  }
}

// Every thread adds its own tile and at most one share of dq, never a score matrix.
TEST(Memory, ThreadsDoNotMakeFlashQuadratic) {
  const double tensor = 65536.0 * 64 * sizeof(float);
  for (const int threads : {2, 8, 64}) {
    const PlanOptions options{.algorithm = Algorithm::flash, .threads = threads};
    EXPECT_LT(workspace(problem("fwdbwd", "bf16", 65536), options),
              (8 + 16) * tensor + threads * static_cast<double>(4 << 20));
  }
}

// Scheduling seldom lets every thread work on a small problem, so the sizes are held to it.
TEST(Memory, EveryThreadHasScratchOfItsOwn) {
  for (const char* pass : {"fwd", "bwd"}) {
    const std::string line = std::string(pass) + " fp32 b1 h2 s300 d64 deterministic";
    for (Variant variant : variants_of(parse_problem(line))) {
      const auto with = [&](int threads) {
        variant.options.threads = threads;
        return workspace(line, variant.options);
      };
      EXPECT_GT(with(2), with(1)) << variant.name << " " << line;
      EXPECT_EQ(with(4) - with(1), 3 * (with(2) - with(1))) << variant.name << " " << line;
    }
  }
}

TEST(Memory, StandardWorkspaceHoldsEveryScore) {
  for (const std::int64_t s : kLengths) {
    const double scores = 4.0 * static_cast<double>(s) * static_cast<double>(s);
    const PlanOptions options{.algorithm = Algorithm::standard, .threads = 1};
    EXPECT_GE(workspace(problem("fwd", "bf16", s), options), scores);
    EXPECT_GE(workspace(problem("fwdbwd", "bf16", s), options), 2 * scores);
  }
}

TEST(Memory, AWorkspaceGivenByTheCallerGivesTheSameBits) {
  const std::string line = "fwdbwd bf16 causal b1 hq2 hk1 sq65 sk130 d64";
  for (const Variant& variant : variants_of(parse_problem(line))) {
    Tensors own(line), given(line);
    const Plan plan = run(own, variant.options);
    std::vector<std::byte> bytes(plan.workspace_bytes + 64, std::byte{0x7f});
    void* start = bytes.data();
    std::size_t space = bytes.size();
    ForwardArgs forward_args = given.forward_args();
    BackwardArgs backward_args = given.backward_args();
    forward_args.workspace = std::align(64, plan.workspace_bytes, start, space);
    backward_args.workspace = forward_args.workspace;
    forward(plan, forward_args);
    backward(plan, backward_args);
    EXPECT_EQ(own.o, given.o) << variant.name;
    EXPECT_EQ(own.dq, given.dq) << variant.name;
    EXPECT_EQ(own.dk, given.dk) << variant.name;
    EXPECT_EQ(own.dv, given.dv) << variant.name;
  }
}

}  // namespace
}  // namespace dfa
