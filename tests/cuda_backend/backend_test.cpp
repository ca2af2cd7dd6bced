// The CUDA backend on a driver without a GPU: what it queues, and what it refuses.
#include <algorithm>
#include <cstring>

#include "cuda_backend/backend_test_case.h"
#include "gpu/stream.h"
#include "plan/select.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

// Before any test that runs something.
TEST_F(CudaBackendTest, WhatIsThereAndPlanningNeedNoContext) {
  const int before = fake().contexts;
  EXPECT_TRUE(cuda_backend().available());
  EXPECT_EQ(cuda_backend().device().identity().sm_count, 132);
  EXPECT_TRUE(cuda_backend().supports(kProblem, {}));
  planned();
  EXPECT_EQ(fake().contexts, before);
}

TEST_F(CudaBackendTest, PlanningLoadsNothing) {
  const Plan plan = planned();
  EXPECT_EQ(fake().libraries, 0);
  const ForwardArgs args = forward_args();
  forward(plan, {.q = args.q, .k = args.k, .v = args.v, .o = args.o, .workspace = memory(4096)});
  EXPECT_EQ(fake().launches.size(), 1u);
}

TEST_F(CudaBackendTest, WarningsOfThePlansKernelsAreToldOnceTheyAreLoaded) {
  Problem p = kProblem;
  p.pass = Pass::forward;
  p.d = p.dv = 32;
  testing::fake_kernels().add(forward_launches(p, select_forward(p, kLimits)), "4 bytes spill");
  const Plan plan = dfa::plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_TRUE(warnings(plan).empty());
  forward(plan, forward_args());
  EXPECT_EQ(warnings(plan), std::vector<std::string>{"forward: 4 bytes spill"});
  EXPECT_TRUE(warnings(planned()).empty());
}

TEST_F(CudaBackendTest, ThePassesAreQueuedOnTheCallersStreamInOrder) {
  const Plan plan = planned();
  const gpu::Stream stream(gpu::Device::get(0));
  const BackwardArgs args = backward_args(plan.workspace_bytes);
  backward(plan, args, {.stream = stream.handle()});
  ASSERT_EQ(fake().launches.size(), 3u);
  const auto expected = backward_launches(kProblem, select_backward(kProblem, kLimits));
  for (std::size_t i = 0; i < 3; ++i) {
    const testing::FakeLaunch& seen = fake().launches[i];
    EXPECT_EQ(seen.kernel, "_Z" + expected[i].entry);
    EXPECT_EQ(seen.config.gridDimX, expected[i].grid);
    EXPECT_EQ(seen.config.blockDimX, expected[i].threads);
    EXPECT_EQ(seen.config.sharedMemBytes, expected[i].smem_bytes);
    EXPECT_EQ(seen.config.hStream, stream.handle());
    const void* q = nullptr;
    std::memcpy(&q, seen.argument.data(), sizeof q);
    EXPECT_EQ(q, args.q);
  }
}

TEST_F(CudaBackendTest, HoppersForwardGetsMapsOfItsTensorsAndAGridOfTheCardsSize) {
  const Plan hopper = plan(for_hopper(), {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_NE(hopper.why.find("cuda_sm90 kernels"), std::string::npos) << hopper.why;
  EXPECT_EQ(hopper.workspace_bytes, 0u);
  const ForwardArgs args = forward_args();
  forward(hopper, args);
  ASSERT_EQ(fake().launches.size(), 1u);
  const testing::FakeLaunch& seen = fake().launches[0];
  EXPECT_EQ(seen.config.gridDimX, 132u);  // of 150 items
  const void* mapped = nullptr;           // a fake map begins with the address
  std::memcpy(&mapped, seen.argument.data(), sizeof mapped);
  EXPECT_EQ(mapped, args.q);
}

// As of a green context, or of a MIG slice, which is a device of its own.
TEST_F(CudaBackendTest, PlansOfAPartOfADeviceAreForItsMultiprocessors) {
  const PlanOptions options{.backend = "cuda", .algorithm = Algorithm::flash};
  const Plan whole = plan(for_hopper(), options);
  fake().part_sms = 16;
  const Plan part = plan(for_hopper(), options);
  EXPECT_EQ(whole.forward_sms, 132);
  EXPECT_EQ(part.forward_sms, 16);
  EXPECT_TRUE(fits_context(part) && !fits_context(whole));
  forward(part, forward_args());
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 16u);
  EXPECT_EQ(cuda_backend().limits().sm_count, 16);
  fake().part_sms = 0;
  EXPECT_EQ(plan(for_hopper(), options).forward_sms, 132);
}

TEST_F(CudaBackendTest, HeadsThatReadTheSameKeysAreRowsOfOneItem) {
  Problem p = for_hopper();
  p.hk = 3;
  const Plan hopper = plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_EQ(hopper.problem, p);
  EXPECT_NE(hopper.why.find("rows of a tile are of 50 query heads"), std::string::npos)
      << hopper.why;
  forward(hopper, forward_args());
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 3u);
}

