#include "kernels/tile/swizzle.h"

#include <gtest/gtest.h>

#include <set>

#include "spec/config.h"

namespace dfa {
namespace {

constexpr unsigned kBankGroups = 8;  // of 16 bytes, in the 128 bytes of a line of banks

template <int kColumns>
void every_chunk_has_a_place_of_its_own() {
  using Layout = Swizzle<kColumns>;
  std::set<unsigned> places;
  for (unsigned row = 0; row < 64; ++row) {
    for (unsigned chunk = 0; chunk < Layout::kChunks; ++chunk) {
      const unsigned offset = Layout::offset(row, chunk);
      EXPECT_EQ(offset / Layout::kRowBytes, row);
      places.insert(offset);
    }
  }
  EXPECT_EQ(places.size(), 64 * Layout::kChunks);
}

// A load of an 8 x 8 matrix and a store of an accumulator's rows touch one chunk of eight rows that
// follow each other.
template <int kColumns>
void eight_rows_of_a_chunk_lie_in_different_banks() {
  using Layout = Swizzle<kColumns>;
  for (unsigned first = 0; first < 64; first += 8) {
    for (unsigned chunk = 0; chunk < Layout::kChunks; ++chunk) {
      std::set<unsigned> groups;
      for (unsigned row = first; row < first + 8; ++row) {
        groups.insert(Layout::offset(row, chunk) / 16 % kBankGroups);
      }
      ASSERT_EQ(groups.size(), kBankGroups) << kColumns << " columns, chunk " << chunk;
    }
  }
}

// What TileReader relies on: the address of a lane, exclusive-or a constant, plus constants.
template <int kColumns>
void constants_move_an_address_to_any_matrix() {
  using Layout = Swizzle<kColumns>;
  for (unsigned lane_row = 0; lane_row < 16; ++lane_row) {
    for (unsigned lane_chunk = 0; lane_chunk < 2; ++lane_chunk) {
      const unsigned lane = Layout::offset(lane_row, lane_chunk);
      for (unsigned row = 0; row < 64; row += 8) {
        for (unsigned chunk = 0; chunk < Layout::kChunks; chunk += 2) {
          const unsigned inside = chunk % Layout::kGroup;
          const unsigned moved =
              (lane ^ (inside * 16)) + row * Layout::kRowBytes + (chunk - inside) * 16;
          ASSERT_EQ(moved, Layout::offset(row + lane_row, chunk + lane_chunk));
        }
      }
    }
  }
}

template <int kColumns>
void holds_for() {
  every_chunk_has_a_place_of_its_own<kColumns>();
  eight_rows_of_a_chunk_lie_in_different_banks<kColumns>();
  constants_move_an_address_to_any_matrix<kColumns>();
}

TEST(Swizzle, EveryHeadDimIsFreeOfBankConflictsAndReachableByConstants) {
  static_assert(sizeof kGpuHeadDims / sizeof kGpuHeadDims[0] == 7);
  holds_for<16>();
  holds_for<32>();
  holds_for<48>();  // 96 of e4m3
  holds_for<64>();
  holds_for<96>();
  holds_for<128>();
  holds_for<160>();  // a slice
  holds_for<192>();
  holds_for<256>();
}

// Warps that share a tile's columns read every other 16 of them: bit 1 of the chunk is theirs.
TEST(Swizzle, ASharingWarpReachesItsColumnsByTheSameConstants) {
  using Layout = Swizzle<96>;
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned part = 0; part < 2; ++part) {
      const unsigned lane = Layout::offset(row, 2 * part);
      for (unsigned chunk = 0; chunk < Layout::kChunks; chunk += 4) {
        const unsigned inside = chunk % Layout::kGroup;
        EXPECT_EQ((lane ^ (inside * 16)) + (chunk - inside) * 16,
                  Layout::offset(row, chunk + 2 * part));
      }
    }
  }
}

}  // namespace
}  // namespace dfa
