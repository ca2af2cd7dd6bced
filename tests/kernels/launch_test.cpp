#include "kernels/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/schedule.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/limits.h"

namespace dfa {
namespace {

const Problem kProblem = parse_problem("fwdbwd bf16 window(7,2) b2 hq6 hk3 sq1000 sk300 d72 dv40");
const Limits kLimits = gpu_limits(90);
const Limits kPortable = gpu_limits(80);

TEST(Launch, TheForwardIsOneKernelWithABlockForEveryTileOfQueries) {
  const ForwardConfig config = select_forward(kProblem, gpu_limits(80));
  const auto launches = forward_launches(kProblem, config);
  ASSERT_EQ(launches.size(), 1u);
  const KernelLaunch& launch = launches[0];
  EXPECT_EQ(launch.grid, 2u * 6 * ((1000 + config.block_q - 1) / config.block_q));
  EXPECT_EQ(launch.threads, 32u * static_cast<unsigned>(config.warps));
  EXPECT_EQ(launch.smem_bytes, static_cast<unsigned>(config.smem_bytes()));
  EXPECT_EQ(launch.entry.find("dfa::sm80_forward<dfa::ForwardConfig{.target=dfa::Target::cuda_sm80,"
                              ".element=dfa::DType::bf16,.head_dim=96,.value_dim=64,"),
            0u)
      << launch.entry;
}

TEST(Launch, HopperHasAKernelOfItsOwnAndFourMoreWarpsToCopy) {
  const ForwardConfig config = select_forward(kProblem, kLimits);
  const KernelLaunch launch = forward_launches(kProblem, config).at(0);
  EXPECT_EQ(launch.source, "kernels/forward/sm90_forward.cuh");
  EXPECT_EQ(launch.threads, static_cast<unsigned>(config.block_q / 16 * 32 + 128));
  EXPECT_EQ(launch.entry.find("dfa::sm90_forward<dfa::ForwardConfig{.target=dfa::Target::cuda_sm90,"
                              ".element=dfa::DType::bf16,.head_dim=96,.value_dim=64,"),
            0u)
      << launch.entry;
  EXPECT_NE(launch.entry.find(",.pingpong="), std::string::npos);
}

// Pieces are work tiles behind the whole ones; what they leave lies in the workspace, output and
// lse.
TEST(Launch, PiecesOfTheLastItemsAreJoinedByASecondKernel) {
  const Problem p = parse_problem("fwd bf16 b2 h3 sq1000 sk4096 d128");
  ForwardConfig config = select_forward(p, kLimits);
  const KernelLaunch whole = forward_launches(p, config).at(0);
  config.block_q = 128;
  config.num_splits = 20;
  ASSERT_TRUE(validate_config(config, p, kLimits)) << validate_config(config, p, kLimits).reason;
  const auto launches = forward_launches(p, config);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].grid, 40u + 2 * 20);  // two rounds of 48 work tiles, then pieces of eight
  EXPECT_EQ(launches[0].smem_bytes, whole.smem_bytes);
  EXPECT_EQ(launches[1].entry.find("dfa::combine_splits<dfa::ForwardConfig{"), 0u);
  EXPECT_EQ(launches[1].grid, 8u * 128 / 4);  // a warp for each row ...
  EXPECT_EQ(forward_workspace_bytes(p, config), 4u * 2 * 20 * 128 * (128 + 1));
  const TileGrid tile_grid = forward_tile_grid(p, config, 132);
  EXPECT_EQ(tile_grid.tiles, 80);
  EXPECT_EQ(tile_grid.heads, 1);
  const Problem few = parse_problem("fwd bf16 b2 h3 sq10 sk4096 d128");
  EXPECT_EQ(forward_workspace_bytes(few, config), 4u * 2 * 20 * 10 * (128 + 1));
  EXPECT_EQ(forward_launches(few, config)[1].grid, 6u * 10 / 4);  // ... that there is
}

