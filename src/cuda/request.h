#pragma once

#include <iterator>
#include <string>

#include "cuda/compiler.h"
#include "kernels/launch.h"

namespace dfa::cuda {

// What to compile for a launch; whoever runs it and whoever compiles it ahead ask for the same.
inline CompileRequest request_of(const KernelLaunch& launch, const std::string& arch) {
  return {.source = launch.source,
          .name_expression = launch.entry,
          .arch = arch,
          .options = {std::begin(kCompileOptions), std::end(kCompileOptions)},
          .preamble = launch.preamble};
}

}  // namespace dfa::cuda
