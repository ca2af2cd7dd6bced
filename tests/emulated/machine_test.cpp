// The emulated copy engine, tensor cores and barriers themselves, in kernels of a few lines: what
// they do, and that a wait or fence that is missing shows.
#include <gtest/gtest.h>

#include <algorithm>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include "base/float16.h"
#include "gpu/tensor_map.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "kernels/tile/swizzle.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr unsigned kRightAt = 64 << 10, kBarrier = 200 << 10;  // in shared memory

// Of small integers, so that products are exact.
struct Matrix {
  int rows, columns;
  std::vector<bf16> elements;

  Matrix(int r, int c, int seed) : rows(r), columns(c) {
    for (int i = 0; i < r * c; ++i) {
      elements.push_back(to_bf16(static_cast<float>((i * 7 + i / 5 * seed) % 13 - 6)));
    }
  }
  float at(int row, int column) const {
    return to_float(elements[static_cast<std::size_t>(row * columns + column)]);
  }
  TensorMap map(int box_rows) const {
    const auto size = [](int n) { return static_cast<std::uint64_t>(n); };
    const std::uint64_t row = 2 * size(columns), all = row * size(rows);
    TensorMap map;
    gpu::encode({.address = elements.data(),
                 .sizes = {size(columns), size(rows), 1, 1},
                 .strides = {row, all, all},
                 .box_columns = 64,
                 .box_rows = static_cast<std::uint32_t>(box_rows)},
                &map);
    return map;
  }
};

// Panels of 64 columns, all rows each.
void load(unsigned target, const Matrix& m, const TensorMap& map) {
  for (int panel = 0; panel < panels(m.columns); ++panel) {
    ptx::load_box(target + static_cast<unsigned>(panel * panel_bytes(m.rows)), map, kBarrier,
                  panel * 64, 0, 0, 0);
  }
}

void load_both(const Matrix& left, const TensorMap& left_map, const Matrix& right,
               const TensorMap& right_map) {
  if (threadIdx.x == 0) {
    ptx::init_barrier(kBarrier, 1);
    ptx::arrive_expecting(kBarrier, static_cast<unsigned>(tile_bytes(left.rows, left.columns) +
                                                          tile_bytes(right.rows, right.columns)));
    load(0, left, left_map);
    load(kRightAt, right, right_map);
  }
  __syncthreads();
}

// Row and column of element i of fragment n.
int row_of(int i) {
  return static_cast<int>(threadIdx.x / 32) * 16 + static_cast<int>(lane()) / 4 + i / 2 * 8;
}
int column_of(int n, int i) { return n * 8 + static_cast<int>(lane()) % 4 * 2 + i % 2; }

template <int kFragments>
void write(std::vector<float>& to, const float (&sums)[kFragments][4]) {
  for (int n = 0; n < kFragments; ++n) {
    for (int i = 0; i < 4; ++i) {
      to[static_cast<std::size_t>(row_of(i) * kFragments * 8 + column_of(n, i))] = sums[n][i];
    }
  }
}

constexpr Timing kAll[] = {kEager, kLate, kCrossed};

// left right^T, 64 x 96 and 128 in k.
struct Faults {
  bool copy_wait = true, product_wait = true, fence = true;
};
std::vector<float> multiply_rows(const Matrix& left, const Matrix& right, Timing asked,
                                 Faults faults = {}) {
  const WithTiming with(asked);
  std::vector<float> result(64 * 96);
  const TensorMap left_map = left.map(64), right_map = right.map(96);
  launch(1, 128, [&] {
    load_both(left, left_map, right, right_map);
    if (faults.copy_wait) ptx::wait(kBarrier, 0);
    float sums[12][4] = {};
    const Descriptor a = k_in_columns(0), b = k_in_columns(kRightAt);
    if (faults.fence) ptx::fence_products();
    for (int step = 0; step < 8; ++step) {
      ptx::multiply_shared<DType::bf16, 1>(sums, a.moved(column_step<64>(step)).bits(),
                                           b.moved(column_step<96>(step)).bits());
    }
    ptx::commit_products();
    if (faults.product_wait) ptx::wait_products<0>();
    write(result, sums);
    ptx::wait_products<0>();
    ptx::wait(kBarrier, 0);
  });
  return result;
}

