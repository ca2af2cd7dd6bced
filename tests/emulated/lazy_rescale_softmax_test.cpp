// Hopper's softmax on a processor: a warp's rows over tiles of keys, held against fp64.
#include <gtest/gtest.h>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include <algorithm>
#include <random>

#include "kernels/softmax/lazy_rescale_softmax.cuh"

namespace dfa {
namespace {

constexpr int kRows = 16, kTile = 32, kFragments = kTile / 8;
using Logits = std::vector<std::vector<float>>;  // rows, then keys as they are walked

struct Row {
  float sum = 0, lse = 0, weighted = 0;  // of weight times key index, over the sum
};

// Key of a fragment's element in this lane.
int key_of(int n, int i) { return n * 8 + static_cast<int>(emulated::lane()) % 4 * 2 + i % 2; }

// Walks the tiles with a reference that stays where the first tile with a key has put it, or one
// that follows; the output is one column, of the keys' indices.
std::vector<Row> walk(const Logits& logits, bool updates_max) {
  std::vector<Row> rows(kRows);
  const int tiles = static_cast<int>(logits[0].size()) / kTile;
  emulated::launch(1, 32, [&] {
    LazyRescaleSoftmax softmax(1.f);
    softmax.start();
    const int first = static_cast<int>(emulated::lane()) / 4;
    float output[1][4] = {};
    bool open = true;
    for (int tile = 0; tile < tiles; ++tile) {
      float scores[kFragments][4];
      for (int n = 0; n < kFragments; ++n) {
        for (int i = 0; i < 4; ++i) {
          const auto row = static_cast<std::size_t>(first + i / 2 * 8);
          scores[n][i] = logits[row][static_cast<std::size_t>(tile * kTile + key_of(n, i))];
        }
      }
      if (updates_max || open) {
        if (softmax.update_max(scores)) softmax.rescale(output);
        open = softmax.open();
      }
      softmax.exp2(scores);
      for (int n = 0; n < kFragments; ++n) {
        for (int i = 0; i < 4; ++i)
          output[0][i / 2 * 2] += scores[n][i] * static_cast<float>(tile * kTile + key_of(n, i));
      }
    }
    float inverse[2], lse[2];
    const float both = softmax.finish(inverse, lse);
    for (int half = 0; half < 2; ++half) {
      const float weighted = ptx::quad_sum(output[0][2 * half]) * inverse[half];
      if (emulated::lane() % 4 == 0)
        rows[static_cast<std::size_t>(first + half * 8)] = {both, lse[half], weighted};
    }
  });
  return rows;
}

Row truth(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  if (std::isinf(most)) return {0, -std::numeric_limits<float>::infinity(), 0};
  double sum = 0, weighted = 0;
  for (std::size_t k = 0; k < logits.size(); ++k) {
    const double weight = std::exp2(static_cast<double>(logits[k]) - most);
    sum += weight;
    weighted += weight * static_cast<double>(k);
  }
  return {0, static_cast<float>((most + std::log2(sum)) * std::log(2.)),
          static_cast<float>(weighted / sum)};
}

void expect_true(const std::vector<Row>& rows, const Logits& logits) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row wanted = truth(logits[r]);
    if (std::isinf(wanted.lse)) {
      EXPECT_EQ(rows[r].lse, wanted.lse) << r;
      EXPECT_EQ(rows[r].weighted, 0) << r;
      continue;
    }
    EXPECT_NEAR(rows[r].lse, wanted.lse, 1e-5 * (1 + std::abs(wanted.lse))) << r;
    EXPECT_NEAR(rows[r].weighted, wanted.weighted, 2e-5 * (1 + wanted.weighted)) << r;
  }
}

// Base-2 logits: normal ones, and what `change` makes of row, key and value.
template <typename Change>
Logits logits_of(int keys, const Change& change) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0, 2);
  Logits logits(kRows, std::vector<float>(static_cast<std::size_t>(keys)));
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < keys; ++k)
      logits[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] =
          change(r, k, normal(engine));
  }
  return logits;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LazyRescaleSoftmax, AReferenceThatStaysIsExactHoweverFarTheMaximumLiesAboveInRange) {
  for (const float rise : {0.f, 20.f, 60.f, 90.f}) {
    const auto logits = logits_of(160, [&](int, int k, float x) { return k > 130 ? x + rise : x; });
    const auto rows = walk(logits, false);
    expect_true(rows, logits);
    for (const Row& row : rows) EXPECT_LT(row.sum, 0x1p100f);
  }
}

TEST(LazyRescaleSoftmax, WhatLeavesTheRangeShowsInTheSumsAndFollowingRepairsIt) {
  for (const float rise : {110.f, 127.f, 128.f, 1000.f, 14427.f}) {
    const auto logits = logits_of(
        160, [&](int r, int k, float x) { return r % 8 == 3 && k == 159 ? x + rise : x; });
    const auto rows = walk(logits, false);
    for (const std::size_t r : {3u, 11u}) EXPECT_FALSE(rows[r].sum <= 0x1p100f) << rise;
    expect_true(walk(logits, true), logits);
  }
}

TEST(LazyRescaleSoftmax, ARampDownFromTheFirstTileLosesNothing) {
  const auto logits =
      logits_of(160, [](int, int k, float x) { return x - 2.5f * static_cast<float>(k); });
  expect_true(walk(logits, false), logits);
}

TEST(LazyRescaleSoftmax, RowsWithoutAKeyInTheFirstTilesTakeTheirReferenceLater) {
  const auto logits = logits_of(160, [](int r, int k, float x) {
    return r == 15 || k < 10 * r ? -kInfinity : x - 200.f;  // row 15 sees none
  });
  expect_true(walk(logits, false), logits);
  expect_true(walk(logits, true), logits);
}

}  // namespace
}  // namespace dfa
