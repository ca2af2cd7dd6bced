#pragma once

// The driver's description of a tensor for the copy engine (CUtensorMap), filled by
// gpu/tensor_map.h.
namespace dfa {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

}  // namespace dfa
