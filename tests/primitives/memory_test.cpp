// kernels/ptx/copy.cuh, matrix.cuh and order.cuh on a device.
#include <algorithm>
#include <numeric>

#include "primitives/probe_case.h"

namespace dfa::cuda {
namespace {

class Memory : public Primitives {
 protected:
  // Distinct rows of 16 bytes among `all`.
  std::vector<std::uint32_t> rows(std::size_t count, std::size_t all) {
    std::vector<std::uint32_t> chosen(all);
    std::iota(chosen.begin(), chosen.end(), 0u);
    for (std::size_t i = 0; i < count; ++i) {
      std::swap(chosen[i], chosen[i + static_cast<std::size_t>(below(static_cast<int>(all - i)))]);
    }
    chosen.resize(count);
    return chosen;
  }
};

TEST_F(Memory, CopiesBringTheirChunksOrZeros) {
  for (const char* entry : {"copy_chunks<1>", "sm75 copy_chunks<1>"}) {
    if (!runs_here(entry)) continue;
    const auto from = words(4 * 300);
    std::vector<int> chunks(256);
    for (int& chunk : chunks) chunk = below(4) == 0 ? -1 : below(300);
    const auto copied = run<std::uint32_t>(entry, {1, 128}, 1024, {}, from, chunks);
    for (std::size_t i = 0; i < copied.size(); ++i) {
      const int chunk = chunks[i / 4];
      ASSERT_EQ(copied[i], chunk < 0 ? 0 : from[static_cast<std::size_t>(chunk) * 4 + i % 4]) << i;
    }
  }
}

TEST_F(Memory, LoadsReadTheWordsAtTheirAddress) {
  const auto from = words(512);
  std::vector<std::uint32_t> at(128);
  for (std::uint32_t& place : at) place = static_cast<std::uint32_t>(below(128));
  const auto read = run<std::uint32_t>("load_shared", {1, 128}, 128 * 7, {}, from, at);
  for (std::size_t i = 0; i < 128; ++i) {
    for (std::size_t j = 0; j < 7; ++j) {
      const std::size_t from_word = j < 4 ? at[i] * 4 + j : j < 6 ? at[i] * 2 + j - 4 : at[i];
      ASSERT_EQ(read[i * 7 + j], from[from_word]) << i << " " << j;
    }
  }
}

TEST_F(Memory, PairsOfWarpsMeetAtBarriersOfTheirOwn) {
  constexpr int kRounds = 1000;
  auto value = words(128);
  const auto told = run<std::uint32_t>("meet", {1, 128}, 128, {.n = kRounds}, value);
  for (std::size_t pair = 0; pair < 2; ++pair) {
    for (std::size_t round = 0; round < kRounds + pair; ++round) {
      const auto said = value;
      for (std::size_t i = pair * 64; i < pair * 64 + 64; ++i) {
        value[i] = value[i] * 3 + said[i ^ 32];
      }
    }
  }
  EXPECT_EQ(told, value);
}

TEST_F(Memory, MatricesAreReadAsTheyLieAndTransposed) {
  const auto from = words(512);
  const auto row = rows(32, 128);
  const auto plain = run<std::uint32_t>("read_matrices<false>", {}, 128, {}, from, row);
  const auto turned = run<std::uint32_t>("read_matrices<true>", {}, 128, {}, from, row);
  const auto element = [&](std::size_t matrix, std::size_t i, std::size_t j) {
    return from[row[matrix * 8 + i] * 4 + j / 2] >> j % 2 * 16 & 0xffff;
  };
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      const std::size_t i = lane / 4, j = lane % 4 * 2;
      ASSERT_EQ(plain[lane * 4 + matrix], element(matrix, i, j) | element(matrix, i, j + 1) << 16);
      ASSERT_EQ(turned[lane * 4 + matrix], element(matrix, j, i) | element(matrix, j + 1, i) << 16);
    }
  }
}