std::vector<float> plain_rows(const Matrix& left, const Matrix& right) {
  std::vector<float> result;
  for (int i = 0; i < left.rows; ++i) {
    for (int j = 0; j < right.rows; ++j) {
      float sum = 0;
      for (int k = 0; k < left.columns; ++k) sum += left.at(i, k) * right.at(j, k);
      result.push_back(sum);
    }
  }
  return result;
}

const Matrix kLeft(64, 128, 3), kRight(96, 128, 5);

TEST(EmulatedMachine, ProductsOfRows) {
  for (const Timing asked : kAll) {
    EXPECT_EQ(multiply_rows(kLeft, kRight, asked), plain_rows(kLeft, kRight));
  }
}

TEST(EmulatedMachine, AMissingWaitForACopyShowsWhereCopiesAreLate) {
  const Faults faults{.copy_wait = false};
  EXPECT_EQ(multiply_rows(kLeft, kRight, kEager, faults), plain_rows(kLeft, kRight));
  EXPECT_NE(multiply_rows(kLeft, kRight, kLate, faults), plain_rows(kLeft, kRight));
}

TEST(EmulatedMachine, AMissingWaitForAProductShowsWhereProductsAreLate) {
  const Faults faults{.product_wait = false};
  for (const Timing asked : {kLate, kCrossed}) {
    EXPECT_NE(multiply_rows(kLeft, kRight, asked, faults), plain_rows(kLeft, kRight));
  }
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(EmulatedMachine, AProductWithoutItsFenceIsRefused) {
  const Faults faults{.fence = false};
  EXPECT_NE(message_of([&] {
              multiply_rows(kLeft, kRight, kEager, faults);
            }).find("a product without fence_products since the last wait_products"),
            std::string::npos);
}

TEST(EmulatedMachine, ADescriptorHasNoBitsBesideItsFields) {
  constexpr unsigned long long kStray = 1 << 14;  // of an address above 256 KiB
  EXPECT_NE(message_of([] {
              launch(1, 128, [] {
                float sums[8][4];
                ptx::fence_products();
                ptx::multiply_shared<DType::bf16, 0>(sums, k_in_columns(0).bits() | kStray,
                                                     k_in_columns(kRightAt).bits());
                ptx::commit_products();
                ptx::wait_products<0>();
              });
            }).find("bits that belong to no field"),
            std::string::npos);
}

TEST(EmulatedMachine, WarpsOfAGroupMakeTheSameProducts) {
  EXPECT_EQ(message_of([] {
              launch(1, 128, [] {
                float sums[8][4];
                ptx::fence_products();
                if (threadIdx.x < 96) {
                  ptx::multiply_shared<DType::bf16, 0>(sums, k_in_columns(0).bits(),
                                                       k_in_columns(kRightAt).bits());
                }
                ptx::commit_products();
                ptx::wait_products<0>();
              });
            }),
            "block 0: warps 0 and 3 of a group made different products");
}

// k along the rows: left^T right, and the left operand from registers.
std::vector<float> multiply_columns(const Matrix& left, const Matrix& right, bool registers) {
  std::vector<float> result(64 * 128);
  const TensorMap left_map = left.map(32), right_map = right.map(32);
  launch(1, 128, [&] {
    load_both(left, left_map, right, right_map);
    ptx::wait(kBarrier, 0);
    float sums[16][4] = {};
    const Descriptor a = k_in_rows<32>(0), b = k_in_rows<32>(kRightAt);
    unsigned held[2][4];
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 4; ++r) {
        const int k = step * 16 + static_cast<int>(lane()) % 4 * 2 + r / 2 * 8;
        const int row = row_of(r % 2 * 2);
        held[step][r] = ptx::pack<DType::bf16>(left.at(k, row), left.at(k + 1, row));
      }
    }
    ptx::fence_products();
    for (int step = 0; step < 2; ++step) {
      const auto right_bits = b.moved(row_step(step)).bits();
      if (registers) {
        ptx::multiply_registers<DType::bf16>(sums, held[step], right_bits);
      } else {
        ptx::multiply_transposed<DType::bf16, 1>(sums, a.moved(row_step(step)).bits(), right_bits);
      }
    }
    ptx::commit_products();
    ptx::wait_products<0>();
    write(result, sums);
  });
  return result;
}

