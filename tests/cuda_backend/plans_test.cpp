// What the CUDA backend's plans are made from, remembered by and changed to.
#include <algorithm>

#include "cuda/store.h"
#include "cuda_backend/backend_test_case.h"
#include "dfa/version.h"
#include "gpu/device.h"
#include "plan/select.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

TEST_F(CudaBackendTest, WhatKernelsAreMadeFromIsTheVersionAndADigestOfTheirSources) {
  const std::string version = std::string(kVersion) + "+";
  const auto kernels = [](Pass pass) { return cuda_backend().kernels(pass); };
  EXPECT_EQ(kernels(Pass::forward).substr(0, version.size()), version);
  EXPECT_EQ(kernels(Pass::forward_backward).substr(version.size()),
            cuda::digest_of_sources(cuda::sources_of(Pass::forward_backward)).substr(0, 12));
  // A change to a backward says nothing of forwards that were measured, nor the other way round.
  EXPECT_NE(kernels(Pass::forward), kernels(Pass::backward));
  const auto has = [](Pass pass, std::string_view name) {
    const auto sources = cuda::sources_of(pass);
    return std::any_of(sources.begin(), sources.end(),
                       [&](const cuda::SourceFile& file) { return file.name == name; });
  };
  EXPECT_TRUE(has(Pass::forward, "kernels/forward/sm90_forward.cuh"));
  EXPECT_FALSE(has(Pass::forward, "kernels/backward/sm90_backward.cuh"));
  EXPECT_TRUE(has(Pass::backward, "kernels/backward/sm90_backward.cuh"));
  EXPECT_FALSE(has(Pass::backward, "kernels/forward/sm90_forward.cuh"));
  EXPECT_FALSE(has(Pass::forward, "plan/validate.h"));  // no kernel includes it
  EXPECT_TRUE(has(Pass::forward, "spec/gpu_tiles.h") && has(Pass::backward, "spec/gpu_tiles.h"));
  EXPECT_TRUE(has(Pass::forward, "spec/forward_config.h"));
  EXPECT_FALSE(has(Pass::forward, "spec/backward_config.h"));
  EXPECT_TRUE(has(Pass::backward, "spec/backward_config.h"));
  EXPECT_NE(cuda::digest_of_sources(cuda::kernel_sources().subspan(1)),
            cuda::digest_of_sources(cuda::kernel_sources()));
}

TEST_F(CudaBackendTest, AskedAgainAPlanIsTheSameWithAllThatIsReady) {
  const Plan first = planned(), again = planned();
  EXPECT_EQ(again, first);
  EXPECT_EQ(again.ready.plan, first.ready.plan);
}

TEST_F(CudaBackendTest, WhateverDiffersInTheQuestionIsPlannedApart) {
  const Plan first = planned();
  const PlanOptions usual{.backend = "cuda", .algorithm = Algorithm::flash};
  const auto expect_apart = [&](const Problem& p, const PlanOptions& options) {
    const Plan other = plan(p, options);
    EXPECT_NE(other.ready.plan, first.ready.plan);
    EXPECT_EQ(other.problem, p);
  };
  for (const auto change :
       {+[](Problem& p) { p.sk += 1; }, +[](Problem& p) { p.hk = 2; },
        +[](Problem& p) { p.scale = 0.5; }, +[](Problem& p) { p.layout = Layout::bshd; },
        +[](Problem& p) { p.mask.left = 3; }, +[](Problem& p) { p.deterministic = true; }}) {
    Problem p = kProblem;
    change(p);
    expect_apart(p, usual);
  }
  PlanOptions forced = usual;
  forced.config = "target=cuda_sm80";
  expect_apart(kProblem, forced);
  EXPECT_EQ(plan(kProblem, forced).origin, "forced");
}

TEST_F(CudaBackendTest, ARememberedPlanDoesNotHideAWrongDevice) {
  const Plan first = planned();
  setenv("DFA_CUDA_DEVICE", "seven", 1);
  EXPECT_THROW(planned(), Unsupported);
  unsetenv("DFA_CUDA_DEVICE");
  EXPECT_EQ(planned().ready.plan, first.ready.plan);
}

TEST_F(CudaBackendTest, APlanIsOfTheDeviceWhoseContextIsCurrent) {
  const Plan first = planned();
  {
    const gpu::Scope other(gpu::Device::get(1));
    const Plan second = planned();
    EXPECT_NE(second.ready.plan, first.ready.plan);
    setenv("DFA_CUDA_DEVICE", "0", 1);
    EXPECT_EQ(planned().forward_sms, first.forward_sms);
    unsetenv("DFA_CUDA_DEVICE");
  }
  EXPECT_EQ(planned().forward_sms, first.forward_sms);
}

