// Few queries a sequence, whose keys are cut into splits on the device: the kernels' own source on
// a processor, held against fp64. Pages lie in no order, and what is of no sequence is NaN
// (Tensors).
#include "emulated/split_kv.h"

#include "random_lines.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16;

template <ForwardConfig kConfig>
void expect_right(const std::string& rest, int num_splits, int split_keys = 0) {
  expect_split_kv<kConfig>(std::string("fwd ") + name_of(kConfig.element) + " " + rest + " d" +
                               std::to_string(kConfig.head_dim),
                           num_splits, split_keys);
}

TEST(EmulatedSplitKv, EveryMaskAndSizeOfPages) {
  for (const int splits : {1, 5, 40}) {
    for (const char* rest : kSplitsOfTwo) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged)>(rest, splits);
      expect_right<split_forward(kBf16, 128, {32, 32, 2, 2, 2}, Keys::paged)>(rest, splits);
    }
    for (const char* rest : kSplitsOfThree) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 3}, Keys::paged)>(rest, splits);
      expect_right<split_forward(kBf16, 96, {32, 64, 2, 2, 3}, Keys::paged)>(rest, splits);
    }
  }
}

TEST(EmulatedSplitKv, PackedKeys) {
  for (const int splits : {1, 30}) {
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::packed)>(
        "causal hq4 hk2 lens(7,1,0,16,5,3) lens_k(450,1,9,16,17,15)", splits);
    expect_right<split_forward(kBf16, 256, {16, 32, 2, 2, 1}, Keys::packed)>(
        "hq2 hk2 lens(2,1) lens_k(200,90)", splits);
  }
}

TEST(EmulatedSplitKv, LogitsThatAreNotPlain) {
  for (const int splits : {1, 12}) {
    for (const char* rest : kSplitsOfTwo) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged, true)>(
          std::string(rest) + " softcap(4) sink", splits);
    }
  }
}

// More than the list's kernel has threads, some of which have nothing.
TEST(EmulatedSplitKv, ManySequences) {
  std::string lens = "1", lens_k = "5";
  for (int i = 1; i < 300; ++i) {
    lens += i % 7 == 3 ? ",0" : ",1";
    lens_k += "," + std::to_string(i * 37 % 90);
  }
  const std::string line = "hq2 hk1 lens(" + lens + ") lens_k(" + lens_k + ") page(16)";
  for (const int splits : {1, 9, 500}) {
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged)>(line, splits);
    expect_right<split_forward(kBf16, 64, {16, 128, 4, 3, 2}, Keys::paged)>("causal " + line,
                                                                            splits);
  }
}

TEST(EmulatedSplitKv, NegativeScales) {
  expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged)>(
      "hq4 hk2 lens(1,2) lens_k(300,90) page(16) scale(-0.3)", 8);
}

// A sequence's row of q, and of keys, in elements.
std::int64_t q_row(const Tensors& t, std::size_t i, std::int64_t row) {
  return (t.cu_seqlens_q[i] + row) * t.p.q().row;
}
std::int64_t k_row(const Tensors& t, std::size_t i, std::int64_t row) {
  const std::int64_t begin =
      t.p.paged() ? t.row_in_pages(static_cast<std::int64_t>(i), row) : t.cu_seqlens_k[i] + row;
  return begin * t.p.k().row;
}

// Sequence i of one becomes sequence j of another, wherever its rows lie.
void copy_sequence(const Tensors& from, std::size_t i, Tensors& to, std::size_t j) {
  for (std::int64_t row = 0; row < from.p.lens_q[i]; ++row) {
    for (std::int64_t x = 0; x < from.p.hq * from.p.d; ++x) {
      to.set(to.q, q_row(to, j, row) + x, from.at(from.q, q_row(from, i, row) + x));
    }
  }
  for (std::int64_t row = 0; row < from.p.lens_k[i]; ++row) {
    for (std::int64_t x = 0; x < from.p.hk * from.p.d; ++x) {
      to.set(to.k, k_row(to, j, row) + x, from.at(from.k, k_row(from, i, row) + x));
      to.set(to.v, k_row(to, j, row) + x, from.at(from.v, k_row(from, i, row) + x));
    }
  }
}

std::string random_company(Dice& dice, std::size_t place, std::int64_t rows, std::int64_t keys) {
  std::string lens, lens_k;
  const auto others = static_cast<std::size_t>(dice.below(5));
  for (std::size_t i = 0; i <= others; ++i) {
    const bool own = i == std::min(place, others);
    lens += (i == 0 ? "" : ",") + std::to_string(own ? rows : dice.below(12));
    lens_k += (i == 0 ? "" : ",") + std::to_string(own ? keys : dice.below(900));
  }
  return " lens(" + lens + ") lens_k(" + lens_k + ")";
}

