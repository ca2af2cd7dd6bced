// Packed sequences on a processor: the kernels' own sources, held against fp64 a sequence at a
// time.
#include "emulated/gaps.h"
#include "emulated/hopper_backward.h"
#include "spec/limits.h"
// and then:
#include "kernels/backward/sm80_backward.cuh"
#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_pair_backward.cuh"
#include "kernels/backward/sm90_wide_backward.cuh"
#include "kernels/forward/sm80_forward.cuh"
#include "kernels/forward/sm90_forward.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16, kFp32 = DType::fp32;

template <typename Config>
constexpr Config varlen(Config config) {
  config.varlen = true;
  return config;
}

// Lengths around those of tiles, none at all, and longer queries than keys.
constexpr const char* kLines[] = {
    "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)",
    "hq2 hk1 lens(33,128,5) lens_k(64,3,200)",
    "window(40,9) hq2 hk2 lens(100,0,64,17)",
};

std::string line_of(const char* pass, const char* dtype, const char* rest, int d) {
  return std::string(pass) + " " + dtype + " " + rest + " d" + std::to_string(d);
}

void list_tiles(const KernelLaunch& launched, const KernelArgs& args) {
  launch(launched.grid, launched.threads, [&] { sequence_tiles(args); });
}

void expect_zeros(const Gaps& g, const std::vector<std::byte>& tensor, const Strides& s,
                  std::int64_t heads, const std::vector<std::int32_t>& begins,
                  const std::vector<std::int32_t>& used, const char* name) {
  for (std::size_t n = 0; n < used.size(); ++n) {
    for (std::int64_t row = begins[n] + used[n]; row < begins[n + 1]; ++row) {
      for (std::int64_t h = 0; h < heads; ++h) {
        EXPECT_EQ(g.t.at(tensor, row * s.row + h * s.head), 0)
            << name << " row " << row << " is of no sequence";
      }
    }
  }
}

template <ForwardConfig kConfig>
void run_forward(const Problem& p, ForwardArgs pointers, unsigned blocks) {
  const auto launches = forward_launches(p, kConfig);
  Workspace workspace(forward_workspace_bytes(p, kConfig));
  pointers.workspace = workspace.data();
  if constexpr (kConfig.target == Target::cuda_sm90) {
    const Sm90ForwardArgs args =
        cuda::HopperForwardArgs(p, kConfig).with(pointers, static_cast<int>(blocks));
    list_tiles(launches[0], args.args);
    launch(blocks, launches[1].threads, [&] { sm90_forward<kConfig>(args); });
  } else {
    const KernelArgs args = with_pointers(kernel_args(p, kConfig), pointers);
    list_tiles(launches[0], args);
    launch(launches[1].grid, launches[1].threads, [&] { sm80_forward<kConfig>(args); });
  }
}

template <ForwardConfig kConfig>
void expect_forward(const char* dtype, const char* rest, int d, unsigned blocks = 3) {
  const std::string line = line_of("fwd", dtype, rest, d);
  Gaps g(line);
  Tensors& t = g.t;
  expect_legal(kConfig, t.p);
  const ForwardArgs pointers = g.with(t.forward_args());
  run_forward<kConfig>(t.p, pointers, blocks);
  expect_met(check_forward(t.p, pointers), line);
  expect_zeros(g, t.o, t.p.o(), t.p.hq, t.cu_seqlens_q, g.used_q, "o");
}

