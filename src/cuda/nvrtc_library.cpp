#include "cuda/nvrtc_library.h"

#include <filesystem>
#include <span>
#include <type_traits>

#include "base/nvidia_library.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

// NVRTC opens its companion by name alone, which the system does not find outside its own folders;
// once loaded by its path it is found.
std::vector<SharedLibrary> open_companions(const fs::path& library) {
  std::vector<SharedLibrary> companions;
  if (!library.has_parent_path()) return companions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(library.parent_path(), error)) {
    const std::string name = entry.path().string();
    if (entry.path().filename().string().rfind("libnvrtc-builtins.so", 0) != 0) continue;
    companions.push_back(SharedLibrary::open_first(std::span(&name, 1)));
  }
  return companions;
}

}  // namespace

std::vector<std::string> NvrtcLibrary::default_names() {
  return nvidia_library_names("DFA_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"});
}

NvrtcLibrary::NvrtcLibrary(const std::vector<std::string>& names)
    : file(SharedLibrary::open_first(names)), companions(open_companions(file.name())) {
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
