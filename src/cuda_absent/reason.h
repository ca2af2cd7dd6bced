#pragma once

namespace dfa {

inline constexpr const char* kNoCuda =
    "this build has no CUDA: cuda.h was not found when it was configured (PyPI "
    "nvidia-cuda-runtime has it)";

}  // namespace dfa
