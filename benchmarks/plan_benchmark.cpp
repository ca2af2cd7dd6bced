// What planning for a GPU costs the host: a problem asked for before, one of an unseen length, and
// the plan without its memory of those before. Needs a driver, not a card:
//   DFA_CUDA_DRIVER=build/ci/tests/libfake_cuda.so plan_benchmark
#include <benchmark/benchmark.h>

#include "attention/registry.h"
#include "dfa/attention.h"

namespace {

using namespace dfa;

const PlanOptions kOptions{.backend = "cuda", .algorithm = Algorithm::flash};
const Problem kProblem = parse_problem("fwdbwd bf16 causal b1 h1 s64 d64");

void asked_before(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(plan(kProblem, kOptions));
}

// Among as many other plans as are remembered.
void asked_before_among_400(benchmark::State& state) {
  Problem p = kProblem;
  for (p.sk = 1; p.sk <= 400; ++p.sk) plan(p, kOptions);
  p.sk = 0;
  for (auto _ : state) {
    p.sk = p.sk % 400 + 1;
    benchmark::DoNotOptimize(plan(p, kOptions));
  }
}

void unseen_length(benchmark::State& state) {
  Problem p = kProblem;
  for (auto _ : state) {
    ++p.sk;
    benchmark::DoNotOptimize(plan(p, kOptions));
  }
}

void by_the_backend(benchmark::State& state) {
  const Backend& cuda = find_backend("cuda");
  for (auto _ : state) {
    benchmark::DoNotOptimize(cuda.supports(kProblem, kOptions));
    benchmark::DoNotOptimize(cuda.plan(kProblem, kOptions));
  }
}

BENCHMARK(asked_before);
BENCHMARK(asked_before_among_400);
BENCHMARK(unseen_length);
BENCHMARK(by_the_backend);

}  // namespace

BENCHMARK_MAIN();