TEST(EmulatedMachine, ProductsOfColumnsAndOfRegisters) {
  const Matrix left(32, 64, 3), right(32, 128, 5);
  std::vector<float> wanted;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 128; ++j) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += left.at(k, i) * right.at(k, j);
      wanted.push_back(sum);
    }
  }
  EXPECT_EQ(multiply_columns(left, right, false), wanted);
  EXPECT_EQ(multiply_columns(left, right, true), wanted);
}

// left right^T with the left operand in registers, where what the sums held is not kept.
TEST(EmulatedMachine, ProductsOfRegistersAndRows) {
  const Matrix left(64, 64, 3), right(96, 64, 5);
  const TensorMap left_map = left.map(64), right_map = right.map(96);
  std::vector<float> result(64 * 96);
  launch(1, 128, [&] {
    load_both(left, left_map, right, right_map);
    ptx::wait(kBarrier, 0);
    unsigned held[4][4];
    load_rows<64>(0, static_cast<int>(threadIdx.x / 32) * 16, held);
    float sums[12][4];
    std::fill_n(&sums[0][0], 48, 1e9f);
    const Descriptor b = k_in_columns(kRightAt);
    ptx::fence_products();
    ptx::multiply_registers_rows<DType::bf16, 0>(sums, held[0], b.bits());
    for (int step = 1; step < 4; ++step) {
      ptx::multiply_registers_rows<DType::bf16, 1>(sums, held[step],
                                                   b.moved(column_step<96>(step)).bits());
    }
    ptx::commit_products();
    ptx::wait_products<0>();
    write(result, sums);
  });
  EXPECT_EQ(result, plain_rows(left, right));
}

TEST(EmulatedMachine, BoxesAreSwizzledAndZeroOutsideOfTheTensor) {
  const Matrix m(5, 72, 3);
  const TensorMap map = m.map(16);
  launch(1, 32, [&] {
    if (lane() == 0) {
      ptx::init_barrier(kBarrier, 1);
      ptx::arrive_expecting(kBarrier, 16 * 128);
      ptx::load_box(1024, map, kBarrier, 64, -2, 0, 0);
    }
    __syncwarp();
    ptx::wait(kBarrier, 0);
    for (int row = static_cast<int>(lane()); row < 16; row += 32) {
      for (int column = 0; column < 64; ++column) {
        const unsigned at = 1024 + Swizzle<64>::offset(static_cast<unsigned>(row), column / 8) +
                            static_cast<unsigned>(column % 8 * 2);
        bf16 found;
        std::memcpy(&found, smem + at, 2);
        const bool inside = row >= 2 && row < 7 && column < 8;
        EXPECT_EQ(to_float(found), inside ? m.at(row - 2, column + 64) : 0.f);
      }
    }
  });
}

struct StoreFaults {
  bool fence = true, wait = true;
};
// 16 rows of ones over the last rows of a tensor that ends before them.
Matrix stored(Timing asked, int first_row, StoreFaults faults = {}) {
  const WithTiming with(asked);
  Matrix m(20, 64, 3);
  const TensorMap map = m.map(16);
  launch(1, 32, [&] {
    const unsigned ones = ptx::pack<DType::bf16>(1, 1);
    for (unsigned chunk = 0; chunk < 8; chunk += 2) {
      const unsigned row = lane() % 16;
      ptx::store_matrices(Swizzle<64>::offset(row, chunk + lane() / 16), {ones, ones, ones, ones});
    }
    if (faults.fence) ptx::fence_async();
    __syncwarp();
    if (lane() != 0) return;
    ptx::store_box(map, 0, 0, first_row, 0, 0);
    ptx::commit_stores();
    if (faults.wait) ptx::wait_stores_read();
  });
  return m;
}

