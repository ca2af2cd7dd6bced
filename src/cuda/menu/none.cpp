#include "cuda/embedded.h"

namespace dfa::cuda {

std::span<const EmbeddedKernel> embedded_kernels() { return {}; }

}  // namespace dfa::cuda
