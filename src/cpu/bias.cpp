#include "cpu/bias.h"

#include <algorithm>

#include "spec/bias.h"

namespace dfa::cpu {

void clear_bias_gradients(const Problem& p, const BackwardArgs& args) {
  const BiasSizes sizes = bias_sizes(p);
  const Strides& steps = args.d_bias_strides;
  for (std::int64_t b = 0; b < sizes.b; ++b) {
    for (std::int64_t h = 0; h < sizes.hq; ++h) {
      float* const head = args.d_bias + b * steps.batch + h * steps.head;
      for (std::int64_t i = 0; i < sizes.sq; ++i) std::fill_n(head + i * steps.row, sizes.sk, 0.0f);
    }
  }
}

}  // namespace dfa::cpu
