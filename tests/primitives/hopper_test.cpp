// kernels/ptx/barrier.cuh, tensor_copy.cuh, wgmma.cuh and kernels/tile/panel.h on a device of
// compute capability 9.0.
#include <algorithm>

#include "gpu/tensor_map.h"
#include "primitives/probe_case.h"

namespace dfa::cuda {
namespace {

class Hopper : public Primitives {
 protected:
  void SetUp() override {
    Primitives::SetUp();
    if (!IsSkipped() && device().facts().capability != 90) GTEST_SKIP() << "of 9.0 alone";
  }

  // a b^T of 64 and `columns` rows of `depth` elements in panels, by the probe of that name.
  void expect_scores(const std::string& probe, DType type, int columns, int depth);
};

TEST_F(Hopper, BarriersOrderWhatTwoWarpsDoInTurns) {
  constexpr int kRounds = 3001;
  const auto first = words(1);
  std::uint32_t expected = first[0];
  for (int round = 0; round < kRounds; ++round) expected = (expected * 3 + 1) * 5 + 7;
  EXPECT_EQ(run<std::uint32_t>("phases", {1, 64}, 1, {.n = kRounds}, first).at(0), expected);
}

TEST_F(Hopper, WarpsThatOnlyArriveAreWaitedFor) {
  const auto said = words(128);
  const std::vector<std::uint32_t> expected(said.rbegin(), said.rend());
  EXPECT_EQ(run<std::uint32_t>("announce", {1, 256}, 128, {}, said), expected);
}

TEST_F(Hopper, OneThreadOfAWarpIsChosenAndAlwaysTheSame) {
  const auto times = run<std::uint32_t>("choose", {1, 96}, 96, {}, words(1));
  for (std::size_t warp = 0; warp < 3; ++warp) {
    const auto first = times.begin() + static_cast<std::ptrdiff_t>(32 * warp);
    EXPECT_EQ(std::count(first, first + 32, 3u), 1);
    EXPECT_EQ(std::count(first, first + 32, 0u), 31);
  }
}

TEST_F(Hopper, RegistersChangeHandsAndKeepTheirValues) {
  constexpr int kRounds = 3;
  std::vector<float> x(256);
  for (float& value : x) value = static_cast<float>(below(100));  // sums are exact
  const auto sums = run<float>("trade_registers", {1, 384}, 256, {.n = kRounds}, x);
  for (std::size_t thread = 0; thread < 256; ++thread) {
    std::vector<float> own(200);
    for (std::size_t i = 0; i < 200; ++i) own[i] = x[(thread + i * 37) % 256];
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < 200; ++i) own[i] += own[(i + 1) % 200];
    }
    float sum = 0;
    for (const float value : own) sum += value;
    ASSERT_EQ(sums[thread], sum) << thread;
  }
}