// Planes of q, k and v lie one behind the other in the workspace, 6 bytes an element.
TEST(Launch, HoppersForwardInFp32SplitsItsInputsFirst) {
  const Problem p = parse_problem("fwd fp32 b2 hq6 hk3 sq1000 sk300 d72 dv40 layout(bshd)");
  const ForwardConfig config = gpu_forward_base("ForwardConfig{target=cuda_sm90}", p, kLimits);
  const auto launches = forward_launches(p, config);
  ASSERT_EQ(launches.size(), 2u);
  constexpr long long kQ = 2LL * 6 * 1000 * 72, kK = 2LL * 3 * 300 * 72, kV = 2LL * 3 * 300 * 40;
  EXPECT_EQ(launches[0].entry, "dfa::fp32x3_planes<dfa::DType::bf16>");
  EXPECT_EQ(launches[0].grid, static_cast<unsigned>(((kQ + kK + kV) / 8 + 255) / 256));
  EXPECT_EQ(launches[1].entry.find("dfa::sm90_fp32x3_forward<dfa::ForwardConfig{"), 0u);
  EXPECT_EQ(launches[1].grid,
            2u * 6 * static_cast<unsigned>((1000 + config.block_q - 1) / config.block_q));
  EXPECT_EQ(forward_workspace_bytes(p, config), static_cast<std::size_t>(6 * (kQ + kK + kV)));
  EXPECT_EQ(config, select_forward(p, kLimits));
  EXPECT_EQ(forward_workspace_bytes(p, gpu_forward_base("target=cuda_sm80", p, kLimits)), 0u);

  alignas(16) char memory[16];
  const Fp32x3PlanesArgs split =
      fp32x3_planes_args(p, ForwardArgs{.q = memory, .workspace = memory});
  const auto at = [&](int i) { return static_cast<char*>(split.tensors[i].planes) - memory; };
  EXPECT_EQ(split.tensors[0].from, static_cast<const void*>(memory));
  EXPECT_EQ(at(0), 0);
  EXPECT_EQ(at(1), 6 * kQ);
  EXPECT_EQ(at(2), 6 * (kQ + kK));
  EXPECT_EQ(split.tensors[1].chunks, kK / 8);
  EXPECT_EQ(split.tensors[2].columns, 40);
  EXPECT_EQ(split.tensors[0].strides.row, 6 * 72);
}

// v transposed is all of the workspace: tiles of whole keys and columns, a byte an element.
TEST(Launch, HoppersForwardInE4m3TransposesVFirst) {
  const Problem p = parse_problem("fwd e4m3 b2 hq6 hk3 sq1000 sk300 d64 dv48 layout(bshd)");
  ForwardConfig config = select_forward(p, kLimits);
  config.transpose_values = false;
  const auto launches = forward_launches(p, config);
  ASSERT_EQ(launches.size(), 2u);
  const auto tiles = static_cast<unsigned>((300 + config.block_k - 1) / config.block_k);
  EXPECT_EQ(launches[0].entry.find("dfa::pack_values<dfa::ForwardConfig{"), 0u);
  EXPECT_EQ(launches[0].grid, 2u * 3 * tiles);
  EXPECT_EQ(launches[1].entry.find("dfa::sm90_e4m3_forward<dfa::ForwardConfig{"), 0u);
  EXPECT_EQ(launches[1].grid,
            2u * 6 * static_cast<unsigned>((1000 + config.block_q - 1) / config.block_q));
  const auto block_k = static_cast<unsigned>(config.block_k);
  EXPECT_EQ(forward_workspace_bytes(p, config), std::size_t{2} * 3 * tiles * block_k * 64);

  alignas(16) char memory[16];
  const PackValuesArgs pack =
      pack_values_args(p, config, ForwardArgs{.v = memory, .workspace = memory + 8});
  EXPECT_EQ(pack.from, static_cast<const void*>(memory));
  EXPECT_EQ(pack.to, static_cast<void*>(memory + 8));
  EXPECT_EQ(pack.keys, 300);
  EXPECT_EQ(pack.columns, 48);
  EXPECT_EQ(pack.tiles, static_cast<int>(tiles));
  EXPECT_EQ(pack.strides.row, 3 * 48);
}

