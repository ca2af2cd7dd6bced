#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Planning, APlanSaysWhatWillRunAndWhy) {
  const Plan p = plan(parse_problem("fwdbwd bf16 causal b2 hq8 hk2 s1000 d64"), {.threads = 2});
  EXPECT_EQ(p.backend, "cpu");
  EXPECT_EQ(p.algorithm, Algorithm::flash);
  EXPECT_NE(p.config.find("block_q="), std::string::npos);
  EXPECT_NE(p.backward_config.find("block_k="), std::string::npos);
  EXPECT_EQ(p.origin, "default");
  EXPECT_FALSE(p.why.empty());
  EXPECT_DOUBLE_EQ(p.backward_flops, 2.5 * p.forward_flops);
}

TEST(Planning, WhatCannotRunSaysWhy) {
  const auto reason = [](const char* line, PlanOptions options = {}) {
    return message<Unsupported>([&] { plan(parse_problem(line), options); });
  };
  EXPECT_NE(reason("fwd tf32 h1 s8 d8").find("GPU"), std::string::npos);
  EXPECT_NE(reason("fwd e4m3 h1 s8 d8", {.algorithm = Algorithm::standard}).find("e4m3"),
            std::string::npos);
  EXPECT_NE(reason("fwd tf32 h1 s8 d8", {.backend = "cpu"}).find("tf32"), std::string::npos);
  EXPECT_EQ(reason("fwd fp32 h1 s8 d8"), "");
  EXPECT_EQ(reason("fwd e4m3 h1 s8 d8"), "");
}

TEST(Planning, BadWishesNameTheValueAndWhatIsAccepted) {
  const auto reason = [](PlanOptions options) {
    return message<InvalidArgument>([&] { plan(parse_problem("fwd fp32 h1 s64 d64"), options); });
  };
  EXPECT_NE(reason({.backend = "tpu"}).find("cpu"), std::string::npos);
  EXPECT_NE(reason({.config = "block_q=7"}).find("block_q=7"), std::string::npos);
  EXPECT_NE(reason({.config = "tile=7"}).find("tile=7"), std::string::npos);
  EXPECT_NE(reason({.config = "head_dim=32"}).find("head_dim=32"), std::string::npos);
  EXPECT_NE(reason({.threads = -1}).find("threads"), std::string::npos);
  EXPECT_NE(reason({.threads = 5000}).find("1024"), std::string::npos);
  EXPECT_NE(reason({.algorithm = Algorithm::standard, .config = "block_q=64"}).find("standard"),
            std::string::npos);
}

TEST(Planning, AConfigurationThatNobodyWouldReadIsRefused) {
  const auto reason = [](const char* line, const char* config, Algorithm algorithm = {}) {
    return message<InvalidArgument>(
        [&] { plan(parse_problem(line), {.algorithm = algorithm, .config = config}); });
  };
  const char *fwd = "fwd fp32 h1 s64 d64", *bwd = "bwd fp32 h1 s64 d64";
  const std::string canonical = "fp32 b1 hq1 hk1 sq64 sk64 d64'";
  EXPECT_EQ(reason(fwd, "BackwardConfig{block_q=32}"),
            "config 'BackwardConfig{block_q=32}' is of the other pass than 'fwd " + canonical);
  EXPECT_EQ(reason(bwd, "ForwardConfig{block_q=32}"),
            "config 'ForwardConfig{block_q=32}' is of the other pass than 'bwd " + canonical);
  EXPECT_NE(reason(fwd, "BackwardConfig{block_q=32}", Algorithm::standard), "");
  for (const char* config :
       {"forwardConfig{block_q=32}", " ForwardConfig{block_q=32}", "ForwardConfig {block_q=32}",
        "Forward{block_q=32}", "BackwardConfig2{block_q=32}"}) {
    for (const char* line : {fwd, bwd, "fwdbwd fp32 h1 s64 d64"}) {
      EXPECT_EQ(reason(line, config).find(std::string("config: '") + config + "' is of no type"),
                0u)
          << line;
    }
  }
  for (const char* config : {"ForwardConfig{block_q=32}", "BackwardConfig{block_q=32}"}) {
    EXPECT_EQ(reason("fwdbwd fp32 h1 s64 d64", config), "") << config;
  }
}

