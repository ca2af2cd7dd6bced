// Attention in fifty lines: plan once, run, read what ran and why.
//   g++ -std=c++20 -O2 attention.cpp $(pkg-config --cflags --libs dfa) -o attention

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "dfa/dfa.h"

namespace {

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace

int main() try {
  // 2 sequences of 500 tokens, 8 heads of 64, each token sees those before it.
  const dfa::Problem problem = dfa::parse_problem("fwd fp32 causal b2 h8 s500 d64");
  const std::size_t rows = 2 * 8 * 500;
  const auto q = normal_values(rows * 64, 1);
  const auto k = normal_values(rows * 64, 2);
  const auto v = normal_values(rows * 64, 3);
  std::vector<float> o(rows * 64, NAN);
  std::vector<float> lse(rows, NAN);

  const dfa::Plan plan = dfa::plan(problem, {.backend = "cpu"});  // the pointers are host's
  dfa::forward(plan,
               {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()});

  std::printf("%s on %s: %s\n", dfa::to_line(plan.problem).c_str(), plan.backend.c_str(),
              plan.why.c_str());
  std::printf("%.3f GFLOP, workspace %zu bytes\n", plan.forward_flops * 1e-9, plan.workspace_bytes);
  // The first token sees only itself: its output is its own value.
  bool right = std::isfinite(lse[0]);
  for (std::size_t i = 0; i < 64; ++i) right = right && std::fabs(o[i] - v[i]) < 1e-6F;
  std::printf("the first row of o %s the first row of v\n", right ? "is" : "is not");
  return right ? 0 : 1;
} catch (const dfa::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