// Planes of o lie where those of q come when delta has read them.
TEST(Launch, HoppersBackwardInFp32SplitsRowsThenItsInputs) {
  const Problem p = parse_problem("bwd fp32 b2 hq6 hk3 sq1000 sk300 d72 dv40 layout(bshd)");
  const BackwardConfig config = gpu_backward_base("target=cuda_sm90", p, kLimits);
  const auto launches = backward_launches(p, config);
  ASSERT_EQ(launches.size(), 5u);
  constexpr long long kQ = 2LL * 6 * 1000 * 72, kK = 2LL * 3 * 300 * 72, kV = 2LL * 3 * 300 * 40;
  constexpr long long kO = 2LL * 6 * 1000 * 40, kRows = 2LL * 6 * 1024;
  for (const int i : {0, 2}) EXPECT_EQ(launches[i].entry, "dfa::fp32x3_planes<dfa::DType::bf16>");
  EXPECT_EQ(launches[0].grid, static_cast<unsigned>((2 * kO / 8 + 255) / 256));
  EXPECT_EQ(launches[1].entry, "dfa::sm90_fp32x3_delta<64>");
  EXPECT_EQ(launches[1].grid, kRows / 64);
  EXPECT_EQ(launches[1].smem_bytes, 2u * 6 * 64 * 64 + 8);
  EXPECT_EQ(launches[2].grid, static_cast<unsigned>(((kQ + kK + kV) / 8 + 255) / 256));
  EXPECT_EQ(launches[3].entry.find("dfa::sm90_fp32x3_backward<dfa::BackwardConfig{"), 0u);
  EXPECT_EQ(launches[3].grid, 2u * 3 * 5);
  EXPECT_EQ(launches[3].threads, 3u * 128);
  EXPECT_EQ(launches[4].entry.find("dfa::sm90_fp32x3_dq<"), 0u);
  EXPECT_EQ(launches[4].grid * static_cast<unsigned>(config.block_q), 2u * 6 * 1024);

  std::vector<char> memory(backward_workspace_bytes(p, config));
  const BackwardPlanes split = fp32x3_planes_args(
      p, config, BackwardArgs{.q = memory.data(), .o = memory.data(), .workspace = memory.data()});
  const auto at = [&](const Fp32x3Tensor& t) {
    return static_cast<char*>(t.planes) - memory.data();
  };
  const ZeroedBytes semaphores = launches[3].zeroed;
  EXPECT_EQ(semaphores.offset, static_cast<std::size_t>(4 * (2 * kRows + kRows * 96)));
  const long long q = at(split.inputs.tensors[0]);
  EXPECT_GE(q, static_cast<long long>(semaphores.offset + semaphores.bytes));
  EXPECT_EQ(q % 64, 0);
  EXPECT_EQ(at(split.rows.tensors[0]), q);
  EXPECT_EQ(at(split.inputs.tensors[1]), q + 6 * kQ);
  EXPECT_EQ(at(split.inputs.tensors[2]), q + 6 * (kQ + kK));
  EXPECT_EQ(at(split.rows.tensors[1]), q + 6 * (kQ + kK + kV));
  EXPECT_EQ(memory.size(), static_cast<std::size_t>(q + 6 * (kQ + kK + kV + kO)));
  EXPECT_EQ(split.rows.tensors[0].strides.row, 6 * 40);
  EXPECT_EQ(split.rows.tensors[2].chunks, 0);
}

TEST(Launch, KernelsOfTuringAreThePortableOnesFromASourceOfTheirOwn) {
  const Problem p = parse_problem("fwdbwd fp16 h1 s64 d64");
  const Limits turing = gpu_limits(75);
  auto launches = forward_launches(p, select_forward(p, turing));
  EXPECT_EQ(launches.at(0).entry.find("dfa::sm80_forward<dfa::ForwardConfig{"
                                      ".target=dfa::Target::cuda_sm75,"),
            0u);
  for (KernelLaunch& launch : backward_launches(p, select_backward(p, turing))) {
    launches.push_back(launch);
  }
  ASSERT_EQ(launches.size(), 4u);
  for (const KernelLaunch& launch : launches) EXPECT_EQ(launch.source, "kernels/sm75.cuh");
}

TEST(Launch, CausalHeadsAreDealtOutInSectionsThatFitTheL2) {
  const ForwardConfig config{.block_q = 128};
  const auto tile_grid = [&](const char* line) {
    return forward_tile_grid(parse_problem(line), config, 132);
  };
  const TileGrid causal = tile_grid("fwd bf16 causal b4 h16 s4096 d128");  // 2 MB of k and v a head
  EXPECT_EQ(causal.heads, 64);
  EXPECT_EQ(causal.tiles, 32);
  EXPECT_EQ(causal.section, 16);
  EXPECT_EQ(causal.late_first, 1);
  EXPECT_EQ(tile_grid("fwd bf16 causal b4 hq16 hk2 s4096 d128").section, 64);
  EXPECT_EQ(tile_grid("fwd bf16 causal h8 s1048576 d128").section, 1);
  EXPECT_EQ(tile_grid("fwd bf16 b4 h16 s4096 d128").section, 64);
  EXPECT_EQ(tile_grid("fwd bf16 b4 h16 s4096 d128").late_first, 0);
  EXPECT_EQ(tile_grid("fwd bf16 h1 s600 d64 window(100,0)").late_first, 0);
}

