#pragma once

namespace dfa {

inline constexpr const char* kNoCuda =
    "this build has no CUDA: it was configured with DFA_CUDA=OFF, or without cuda.h, which PyPI "
    "nvidia-cuda-runtime has";

}  // namespace dfa
