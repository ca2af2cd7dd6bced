// kernels/tile, softmax and schedule on a device: tiles in, products of a warp, rows out, the
// running softmax, masks.
#include <algorithm>
#include <limits>

#include "kernels/softmax/tile_mask.h"
#include "primitives/probe_case.h"

namespace dfa::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kTypes[] = {DType::bf16, DType::fp16, DType::tf32, DType::fp32};
constexpr int kColumns[] = {16, 32, 64, 96, 192};

class Tiles : public Primitives {
 protected:
  // The right one row by row in both: sum over k of a[i][k] b[j][k], of what is there.
  void expect_products(const std::string& entry, DType type, int columns, int n, int m) {
    const auto width = static_cast<std::size_t>(columns - 8);
    const Elements a = elements(type, 32 * width), b = elements(type, 32 * width);
    const auto d =
        run<float>(entry, {1, 32, 64 * columns * bytes_of(type)}, 1024, {.n = n, .m = m}, a, b);
    for (std::size_t i = 0; i < 1024; ++i) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < width; ++k) {
        const double product = a.values[i / 32 * width + k] * b.values[i % 32 * width + k];
        sum += product;
        magnitude += std::abs(product);
      }
      const bool there = static_cast<int>(i / 32) < n && static_cast<int>(i % 32) < m;
      expect_sum(d[i], there ? sum : 0, there ? magnitude : 0, columns, entry);
    }
  }

  // factor (round(c) b), of which some rows and columns are stored.
  void expect_stored(const std::string& entry, DType type, int columns, int sharing) {
    const std::size_t width = static_cast<std::size_t>(columns), stride = width + 8;
    const int rows = 11, there = columns - 8;
    const Elements b = elements(type, 32 * width);
    const auto c = normals(16 * 32);
    const std::size_t size = static_cast<std::size_t>(bytes_of(type));
    const auto out = run<std::uint8_t>(
        entry, {1, 32u * static_cast<unsigned>(sharing), 32 * columns * bytes_of(type)},
        16 * stride * size, {.n = rows, .m = there}, {}, b, c);
    for (std::size_t i = 0; i < 16 * stride; ++i) {
      const std::size_t row = i / stride, column = i % stride;
      std::uint32_t bits = 0;
      std::memcpy(&bits, out.data() + i * size, size);
      if (static_cast<int>(row) >= rows || static_cast<int>(column) >= there) {
        ASSERT_EQ(bits, size == 2 ? 0xffffu : 0xffffffffu) << entry << " " << row << column;
        continue;
      }
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < 32; ++k) {
        const double product = taken(type, c[row * 32 + k]) * b.values[k * width + column];
        sum += product;
        magnitude += std::abs(product);
      }
      const double factor = static_cast<double>(row) + 1;
      const auto half = static_cast<std::uint16_t>(bits);
      const float stored = type == DType::bf16   ? to_float(bf16{half})
                           : type == DType::fp16 ? to_float(fp16{half})
                                                 : std::bit_cast<float>(bits);
      const double unit = type == DType::bf16 ? 0x1p-8 : type == DType::fp16 ? 0x1p-11 : 0;
      ASSERT_NEAR(stored, sum * factor, factor * (unit * std::abs(sum) + 0x1p-23 * 36 * magnitude))
          << entry << " row " << row << " column " << column;
    }
  }
};

TEST_F(Tiles, RowsTimesRowsWithZerosForWhatIsNotThere) {
  for (const DType type : kTypes) {
    for (const int columns : kColumns) {
      const std::string tile = "<" + of(type) + ", " + std::to_string(columns) + ">";
      if (!runs_here("multiply_tiles" + tile)) continue;
      for (const auto& [n, m] : {std::pair{32, 32}, {31, 17}, {1, 32}}) {
        expect_products("multiply_tiles" + tile, type, columns, n, m);
        if (bytes_of(type) == 2) {
          expect_products("multiply_registers_tile" + tile, type, columns, n, m);
        }
      }
    }
  }
}

// A rounded sum times rows, by one warp and by two that share columns; then rounded again, staged
// and stored, but for the rows and columns that are not there.
TEST_F(Tiles, SumsTimesColumnsAreStoredWhereTheyBelong) {
  for (const DType type : kTypes) {
    for (const int columns : kColumns) {
      for (const int sharing : {1, 2}) {
        if (columns % (16 * sharing) != 0) continue;
        const std::string entry = "multiply_and_store<" + of(type) + ", " +
                                  std::to_string(columns) + ", " + std::to_string(sharing) + ">";
        if (!runs_here(entry)) continue;
        expect_stored(entry, type, columns, sharing);
      }
    }
  }
}

// The same with copies through registers and products of 16 x 8 x 8.
TEST_F(Tiles, ProductsWithTheInstructionsOfSm75) {
  for (const auto& [type, columns] :
       {std::pair{DType::fp16, 64}, {DType::fp16, 96}, {DType::fp32, 64}}) {
    const std::string tile = "<" + of(type) + ", " + std::to_string(columns);
    expect_products("sm75 multiply_tiles" + tile + ">", type, columns, 29, 32);
    expect_stored("sm75 multiply_and_store" + tile + ", 2>", type, columns, 2);
  }
}