TEST(Launch, ShortCausalHeadsAreDealtOutInWholeRoundsOfTheGrid) {
  const auto section = [](const char* line, int block_q, int blocks) {
    return forward_tile_grid(parse_problem(line), {.block_q = block_q}, blocks).section;
  };
  EXPECT_EQ(section("fwd bf16 causal b32 h16 s512 d128", 128, 132), 33);
  EXPECT_EQ(section("fwd bf16 causal b32 h16 s512 d128", 128, 100), 25);
  EXPECT_EQ(section("fwd bf16 causal b16 h16 s1024 d128", 128, 132), 33);  // two rounds
  EXPECT_EQ(section("fwd bf16 causal b32 h32 s512 d64", 256, 132), 66);
  EXPECT_EQ(section("fwd bf16 causal b1 h16 s512 d128", 128, 64), 16);     // all there are
  EXPECT_EQ(section("fwd bf16 causal b32 h16 s512 d128", 128, 131), 128);  // never whole
  EXPECT_EQ(section("fwd bf16 causal b32 h21 s512 d96", 192, 132), 170);   // three tiles
  EXPECT_EQ(section("fwd bf16 causal b16 h8 s1024 d256", 128, 132), 32);   // 33 are too large
  EXPECT_EQ(section("fwd bf16 b32 h16 s512 d128", 128, 132), 512);
}

TEST(Launch, TheBackwardPreparesRowsThenWalksFromBothSides) {
  const BackwardConfig config = select_backward(kProblem, kPortable);
  const auto launches = backward_launches(kProblem, config);
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(launches[0].entry, "dfa::delta<dfa::DType::bf16>");
  EXPECT_EQ(launches[0].grid * launches[0].threads / 8, 2u * 6 * 1024);  // 8 lanes a padded row
  EXPECT_EQ(launches[1].grid, 2u * 3 * ((300 + config.block_k - 1) / config.block_k));
  EXPECT_EQ(launches[1].smem_bytes, static_cast<unsigned>(config.smem_bytes()));
  EXPECT_EQ(launches[2].grid, 2u * 6 * ((1000 + config.dq_block_q - 1) / config.dq_block_q));
  EXPECT_EQ(launches[2].threads, 32u * static_cast<unsigned>(config.dq_warps));
}

TEST(Launch, TheWorkspaceHoldsTwoValuesForEveryPaddedRow) {
  const BackwardConfig config = select_backward(kProblem, kPortable);
  EXPECT_EQ(backward_workspace_bytes(kProblem, config), 2u * 4 * 2 * 6 * 1024);
  float workspace[1];
  const KernelArgs args =
      with_pointers(kernel_args(kProblem), BackwardArgs{.workspace = workspace});
  EXPECT_EQ(args.lse_log2, workspace);
  EXPECT_EQ(reinterpret_cast<char*>(args.delta) - reinterpret_cast<char*>(args.lse_log2),
            4 * 2 * 6 * 1024);
  EXPECT_EQ(args.padded_sq, 1024);
}

