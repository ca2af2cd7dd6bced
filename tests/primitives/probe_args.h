#pragma once

#include "kernels/tensor_map.h"

// What every probe is passed: some inputs, one output, what else a primitive wants to be told.
namespace dfa::probe {

struct Args {
  TensorMap from{};
  TensorMap to{};
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* out = nullptr;
  int n = 0;
  int m = 0;
};

}  // namespace dfa::probe
