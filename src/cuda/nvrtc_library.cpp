#include "cuda/nvrtc_library.h"

#include <type_traits>

#include "base/nvidia_library.h"

namespace dfa::cuda {
namespace {}  // namespace

std::vector<std::string> NvrtcLibrary::default_names() {
  return nvidia_library_names("DFA_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"});
}

NvrtcLibrary::NvrtcLibrary(const std::vector<std::string>& names)
    : file(SharedLibrary::open_first(names)),
      companions(open_beside(file.name(), "libnvrtc-builtins.so")) {
  status = resolve();
  if (status) status = read_facts();
}

void NvrtcLibrary::check(NvrtcResult result, const char* call) const {
  if (result == kSuccess) return;
  throw Error(std::string("nvrtc: ") + call + ": " + nvrtcGetErrorString(result));
}

Verdict NvrtcLibrary::resolve() {
  if (!file.is_open()) {
    return Verdict::no("no CUDA run-time compiler (NVRTC): " + file.reason() +
                       "; DFA_NVRTC may name the library, PyPI nvidia-cuda-nvrtc has it");
  }
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* const address = file.symbol(name);
    if (address == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find("nvrtcVersion", nvrtcVersion);
  find("nvrtcGetErrorString", nvrtcGetErrorString);
  find("nvrtcGetNumSupportedArchs", nvrtcGetNumSupportedArchs);
  find("nvrtcGetSupportedArchs", nvrtcGetSupportedArchs);
  find("nvrtcCreateProgram", nvrtcCreateProgram);
  find("nvrtcDestroyProgram", nvrtcDestroyProgram);
  find("nvrtcAddNameExpression", nvrtcAddNameExpression);
  find("nvrtcCompileProgram", nvrtcCompileProgram);
  find("nvrtcGetProgramLogSize", nvrtcGetProgramLogSize);
  find("nvrtcGetProgramLog", nvrtcGetProgramLog);
  find("nvrtcGetLoweredName", nvrtcGetLoweredName);
  find("nvrtcGetCUBINSize", nvrtcGetCUBINSize);
  find("nvrtcGetCUBIN", nvrtcGetCUBIN);
  return missing.empty() ? Verdict::yes() : Verdict::no("'" + file.name() + "' lacks " + missing);
}

Verdict NvrtcLibrary::read_facts() {
  int major = 0;
  int minor = 0;
  int count = 0;
  if (nvrtcVersion(&major, &minor) != kSuccess || nvrtcGetNumSupportedArchs(&count) != kSuccess) {
    return Verdict::no("'" + file.name() + "' does not tell its version");
  }
  version = "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
  architectures.resize(static_cast<std::size_t>(count));
  nvrtcGetSupportedArchs(architectures.data());
  return Verdict::yes();
}

}  // namespace dfa::cuda