TEST(Launch, HoppersBackwardSumsDqInTurnAndRoundsItAtTheEnd) {
  BackwardConfig config = gpu_backward_base("BackwardConfig{target=cuda_sm90}", kProblem, kLimits);
  const auto launches = backward_launches(kProblem, config);
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(launches[0].entry, "dfa::delta<dfa::DType::bf16>");
  EXPECT_EQ(launches[1].source, "kernels/backward/sm90_backward.cuh");
  EXPECT_EQ(launches[1].entry.find("dfa::sm90_backward<dfa::BackwardConfig{"), 0u);
  EXPECT_EQ(launches[1].grid, 2u * 3 * 3);   // 128 keys a block
  EXPECT_EQ(launches[1].threads, 3u * 128);  // two warpgroups and one that copies
  EXPECT_EQ(launches[1].zeroed.bytes, 0u);   // by delta
  EXPECT_EQ(dq_semaphore_count(kProblem, config), 2 * 6 * 16);  // for every 64 queries
  EXPECT_EQ(launches[2].entry.find("dfa::sm90_dq<"), 0u);
  EXPECT_EQ(launches[2].grid, 2u * 6 * 16);
  EXPECT_EQ(launches[2].threads, 256u);
  constexpr std::size_t kRows = 2 * 6 * 1024;
  EXPECT_EQ(backward_workspace_bytes(kProblem, config), 4 * (2 * kRows + kRows * 96 + 2 * 6 * 16));

  const auto hopper = [](const Problem& p, const std::string& text) {
    const std::string all =
        "BackwardConfig{target=cuda_sm90,dq=serialized,persistent=false," + text + "}";
    return legal_config(all, gpu_backward_base(all, p, kLimits), p, kLimits);
  };
  const auto launched = [&](const char* line, const std::string& text) {
    const Problem p = parse_problem(line);
    return backward_launches(p, hopper(p, text));
  };
  const auto turns = [&](const char* line, const std::string& text) {
    const Problem p = parse_problem(line);
    return dq_semaphore_count(p, hopper(p, text));
  };

  const char* kLong = "bwd bf16 b2 hq6 hk3 sq1000 sk1100 d128";
  const auto pairs = launched(kLong, "cluster=2");
  EXPECT_EQ(pairs[1].source, "kernels/backward/sm90_pair_backward.cuh");
  EXPECT_EQ(pairs[1].entry.find("dfa::sm90_pair_backward<dfa::BackwardConfig{"), 0u);
  EXPECT_EQ(pairs[1].cluster, 2u);
  EXPECT_EQ(pairs[1].grid, 2u * 3 * 2 * 5);  // 256 keys a pair
  EXPECT_EQ(turns(kLong, "cluster=2"), 2 * 6 * 16);
  const char* kNarrow = "bwd bf16 b2 hq6 hk3 sq1000 sk1100 d64";
  EXPECT_EQ(turns(kNarrow, "cluster=2"), 2 * 6 * 8);

  const Problem wide = parse_problem("bwd bf16 b2 hq6 hk3 s1000 d256");
  const auto of_wide = backward_launches(wide, hopper(wide, "dq=atomic"));
  EXPECT_EQ(of_wide[1].source, "kernels/backward/sm90_wide_backward.cuh");
  EXPECT_EQ(of_wide[1].entry.find("dfa::sm90_wide_backward<dfa::BackwardConfig{"), 0u);
  EXPECT_EQ(of_wide[1].grid, 2u * 3 * 16);  // 64 keys a block
  EXPECT_EQ(of_wide[1].threads, 3u * 128);
  EXPECT_EQ(of_wide[2].source, of_wide[1].source);
  EXPECT_EQ(of_wide[2].threads, 512u);  // 64 columns a warpgroup

  config.dq = DqAccumulation::atomic;
  const auto unordered = backward_launches(kProblem, config);
  EXPECT_EQ(dq_semaphore_count(kProblem, config), 0);
  EXPECT_EQ(unordered[1].zeroed.offset, 4 * 2 * kRows);
  EXPECT_EQ(unordered[1].zeroed.bytes, 4 * kRows * 96);
  EXPECT_EQ(backward_workspace_bytes(kProblem, config), 4 * (2 * kRows + kRows * 96));

  // Nothing is cleared before the grid; two counters of heads more than are rounded, one of work
  // tiles.
  config.dq = DqAccumulation::atomic_fused;
  config.persistent = true;
  const int heads = static_cast<int>(kProblem.b * kProblem.hk);
  EXPECT_EQ(backward_launches(kProblem, config).size(), 2u);
  EXPECT_EQ(backward_launches(kProblem, config)[1].zeroed.bytes, 0u);
  EXPECT_EQ(dq_semaphore_count(kProblem, config), 3 * heads + 1);

  // Those of packed sequences: two counters of each sequence's heads, and a kernel that rounds.
  for (const char* d : {" d96", " d256"}) {
    const Problem packed = parse_problem(std::string("bwd bf16 causal hq6 hk3 lens(1000,20)") + d);
    const auto of_packed = backward_launches(packed, hopper(packed, "dq=atomic"));
    ASSERT_EQ(of_packed.size(), 4u);
    EXPECT_EQ(of_packed[2].zeroed.bytes, 0u);
    EXPECT_EQ(of_packed[3].name, "dq");
    EXPECT_EQ(dq_semaphore_count(packed, hopper(packed, "dq=atomic")), 2 * 2 * 3);
  }
}

