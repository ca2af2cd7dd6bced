#include "bench/interleave.h"

#include <numeric>
#include <utility>

#include "base/random.h"

namespace dfa::bench {

std::vector<std::size_t> round_order(std::size_t count, std::uint64_t seed, std::uint64_t round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Random random(mix64(seed) ^ round);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i, i)]);
  return order;
}

}  // namespace dfa::bench
