// Not a test: how many products with v `skip` leaves out, results/tables/skip_counts_zen5.txt.
#include <cstdio>

#include "emulated/hopper_skip.h"

namespace dfa {
namespace {

using namespace emulated;

template <DType kElement>
void count(const char* inputs, const Tensors& t) {
  const Skipped s = skip<kElement>(t);
  std::printf("%-5s %-38s %8.2f %12lld %12lld %14.1e %10s %6s\n", name_of(kElement), inputs,
              100 * s.part, s.differ, static_cast<long long>(t.count(t.o)), s.furthest,
              s.harmless ? "same" : "differ", s.report.ok ? "met" : "missed");
}

template <DType kElement>
void count_all() {
  const std::string type = name_of(kElement);
  const std::string causal = "fwd " + type + " causal b1 h2 s1024 d64";
  count<kElement>("normal", normal("fwd " + type + " b1 h2 s1024 d64"));
  count<kElement>("normal, causal", normal(causal));
  count<kElement>("normal, scale 1 (logits of 8)", normal(causal + " scale(1)"));
  count<kElement>("trained model, layer 0", trained_model(kElement));
  count<kElement>("texts of 64 tokens", packed_texts("fwd " + type + " b1 h2 s1024 d64"));
  count<kElement>("texts of 64 tokens, causal", packed_texts(causal));
  for (const float slope : {.05f, .1f, .25f, .5f}) {
    char name[64];
    std::snprintf(name, sizeof name, "bias of %g a key, causal", static_cast<double>(slope));
    count<kElement>(name, distance_bias(causal, slope));
  }
}

}  // namespace
}  // namespace dfa

int main() {
  std::printf("%-5s %-38s %8s %12s %12s %14s %10s %6s\n", "type", "inputs", "left out %",
              "o changed", "of", "furthest/max v", "votes off", "rule");
  dfa::count_all<dfa::DType::bf16>();
  dfa::count_all<dfa::DType::fp16>();
}