TEST_F(CudaBackendTest, MorePlansThanAreRememberedAreAllRight) {
  Problem p = kProblem;
  for (int i = 0; i < 1200; ++i) {
    p.sk = 70 + i % 600;
    EXPECT_EQ(plan(p, {.backend = "cuda", .algorithm = Algorithm::flash}).problem, p);
  }
}

// A cache grows by a key a token: plans are those that would be made anew, and few are.
TEST_F(CudaBackendTest, AGrowingCacheIsPlannedNowAndThen) {
  const PlanOptions options{.backend = "cuda"};
  Problem p = parse_problem("fwd bf16 causal b4 hq32 hk8 sq1 sk4096 d128 layout(bshd)");
  Plan last = cuda_backend().plan(p, options);
  int made = 1;
  for (; p.sk < 8192; ++p.sk) {
    const auto same = cuda_backend().with_keys(last, p);
    const Plan anew = cuda_backend().plan(p, options);
    made += same ? 0 : 1;
    last = same.value_or(anew);
    ASSERT_EQ(last, anew) << p.sk;
    ASSERT_EQ(plan(p, options), anew) << p.sk;
  }
  EXPECT_LT(made, 150);
  p.pass = Pass::forward_backward;  // a gradient's kernels go by the keys
  EXPECT_FALSE(cuda_backend().with_keys(cuda_backend().plan(p, options), [&] {
    Problem more = p;
    more.sk += 1;
    return more;
  }()));
}

TEST_F(CudaBackendTest, APlanSaysWhyHoppersForwardIsNotTheOne) {
  Problem p = kProblem;
  p.pass = Pass::forward;
  p.dtype = DType::tf32;
  const Plan portable = plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_NE(portable.why.find("cuda_sm80 (as cuda_sm90 multiplies fp16, bf16 and fp32, not tf32"),
            std::string::npos)
      << portable.why;
}

TEST_F(CudaBackendTest, APlanSaysWhyHoppersBackwardIsNotTheOne) {
  const auto why = [](const char* line) {
    return plan(parse_problem(line), {.backend = "cuda", .algorithm = Algorithm::flash}).why;
  };
  EXPECT_NE(why("bwd bf16 b1 h1 s64 d32").find("cuda_sm80 (as cuda_sm90's backward would pad d=32"),
            std::string::npos)
      << why("bwd bf16 b1 h1 s64 d32");
  const std::string both = why("fwdbwd bf16 b1 h1 s64 d64 dv256");
  EXPECT_NE(both.find("cuda_sm90 and, backward, cuda_sm80 (as cuda_sm90's backward of dv=256"),
            std::string::npos)
      << both;
}

// Of any pass, so that who plans one and then the other has scores of one kind.
TEST_F(CudaBackendTest, Fp32RunsByPartsInEveryPassAndTellsItsWorkspace) {
  for (const char* pass : {"fwd", "bwd", "fwdbwd"}) {
    const Plan split = plan(parse_problem(std::string(pass) + " fp32 b1 h2 sq64 sk96 d64"),
                            {.backend = "cuda", .algorithm = Algorithm::flash});
    EXPECT_EQ((split.config + split.backward_config).find("cuda_sm80"), std::string::npos);
    EXPECT_NE(split.why.find("cuda_sm90"), std::string::npos) << split.why;
    // Planes of q, k and v, of 6 bytes an element; a backward has those of do, and sums.
    const std::size_t planes = 6 * 2 * 64 * (64 + 96 + 96);
    EXPECT_GE(split.workspace_bytes, planes) << pass;
    if (std::string(pass) == "fwd") {
      EXPECT_EQ(split.workspace_bytes, planes);
    }
  }
}

TEST_F(CudaBackendTest, Tf32GoesToTheCardByItself) {
  const Problem p = parse_problem("fwd tf32 b1 h1 s64 d64");
  EXPECT_EQ(plan(p, {.algorithm = Algorithm::flash}).backend, "cuda");
}

TEST_F(CudaBackendTest, ACallAfterTheFirstAsksTheDriverForItsLaunchesOnly) {
  const Plan plan = planned();
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  forward(plan, args);
  fake().calls = 0;
  forward(plan, args);
  // Six pointers, one launch, and the context put on and taken off once for all.
  EXPECT_EQ(fake().calls, 9);
}

