// Decode over a cache in e4m3: the kernels' own source on a processor, held against fp64 of numbers
// times factors. Pages lie in no order, what is of no sequence is NaN, and no two factors are alike
// (Tensors).
#include "emulated/split_kv.h"
#include "random_lines.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig of_cache(DType element, int dim, SplitShape shape, bool logits = false) {
  ForwardConfig config = split_forward(element, dim, shape, Keys::paged, logits);
  config.kv_e4m3 = true;
  return config;
}

std::string line_of(const ForwardConfig& config, const std::string& rest) {
  return std::string("fwd ") + name_of(config.element) + " d" + std::to_string(config.head_dim) +
         " " + rest + " kv(e4m3)";
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest, int num_splits, int split_keys = 0) {
  expect_split_kv<kConfig>(line_of(kConfig, rest), num_splits, split_keys);
}

TEST(EmulatedSplitKvE4m3, EveryMaskAndSizeOfPages) {
  for (const int splits : {1, 5, 40}) {
    for (const char* rest : kSplitsOfTwo) {
      expect_right<of_cache(kBf16, 64, {16, 128, 4, 3, 2})>(rest, splits);
      expect_right<of_cache(kFp16, 128, {32, 32, 2, 2, 2})>(rest, splits);
    }
    for (const char* rest : kSplitsOfThree) {
      expect_right<of_cache(kFp16, 32, {16, 64, 4, 3, 3})>(rest, splits);
      expect_right<of_cache(kBf16, 96, {32, 64, 2, 2, 3})>(rest, splits);
    }
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedSplitKvE4m3, WideHeadsAndThoseOfTwoWidths) {
  expect_right<of_cache(kBf16, 256, {16, 64, 4, 3, 1})>("hq2 hk2 lens(2,1) lens_k(200,90) page(16)",
                                                        9);
  constexpr ForwardConfig kTwo = [] {
    ForwardConfig config = of_cache(kBf16, 192, {16, 64, 4, 3, 1});
    config.value_dim = 128;
    return config;
  }();
  expect_right<kTwo>("dv128 hq2 hk2 lens(2,1) lens_k(200,90) page(16)", 9);
  constexpr ForwardConfig kNarrow = of_cache(kBf16, 32, {16, 64, 4, 3, 1});
  expect_split_kv<kNarrow>("fwd bf16 d16 hq2 hk2 lens(2,1) lens_k(200,90) page(16) kv(e4m3)", 9, 0);
}
#endif

TEST(EmulatedSplitKvE4m3, LogitsThatAreNotPlain) {
  for (const int splits : {1, 12}) {
    for (const char* rest : kSplitsOfTwo) {
      expect_right<of_cache(kBf16, 64, {16, 64, 4, 3, 2}, true)>(
          std::string(rest) + " softcap(4) sink", splits);
    }
  }
  constexpr ForwardConfig kSlopes =
      with_logits(of_cache(kBf16, 64, {16, 64, 4, 3, 1}), kAlibi | kSink);
  expect_right<kSlopes>("causal hq4 hk2 lens(1,2) lens_k(300,90) page(16) alibi sink", 8);
  expect_right<of_cache(kBf16, 64, {16, 64, 4, 3, 2})>(
      "hq4 hk2 lens(1,2) lens_k(300,90) page(16) scale(-0.3)", 8);
}

// Queries of a prompt, as batch-invariant problems take it, and as all problems do with no other
// kernel.
TEST(EmulatedSplitKvE4m3, Prompts) {
  expect_right<of_cache(kBf16, 64, {32, 64, 4, 2, 2})>(
      "causal hq4 hk2 lens(150,1) lens_k(200,70) page(16)", 6);
}

TEST(EmulatedSplitKvE4m3, SplitsAsAsked) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 2});
  const std::string lens = "causal hq4 hk2 lens(9,1,1,2) lens_k(1500,700,64,300) page(16)";
  for (const int most : {1, 3}) {
    const std::string line = line_of(kConfig, lens + " num_splits(" + std::to_string(most) + ")");
    Tensors t(line, 7);
    EXPECT_LE(run_split_kv<kConfig>(t, t.forward_args(), 40, 0), most);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
  const std::string line = line_of(kConfig, lens + " batch_invariant");
  Tensors few(line, 7), many(line, 7);
  run_split_kv<kConfig>(few, few.forward_args(), 3, 128);
  run_split_kv<kConfig>(many, many.forward_args(), 50, 128);
  expect_met(check_forward(few.p, few.forward_args()), line);
  EXPECT_TRUE(few.o == many.o);
}