TEST_F(CudaBackendTest, UnderAMaskTheKernelPacksHeads) {
  Problem p = for_hopper();
  p.hq = 24;
  p.hk = 3;
  p.sq = 4;
  p.sk = 40;
  p.mask = kCausal;
  const Plan hopper = plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_NE(hopper.config.find(",.pack_gqa=8"), std::string::npos) << hopper.config;
  EXPECT_NE(hopper.why.find("rows of a tile are of 8 query heads"), std::string::npos)
      << hopper.why;
  testing::fake_kernels().add(forward_launches(p, parse_config(hopper.config, ForwardConfig{})));
  forward(hopper, forward_args());
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 3u);
}

TEST_F(CudaBackendTest, PiecesOfItemsAreJoinedInTheSameCall) {
  const Problem p = for_hopper();
  const PlanOptions options{
      .backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm90,num_splits=4"};
  const Plan hopper = plan(p, options);
  const ForwardConfig config = parse_config(hopper.config, ForwardConfig{});
  EXPECT_EQ(hopper.workspace_bytes, forward_workspace_bytes(p, config));
  EXPECT_NE(hopper.why.find("dealt out in 4 shares"), std::string::npos) << hopper.why;
  const auto expected = forward_launches(p, config);
  testing::fake_kernels().add(expected);
  ForwardArgs args = forward_args();
  args.workspace = memory(hopper.workspace_bytes);
  forward(hopper, args);
  ASSERT_EQ(fake().launches.size(), 2u);
  EXPECT_EQ(fake().launches[1].kernel, "_Z" + expected[1].entry);
  EXPECT_EQ(fake().launches[1].config.gridDimX, expected[1].grid);
  EXPECT_EQ(fake().launches[0].argument, fake().launches[1].argument);
}

TEST_F(CudaBackendTest, HoppersBackwardIsNamedAndGetsMapsOfItsTensors) {
  const PlanOptions options{.backend = "cuda",
                            .algorithm = Algorithm::flash,
                            .config = "BackwardConfig{target=cuda_sm90}"};
  const BackwardConfig config = gpu_backward_base(options.config, kProblem, kLimits);
  const std::vector<KernelLaunch> expected = backward_launches(kProblem, config);
  testing::fake_kernels().add(expected);
  const Plan hopper = plan(kProblem, options);
  EXPECT_NE(hopper.backward_config.find("cuda_sm90"), std::string::npos);
  EXPECT_EQ(hopper.workspace_bytes, backward_workspace_bytes(kProblem, config));
  const BackwardArgs args = backward_args(hopper.workspace_bytes);
  backward(hopper, args);
  ASSERT_EQ(fake().launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const testing::FakeLaunch& seen = fake().launches[i];
    EXPECT_EQ(seen.kernel, "_Z" + expected[i].entry);
    EXPECT_EQ(seen.config.gridDimX, expected[i].grid);
    EXPECT_EQ(seen.config.blockDimX, expected[i].threads);
    const void* q = nullptr;  // of the arguments, or of a fake map, which begins with the address
    std::memcpy(&q, seen.argument.data(), sizeof q);
    EXPECT_EQ(q, args.q);
  }
}

// Kernels wait for the one ahead of them themselves; what is zeroed between them would not.
TEST_F(CudaBackendTest, HoppersKernelsAreLaunchedWhileTheOneAheadEnds) {
  const auto overlap = [this](const Problem& p) {
    const PlanOptions options{.backend = "cuda",
                              .algorithm = Algorithm::flash,
                              .config = "BackwardConfig{target=cuda_sm90}"};
    const BackwardConfig config = gpu_backward_base(options.config, p, kLimits);
    testing::fake_kernels().add(backward_launches(p, config));
    const Plan hopper = plan(p, options);
    fake().launches.clear();
    const BackwardArgs args = backward_args(hopper.workspace_bytes);
    auto* const workspace = static_cast<unsigned char*>(args.workspace);
    std::memset(workspace, 0xff, hopper.workspace_bytes);  // the fake's memory is the host's
    backward(hopper, args);
    std::string text = config.dq == DqAccumulation::atomic ? "zeroed " : "";
    const ZeroedBytes zeroed = backward_launches(p, config)[1].zeroed;
    EXPECT_EQ(text.empty(), zeroed.bytes == 0);
    for (std::size_t i = 0; i < zeroed.bytes; ++i) EXPECT_EQ(workspace[zeroed.offset + i], 0);
    for (const testing::FakeLaunch& seen : fake().launches) {
      text += seen.attributes.contains(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
                  ? "overlaps "
                  : "waits ";
    }
    return text;
  };
  EXPECT_EQ(overlap(kProblem), "overlaps overlaps overlaps ");
  Problem wide = kProblem;
  wide.d = wide.dv = 192;
  wide.sq = wide.sk = 8;
  EXPECT_EQ(overlap(wide), "zeroed waits overlaps overlaps ");
  const Plan hopper = plan(for_hopper(), {.backend = "cuda", .algorithm = Algorithm::flash});
  fake().launches.clear();
  forward(hopper, forward_args());
  EXPECT_EQ(
      fake().launches.at(0).attributes.count(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
      1u);
}

// In fp32 both passes are of bf16 parts, or none.
TEST_F(CudaBackendTest, HoppersFp32IsOfBothPassesAndSplitsItsTensorsFirst) {
  Problem p = kProblem;
  p.dtype = DType::fp32;
  Problem narrow = p;  // too narrow for the backward
  narrow.d = 24;
  PlanOptions options{.backend = "cuda",
                      .algorithm = Algorithm::flash,
                      .config = "ForwardConfig{target=cuda_sm90}"};
  try {
    plan(narrow, options);
    FAIL() << "a forward of parts beside a backward of multiply-adds";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("both passes of a problem or none"), std::string::npos)
        << error.what();
  }
  options.config = "target=cuda_sm90";
  const BackwardConfig config = gpu_backward_base(options.config, p, kLimits);
  const std::vector<KernelLaunch> expected = backward_launches(p, config);
  testing::fake_kernels().add(expected);
  const Plan hopper = plan(p, options);
  EXPECT_NE(hopper.config.find("cuda_sm90"), std::string::npos);
  EXPECT_NE(hopper.backward_config.find("cuda_sm90"), std::string::npos);
  EXPECT_EQ(hopper.workspace_bytes, backward_workspace_bytes(p, config));
  const BackwardArgs args = backward_args(hopper.workspace_bytes);
  auto* const workspace = static_cast<unsigned char*>(args.workspace);
  std::memset(workspace, 0xff, hopper.workspace_bytes);  // the fake's memory is the host's
  backward(hopper, args);
  ASSERT_EQ(fake().launches.size(), 5u);
  const BackwardPlanes split = fp32x3_planes_args(p, config, args);
  const void* const first[] = {args.o, split.rows.tensors[0].planes, args.q,
                               split.inputs.tensors[0].planes, args.q};
  for (std::size_t i = 0; i < 5; ++i) {
    const testing::FakeLaunch& seen = fake().launches[i];
    EXPECT_EQ(seen.kernel, "_Z" + expected[i].entry);
    EXPECT_EQ(seen.config.gridDimX, expected[i].grid);
    const void* pointer = nullptr;
    std::memcpy(&pointer, seen.argument.data(), sizeof pointer);
    EXPECT_EQ(pointer, first[i]) << i;
  }
  const ZeroedBytes turns = expected[3].zeroed;
  EXPECT_EQ(workspace[turns.offset - 1], 0xff);
  for (std::size_t i = 0; i < turns.bytes; ++i) EXPECT_EQ(workspace[turns.offset + i], 0);
}

TEST_F(CudaBackendTest, ABudgetOfMultiprocessorsIsTheGridOfTheVeryNextLaunch) {
  const Plan hopper = plan(for_hopper(), {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_EQ(hopper.forward_sms, 132);
  const ForwardArgs args = forward_args();
  for (const int budget : {1, 64, 0, 132}) forward(hopper, args, {.sm_budget = budget});
  ASSERT_EQ(fake().launches.size(), 4u);
  EXPECT_EQ(fake().launches[0].config.gridDimX, 1u);
  EXPECT_EQ(fake().launches[1].config.gridDimX, 64u);
  EXPECT_EQ(fake().launches[1].attributes.at(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim.x,
            4u);
  EXPECT_EQ(fake().launches[2].attributes.count(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), 0u);
  EXPECT_EQ(fake().launches[2].config.gridDimX, 132u);
  EXPECT_EQ(fake().launches[3].config.gridDimX, 132u);
}

TEST_F(CudaBackendTest, ABudgetLargerThanTheWorkAddsNoBlocks) {
  Problem p = for_hopper();
  p.hq = p.hk = 10;
  const Plan hopper = plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  forward(hopper, forward_args(), {.sm_budget = 100});
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 10u);
}

TEST_F(CudaBackendTest, AGraphKeepsTheBudgetOfItsRecording) {
  const Plan hopper = plan(for_hopper(), {.backend = "cuda", .algorithm = Algorithm::flash});
  const ForwardArgs args = forward_args();
  forward(hopper, args);
  const auto recording = cuda_backend().device().record([&](Queue queue) {
    queue.sm_budget = 48;
    forward(hopper, args, queue);
  });
  fake().launches.clear();
  recording->replay({.sm_budget = 96});
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 48u);
}

TEST_F(CudaBackendTest, BudgetsThatCannotBeAreRefusedInOneLine) {
  const auto refusal = [&](const Plan& plan, int budget) -> std::string {
    try {
      forward(plan, forward_args(), {.sm_budget = budget});
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  const Plan hopper = plan(for_hopper(), {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_EQ(refusal(hopper, -1), "sm_budget -1; accepted: 1 to 132, or 0 for all");
  EXPECT_EQ(refusal(hopper, 133), "sm_budget 133; accepted: 1 to 132, or 0 for all");
  const Plan backward_too = planned();
  EXPECT_EQ(backward_too.backward_sms, 0);
  EXPECT_THROW(
      backward(backward_too, backward_args(backward_too.workspace_bytes), {.sm_budget = 64}),
      Unsupported);
  Problem p = for_hopper();
  p.dtype = DType::fp32;
  const Plan portable = plan(p, {.backend = "cuda", .algorithm = Algorithm::flash});
  EXPECT_EQ(refusal(portable, 64),
            "sm_budget 64: the forward kernels of this plan always take the whole device; "
            "accepted: 0");
  EXPECT_TRUE(fake().launches.empty());
}

TEST_F(CudaBackendTest, RowsAreRecomputedByABlockEach) {
  const Problem p = for_hopper();
  testing::fake_kernels().add({rows_launch(p, 16)});
  const auto check = cuda_backend().diagnostics().rows_check(p, 16);
  check->error(forward_args(), 7, {});
  EXPECT_EQ(fake().launches.at(0).config.gridDimX, 16u);
  EXPECT_EQ(fake().launches.at(0).config.blockDimX, 512u);
  EXPECT_THROW(cuda_backend().diagnostics().rows_check(p, 0), InvalidArgument);
}

TEST_F(CudaBackendTest, RowsThatTheKernelCannotRecomputeAreRefused) {
  for (const auto& [line, reason] :
       {std::pair{"fwd bf16 h1 s8 d264", "d and dv are at most 256"},
        {"fwd e4m3 h1 s8 d64", "its inputs are e4m3"},  // the kernel reads elements of o's type
        {"fwd bf16 h1 lens(5,9) d64", "sequences are packed, or lie in pages"},
        {"fwd bf16 b2 h1 sq1 sk64 d64 page(16)", "sequences are packed, or lie in pages"},
        {"fwd bf16 b2 h1 sq1 sk64 d64 page(16) kv(e4m3)", "sequences are packed, or lie in pages"},
        {"fwd bf16 h1 s8 d64 softcap(30)", "it has softcap(…), alibi, bias(…) or sink"},
        {"fwd bf16 h1 s8 d64 alibi", "it has softcap(…), alibi, bias(…) or sink"},
        {"fwd bf16 h1 s8 d64 sink", "it has softcap(…), alibi, bias(…) or sink"},
        {"fwd bf16 h1 s8 d64 bias(1,h)", "it has softcap(…), alibi, bias(…) or sink"},
        {"fwd bf16 h1 s8 d64 dropout(0.1,7)", "leave dropout(…) out"}}) {
    const Problem p = parse_problem(line);
    std::string said;
    try {
      cuda_backend().diagnostics().rows_check(p, 16);
    } catch (const Unsupported& error) {
      said = error.what();
    }
    EXPECT_EQ(said, "rows of '" + to_line(p) + "' are not checked: " + reason);
  }
  Problem of_two_types = for_hopper();
  of_two_types.kv = DType::e4m3;
  EXPECT_THROW(cuda_backend().diagnostics().rows_check(of_two_types, 16), Unsupported);
}

TEST_F(CudaBackendTest, ARecordingReplaysTheCallsAsAGraph) {
  const Plan plan = planned();
  const BackwardArgs args = backward_args(plan.workspace_bytes);
  backward(plan, args);
  fake().launches.clear();
  {
    const auto recording = cuda_backend().device().record([&](Queue queue) {
      backward(plan, args, queue);
      backward(plan, args, queue);
    });
    EXPECT_TRUE(fake().launches.empty());
    recording->replay({});
    EXPECT_EQ(fake().launches.size(), 6u);
    recording->replay({});
    EXPECT_EQ(fake().launches.size(), 12u);
  }
  EXPECT_EQ(fake().graphs, 0);
  EXPECT_EQ(fake().streams, 0);
}

TEST_F(CudaBackendTest, ACallWithoutWorkspaceGrowsByThePlans) {
  const Plan plan = planned();
  BackwardArgs args = backward_args(plan.workspace_bytes);
  args.workspace = nullptr;
  EXPECT_EQ(cuda_backend().device().growth_bytes([&] { backward(plan, args); }),
            static_cast<std::int64_t>(plan.workspace_bytes));
  EXPECT_GT(plan.workspace_bytes, 0u);
  EXPECT_EQ(cuda_backend().device().free_bytes(),
            static_cast<std::int64_t>(fake().memory_bytes - fake().used_bytes));
}

TEST_F(CudaBackendTest, EveryPointerThatIsNotOfTheDeviceIsNamed) {
  const Plan plan = planned();
  alignas(64) static char host[1 << 17];
  const auto refused = [&](auto field, const char* name) {
    BackwardArgs args = backward_args(plan.workspace_bytes);
    args.*field = reinterpret_cast<std::decay_t<decltype(args.*field)>>(host);
    try {
      backward(plan, args);
      ADD_FAILURE() << name << " of the host was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("pointer ") + name + " is not memory"),
                std::string::npos)
          << error.what();
    }
    for (void* pointer : taken_) cuda_backend().device().release(pointer);
    taken_.clear();
  };
  refused(&BackwardArgs::q, "q");
  refused(&BackwardArgs::o, "o");
  refused(&BackwardArgs::lse, "lse");
  refused(&BackwardArgs::d_o, "do");
  refused(&BackwardArgs::dv, "dv");
  refused(&BackwardArgs::workspace, "workspace");

  ForwardArgs args = forward_args();
  args.lse = reinterpret_cast<float*>(host);
  args.workspace = memory(plan.workspace_bytes);
  EXPECT_THROW(forward(plan, args), InvalidArgument);
  EXPECT_TRUE(fake().launches.empty());
}

TEST_F(CudaBackendTest, MisalignedPointersAreRefused) {
  const Plan plan = planned();
  ForwardArgs args = forward_args();
  args.workspace = memory(plan.workspace_bytes);
  args.k = static_cast<const char*>(args.k) + 8;
  EXPECT_THROW(forward(plan, args), InvalidArgument);
}

}  // namespace
}  // namespace dfa
