// Keys and values in pages: the portable kernel's own source on a processor, held against fp64 a
// sequence at a time. Pages lie in no order, and what is of no sequence is NaN (Tensors).
#include "emulated/hopper.h"
#include "plan/select.h"
#include "spec/limits.h"
// and then:
#include "kernels/forward/sm80_forward.cuh"
#include "kernels/schedule/paged_sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr ForwardConfig paged_forward(DType element, int dim, int block_q, int block_k,
                                      bool logits = false) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = block_q,
          .block_k = block_k,
          .warps = 4,
          .varlen = true,
          .softcap = logits,
          .alibi = logits,
          .sink = logits,
          .paged = true};
}

template <ForwardConfig kConfig>
void run_paged(Tensors& t, ForwardArgs pointers) {
  expect_legal(kConfig, t.p);
  const auto launches = forward_launches(t.p, kConfig);
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  const KernelArgs args = with_pointers(kernel_args(t.p, kConfig), pointers);
  launch(launches[0].grid, launches[0].threads, [&] { paged_sequence_tiles(args); });
  launch(launches[1].grid, launches[1].threads, [&] { sm80_forward<kConfig>(args); });
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest) {
  const std::string line = std::string("fwd ") + name_of(kConfig.element) + " " + rest + " d" +
                           std::to_string(kConfig.head_dim);
  Tensors t(line, 7);
  run_paged<kConfig>(t, t.forward_args());
  expect_met(check_forward(t.p, t.forward_args()), line);
}

constexpr auto kBf16 = DType::bf16, kFp32 = DType::fp32;

// Lengths of none, one, a page and a row more or less, about those of tiles.
constexpr const char* kLines[] = {
    "causal hq4 hk2 lens(70,1,0,16,5,3) lens_k(150,1,9,16,17,15) page(16)",
    "hq2 hk1 lens(33,128,5) lens_k(64,3,200) page(64)",
    "window(40,9) hq2 hk2 lens(20,1,64) lens_k(131,0,64) page(7)",
    "causal b3 hq4 hk1 sq2 sk90 page(1)",
};

TEST(EmulatedPaged, EveryMaskAndSizeOfPages) {
  for (const char* rest : kLines) {
    expect_right<paged_forward(kBf16, 64, 64, 32)>(rest);
    expect_right<paged_forward(kBf16, 128, 128, 32)>(rest);
    expect_right<paged_forward(kFp32, 64, 64, 32)>(rest);
  }
}

TEST(EmulatedPaged, LogitsThatAreNotPlain) {
  for (const char* rest : kLines) {
    expect_right<paged_forward(kBf16, 64, 64, 32, true)>(std::string(rest) +
                                                         " softcap(4) alibi sink");
  }
}

TEST(EmulatedPaged, LeftPaddingAndRowsOfNoSequence) {
  Tensors t("fwd bf16 causal b3 hq4 hk2 sq4 sk70 d64 page(16)", 4);
  const std::vector<std::int32_t> pads{0, 17, 70}, used_q{4, 3, 2};
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < pads[static_cast<std::size_t>(i)]; ++j) {
      t.fill_row(t.row_in_pages(i, j), std::nanf(""));
    }
  }
  ForwardArgs pointers = t.forward_args();
  pointers.sequences.leftpad_k = pads.data();
  pointers.sequences.seqused_q = used_q.data();
  run_paged<paged_forward(kBf16, 64, 64, 32)>(t, pointers);
  expect_met(check_forward(t.p, pointers), "left padding");
  for (const std::int64_t row : {7, 10, 11}) {
    for (std::int64_t x = 0; x < 4 * 64; ++x) ASSERT_EQ(t.at(t.o, row * 256 + x), 0) << row;
    EXPECT_EQ(t.lse[static_cast<std::size_t>(row)], -INFINITY);
  }
}

// Whatever tables and lengths say, nothing outside of the cache is read, and others' rows are
// right: entries that are no page read as zeros, and rows that the table has no column for are cut.
TEST(EmulatedPaged, WildTablesReadNothingOutside) {
  Tensors t("fwd bf16 hq2 hk1 lens(5,5,5) lens_k(70,64,40) d64 page(16)", 4);
  t.block_table[1] = 2000000000;
  t.block_table[2] = -7;
  t.seqused_k[1] = 2000000000;
  std::vector<std::int32_t> pads{0, -5, 0};
  ForwardArgs pointers = t.forward_args();
  pointers.sequences.leftpad_k = pads.data();
  for (std::int64_t n = 4; n < 5; ++n) t.block_table[5 + static_cast<std::size_t>(n)] = -1;
  run_paged<paged_forward(kBf16, 64, 64, 32)>(t, pointers);
  for (std::int64_t i = 0; i < t.count(t.o); ++i) ASSERT_TRUE(std::isfinite(t.at(t.o, i))) << i;
  Tensors alone("fwd bf16 hq2 hk1 lens(5,5,5) lens_k(70,64,40) d64 page(16)", 4);
  run_paged<paged_forward(kBf16, 64, 64, 32)>(alone, alone.forward_args());
  for (std::int64_t x = 10 * 128; x < 15 * 128; ++x) {
    ASSERT_EQ(t.at(t.o, x), alone.at(alone.o, x)) << x;
  }
}

// Kernels of pages take whatever others take, and the rules keep them apart.
TEST(EmulatedPaged, ConfigurationsAreOfThePages) {
  const Problem paged = parse_problem("fwd bf16 b2 h2 sq1 sk100 d64 page(16)");
  const Problem packed = parse_problem("fwd bf16 h2 lens(1,1) lens_k(100,100) d64");
  const ForwardConfig config = select_forward(paged, gpu_limits(90));
  EXPECT_TRUE(config.paged);
  EXPECT_EQ(config.target, Target::cuda_sm80);
  EXPECT_EQ(validate_config(config, packed, gpu_limits(90)).reason,
            "paged=true is of keys in pages; this problem has none");
  EXPECT_EQ(validate_config(select_forward(packed, gpu_limits(90)), paged, gpu_limits(90)).reason,
            "keys in pages take paged=true");
}

}  // namespace
}  // namespace dfa