TEST(Planning, ABadProblemIsRefusedBeforeAnyBackendSeesIt) {
  const auto reason = [](void (*spoil)(Problem&)) {
    Problem p = parse_problem("fwd fp32 b1 hq4 hk2 sq8 sk8 d8");
    spoil(p);
    return message<InvalidArgument>([&] { plan(p); });
  };
  EXPECT_EQ(reason([](Problem&) {}), "");
  EXPECT_NE(reason([](Problem& p) { p.sq = 0; }), "");
  EXPECT_NE(reason([](Problem& p) { p.b = -1; }), "");
  EXPECT_NE(reason([](Problem& p) { p.d = 0; }), "");
  EXPECT_NE(reason([](Problem& p) { p.hk = 3; }).find("3"), std::string::npos);
  EXPECT_NE(reason([](Problem& p) { p.scale = std::nan(""); }), "");
  EXPECT_NE(reason([](Problem& p) { p.mask.left = -7; }), "");
  EXPECT_NE(reason([](Problem& p) { p.q_strides = {.batch = 1, .head = 1, .row = 1}; }), "");
  EXPECT_NE(reason([](Problem& p) { p.sk = std::int64_t{1} << 62; }), "");
}

TEST(Planning, BadPointersAreNamed) {
  Tensors t("fwdbwd fp32 b1 hq1 hk1 sq4 sk4 d8");
  const Plan p = plan(t.p);
  ForwardArgs args = t.forward_args();
  args.k = nullptr;
  EXPECT_NE(message<InvalidArgument>([&] { forward(p, args); }).find("k is null"),
            std::string::npos);
  args = t.forward_args();
  args.v = t.v.data() + 1;
  EXPECT_NE(message<InvalidArgument>([&] { forward(p, args); }).find("v is not aligned"),
            std::string::npos);
  args = t.forward_args();
  args.workspace = t.v.data() + 4;
  EXPECT_NE(message<InvalidArgument>([&] { forward(p, args); }).find("workspace"),
            std::string::npos);
  BackwardArgs gradients = t.backward_args();
  gradients.lse = nullptr;
  EXPECT_NE(message<InvalidArgument>([&] { backward(p, gradients); }).find("lse"),
            std::string::npos);
  Plan forward_only = plan(parse_problem("fwd fp32 b1 hq1 hk1 sq4 sk4 d8"));
  EXPECT_NE(message<InvalidArgument>([&] { backward(forward_only, t.backward_args()); }), "");
  Plan backward_only = plan(parse_problem("bwd fp32 b1 hq1 hk1 sq4 sk4 d8"));
  EXPECT_NE(message<InvalidArgument>([&] { forward(backward_only, t.forward_args()); }), "");
}

TEST(Planning, ABudgetOfMultiprocessorsIsRefusedWhereThereAreNone) {
  const Plan plan = dfa::plan(parse_problem("fwd fp32 h1 s8 d8"), {.backend = "cpu"});
  alignas(64) float memory[64] = {};
  const ForwardArgs args{.q = memory, .k = memory, .v = memory, .o = memory};
  EXPECT_THROW(forward(plan, args, {.sm_budget = 4}), Unsupported);
}

TEST(Planning, TheInstructionSetCanBeLoweredButNotRaised) {
  const Problem p = parse_problem("fwd bf16 h1 s64 d64");
  ::setenv("DFA_ISA", "portable", 1);
  EXPECT_NE(plan(p).config.find("cpu_portable"), std::string::npos);
  EXPECT_NE(message<InvalidArgument>([&] { plan(p, {.config = "target=cpu_avx2"}); }), "");
  ::setenv("DFA_ISA", "sse9", 1);
  EXPECT_NE(message<InvalidArgument>([&] { plan(p); }).find("avx512"), std::string::npos);
  ::unsetenv("DFA_ISA");
}

}  // namespace
}  // namespace dfa