// A sequence's bits do not depend on its company, nor on where its pages lie.
TEST(EmulatedSplitKvE4m3, BitsDoNotDependOnTheCompany) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 2});
  const std::string rest = " page(16) batch_invariant kv(e4m3)";
  Tensors alone("fwd bf16 causal d64 hq4 hk2 lens(3) lens_k(700)" + rest, 7);
  Tensors more("fwd bf16 causal d64 hq4 hk2 lens(1,3,2) lens_k(900,700,33)" + rest, 8);
  const auto row_bytes = static_cast<std::size_t>(alone.p.hk * alone.p.d);
  for (std::int64_t row = 0; row < 700; ++row) {
    const auto from = static_cast<std::size_t>(alone.row_in_pages(0, row)) * row_bytes,
               to = static_cast<std::size_t>(more.row_in_pages(1, row)) * row_bytes;
    std::memcpy(more.k.data() + to, alone.k.data() + from, row_bytes);
    std::memcpy(more.v.data() + to, alone.v.data() + from, row_bytes);
  }
  const std::size_t bytes = alone.q.size(), begin = bytes / 3;
  std::memcpy(more.q.data() + begin, alone.q.data(), bytes);
  for (std::size_t head = 0; head < 2; ++head) {
    more.factors.k[2 + head] = alone.factors.k[head];
    more.factors.v[2 + head] = alone.factors.v[head];
  }
  run_split_kv<kConfig>(alone, alone.forward_args(), 4, 128);
  run_split_kv<kConfig>(more, more.forward_args(), 17, 128);
  expect_met(check_forward(alone.p, alone.forward_args()), to_line(alone.p));
  EXPECT_EQ(std::memcmp(alone.o.data(), more.o.data() + begin, bytes), 0);
}

#ifdef DFA_EVERY_CASE
// Of normal size, and as far from it as bf16 goes: the kernel multiplies fp16.
TEST(EmulatedSplitKvE4m3, QueriesOfEverySizeOfBf16) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 2});
  for (const int power : {-120, -30, 20, 100}) {
    char scale[40];
    std::snprintf(scale, sizeof(scale), " scale(%.9g)", std::ldexp(0.125, -power));
    const std::string line =
        line_of(kConfig, "causal hq4 hk2 lens(1,2) lens_k(300,90) page(16)" + std::string(scale));
    Tensors t(line, 7);
    for (std::int64_t i = 0; i < t.count(t.q); ++i) {
      t.set(t.q, i, std::ldexp(t.at(t.q, i), power));
    }
    run_split_kv<kConfig>(t, t.forward_args(), 5, 0);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}
#endif

// Factors: none, which are 1; one for all; and those of a wide range.
TEST(EmulatedSplitKvE4m3, FactorsOfEveryKind) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 2});
  Tensors t(line_of(kConfig, "hq4 hk2 lens(1,2) lens_k(300,90) page(16)"), 7);
  const float k = 0.011f, v = 3e4f;
  const Descales none{}, one{.k = {&k, 0, 0}, .v = {&v, 0, 0}};
  for (const Descales& descales : {none, one}) {
    ForwardArgs args = t.forward_args();
    args.descales = descales;
    run_split_kv<kConfig>(t, args, 5, 0);
    expect_met(check_forward(t.p, args), to_line(t.p));
  }
}

// The rule sees a factor that is left out, and that of another head and another sequence.
TEST(EmulatedSplitKvE4m3, WrongFactorsAreSeen) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 2});
  Tensors t(line_of(kConfig, "hq4 hk2 lens(1,2) lens_k(300,90) page(16)"), 7);
  const auto is_wrong = [&](const Descales& descales) {
    ForwardArgs args = t.forward_args();
    args.descales = descales;
    run_split_kv<kConfig>(t, args, 5, 0);
    return !check_forward(t.p, t.forward_args()).ok;
  };
  const Descales right = t.descales();
  EXPECT_FALSE(is_wrong(right));
  for (const bool of_v : {false, true}) {
    const auto with = [&](Descale wrong) {
      Descales all = right;
      (of_v ? all.v : all.k) = wrong;
      return all;
    };
    const Descale own = of_v ? right.v : right.k;
    EXPECT_TRUE(is_wrong(with({}))) << of_v;
    EXPECT_TRUE(is_wrong(with({own.values, own.batch, 0}))) << of_v;
    EXPECT_TRUE(is_wrong(with({own.values, 0, own.head}))) << of_v;
    EXPECT_TRUE(is_wrong(with({own.values + 1, own.batch, -1}))) << of_v;  // heads swapped
  }
}

