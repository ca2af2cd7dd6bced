#include "analysis/roofline.h"

#include <algorithm>
#include <string>

#include "analysis/flops.h"
#include "analysis/memory.h"
#include "analysis/tensors.h"
#include "analysis/traffic.h"
#include "dfa/error.h"
#include "spec/passes.h"

namespace dfa::analysis {
namespace {

constexpr std::int64_t kLongestRow = 1LL << 30;

// Operations and bytes of standard attention, with its scores in memory or in the cache.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

Cost standard_cost(const Problem& p, bool scores_in_cache) {
  const Tensors t(p);
  const double pairs = static_cast<double>(p.sq) * static_cast<double>(p.sk);
  Cost cost;
  if (has_forward(p)) {
    cost.flops += total_flops(forward_products(p, pairs));
    cost.bytes += scores_in_cache ? t.q + t.k + t.v + t.o + t.bias : standard_forward(p).bytes();
  }
  if (has_backward(p)) {
    cost.flops += total_flops(standard_backward_products(p, pairs));
    cost.bytes += scores_in_cache ? 2 * (t.q + t.k + t.v) + t.o + t.bias + t.d_bias
                                  : standard_backward(p).bytes();
  }
  return cost;
}

// The first length of [low, high] for which `holds`, which must not turn false again; high + 1 when
// there is none.
template <typename Condition>
std::int64_t first_length(std::int64_t low, std::int64_t high, Condition&& holds) {
  while (low <= high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle - 1;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

Roofline roofline(double flops, double bytes, double peak_flops, double bytes_per_s) {
  if (!(flops > 0 && bytes > 0 && peak_flops > 0 && bytes_per_s > 0)) {
    throw InvalidArgument("roofline: operations, bytes and both rates must be positive; got " +
                          std::to_string(flops) + ", " + std::to_string(bytes) + ", " +
                          std::to_string(peak_flops) + ", " + std::to_string(bytes_per_s));
  }
  Roofline roof;
  roof.intensity = flops / bytes;
  roof.ridge = peak_flops / bytes_per_s;
  roof.memory_bound = roof.intensity < roof.ridge;
  roof.attainable_flops = std::min(peak_flops, roof.intensity * bytes_per_s);
  roof.time_s = flops / roof.attainable_flops;
  return roof;
}

std::vector<Regime> standard_regimes(const Problem& problem, const Machine& machine) {
  const double ridge =
      roofline(1, 1, machine.peak_flops(problem.dtype), machine.memory_bytes_per_s).ridge;
  const auto spilled = [&](std::int64_t length) {
    const double scores = 2 * Tensors(with_length(problem, length)).scores;
    return scores > static_cast<double>(machine.cache_bytes);
  };
  const std::int64_t spill = first_length(1, kLongestRow, spilled);
  std::vector<Regime> regimes;
  const auto add = [&](std::int64_t begin, std::int64_t end, bool in_cache) {
    // Within one kind of traffic, intensity only rises with the length.
    const std::int64_t turn = first_length(begin, end, [&](std::int64_t length) {
      const Cost cost = standard_cost(with_length(problem, length), in_cache);
      return cost.flops / cost.bytes >= ridge;
    });
    if (turn > begin) regimes.push_back({begin, true, in_cache});
    if (turn <= end) regimes.push_back({turn, false, in_cache});
  };
  if (spill > 1) add(1, std::min(spill - 1, kLongestRow), true);
  if (spill <= kLongestRow) add(spill, kLongestRow, false);
  return regimes;
}

std::int64_t memory_bound_from(const std::vector<Regime>& regimes) {
  std::int64_t from = 0;
  for (const Regime& regime : regimes) {
    if (!regime.memory_bound) {
      from = 0;
    } else if (from == 0) {
      from = regime.from;
    }
  }
  return from;
}

}  // namespace dfa::analysis