template <BackwardConfig kConfig, typename Keys>
void expect_backward(const char* dtype, const char* rest, int d, const Keys& keys) {
  const std::string line = line_of("fwdbwd", dtype, rest, d);
  Gaps g(line);
  Tensors& t = g.t;
  expect_legal(kConfig, t.p);
  const Backend& truth = reference_backend();
  truth.forward(truth.plan(t.p, {.backend = "reference"}), g.with(t.forward_args()), {});
  auto launches = backward_launches(t.p, kConfig);
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = g.with(t.backward_args());
  pointers.workspace = workspace.data();
  if constexpr (kConfig.target == Target::cuda_sm90) {
    const Sm90BackwardArgs args = cuda::HopperBackwardArgs(t.p, kConfig, 4).with(pointers);
    workspace.zero(launches[2].zeroed);
    list_tiles(launches[0], args.args);
    launch(launches[1].grid, launches[1].threads, [&] { delta<kConfig.element, true>(args.args); });
    run_sinks<kConfig>(launches, args.args);
    launch(
        launches[2].grid, launches[2].threads, [&] { keys(args); }, launches[2].cluster);
    launch(launches[3].grid, launches[3].threads, [&] { sm90_dq<kConfig>(args.args); });
  } else {
    const KernelArgs args = with_pointers(kernel_args(t.p, kConfig), pointers);
    list_tiles(launches[0], args);
    launch(launches[1].grid, launches[1].threads, [&] { delta<kConfig.element, true>(args); });
    launch(launches[2].grid, launches[2].threads, [&] { keys(args); });
    launch(launches[3].grid, launches[3].threads, [&] { sm80_backward_queries<kConfig>(args); });
  }
  expect_met(check_backward(t.p, pointers), line);
  expect_zeros(g, t.dq, t.p.q(), t.p.hq, t.cu_seqlens_q, g.used_q, "dq");
  expect_zeros(g, t.dk, t.p.k(), t.p.hk, t.cu_seqlens_k, g.used_k, "dk");
  expect_zeros(g, t.dv, t.p.v(), t.p.hk, t.cu_seqlens_k, g.used_k, "dv");
}

constexpr ForwardConfig portable_forward(DType element, int dim, int block_q, int block_k) {
  return varlen(ForwardConfig{.target = Target::cuda_sm80,
                              .element = element,
                              .head_dim = dim,
                              .value_dim = dim,
                              .block_q = block_q,
                              .block_k = block_k,
                              .warps = 4});
}

constexpr BackwardConfig portable_backward(DType element, int dim, int block_q, int block_k) {
  return varlen(BackwardConfig{.target = Target::cuda_sm80,
                               .element = element,
                               .head_dim = dim,
                               .value_dim = dim,
                               .block_q = block_q,
                               .block_k = block_k,
                               .warps = 4,
                               .dq_block_q = 64,
                               .dq_block_k = 32});
}

template <BackwardConfig kConfig>
void expect_portable_backward(const char* dtype, const char* rest) {
  expect_backward<kConfig>(dtype, rest, kConfig.head_dim,
                           [](const KernelArgs& a) { sm80_backward_keys<kConfig>(a); });
}

TEST(EmulatedVarlen, PortableForward) {
  for (const char* rest : kLines) {
    expect_forward<portable_forward(kBf16, 64, 128, 64)>("bf16", rest, 64);
    expect_forward<portable_forward(kFp32, 64, 64, 32)>("fp32", rest, 40);
  }
}

TEST(EmulatedVarlen, PortableBackward) {
  for (const char* rest : kLines) {
    expect_portable_backward<portable_backward(kBf16, 64, 32, 128)>("bf16", rest);
    expect_portable_backward<portable_backward(kFp32, 64, 32, 64)>("fp32", rest);
  }
}

TEST(EmulatedVarlen, HopperForward) {
  for (const char* rest : kLines) {
    expect_forward<varlen(hopper_forward(kBf16, 64, 128, 128, 2, 2, true))>("bf16", rest, 64);
    expect_forward<varlen(hopper_forward(kFp16, 64, 64, 64, 2, 1))>("fp16", rest, 48, 1);
    expect_forward<varlen(hopper_forward(kBf16, 128, 192, 80, 2, 2))>("bf16", rest, 128);
  }
}