TEST(EmulatedMachine, StoresEndWithTheTensor) {
  for (const Timing asked : kAll) {
    const Matrix m = stored(asked, 10);
    const Matrix before(20, 64, 3);
    for (int row = 0; row < 20; ++row) {
      for (int column = 0; column < 64; ++column) {
        EXPECT_EQ(m.at(row, column), row < 10 ? before.at(row, column) : 1.f);
      }
    }
  }
  EXPECT_NE(message_of([] { stored(kEager, -1); }), "");
}

TEST(EmulatedMachine, AMissingFenceOrWaitBeforeAStoreShows) {
  EXPECT_NE(stored(kLate, 0, {.fence = false}).at(0, 0), 1.f);
  EXPECT_EQ(message_of([] { stored(kLate, 0, {.wait = false}); }),
            "block 0: ends before its stores have read shared memory");
}

// A stage that is given back before its product has been waited for is filled again meanwhile.
TEST(EmulatedMachine, AStageGivenBackTooEarlyShowsWhereProductsAreLateAndCopiesAreNot) {
  const auto refilled = [](Timing asked) {
    const WithTiming with(asked);
    std::vector<float> result(64 * 96);
    const Matrix other(96, 128, 11);
    const TensorMap left_map = kLeft.map(64), right_map = kRight.map(96), other_map = other.map(96);
    launch(1, 128, [&] {
      load_both(kLeft, left_map, kRight, right_map);
      ptx::wait(kBarrier, 0);
      float sums[12][4] = {};
      ptx::fence_products();
      for (int step = 0; step < 8; ++step) {
        ptx::multiply_shared<DType::bf16, 1>(
            sums, k_in_columns(0).moved(column_step<64>(step)).bits(),
            k_in_columns(kRightAt).moved(column_step<96>(step)).bits());
      }
      ptx::commit_products();
      __syncthreads();  // in place of the wait
      if (threadIdx.x == 0) {
        ptx::arrive_expecting(kBarrier, static_cast<unsigned>(tile_bytes(96, 128)));
        load(kRightAt, other, other_map);
      }
      __syncthreads();
      ptx::wait_products<0>();
      write(result, sums);
      ptx::wait(kBarrier, 1);
    });
    return result;
  };
  EXPECT_EQ(refilled(kEager), plain_rows(kLeft, kRight));
  EXPECT_NE(refilled(kCrossed), plain_rows(kLeft, kRight));
}

TEST(EmulatedMachine, AStandstillSaysWhoWaitsForWhat) {
  EXPECT_EQ(message_of([] {
              launch(1, 64, [] {
                if (threadIdx.x == 0) {
                  ptx::init_barrier(kBarrier, 2);
                  ptx::arrive_expecting(kBarrier, 48);
                }
                __syncthreads();
                if (threadIdx.x < 32) {
                  ptx::wait(kBarrier, 0);
                } else {
                  ptx::sync_warps(3, 64);
                }
              });
            }),
            "block 0: stands still:\n"
            "  threads 0 to 31 wait for the barrier at 204800, parity 0: 1 of 2 arrivals and 48 "
            "bytes to come\n"
            "  threads 32 to 63 wait for named barrier 3, 32 of 64 threads");
}

TEST(EmulatedMachine, BarriersAreHeldToTheirRules) {
  EXPECT_EQ(message_of([] { launch(1, 32, [] { ptx::arrive_warps(2, 64); }); }),
            "block 0: ends with 32 threads at named barrier 2");
  EXPECT_EQ(
      message_of([] { launch(1, 64, [] { ptx::sync_warps(1, threadIdx.x < 32 ? 64u : 96u); }); }),
      "block 0, thread 32: comes to a barrier of 96 threads that others took for 64");
  EXPECT_EQ(message_of([] { launch(1, 32, [] { ptx::wait(kBarrier, 0); }); }),
            "block 0, thread 0: the barrier at 204800 was not initialised");
}

}  // namespace
}  // namespace dfa
