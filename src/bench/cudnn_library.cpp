#include "bench/cudnn_library.h"

#include <span>
#include <type_traits>
#include <utility>

#include "base/nvidia_library.h"

namespace dfa::bench {

std::vector<std::string> CudnnLibrary::default_names() {
  return nvidia_library_names("DFA_CUDNN", {"libcudnn.so.9"});
}

CudnnLibrary::CudnnLibrary(const std::vector<std::string>& names) {
  // Engines are compiled at run time, and cuDNN finds neither in a Python environment.
  for (const auto& companion :
       {nvidia_library_names("DFA_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}),
        nvidia_library_names("DFA_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12"})}) {
    companions.push_back(SharedLibrary::open_first(companion));
    for (SharedLibrary& beside : open_beside(companions.back().name(), "libnvrtc-builtins.so")) {
      companions.push_back(std::move(beside));
    }
  }
  file = SharedLibrary::open_first(names);
  status = resolve();
  if (!status) return;
  const std::size_t number = cudnnGetVersion();  // 91900 is 9.19.0
  version = "cuDNN " + std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) +
            "." + std::to_string(number % 100);
}

Verdict CudnnLibrary::resolve() {
  if (!file.is_open()) {
    return Verdict::no("no cuDNN: " + file.reason() +
                       "; DFA_CUDNN may name the library, PyPI nvidia-cudnn-cu13 has it");
  }
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* const address = file.symbol(name);
    if (address == nullptr && missing.empty()) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find("cudnnGetVersion", cudnnGetVersion);
  find("cudnnGetErrorString", cudnnGetErrorString);
  find("cudnnGetLastErrorString", cudnnGetLastErrorString);
  find("cudnnCreate", cudnnCreate);
  find("cudnnDestroy", cudnnDestroy);
  find("cudnnBackendCreateDescriptor", cudnnBackendCreateDescriptor);
  find("cudnnBackendDestroyDescriptor", cudnnBackendDestroyDescriptor);
  find("cudnnBackendSetAttribute", cudnnBackendSetAttribute);
  find("cudnnBackendGetAttribute", cudnnBackendGetAttribute);
  find("cudnnBackendFinalize", cudnnBackendFinalize);
  find("cudnnBackendExecute", cudnnBackendExecute);
  return missing.empty() ? Verdict::yes() : Verdict::no("'" + file.name() + "' lacks " + missing);
}

void CudnnLibrary::check(cudnn::Status result, const std::string& what) const {
  if (result == cudnn::kSuccess) return;
  char words[256] = "";
  cudnnGetLastErrorString(words, sizeof words);
  std::string message = "cudnn: " + what + ": " + cudnnGetErrorString(result);
  if (words[0] != '\0') message += std::string(", ") + words;
  for (char& c : message) c = c == '\n' ? ' ' : c;
  if (result == cudnn::kHostAllocation || result == cudnn::kDeviceAllocation) {
    throw OutOfMemory(message);
  }
  if (result >= cudnn::kNotSupported && result < cudnn::kInternalError) throw Unsupported(message);
  throw Error(message);
}

}  // namespace dfa::bench