// Boxes inside, over the edge of rows and columns, before the first and all outside.
TEST_F(Hopper, BoxesComeAndGoSwizzledWithZerosOutside) {
  constexpr int kColumns = 72, kRows = 40, kHeads = 2, kBatches = 2, kBoxRows = 16;
  constexpr std::size_t kRowHalves = 80;  // rows are longer than what the map shows of them
  constexpr std::size_t kHalves = kRowHalves * kRows * kHeads * kBatches;
  const gpu::Stream stream(device());
  for (const auto& [column, row] :
       {std::pair{0, 0}, {0, 8}, {64, 3}, {0, 31}, {64, 39}, {-8, -5}, {0, 40}, {128, 0}}) {
    std::vector<std::uint16_t> given(kHalves), stored(kHalves);
    for (std::uint16_t& half : given) half = static_cast<std::uint16_t>(word());
    const gpu::Buffer from(device(), 2 * kHalves), to(device(), 2 * kHalves);
    gpu::copy_in(stream, from.data(), given.data(), 2 * kHalves);
    gpu::fill(stream, to.data(), 0xff, 2 * kHalves);
    stream.synchronize();
    probe::Args args{.n = column, .m = row};
    gpu::TiledTensor tensor{
        .address = from.data(),
        .element = gpu::MapElement::fp16,
        .sizes = {kColumns, kRows, kHeads, kBatches},
        .strides = {2 * kRowHalves, 2 * kRowHalves * kRows, 2 * kRowHalves * kRows * kHeads},
        .box_columns = 64,
        .box_rows = kBoxRows};
    {
      const gpu::Scope scope(device());
      gpu::encode(tensor, &args.from);
      tensor.address = to.data();
      gpu::encode(tensor, &args.to);
    }
    const auto box = run<std::uint16_t>("move_box", {}, kBoxRows * 64, args, {});
    gpu::copy_out(stream, stored.data(), to.data(), 2 * kHalves);
    stream.synchronize();

    std::vector<std::uint16_t> expected(kHalves, 0xffff);
    for (int i = 0; i < kBoxRows; ++i) {
      for (int j = 0; j < 64; ++j) {
        const int r = row + i, c = column + j;
        const bool inside = r >= 0 && r < kRows && c >= 0 && c < kColumns;
        const std::size_t at = inside ? static_cast<std::size_t>((3 * kRows + r)) * kRowHalves +
                                            static_cast<std::size_t>(c)
                                      : 0;
        const auto lies = static_cast<std::size_t>(i * 64 + (j / 8 ^ i % 8) * 8 + j % 8);
        ASSERT_EQ(box[lies], inside ? given[at] : 0) << column << " " << row << ": " << i << j;
        if (inside && column >= 0) expected[at] = static_cast<std::uint16_t>(~given[at]);
      }
    }
    ASSERT_EQ(stored, expected) << column << " " << row;
  }
}

constexpr int kColumns[] = {64, 80, 96, 112, 128, 144, 160, 176, 192, 256};

void Hopper::expect_scores(const std::string& probe, DType type, int columns, int depth) {
  const auto count = static_cast<std::size_t>(columns), all = static_cast<std::size_t>(depth);
  const std::string entry = probe + "<" + of(type) + ", " + std::to_string(columns) + ">";
  const Elements a = elements(type, 64 * all), b = elements(type, count * all);
  const auto d = run<float>(entry, {1, 128, 2 * depth * (64 + columns)}, 64 * count, {}, a, b);
  for (std::size_t i = 0; i < d.size(); ++i) {
    double sum = 0, magnitude = 0;
    for (std::size_t k = 0; k < all; ++k) {
      const double product = a.values[i / count * all + k] * b.values[i % count * all + k];
      sum += product;
      magnitude += std::abs(product);
    }
    expect_sum(d[i], sum, magnitude, depth, entry);
  }
}

TEST_F(Hopper, WarpgroupsMultiplyWhatDescriptorsSay) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int columns : kColumns) expect_scores("multiply_descriptors", type, columns, 128);
  }
}

TEST_F(Hopper, WarpgroupsMultiplyRowsHeldInRegisters) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int columns : {64, 128}) expect_scores("multiply_held", type, columns, 64);
  }
}

TEST_F(Hopper, WarpgroupsMultiplyRegistersByRowsInPanels) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int columns : kColumns) {
      const std::size_t count = static_cast<std::size_t>(columns), padded = (count + 63) / 64 * 64;
      const std::string entry =
          "multiply_values<" + of(type) + ", " + std::to_string(columns) + ">";
      const Elements a = elements(type, 64 * 32), b = elements(type, 32 * padded);
      const auto c = normals(64 * count);
      const auto d =
          run<float>(entry, {1, 128, static_cast<int>(64 * padded)}, 64 * count, {}, a, b, c);
      for (std::size_t i = 0; i < d.size(); ++i) {
        double sum = c[i], magnitude = std::abs(sum);
        for (std::size_t k = 0; k < 32; ++k) {
          const double product = a.values[i / count * 32 + k] * b.values[k * padded + i % count];
          sum += product;
          magnitude += std::abs(product);
        }
        expect_sum(d[i], sum, magnitude, 32, entry);
      }
    }
  }
}

}  // namespace
}  // namespace dfa::cuda
