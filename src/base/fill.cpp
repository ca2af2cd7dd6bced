#include "base/fill.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/element.h"
#include "base/random.h"

namespace dfa {
namespace {

void fill_range(void* data, DType type, std::int64_t begin, std::int64_t end, std::uint64_t seed,
                float deviation) {
  const Random random(seed);
  for (std::int64_t i = begin; i < end; ++i) {
    store_element(data, type, i,
                  round_to(type, deviation * random.normal(static_cast<std::uint64_t>(i))));
  }
}

}  // namespace

void fill_normal(void* data, DType type, std::int64_t count, std::uint64_t seed, float deviation) {
  constexpr std::int64_t kWorthAThread = 1 << 20;
  const std::int64_t threads =
      std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, count / kWorthAThread + 1);
  std::vector<std::jthread> others;
  for (std::int64_t n = 1; n < threads; ++n) {
    others.emplace_back(fill_range, data, type, count * n / threads, count * (n + 1) / threads,
                        seed, deviation);
  }
  fill_range(data, type, 0, count / threads, seed, deviation);
}

}  // namespace dfa