// All codes of e4m3 as values of a sequence of one key, which is its output: NaN, too. Factors are
// powers of two, so that bf16 has the products.
TEST(EmulatedSplitKvE4m3, EveryCodeComesOutExactly) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 256, {16, 32, 2, 2, 1});
  Tensors t("fwd bf16 d256 hq1 hk1 lens(1) lens_k(1) page(1) kv(e4m3)", 7);
  t.factors.v[0] = 0.25f;
  for (std::size_t i = 0; i < 256; ++i) t.v[i] = static_cast<std::byte>(i);
  run_split_kv<kConfig>(t, t.forward_args(), 1, 0);
  for (std::int64_t i = 0; i < 256; ++i) {
    const float number = t.at(t.v, i), stored = t.at(t.o, i);
    if (std::isnan(number)) {
      EXPECT_TRUE(std::isnan(stored)) << i;
    } else {
      EXPECT_EQ(stored, number / 4) << i;
    }
  }
}

// NaN of a key is seen by all that see the key, and by no others.
TEST(EmulatedSplitKvE4m3, NaNOfAKeyReachesItsQueries) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 1});
  Tensors t("fwd bf16 d64 hq2 hk2 lens(1,1) lens_k(300,90) page(16) kv(e4m3)", 7);
  t.set(t.k, t.row_in_pages(0, 211) * 128 + 64 + 5, std::nanf(""));  // of the second head
  run_split_kv<kConfig>(t, t.forward_args(), 5, 0);
  for (std::int64_t head = 0; head < 4; ++head) {  // two of each sequence
    for (std::int64_t x = 0; x < 64; ++x) {
      EXPECT_EQ(std::isnan(t.at(t.o, head * 64 + x)), head == 1) << head << " " << x;
    }
  }
}

// Where there is no instruction, bits alone have the same numbers, less their unit.
TEST(EmulatedSplitKvE4m3, BitsAndInstructionsWidenAlike) {
  const auto number = [](unsigned halves, int i) {
    return to_float(fp16{static_cast<std::uint16_t>(halves >> (16 * i))});
  };
  const auto expect_same = [&](unsigned converted, unsigned by_bits, unsigned codes) {
    for (const int i : {0, 1}) {
      const float right = number(converted, i), got = number(by_bits, i) * kE4m3BitsUnit;
      EXPECT_TRUE(std::isnan(right) ? std::isnan(got) : right == got) << codes << " " << right;
      EXPECT_EQ(std::signbit(right), std::signbit(got)) << codes;
    }
  };
  for (unsigned code = 0; code < 256; ++code) {
    for (const unsigned other : {0x00u, 0x7fu, 0xffu, 0x5au}) {
      const unsigned codes = code | other << 8 | (255 - code) << 16 | code << 24;
      unsigned converted[2], by_bits[2];
      widen_neighbours<true>(codes, converted[0], converted[1]);
      widen_neighbours<false>(codes, by_bits[0], by_bits[1]);
      for (const int i : {0, 1}) expect_same(converted[i], by_bits[i], codes);
      widen_alternate<true>(codes, converted[0], converted[1]);
      widen_alternate<false>(codes, by_bits[0], by_bits[1]);
      for (const int i : {0, 1}) expect_same(converted[i], by_bits[i], codes);
    }
  }
}

// Any mask, lengths, pages, groups and logits: lines as a GPU's test draws them.
TEST(EmulatedSplitKvE4m3, RandomLinesMeetTheRule) {
  constexpr ForwardConfig kConfig = of_cache(kBf16, 64, {16, 64, 4, 3, 1});
  Dice dice(11);
  int ran = 0;
  while (ran < 6) {
    const std::string line = random_decode_line(dice);
    const bool has_pages = line.find(" page(") != std::string::npos;
    const bool has_logits = line.find("softcap") != std::string::npos ||
                            line.find("alibi") != std::string::npos ||
                            line.find("sink") != std::string::npos;
    if (!has_pages || has_logits || line.find("fwd bf16") != 0) continue;
    if (line.find(" d64 ") == std::string::npos) continue;
    Tensors t(line + " kv(e4m3)", 20 + static_cast<std::uint64_t>(ran++));
    run_split_kv<kConfig>(t, t.forward_args(), 1 + static_cast<int>(dice.below(40)), 0);
    expect_met(check_forward(t.p, t.forward_args()), to_line(t.p));
  }
}

}  // namespace
}  // namespace dfa
