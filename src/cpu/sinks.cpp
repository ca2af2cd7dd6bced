#include "cpu/sinks.h"

#include <cmath>

#include "base/element.h"
#include "cpu/parallel.h"

namespace dfa::cpu {
namespace {

double row_product(const Problem& p, const BackwardArgs& args, std::int64_t start) {
  double sum = 0;
  for (std::int64_t x = start; x < start + p.dv; ++x) {
    sum += static_cast<double>(load_element(args.o, p.dtype, x)) *
           static_cast<double>(load_element(args.d_o, p.dtype, x));
  }
  return sum;
}

}  // namespace

void add_sink_gradients(const Problem& p, int threads, const BackwardArgs& args) {
  parallel_for(threads, p.hq, [&](std::int64_t h, int) {
    const double sink = args.logits.sinks[h];
    if (std::isinf(sink) && sink < 0) return;  // none, with which a row without keys has no weights
    double sum = 0;
    for (std::int64_t row = 0; row < p.b * p.sq; ++row) {
      const std::int64_t b = row / p.sq, i = row % p.sq;
      const double lse = args.lse[(b * p.hq + h) * p.sq + i];
      const std::int64_t start = b * p.o().batch + h * p.o().head + i * p.o().row;
      sum -= std::exp(sink - lse) * row_product(p, args, start);
    }
    args.d_sinks[h] += static_cast<float>(sum);
  });
}

}  // namespace dfa::cpu