TEST_F(Memory, MatricesAreWrittenToTheirRowsAndNowhereElse) {
  if (!runs_here("write_matrices")) GTEST_SKIP() << "from 9.0 on";
  const auto registers = words(128);
  const auto row = rows(32, 128);
  std::vector<std::uint32_t> expected(512, 0xffffffffu);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      expected[row[matrix * 8 + lane / 4] * 4 + lane % 4] = registers[lane * 4 + matrix];
    }
  }
  EXPECT_EQ(run<std::uint32_t>("write_matrices", {}, 512, {}, registers, row), expected);
}

// Where element (row, k) of a left operand and (k, column) of a right one lie: lane, word, half.
TEST_F(Memory, ProductsOfAWarpAddLeftTimesRight) {
  for (const std::string entry :
       {"multiply_fragment<dfa::DType::bf16>", "multiply_fragment<dfa::DType::fp16>",
        "multiply_fragment<dfa::DType::tf32>", "sm75 multiply_fragment<dfa::DType::fp16>"}) {
    if (!runs_here(entry)) continue;
    const DType type = entry.find("bf16") != std::string::npos   ? DType::bf16
                       : entry.find("fp16") != std::string::npos ? DType::fp16
                                                                 : DType::tf32;
    const std::size_t in_word = type == DType::tf32 ? 1 : 2, depth = 8 * in_word;
    Elements a = elements(type, 128 * in_word), b = elements(type, 64 * in_word);
    if (type == DType::tf32) {  // a product reads what round_tf32 leaves
      for (auto* operand : {&a, &b}) {
        for (std::size_t i = 0; i < operand->values.size(); ++i) {
          operand->stored[i] = std::bit_cast<std::uint32_t>(static_cast<float>(operand->values[i]));
        }
      }
    }
    const auto c = normals(128);
    const auto d = run<float>(entry, {}, 128, {}, a, b, c);
    const std::size_t half_depth = 4 * in_word;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = c[lane * 4 + i], magnitude = std::abs(sum);
        for (std::size_t k = 0; k < depth; ++k) {
          const std::size_t lane_k = k % half_depth / in_word, word_k = k / half_depth;
          const std::size_t at_a = ((row % 8 * 4 + lane_k) * 4 + row / 8 + 2 * word_k);
          const std::size_t at_b = ((column * 4 + lane_k) * 2 + word_k);
          const double product =
              a.values[at_a * in_word + k % in_word] * b.values[at_b * in_word + k % in_word];
          sum += product;
          magnitude += std::abs(product);
        }
        expect_sum(d[lane * 4 + i], sum, magnitude, static_cast<int>(depth), entry);
      }
    }
  }
}

TEST_F(Memory, BlocksSeeWhatTheOneBeforeWrote) {
  constexpr std::uint32_t kBlocks = 2000;
  const auto before = words(128);
  std::vector<std::uint32_t> memory(160, 0), expected(before);
  std::copy(before.begin(), before.end(), memory.begin() + 32);
  const auto after = run<std::uint32_t>("take_turns", {kBlocks, 128}, 160, {}, {}, {}, {}, memory);
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const auto last = expected;
    for (std::size_t i = 0; i < 128; ++i) expected[i] = last[i ^ 1] * 5 + block;
  }
  EXPECT_EQ(after[0], kBlocks);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), after.begin() + 32));
}

TEST_F(Memory, BlocksAddUpWithoutLosingAnything) {
  constexpr std::size_t kBlocks = 300;
  std::vector<float> x(kBlocks * 512), expected(512);
  for (float& value : x) value = static_cast<float>(below(2001) - 1000);  // sums are exact
  std::vector<float> before(512);
  for (float& value : before) value = static_cast<float>(below(100));
  expected = before;
  for (std::size_t i = 0; i < x.size(); ++i) expected[i % 512] += x[i];
  EXPECT_EQ(run<float>("add_numbers", {kBlocks, 128}, 512, {}, x, {}, {}, before), expected);
}

}  // namespace
}  // namespace dfa::cuda