TEST_F(CudaBackendTest, APlanIsItsTextAndRunsWithoutWhatThePlannerKept) {
  const Plan plan = planned();
  Plan read = plan;
  read.ready = {};
  EXPECT_EQ(read, plan);
  const ForwardArgs args = forward_args();
  ForwardArgs with = args;
  with.workspace = memory(plan.workspace_bytes);
  forward(plan, with);
  forward(read, with);
  ASSERT_EQ(fake().launches.size(), 2u);
  EXPECT_EQ(fake().launches[0].kernel, fake().launches[1].kernel);
}

// A plan is plain fields that anybody may change after it was made.
TEST_F(CudaBackendTest, AChangedPlanRunsWhatItSaysNow) {
  Plan plan = planned();
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  forward(plan, args);
  plan.problem.sq = 6;
  forward(plan, args);
  ASSERT_EQ(fake().launches.size(), 2u);
  EXPECT_EQ(fake().launches[0].config.gridDimX, 2u);
  EXPECT_EQ(fake().launches[1].config.gridDimX, 2u);
  plan.problem.b = 3;
  forward(plan, args);
  EXPECT_EQ(fake().launches[2].config.gridDimX, 6u);
  plan.config = "block_q=7";
  EXPECT_THROW(forward(plan, args), InvalidArgument);
}

TEST_F(CudaBackendTest, AFailedFirstCallIsTriedAgain) {
  const Plan plan = planned();
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  fake().failing_call = "cuLaunchKernelEx";
  fake().failure = CUDA_ERROR_INVALID_VALUE;
  EXPECT_THROW(forward(plan, args), Error);
  fake().failing_call.clear();
  forward(plan, args);
  EXPECT_EQ(fake().launches.size(), 1u);
}

TEST_F(CudaBackendTest, DropoutListsOfBlocksAndWideHeadsAreOfFlashAttentionAlone) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 h4 s100 d64 dropout(0.1,3)",
        "fwd bf16 causal h4 d64 lens(9,30) dropout(0.1,3)",
        "fwd bf16 h4 s300 d64 blocks(random,0.5,1)",
        "fwdbwd fp32 causal h4 s300 d64 blocks(64x64,h,partial)", "fwd bf16 h1 s8 d264",
        "fwdbwd fp32 h1 s8 d64 dv512", "fwd fp16 hq16 hk1 s8 d576 dv512"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(cuda_backend().supports(p, {.backend = "cuda"}).reason, "") << line;
    EXPECT_NE(
        cuda_backend().supports(p, {.backend = "cuda", .algorithm = Algorithm::standard}).reason,
        "")
        << line;
  }
}

TEST_F(CudaBackendTest, DropoutOfFewQueriesAndOfPagesIsNoWorkForSplits) {
  const Problem few = parse_problem("fwd bf16 hq2 hk1 d64 lens(2,1) lens_k(70,33) dropout(0.1,6)");
  EXPECT_TRUE(select_forward(few, cuda_backend().limits()).dropout);
  const Problem paged =
      parse_problem("fwd bf16 hq2 hk1 d64 lens(2,1) lens_k(70,33) page(16) dropout(0.1,6)");
  EXPECT_NE(cuda_backend().supports(paged, {.backend = "cuda"}).reason.find("no dropout"),
            std::string::npos);
  const Problem wide = parse_problem("fwd bf16 hq2 hk1 d512 lens(2,1) lens_k(70,33) page(16)");
  EXPECT_TRUE(cuda_backend().supports(wide, {.backend = "cuda"}));
}

// Hopper has a kernel of its own for these, too, so its rules say nothing.
TEST_F(CudaBackendTest, PlansThatSplitKeysSayWhyTheyAreNotOfHoppersKernels) {
  for (const char* line : {"fwd bf16 causal hq8 hk2 d128 lens(1,1) lens_k(900,9000)",
                           "fwd bf16 causal hq8 hk2 d128 lens(1,70) page(16) batch_invariant"}) {
    const Plan plan = dfa::plan(parse_problem(line), {.backend = "cuda"});
    EXPECT_NE(plan.why.find("cuda_sm80 (as split-KV serves it) kernels"), std::string::npos)
        << plan.why;
  }
}