class Softmax : public Primitives {
 protected:
  // 16 rows of `tiles` * 32 scores, a row that sees nothing and one that sees a single key.
  void expect_softmax(const std::string& entry, float scale, double bound) {
    constexpr int kTiles = 5;
    std::vector<float> scores = normals(kTiles * 512);
    const auto at = [&](int row, int key) -> float& {
      return scores[static_cast<std::size_t>(key / 32 * 512 + row * 32 + key % 32)];
    };
    // A maximum that moves little, then much, then not; hidden scores are -inf.
    const float hidden = scale < 0 ? kInfinity : -kInfinity;
    for (int row = 0; row < 16; ++row) {
      for (int key = 0; key < kTiles * 32; ++key) {
        float& score = at(row, key);
        score = score * static_cast<float>(1 + row) + static_cast<float>(key / 32 % 3 * row);
        if (row == 3 || (row == 9 && key != 77) || (row == 5 && key < 70)) score = hidden;
      }
    }
    const auto out = run<float>(entry, {}, 160, {.n = kTiles}, scores, {}, std::vector{scale});
    for (int row = 0; row < 16; ++row) {
      double most = -std::numeric_limits<double>::infinity(), sum = 0, weights[8] = {};
      for (int key = 0; key < kTiles * 32; ++key)
        most = std::max<double>(most, scale * at(row, key));
      for (int key = 0; key < kTiles * 32 && std::isfinite(most); ++key) {
        const double weight = std::exp(static_cast<double>(scale) * at(row, key) - most);
        sum += weight;
        weights[key % 8] += weight;
      }
      const auto r = static_cast<std::size_t>(row);
      const float inverse = out[128 + r], lse = out[144 + r];
      if (row == 3) {
        EXPECT_EQ(inverse, 0.f);
        EXPECT_EQ(lse, -kInfinity);
      } else {
        EXPECT_NEAR(lse, most + std::log(sum), 1e-6 * (1 + std::abs(most)));
      }
      for (std::size_t column = 0; column < 8; ++column) {
        const double expected = row == 3 ? 0 : weights[column] / sum;
        EXPECT_NEAR(out[r * 8 + column] * inverse, expected, bound) << row << " " << column;
      }
    }
  }
};

TEST_F(Softmax, FollowsTheMaximumAndIsRightInTheEnd) {
  for (const float scale : {0.125f, 1.f, -0.5f}) {
    expect_softmax("online_softmax<false>", scale, 2e-5);
    expect_softmax("online_softmax<true>", scale, 4e-6);
    if (scale > 0) expect_softmax("lazy_rescale_softmax", scale, 2e-5);
  }
}

TEST_F(Softmax, HidesWhatTheMaskHidesAndNothingElse) {
  for (int draw = 0; draw < 40; ++draw) {
    const int sq = 1 + below(90), sk = 1 + below(90);
    const int left = below(3) == 0 ? -1 : below(50), right = below(3) == 0 ? -1 : below(50);
    const int query = below(64), key = below(64);
    const TileMask mask{left, right, sq, sk};
    const std::vector<int> sides{left, right, sq, sk};
    const auto scores = normals(1024);
    for (const bool transposed : {false, true}) {
      const auto out = run<float>(transposed ? "hide<true>" : "hide<false>", {}, 1024,
                                  {.n = query, .m = key}, scores, sides);
      for (int i = 0; i < 1024; ++i) {
        const int q = query + (transposed ? i % 32 : i / 32);
        const int k = key + (transposed ? i / 32 : i % 32);
        if (q >= sq && !transposed) continue;  // rows that nobody stores
        if (k >= sk && transposed) continue;
        const bool seen = k >= mask.key_begin(q) && k < mask.key_end(q) && q < sq;
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(out[at], seen ? scores[at] : -kInfinity)
            << left << " " << right << " " << sq << " " << sk << ": " << q << " " << k;
      }
    }
  }
}

TEST_F(Tiles, EveryBlockHasItsQueriesAndLateOnesComeFirst) {
  const int hq = 6, hk = 2, sq = 300, batches = 3, tiles = 5;
  const auto work_tiles = run<int>("work_tiles", {static_cast<unsigned>(tiles * hq * batches)},
                                   static_cast<std::size_t>(4 * tiles * hq * batches), {}, {},
                                   std::vector<int>{hq, hk, sq});
  for (int block = 0; block < tiles * hq * batches; ++block) {
    const int head = block / tiles;
    const int expected[] = {head / hq, head % hq, head % hq / 3, (tiles - 1 - block % tiles) * 64};
    EXPECT_TRUE(std::equal(expected, expected + 4, work_tiles.begin() + 4 * block)) << block;
  }
}

}  // namespace
}  // namespace dfa::cuda
