#include "reference/check_sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"
#include "reference/head.h"
#include "spec/flops.h"

namespace dfa {
namespace {

// Truth and yardstick both run; a backward's check is a forward, then S and dP again for the rows
// and once more for the keys: 2 + 3 + 4 products, each as much as half a forward.
constexpr double kForwardCost = 2, kBackwardCost = 9;
constexpr std::int64_t kLeastHeads = 3, kLeastIndices = 16;

// Orders of summation of the yardstick: all of them up to these FLOPs, then fewer as the square
// root, for the chance of one order to be lucky falls with the number of roundings.
int sum_orders(const Problem& p) {
  constexpr double kFewFlops = 1e5;
  const double share = std::sqrt(kFewFlops / std::max(forward_flops(p), kFewFlops));
  return std::max(1, static_cast<int>(kMostSumOrders * share));
}

// `count` of [0, total), ascending, with both ends and the second: a wrong order of heads and
// batches, or of query and key heads, maps the ends rightly and goes wrong from the second on.
std::vector<std::int64_t> pick(std::int64_t total, std::int64_t count, const Random& random) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(std::min(total, count)));
  if (count >= total) {
    std::iota(all.begin(), all.end(), std::int64_t{0});
    return all;
  }
  std::set<std::int64_t> chosen{0, 1, total - 1};
  for (std::uint64_t draw = 0; static_cast<std::int64_t>(chosen.size()) < count; ++draw) {
    chosen.insert(static_cast<std::int64_t>(random.below(draw, static_cast<std::uint64_t>(total))));
  }
  return {chosen.begin(), chosen.end()};
}

// Splits a fraction of the work evenly between heads and the rows or keys within them.
CheckSample sample(const Problem& p, const CheckOptions& options, std::int64_t heads_per_batch,
                   double flops) {
  CheckSample sample;
  const Random random(options.seed);
  const double fraction = std::min(1.0, options.max_flops / std::max(flops, 1.0));
  sample.complete = fraction >= 1;
  sample.orders = sum_orders(p);
  const std::int64_t heads = p.b * heads_per_batch;
  const auto part = [](std::int64_t total, double share) {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(total) * share));
  };
  const std::int64_t head_count =
      std::clamp(part(heads, std::sqrt(fraction)), std::min(heads, kLeastHeads), heads);
  const double left =
      std::min(1.0, fraction * static_cast<double>(heads) / static_cast<double>(head_count));
  const auto indices = [&](std::int64_t total, std::uint64_t stream) {
    return pick(total, std::max(part(total, left), std::min(total, kLeastIndices)),
                Random(options.seed + stream));
  };
  for (const std::int64_t head : pick(heads, head_count, random)) {
    sample.heads.push_back({head / heads_per_batch, head % heads_per_batch});
  }
  sample.rows = indices(p.sq, 1);
  sample.keys = indices(p.sk, 2);
  return sample;
}

}  // namespace

CheckSample sample_forward(const Problem& problem, const CheckOptions& options) {
  return sample(problem, options, problem.hq, kForwardCost * forward_flops(problem));
}

CheckSample sample_backward(const Problem& problem, const CheckOptions& options) {
  return sample(problem, options, problem.hk, kBackwardCost * forward_flops(problem));
}

}  // namespace dfa
