#include <cmath>
#include <cstdio>
#include <vector>

#include "dfa/dfa.h"

// Equal keys: every query gets the mean of the values. A bad line must be caught as its own type.
int main() {
  const dfa::Plan plan = dfa::plan(dfa::parse_problem("fwd fp32 b1 h1 sq3 sk4 d8"));
  const std::vector<float> q(3 * 8, 1.0f), k(4 * 8, 1.0f);
  std::vector<float> v(4 * 8), o(3 * 8), lse(3);
  for (int i = 0; i < 32; ++i) v[static_cast<std::size_t>(i)] = static_cast<float>(i / 8);
  dfa::forward(plan,
               {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()});
  for (const float value : o) {
    if (std::abs(value - 1.5f) > 1e-6f) return 1;
  }
  try {
    dfa::parse_problem("nonsense");
  } catch (const dfa::InvalidArgument& error) {
    std::printf("%s %s\n", dfa::kVersion, plan.why.c_str());
    return 0;
  }
  return 1;
}