// Hopper's tiles of keys begin where pages do.
TEST_F(CudaBackendTest, CallsWithLeftPaddingTakeThePortableKernelOfPages) {
  const Problem p = parse_problem("fwd bf16 causal b2 hq2 hk1 sq70 sk70 d64 page(16)");
  const PlanOptions named{
      .backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm90"};
  Limits portable = kLimits;
  portable.highest = Target::cuda_sm80;
  const ForwardConfig configs[] = {asked_forward(named.config, p, kLimits),
                                   select_forward(p, portable)};
  const Plan plan = dfa::plan(p, named);
  EXPECT_NE(plan.why.find("calls with leftpad_k take " + to_text(configs[1])), std::string::npos)
      << plan.why;
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  args.sequences.seqused_k = static_cast<const std::int32_t*>(memory(8));
  args.sequences.block_table = static_cast<const std::int32_t*>(memory(40));
  args.sequences.table_row = 5;
  for (int padded = 0; padded < 2; ++padded) {
    const std::vector<KernelLaunch> expected = forward_launches(p, configs[padded]);
    testing::fake_kernels().add(expected);
    EXPECT_GE(plan.workspace_bytes, forward_workspace_bytes(p, configs[padded]));
    if (padded == 1) args.sequences.leftpad_k = static_cast<const std::int32_t*>(memory(8));
    fake().launches.clear();
    forward(plan, args);
    ASSERT_EQ(fake().launches.size(), 2u);
    EXPECT_EQ(fake().launches[0].kernel, "_Z" + expected[0].entry);
    EXPECT_EQ(fake().launches[1].kernel, "_Z" + expected[1].entry);
  }
}

// The order of work tiles, then Hopper's forward, in which the plan's workspace is the order.
TEST_F(CudaBackendTest, ListsOfBlocksByHopperAreOrderedFirst) {
  const Problem p = parse_problem("fwd bf16 b2 hq2 hk1 sq300 sk200 d64 blocks(128x128)");
  const PlanOptions named{
      .backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm90"};
  const ForwardConfig config = asked_forward(named.config, p, kLimits);
  const Plan plan = dfa::plan(p, named);
  EXPECT_EQ(plan.config, to_text(config));
  EXPECT_EQ(plan.workspace_bytes, forward_workspace_bytes(p, config));
  const std::vector<KernelLaunch> expected = forward_launches(p, config);
  testing::fake_kernels().add(expected);
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  args.blocks = {.kv_counts = static_cast<const std::int32_t*>(memory(16)),
                 .kv_indices = static_cast<const std::int32_t*>(memory(64))};
  fake().launches.clear();
  forward(plan, args);
  ASSERT_EQ(fake().launches.size(), 2u);
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(fake().launches[0].kernel, "_Z" + expected[0].entry);
  EXPECT_EQ(fake().launches[1].kernel, "_Z" + expected[1].entry);
  EXPECT_EQ(dfa::plan(p, {.backend = "cuda", .algorithm = Algorithm::flash}).config, plan.config);
}

TEST_F(CudaBackendTest, GradientsOfListsByHopperAreThreeKernels) {
  const Problem p = parse_problem("bwd bf16 b2 hq2 hk1 sq300 sk200 d64 blocks(128x128)");
  const PlanOptions named{
      .backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm90"};
  const BackwardConfig config = asked_backward(named.config, p, kLimits);
  const Plan plan = dfa::plan(p, named);
  EXPECT_EQ(plan.backward_config, to_text(config));
  const std::vector<KernelLaunch> expected = backward_launches(p, config);
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(expected[1].source, "kernels/backward/sm90_blocks_backward.cuh");
  testing::fake_kernels().add(expected);
  BackwardArgs args = backward_args(plan.workspace_bytes);
  args.blocks = {.kv_counts = static_cast<const std::int32_t*>(memory(16)),
                 .kv_indices = static_cast<const std::int32_t*>(memory(64)),
                 .q_counts = static_cast<const std::int32_t*>(memory(16)),
                 .q_indices = static_cast<const std::int32_t*>(memory(64))};
  fake().launches.clear();
  backward(plan, args);
  ASSERT_EQ(fake().launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(fake().launches[i].kernel, "_Z" + expected[i].entry);
  }
}

TEST_F(CudaBackendTest, ChunksAndPrefixesAreOfFlashAttentionAlone) {
  for (const char* line :
       {"fwd bf16 causal b2 h4 s100 d64 chunk(16)", "fwdbwd fp16 causal b2 h4 s100 d64 prefix(16)",
        "fwdbwd fp32 b2 h4 s100 d64 chunk(16)", "fwd bf16 causal h4 d64 lens(9,30) chunk(16)"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(cuda_backend().supports(p, {.backend = "cuda"}).reason, "") << line;
    EXPECT_NE(
        cuda_backend().supports(p, {.backend = "cuda", .algorithm = Algorithm::standard}).reason,
        "")
        << line;
  }
}

}  // namespace
}  // namespace dfa
