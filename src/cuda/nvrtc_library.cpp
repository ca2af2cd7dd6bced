#include "cuda/nvrtc_library.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <type_traits>

#include "base/env.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

void add_names_in(const fs::path& folder, std::vector<std::string>& names) {
  for (const char* name : kNames) names.push_back((folder / name).string());
}

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), std::greater<>());  // cu13 before cuda_nvrtc
  return found;
}

// NVRTC opens its companion by name alone, which the system does not find outside its own folders;
// once loaded by its path it is found.
std::vector<SharedLibrary> open_companions(const fs::path& library) {
  std::vector<SharedLibrary> companions;
  if (!library.has_parent_path()) return companions;
  for (const fs::path& path : paths_in(library.parent_path())) {
    if (path.filename().string().rfind("libnvrtc-builtins.so", 0) != 0) continue;
    const std::string name = path.string();
    companions.push_back(SharedLibrary::open_first(std::span(&name, 1)));
  }
  return companions;
}

}  // namespace

std::vector<std::string> NvrtcLibrary::default_names() {
  std::vector<std::string> names;
  const fs::path forced = env("DFA_NVRTC");
  std::error_code error;
  if (fs::is_directory(forced, error)) add_names_in(forced, names);
  if (!forced.empty() && names.empty()) names.push_back(forced.string());
  if (!names.empty()) return names;
  add_names_in("", names);
  add_names_in(fs::path(env("CUDA_HOME")) / "lib64", names);
  const fs::path environment = env("VIRTUAL_ENV");
  if (environment.empty()) return names;
  for (const fs::path& python : paths_in(environment / "lib")) {
    for (const fs::path& package : paths_in(python / "site-packages" / "nvidia")) {
      if (fs::is_directory(package / "lib", error)) add_names_in(package / "lib", names);
    }
  }
  return names;
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