// What blocks walk of heads at once, q, do and the sums of dq, takes 32 MB of the L2.
TEST(Launch, BlocksOfFewerLongHeadsAlternate) {
  const auto heads = [](const char* line) { return select_head_swizzle(parse_problem(line), {}); };
  EXPECT_EQ(heads("bwd bf16 h32 s16384 d64"), 4);  // 8 MB a head
  EXPECT_EQ(heads("bwd bf16 causal h32 s16384 d64"), 8);
  EXPECT_EQ(heads("bwd fp16 h16 s16384 d128"), 2);
  EXPECT_EQ(heads("bwd bf16 causal h16 s16384 d128"), 4);
  EXPECT_EQ(heads("bwd bf16 h16 s16384 d128 window(500,500)"), 8);
  EXPECT_EQ(heads("bwd bf16 b4 h16 s4096 d128"), 8);
  EXPECT_EQ(heads("bwd bf16 b4 hq16 hk4 s4096 d128"), 2);
  EXPECT_EQ(heads("bwd bf16 h8 s65536 d256"), 1);
  EXPECT_EQ(heads("bwd bf16 h8 s1 d8"), 8);
  const auto pairs = [](const char* line) {
    return select_head_swizzle(parse_problem(line),
                               {.block_k = 128, .dq = DqAccumulation::serialized, .cluster = 2});
  };
  EXPECT_EQ(pairs("bwd bf16 causal b16 h32 s1024 d64"), 43);  // 768 KB, of 512 in 12 groups
  EXPECT_EQ(pairs("bwd bf16 causal b16 h16 s1024 d128"), 22);
  EXPECT_EQ(pairs("bwd bf16 causal b4 h16 s1024 d128"), 22);
  EXPECT_EQ(pairs("bwd bf16 causal b1 h5 s1024 d128"), 5);
  EXPECT_EQ(pairs("bwd bf16 causal b16 hq32 hk8 s1024 d128"), 8);
  EXPECT_EQ(pairs("bwd bf16 causal b8 h16 s2048 d128"), 8);  // ten would stay
  EXPECT_EQ(pairs("bwd bf16 b16 h32 s1024 d64"), 8);
  EXPECT_EQ(pairs("bwd bf16 causal h32 s16384 d64"), 8);
  EXPECT_EQ(select_head_swizzle(parse_problem("bwd bf16 causal b16 h8 s1024 d192"),
                                {.block_k = 64, .dq = DqAccumulation::serialized, .cluster = 2}),
            8);
  const auto unordered = [](const char* line) {
    return select_head_swizzle(parse_problem(line),
                               {.block_k = 128, .dq = DqAccumulation::atomic_fused, .cluster = 2});
  };
  EXPECT_EQ(unordered("bwd bf16 b4 h16 s4096 d128"), 4);  // 16 work tiles a head
  EXPECT_EQ(unordered("bwd bf16 causal b4 h16 s4096 d128"), 4);
  EXPECT_EQ(unordered("bwd bf16 b4 h16 s1300 d128"), 11);
  EXPECT_EQ(unordered("bwd bf16 b1 h1 s65536 d128"), 1);
  // Of few work tiles, all of which begin at once, the longest of all heads are the first.
  const auto in_turn = [](const char* line, bool in_parts) {
    return select_head_swizzle(parse_problem(line),
                               {.block_k = 128, .cluster = 2, .split_q = in_parts});
  };
  EXPECT_EQ(in_turn("bwd bf16 causal b1 hq28 hk4 s4096 d128", true), 4);
  EXPECT_EQ(in_turn("bwd bf16 causal b1 hq28 hk4 s4096 d128", false), 2);
  EXPECT_EQ(in_turn("bwd bf16 causal b2 hq28 hk4 s4096 d128", true), 2);  // 128 work tiles
  // None waits for another head's: one after the other, but the last ones.
  EXPECT_EQ(select_head_swizzle(parse_problem("bwd bf16 causal b4 h8 s4096 d256"),
                                {.block_k = 64, .dq = DqAccumulation::atomic, .cluster = 2}),
            1);
}

// Of as many heads later as alternate, so that none waits for zeros: not without a mask, nor where
// they are not rounded in the same grid.
TEST(Launch, UnderAMaskSumsThatAreRoundedTooAreZeroedAhead) {
  const auto ahead = [](const char* line, bool fused) {
    return select_heads_zeroed_ahead(
        parse_problem(line), {.block_k = 128,
                              .dq = fused ? DqAccumulation::atomic_fused : DqAccumulation::atomic,
                              .cluster = 2});
  };
  EXPECT_EQ(ahead("bwd bf16 causal b4 h16 s4096 d128", true), 4);
  EXPECT_EQ(ahead("bwd bf16 b4 h16 s4096 d128 window(500,0)", true), 4);
  EXPECT_EQ(ahead("bwd bf16 causal b4 h16 s4096 d128", false), 0);
  EXPECT_EQ(ahead("bwd bf16 b4 h16 s4096 d128", true), 0);
}