// More work tiles than are done again together, of which some are: their weights leave the range of
// fp32.
TEST(EmulatedVarlen, HopperForwardItemsThatAreDoneAgain) {
  const char* rest = "hq8 hk1 scale(20) lens(9,30,2,5,9,7,8,1,64,3,5,6,7,8,9,40,20,11,12,13)";
  for (const unsigned blocks : {1u, 2u}) {
    expect_forward<varlen(hopper_forward(kBf16, 64, 128, 128, 2, 2, true))>("bf16", rest, 64,
                                                                            blocks);
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedVarlen, HopperForwardOfLogitsThatAreNotPlain) {
  for (const char* rest : kLines) {
    const auto said = [&](int logits) { return rest + said_of(logits); };
    constexpr auto kTurns = varlen(hopper_forward(kBf16, 64, 128, 128, 2, 2, true));
    expect_forward<with_logits(kTurns, kSink)>("bf16", said(kSink).c_str(), 64);
    expect_forward<with_logits(kTurns, kSoftcap | kAlibi | kSink)>(
        "bf16", said(kSoftcap | kAlibi | kSink).c_str(), 64, 1);
    constexpr auto kHalf = varlen(hopper_forward(kFp16, 64, 64, 64, 2, 1));
    expect_forward<with_logits(kHalf, kAlibi | kSink)>("fp16", said(kAlibi | kSink).c_str(), 48, 1);
    constexpr auto kThree = varlen(hopper_forward(kBf16, 128, 192, 80, 2, 2));
    expect_forward<with_logits(kThree, kSoftcap)>("bf16", said(kSoftcap).c_str(), 128);
  }
}
#endif

// A chunk's and a prefix's positions are those of a sequence.
constexpr const char* kRanges[] = {
    "chunk(50) causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)",
    "prefix(40) causal hq2 hk1 lens(33,128,5) lens_k(64,3,200)",
};

#ifdef DFA_EVERY_CASE
TEST(EmulatedVarlen, HopperForwardOfChunksAndPrefixes) {
  for (const char* rest : kRanges) {
    expect_forward<ranges(varlen(hopper_forward(kBf16, 64, 128, 128, 2, 2, true)))>("bf16", rest,
                                                                                    64);
    expect_forward<ranges(varlen(hopper_forward(kFp16, 64, 64, 64, 2, 1)))>("fp16", rest, 48, 1);
  }
}
#endif

constexpr BackwardConfig hopper_backward(int dim, int cluster, DqAccumulation dq, bool masked) {
  return varlen(BackwardConfig{.target = Target::cuda_sm90,
                               .element = kBf16,
                               .head_dim = dim,
                               .value_dim = dim,
                               .block_q = dim > 64 ? 64 : 128,
                               .block_k = dim > 128 ? 64 : 128,
                               .warps = 8,
                               .stages = 2,
                               .ctas = 1,
                               .dq = dq,
                               .cluster = cluster,
                               .masked = masked});
}

template <BackwardConfig kConfig>
void expect_hopper_backward(const char* rest) {
  expect_backward<kConfig>("bf16", rest, kConfig.head_dim, [](const Sm90BackwardArgs& a) {
    if constexpr (kConfig.sm90_is_wide()) {
      sm90_wide_backward<kConfig>(a);
    } else if constexpr (kConfig.cluster > 1) {
      sm90_pair_backward<kConfig>(a);
    } else {
      sm90_backward<kConfig>(a);
    }
  });
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedVarlen, HopperBackwardOfChunksAndPrefixes) {
  for (const char* rest : kRanges) {
    expect_hopper_backward<ranges(hopper_backward(64, 1, DqAccumulation::atomic, false))>(rest);
    expect_hopper_backward<ranges(hopper_backward(128, 2, DqAccumulation::atomic, true))>(rest);
    expect_hopper_backward<ranges(hopper_backward(256, 1, DqAccumulation::atomic, false))>(rest);
  }
}
#endif

TEST(EmulatedVarlen, HopperBackwardOfABlock) {
  for (const char* rest : kLines) {
    expect_hopper_backward<hopper_backward(64, 1, DqAccumulation::serialized, false)>(rest);
    expect_hopper_backward<hopper_backward(128, 1, DqAccumulation::atomic, false)>(rest);
  }
}

TEST(EmulatedVarlen, HopperBackwardOfPairs) {
  expect_hopper_backward<hopper_backward(128, 2, DqAccumulation::atomic, true)>(kLines[0]);
  expect_hopper_backward<hopper_backward(64, 2, DqAccumulation::serialized, true)>(kLines[0]);
  expect_hopper_backward<hopper_backward(128, 2, DqAccumulation::atomic, false)>(kLines[1]);
  expect_hopper_backward<hopper_backward(64, 2, DqAccumulation::atomic, true)>(kLines[2]);
}

// Sums are cleared in the grid that adds to them, some tiles at a time, by whoever comes first.
TEST(EmulatedVarlen, HopperBackwardClearsManyTilesOfSums) {
  for (const char* rest :
       {"causal hq2 hk1 lens(700,40,330)", "hq2 hk2 lens(5,600) lens_k(600,5)"}) {
    expect_hopper_backward<hopper_backward(64, 1, DqAccumulation::atomic, false)>(rest);
    expect_hopper_backward<hopper_backward(128, 2, DqAccumulation::atomic, true)>(rest);
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedVarlen, HopperBackwardOfWideHeads) {
  expect_hopper_backward<hopper_backward(192, 1, DqAccumulation::atomic, false)>(kLines[0]);
  expect_hopper_backward<hopper_backward(192, 2, DqAccumulation::atomic, false)>(kLines[1]);
  expect_hopper_backward<hopper_backward(256, 1, DqAccumulation::serialized, false)>(kLines[2]);
}

TEST(EmulatedVarlen, HopperBackwardOfLogitsThatAreNotPlain) {
  constexpr auto kPlain = hopper_backward(64, 1, DqAccumulation::serialized, false);
  constexpr auto kWide = [](int logits) {
    BackwardConfig c =
        with_logits(hopper_backward(128, 1, DqAccumulation::serialized, false), logits);
    c.block_k = 64;
    return c;
  };
  for (const char* rest : kLines) {
    const auto said = [&](int logits) { return rest + said_of(logits); };
    expect_hopper_backward<kPlain>(said(kSink).c_str());
    expect_hopper_backward<kWide(kSoftcap)>(said(kSoftcap | kSink).c_str());
    expect_hopper_backward<kWide(kAlibi)>(said(kAlibi).c_str());
  }
}
#endif

// Whatever cu_seqlens say, tiles stay in the tensors and the list in its place.
TEST(EmulatedVarlen, ListsHoldNoTileOutsideOfTheTensors) {
  Tensors t("fwd bf16 hq1 hk1 lens(100,30,70) d64", 1);
  constexpr auto kConfig = portable_forward(kBf16, 64, 128, 64);
  const std::vector<std::int32_t> wild{-50, 1000, 20, 2000000000};
  ForwardArgs pointers = t.forward_args();
  pointers.sequences = {.cu_seqlens_q = wild.data(), .cu_seqlens_k = wild.data()};
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  const KernelArgs args = with_pointers(kernel_args(t.p, kConfig), pointers);
  list_tiles(forward_launches(t.p, kConfig)[0], args);
  ASSERT_LE(args.packed.tile_counts[0], args.packed.most_q_tiles);
  for (int i = 0; i < args.packed.tile_counts[0]; ++i) {
    const SequenceTile& tile = args.packed.q_tiles[i];
    EXPECT_GE(tile.q_begin, 0);
    EXPECT_LE(tile.q_begin + tile.sq, 200);
    EXPECT_LE(tile.k_begin + tile.sk, 200);
    EXPECT_LT(tile.tile * 128, tile.sq);
  }
}

// The batches of a dense cache that sequences name, in any order: where lengths are said, begins of
// keys may fall in a forward.
TEST(EmulatedVarlen, BeginsOfKeysMayFallWhereLengthsAreSaid) {
  Tensors t("fwd bf16 causal hq4 hk2 lens(2,2,2) lens_k(90,90,90) d64", 1);
  const std::vector<std::int32_t> begins{180, 7, 90, 270}, used{70, 30, 90};
  for (std::int64_t row = 0; row < 7; ++row) {
    for (std::int64_t x = 0; x < 128; ++x) t.set(t.k, row * 128 + x, std::nanf(""));
  }
  ForwardArgs pointers = t.forward_args();
  pointers.sequences.cu_seqlens_k = begins.data();
  pointers.sequences.seqused_k = used.data();
  run_forward<portable_forward(kBf16, 64, 64, 32)>(t.p, pointers, 1);
  expect_met(check_forward(t.p, pointers), "falling begins");
}

// The longest sequences come first, late tiles of queries before early ones.
TEST(EmulatedVarlen, ListsBeginWithTheLongest) {
  Tensors t("fwd bf16 causal hq1 hk1 lens(10,300,0,40,1000) d64", 1);
  constexpr auto kConfig = portable_forward(kBf16, 64, 128, 64);
  ForwardArgs pointers = t.forward_args();
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  const KernelArgs args = with_pointers(kernel_args(t.p, kConfig), pointers);
  list_tiles(forward_launches(t.p, kConfig)[0], args);
  ASSERT_EQ(args.packed.tile_counts[0], 1 + 3 + 1 + 8);
  int before = 2000;
  for (int i = 0; i < args.packed.tile_counts[0]; ++i) {
    EXPECT_LE(args.packed.q_tiles[i].sk, before);
    before = args.packed.q_tiles[i].sk;
  }
  EXPECT_EQ(args.packed.q_tiles[0].tile, 7);
}

}  // namespace
}  // namespace dfa
