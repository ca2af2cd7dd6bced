#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/shared_library.h"
#include "dfa/error.h"

namespace dfa::cuda {

// Our own declarations of what we call of nvrtc.h: the header is not needed to build.
using NvrtcResult = int;
using NvrtcProgram = void*;

// NVRTC's functions, loaded at run time.
struct NvrtcLibrary {
  static constexpr NvrtcResult kSuccess = 0;

  // Where it is looked for when no name is given; see cuda/nvrtc.h.
  static std::vector<std::string> default_names();

  explicit NvrtcLibrary(const std::vector<std::string>& names);

  void check(NvrtcResult result, const char* call) const;  // throws Error

  SharedLibrary file;
  std::vector<SharedLibrary> companions;
  Verdict status;
  std::string version;             // "nvrtc 13.0"
  std::vector<int> architectures;  // 75, 80, …

  NvrtcResult (*nvrtcVersion)(int*, int*) = nullptr;
  const char* (*nvrtcGetErrorString)(NvrtcResult) = nullptr;
  NvrtcResult (*nvrtcGetNumSupportedArchs)(int*) = nullptr;
  NvrtcResult (*nvrtcGetSupportedArchs)(int*) = nullptr;
  NvrtcResult (*nvrtcCreateProgram)(NvrtcProgram*, const char* source, const char* name,
                                    int headers, const char* const* texts,
                                    const char* const* names) = nullptr;
  NvrtcResult (*nvrtcDestroyProgram)(NvrtcProgram*) = nullptr;
  NvrtcResult (*nvrtcAddNameExpression)(NvrtcProgram, const char*) = nullptr;
  NvrtcResult (*nvrtcCompileProgram)(NvrtcProgram, int, const char* const*) = nullptr;
  NvrtcResult (*nvrtcGetProgramLogSize)(NvrtcProgram, std::size_t*) = nullptr;
  NvrtcResult (*nvrtcGetProgramLog)(NvrtcProgram, char*) = nullptr;
  NvrtcResult (*nvrtcGetLoweredName)(NvrtcProgram, const char*, const char**) = nullptr;
  NvrtcResult (*nvrtcGetCUBINSize)(NvrtcProgram, std::size_t*) = nullptr;
  NvrtcResult (*nvrtcGetCUBIN)(NvrtcProgram, char*) = nullptr;

 private:
  Verdict resolve();
  Verdict read_facts();
};

}  // namespace dfa::cuda