// Every tile of dq is rounded once, after all blocks that add to it and, by those that own keys,
// with as many blocks in between as a card runs at once.
void expect_every_tile_rounded(const std::string& fields, std::initializer_list<const char*> dims) {
  for (const char* rest : {"causal b16 h16 s1024", "causal b4 h21 s4096", "causal b1 h21 s4096",
                           "b4 h32 s4096", "b1 h1 s64", "b1 hq33 hk11 sq300 sk5000", "b1 h5 s8192",
                           "b1 h9 sq5000 sk70", "b16 h33 sq300 sk70"}) {
    for (const char* dim : dims) {
      const std::string line = std::string("bwd bf16 ") + rest + dim;
      SCOPED_TRACE(line);
      const Problem p = parse_problem(line);
      const std::string text = "BackwardConfig{target=cuda_sm90," + fields + "}";
      const BackwardConfig config =
          legal_config(text, gpu_backward_base(text, p, kLimits), p, kLimits);
      const auto launches = backward_launches(p, config);
      ASSERT_EQ(launches.size(), 2u);
      const RoundingOrder order = rounding_order(p, config);
      if (!config.persistent) {
        ASSERT_EQ(launches[1].grid, static_cast<unsigned>(order.clusters() * config.cluster));
      }
      const std::int64_t heads = p.b * p.hk,
                         at_once = std::min<std::int64_t>(heads, select_head_swizzle(p, config));
      ASSERT_GE(order.groups * at_once, heads);
      ASSERT_EQ(order.keys, at_once * ((p.sk + config.cluster_keys() - 1) / config.cluster_keys()));
      const auto of_group = static_cast<int>(at_once * (p.hq / p.hk) *
                                             ((p.sq + config.block_q - 1) / config.block_q));
      std::vector<int> rounded(static_cast<std::size_t>(order.groups * of_group));
      const auto owners = static_cast<int>(heads * order.keys / at_once);  // that have a head
      for (int i = 0; i < owners; ++i) {
        if (!order.shares(i)) continue;
        const int group = order.shared_group(i);
        const bool waits = config.dq_serialized() && config.cluster == 2;
        EXPECT_GE((i / order.keys - group) * order.keys * config.cluster, waits ? 528 : 132);
        EXPECT_LE((group + 1) * at_once,
                  select_tail_heads(p, config));  // all of its work tiles are before
        for (int tile = order.sharer(i); tile < of_group; tile += order.keys) {
          ++rounded[static_cast<std::size_t>(group * of_group + tile)];
        }
      }
      const int a_cluster = config.rounded_tiles() * config.cluster;
      for (int i = order.owners(); i < order.clusters(); ++i) {
        const int first = order.rounder(i) * a_cluster;
        for (int tile = first; tile < std::min(first + a_cluster, of_group); ++tile) {
          ++rounded[static_cast<std::size_t>(order.last_group(i) * of_group + tile)];
        }
      }
      EXPECT_EQ(std::count(rounded.begin(), rounded.end(), 1),
                static_cast<std::ptrdiff_t>(rounded.size()));
    }
  }
}

TEST(Launch, ABackwardThatRoundsDqHasASharerOrABlockAtTheEndForEveryTile) {
  expect_every_tile_rounded("dq=serialized_fused,persistent=false", {" d64", " d96", " d128"});
  expect_every_tile_rounded("cluster=2,dq=serialized_fused,persistent=true",
                            {" d64", " d96", " d128"});
  expect_every_tile_rounded("cluster=2,dq=atomic_fused,persistent=true",
                            {" d64", " d96", " d128", " d192", " d256"});
}

// As many pairs as multiprocessors hold and work tiles there are; behind them those that round dq.
TEST(Launch, PairsThatStayAreAsManyAsMultiprocessorsHold) {
  const Problem p = parse_problem("bwd bf16 b2 h8 s1000 d128");
  const auto config = [&](const std::string& text) {
    const std::string all = "BackwardConfig{target=cuda_sm90,cluster=2," + text + "}";
    return legal_config(all, gpu_backward_base(all, p, kLimits), p, kLimits);
  };
  const BackwardConfig alone = config("dq=serialized,persistent=true");
  EXPECT_EQ(select_persistent_clusters(p, alone, 132), 2 * 8 * 4);  // 256 keys a work tile
  EXPECT_EQ(select_persistent_clusters(p, alone, 100), 50);
  EXPECT_EQ(select_persistent_clusters(p, alone, 1), 1);
  EXPECT_EQ(select_persistent_clusters(p, config("dq=serialized_fused,persistent=false"), 132), 0);
  EXPECT_EQ(persistent_grid(p, alone, 50), 100u);
  EXPECT_EQ(backward_launches(p, alone)[1].grid, 2u * 2 * 8 * 4);
  const BackwardConfig rounding = config("dq=serialized_fused,persistent=true");
  const RoundingOrder order = rounding_order(p, rounding);
  ASSERT_GT(order.last * order.roundings, 0);
  EXPECT_EQ(persistent_grid(p, rounding, 50),
            2 * (50 + static_cast<unsigned>(order.last * order.roundings)));
  // The last counter counts work tiles.
  EXPECT_EQ(dq_semaphore_count(p, alone), 2 * 8 * 16 + 1);
  EXPECT_EQ(backward_workspace_bytes(p, alone),
            backward_workspace_bytes(p, config("dq=serialized,persistent=false")) + 4);
}

