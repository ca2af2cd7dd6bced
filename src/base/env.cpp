#include "base/env.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace dfa {
namespace {

constexpr EnvVariable kVariables[] = {
    {"DFA_ISA", "auto", "highest CPU instruction set to use: auto, portable, avx2, avx512, amx"},
    {"DFA_THREADS", "0", "CPU threads, 0 for all this process may use"},
    {"DFA_SYSFS_ROOT", "/sys", "where RAPL energy counters and CPU facts are read"},
    {"DFA_NVML", "libnvidia-ml.so.1",
     "the library that GPU power, energy and clocks are read with"},
    {"DFA_STATE_DIR", "/run",
     "where it is kept what a card was set to, while --allow-privileged has changed it"},
    {"DFA_PRIVILEGES", "/run/dfa/privileges.sock",
     "socket of the daemon that lends the levers of a card's owner (dfa privileges)"},
    {"DFA_CUDA_DEVICE", "current",
     "which GPU to use, in the order of CUDA_VISIBLE_DEVICES; current: the calling thread's, else "
     "0"},
    {"DFA_CUDA_DRIVER", "libcuda.so.1", "library of the NVIDIA driver"},
    {"DFA_NVRTC", "", "library of the CUDA run-time compiler, or its folder; empty: searched"},
    {"DFA_CUBLASLT", "", "library of the matrix products cuBLASLt, or its folder; empty: searched"},
    {"DFA_CUDNN", "", "library of cuDNN, a peer of dfa bench, or its folder; empty: searched"},
    {"DFA_CACHE_DIR", "", "folder of compiled kernels; empty: XDG_CACHE_HOME/dfa"},
    {"DFA_KERNELS", "",
     "folder of kernels compiled ahead, only read; empty: that of the package "
     "dfa-attention-kernels"},
    {"DFA_KERNEL_SOURCES", "",
     "folder whose files take the place of GPU kernels' sources, e.g. kernels/forward/…; for work "
     "on a kernel"},
    {"XDG_CACHE_HOME", "", "parent of the cache folder; empty: HOME/.cache"},
    {"HOME", "", "the user's folder, when XDG_CACHE_HOME is not set"},
    {"DFA_PYTHON", "python3", "the Python that has torch, for `dfa bench --peers torch`"},
    {"DFA_TORCH_PEER", "", "a program of yours in place of the one that runs PyTorch"},
    {"CUDA_HOME", "/usr/local/cuda", "CUDA toolkit whose lib64 is searched for NVRTC and cuBLASLt"},
    {"VIRTUAL_ENV", "", "Python environment whose packages are searched, likewise"},
};

}  // namespace

std::span<const EnvVariable> env_variables() { return kVariables; }

std::string env(const char* name) {
  for (const EnvVariable& variable : kVariables) {
    if (std::string_view(variable.name) != name) continue;
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : variable.fallback;
  }
  throw std::logic_error(std::string("env: ") + name + " is not in the table of base/env.cpp");
}

}  // namespace dfa
