#include "base/fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace dfa {
namespace {

TEST(Fill, EveryElementIsItsOwnDrawHoweverManyThreadsShareTheWork) {
  const std::int64_t count = (5 << 20) + 3;
  std::vector<float> values(static_cast<std::size_t>(count), NAN);
  fill_normal(values.data(), DType::fp32, count, 9);
  const Random random(9);
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[static_cast<std::size_t>(i)];
    ASSERT_EQ(value, random.normal(static_cast<std::uint64_t>(i))) << i;
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / static_cast<double>(count), 0, 3e-3);
  EXPECT_NEAR(squares / static_cast<double>(count), 1, 3e-3);
}

TEST(Fill, NothingBeyondTheCountIsTouched) {
  std::vector<float> values(10, 7.0f);
  fill_normal(values.data(), DType::fp32, 9, 1);
  EXPECT_EQ(values[9], 7.0f);
  fill_normal(values.data(), DType::fp32, 0, 1);
}

}  // namespace
}  // namespace dfa
