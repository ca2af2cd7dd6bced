#pragma once

#include <span>
#include <string_view>

namespace dfa::cuda {

// A compiled kernel put into the library when it was built: a file of the cache, whole.
struct EmbeddedKernel {
  std::string_view digest;
  std::string_view bytes;
};

// Those that DFA_EMBED_ARCHS asked for; none by default.
std::span<const EmbeddedKernel> embedded_kernels();

}  // namespace dfa::cuda