// And the kernel of delta has a thread for each counter, of few queries too.
TEST(Launch, WorksInPartsHaveCountersAndPlaces) {
  for (const char* line :
       {"bwd bf16 b1 h2 s4096 d128", "bwd bf16 b1 hq6 hk1 sq65 sk9000 d128",
        "bwd bf16 b1 h5 sq129 sk1000 d64", "bwd bf16 b1 h21 s4096 d96 deterministic"}) {
    const Problem p = parse_problem(line);
    const std::string text = "BackwardConfig{target=cuda_sm90,stages=2,cluster=2,persistent=true}";
    const BackwardConfig whole =
        legal_config(text, gpu_backward_base(text, p, kLimits), p, kLimits);
    BackwardConfig without = whole, parts = whole;
    without.split_q = false;
    parts.split_q = true;
    ASSERT_TRUE(validate_config(parts, p, kLimits))
        << line << validate_config(parts, p, kLimits).reason;
    EXPECT_EQ(dq_semaphore_count(p, parts), dq_semaphore_count(p, without) + kPartCounters) << line;
    const std::size_t places = sizeof(float) * kPartPlaces * 256 *
                               static_cast<std::size_t>(parts.head_dim + parts.value_dim);
    const std::size_t more =
        backward_workspace_bytes(p, parts) - backward_workspace_bytes(p, without);
    EXPECT_GE(more, places + sizeof(unsigned) * kPartCounters) << line;
    EXPECT_LT(more, places + sizeof(unsigned) * kPartCounters + 64) << line;
    const KernelLaunch delta = backward_launches(p, parts)[0];
    EXPECT_GE(delta.grid * delta.threads, static_cast<unsigned>(dq_semaphore_count(p, parts)))
        << line;
  }
}

TEST(Launch, SumsInOrderTakeTheirWorkspaceAndZeroedTurns) {
  const BackwardConfig config =
      legal_config("BackwardConfig{dq=serialized,block_q=64,block_k=64,dq_block_q=128}",
                   select_backward(kProblem, kPortable), kProblem, kPortable);
  const auto launches = backward_launches(kProblem, config);
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(launches[2].entry.find("dfa::sm80_serialized_dq<"), 0u);
  EXPECT_EQ(launches[2].grid, 2u * 6 * 16);
  constexpr std::size_t kRows = 2 * 6 * 1024;
  EXPECT_EQ(launches[1].zeroed.offset, 4 * (2 * kRows + kRows * 96));
  EXPECT_EQ(launches[1].zeroed.bytes, 4u * 2 * 6 * 8);
  EXPECT_EQ(backward_workspace_bytes(kProblem, config),
            launches[1].zeroed.offset + launches[1].zeroed.bytes);
  float workspace[1];
  const KernelArgs args =
      with_pointers(kernel_args(kProblem), BackwardArgs{.workspace = workspace});
  const auto offset = [&](const void* pointer) {
    return static_cast<std::size_t>(static_cast<const char*>(pointer) -
                                    reinterpret_cast<const char*>(workspace));
  };
  EXPECT_EQ(offset(args.dq_sums), 4 * 2 * kRows);
  EXPECT_EQ(offset(args.dq_semaphores), launches[1].zeroed.offset);
}

TEST(Launch, ArgumentsCarryTheProblem) {
  const Problem p = parse_problem(
      "fwd fp16 window(9000000000,3) b2 hq4 hk2 sq5 sk7 d16 scale(-0.5) layout(bshd)");
  float o = 0;
  const KernelArgs args = with_pointers(kernel_args(p), ForwardArgs{.o = &o});
  EXPECT_EQ(args.o, &o);
  EXPECT_EQ(args.lse, nullptr);
  EXPECT_EQ(args.left, 1 << 29);
  EXPECT_EQ(args.right, 3);
  EXPECT_EQ(args.scale, -0.5f);
  EXPECT_FLOAT_EQ(args.scale_log2, -0.72134752f);
  EXPECT_FLOAT_EQ(args.magnitude_log2, 0.72134752f);
  EXPECT_EQ(args.q_strides.batch, 5 * 4 * 16);
  EXPECT_EQ(args.q_strides.head, 16);
  EXPECT_EQ(args.k_strides.row, 2 * 16);
}

}  // namespace
}  // namespace dfa