// A sequence's bits do not depend on its company where splits have sizes of their own, nor on how
// many blocks these are dealt out to, nor on pages. Without such a size they do.
template <ForwardConfig kConfig>
int batches_that_differ(const std::string& rest, int split_keys, int batches) {
  int wrong = 0;
  Dice dice(77);
  for (int n = 0; n < batches; ++n) {
    const std::int64_t rows = 1 + dice.below(9), keys = 1 + dice.below(900);
    const std::string own =
        " lens(" + std::to_string(rows) + ") lens_k(" + std::to_string(keys) + ")";
    const auto place = static_cast<std::size_t>(dice.below(5));
    Tensors alone("fwd bf16 hq4 hk2 d64" + own + rest, 7);
    Tensors more("fwd bf16 hq4 hk2 d64" + random_company(dice, place, rows, keys) + rest, 8);
    const std::size_t there = std::min(place, more.p.lens_q.size() - 1);
    copy_sequence(alone, 0, more, there);
    run_split_kv<kConfig>(alone, alone.forward_args(), 4, split_keys);
    run_split_kv<kConfig>(more, more.forward_args(), 1 + static_cast<int>(dice.below(20)),
                          split_keys);
    const std::size_t bytes = 2 * static_cast<std::size_t>(rows * 4 * 64),
                      begin = 2 * static_cast<std::size_t>(q_row(more, there, 0));
    wrong += std::memcmp(alone.o.data(), more.o.data() + begin, bytes) != 0 ? 1 : 0;
  }
  return wrong;
}

TEST(EmulatedSplitKv, BitsDoNotDependOnTheCompany) {
  constexpr auto kPaged = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged);
  constexpr auto kPacked = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::packed);
  EXPECT_EQ(batches_that_differ<kPaged>(" causal page(16) batch_invariant", 128, 60), 0);
  EXPECT_EQ(batches_that_differ<kPaged>(" window(300,0) page(7) batch_invariant", 64, 20), 0);
  EXPECT_EQ(batches_that_differ<kPaged>(" page(64) num_splits(1) batch_invariant", 0, 20), 0);
  EXPECT_EQ(batches_that_differ<kPacked>(" causal batch_invariant", 64, 30), 0);
  EXPECT_GT(batches_that_differ<kPaged>(" causal page(16)", 0, 20), 5);
}

// Twice the size, where a sequence would have more splits than there is room for.
TEST(EmulatedSplitKv, LongSequencesHaveLongerSplits) {
  constexpr auto kConfig = split_forward(kBf16, 64, {16, 64, 4, 3, 1}, Keys::paged);
  for (const auto& [keys, splits] : {std::pair(2048, 32), {2049, 17}, {4096, 32}, {4100, 17}}) {
    Tensors t("fwd bf16 hq1 hk1 d64 lens(1,1) page(16) lens_k(9," + std::to_string(keys) + ")", 7);
    EXPECT_EQ(run_split_kv<kConfig>(t, t.forward_args(), 5, 64), splits) << keys;
    expect_met(check_forward(t.p, t.forward_args()), to_line(t.p));
  }
}

// As many splits of a tile at most as the problem says, wherever its keys lie among all.
TEST(EmulatedSplitKv, SplitsAtMost) {
  constexpr auto kPaged = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::paged);
  constexpr auto kPacked = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::packed);
  constexpr auto kDense = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::dense);
  const std::string lens = " causal hq4 hk2 d64 lens(9,1,1,2) lens_k(1500,700,64,300)";
  for (const int most : {1, 2, 3, 5, 256}) {
    const std::string said = " num_splits(" + std::to_string(most) + ")";
    for (const int blocks : {1, 7, 40}) {
      Tensors paged("fwd bf16" + lens + " page(16)" + said, 7), packed("fwd bf16" + lens + said, 7);
      EXPECT_LE(run_split_kv<kPaged>(paged, paged.forward_args(), blocks, 0), most);
      expect_met(check_forward(paged.p, paged.forward_args()), to_line(paged.p));
      EXPECT_LE(run_split_kv<kPacked>(packed, packed.forward_args(), blocks, 0), most);
      expect_met(check_forward(packed.p, packed.forward_args()), to_line(packed.p));
    }
  }
  Tensors free("fwd bf16" + lens + " page(16)", 7);
  EXPECT_GT(run_split_kv<kPaged>(free, free.forward_args(), 40, 0), 5);
}

TEST(EmulatedSplitKv, DenseKeys) {
  for (const int splits : {1, 3, 30}) {
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::dense)>(
        "causal b3 hq4 hk2 sq5 sk290", splits);
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::dense, true)>(
        "window(90,3) b2 hq4 hk2 sq9 sk301 softcap(4) sink layout(bshd)", splits);
    expect_right<split_forward(kBf16, 128, {32, 64, 4, 2, 1}, Keys::dense)>(
        "b1 hq6 hk2 sq1 sk1000 strides_k(0,160,320)", splits);
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, Keys::dense)>(
        "causal b2 hq4 hk2 sq20 sk7", splits);  // some see no key
  }
  expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 1}, Keys::dense)>("b3 hq4 hk2 sq5 sk290", 9,
                                                                         128);
}

// One kernel for all lengths and all numbers of splits.
TEST(EmulatedSplitKv, OneKernelForAllLengths) {
  const Limits limits = gpu_limits(90);
  const auto entry = [&](const std::string& lens) {
    const Problem p = parse_problem("fwd bf16 hq32 hk8 d128 page(16) " + lens);
    EXPECT_TRUE(has_few_queries(p));
    const ForwardConfig config = select_forward(p, limits);
    EXPECT_TRUE(config.split_kv) << lens;
    return forward_launches(p, config)[1].entry;
  };
  const std::string one = entry("lens(1) lens_k(1000)");
  EXPECT_EQ(entry("lens(1,1,1) lens_k(70,9000,100000)"), one);
  EXPECT_EQ(entry("lens(3,1,4) lens_k(70,1,200)"), one);
}

}  // namespace
}  // namespace dfa
