#include "gpu/cublaslt_library.h"

#include <type_traits>

#include "base/nvidia_library.h"

namespace dfa::gpu {

std::vector<std::string> CublasLtLibrary::default_names() {
  return nvidia_library_names("DFA_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12"});
}

CublasLtLibrary::CublasLtLibrary(const std::vector<std::string>& names)
    : file(SharedLibrary::open_first(names)) {
  status = resolve();
  if (!status) return;
  const std::size_t number = cublasLtGetVersion();  // 130100 is 13.1.0
  version = "cublasLt " + std::to_string(number / 10000) + "." +
            std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
}

Verdict CublasLtLibrary::resolve() {
  if (!file.is_open()) {
    return Verdict::no("no matrix products (cuBLASLt): " + file.reason() +
                       "; DFA_CUBLASLT may name the library, PyPI nvidia-cublas has it");
  }
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* const address = file.symbol(name);
    if (address == nullptr && missing.empty()) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find("cublasLtCreate", cublasLtCreate);
  find("cublasLtGetVersion", cublasLtGetVersion);
  find("cublasLtGetStatusName", cublasLtGetStatusName);
  find("cublasLtMatmulDescCreate", cublasLtMatmulDescCreate);
  find("cublasLtMatmulDescDestroy", cublasLtMatmulDescDestroy);
  find("cublasLtMatmulDescSetAttribute", cublasLtMatmulDescSetAttribute);
  find("cublasLtMatrixLayoutCreate", cublasLtMatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", cublasLtMatrixLayoutDestroy);
  find("cublasLtMatrixLayoutSetAttribute", cublasLtMatrixLayoutSetAttribute);
  find("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate);
  find("cublasLtMatmulPreferenceDestroy", cublasLtMatmulPreferenceDestroy);
  find("cublasLtMatmulPreferenceSetAttribute", cublasLtMatmulPreferenceSetAttribute);
  find("cublasLtMatmulAlgoGetHeuristic", cublasLtMatmulAlgoGetHeuristic);
  find("cublasLtMatmul", cublasLtMatmul);
  return missing.empty() ? Verdict::yes() : Verdict::no("'" + file.name() + "' lacks " + missing);
}

void CublasLtLibrary::check(lt::Status result, const std::string& what) const {
  if (result == lt::kSuccess) return;
  const std::string message = "cublasLt: " + what + ": " + cublasLtGetStatusName(result);
  if (result == lt::kAllocFailed) throw OutOfMemory(message);
  if (result == lt::kNotSupported || result == lt::kArchMismatch) throw Unsupported(message);
  throw Error(message);
}

// Never destroyed: products may outlive static objects.
const CublasLtLibrary& cublaslt() {
  static const auto* const library = new CublasLtLibrary(CublasLtLibrary::default_names());
  return *library;
}

}  // namespace dfa::gpu
