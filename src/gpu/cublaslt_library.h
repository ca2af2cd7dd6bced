#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/shared_library.h"
#include "dfa/error.h"

struct CUstream_st;

namespace dfa::gpu {

// Our own declarations of what we call of cublasLt.h: the header is not needed to build.
namespace lt {

using Status = int;
using Handle = void*;
using Descriptor = void*;  // of an operation, a layout or preferences

inline constexpr Status kSuccess = 0, kNotInitialized = 1, kAllocFailed = 3, kArchMismatch = 8,
                        kNotSupported = 15;

// cudaDataType
inline constexpr int kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14;
// cublasComputeType_t: sums in fp32, of exact products or of operands cut to tf32.
inline constexpr int kCompute32 = 68, kComputeTf32 = 77;
// cublasOperation_t
inline constexpr std::int32_t kAsIs = 0, kTransposed = 1;
// Attributes of operations, layouts and preferences, with the type that each takes.
inline constexpr int kTransposeA = 3, kTransposeB = 4;   // int32
inline constexpr int kBatchCount = 5, kBatchStride = 6;  // int32, int64 elements
inline constexpr int kMaxWorkspaceBytes = 1;             // uint64
inline constexpr int kLeastAlignment[] = {5, 6, 7, 8};   // uint32 bytes: A, B, C, D

struct Algorithm {
  std::uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

}  // namespace lt

// cuBLASLt's functions, loaded at run time.
struct CublasLtLibrary {
  static std::vector<std::string> default_names();  // DFA_CUBLASLT, or base/nvidia_library.h

  explicit CublasLtLibrary(const std::vector<std::string>& names);

  // Throws OutOfMemory, Unsupported or Error, the message beginning with `what`.
  void check(lt::Status result, const std::string& what) const;

  SharedLibrary file;
  Verdict status;
  std::string version;  // "cublasLt 13.1.0"

  lt::Status (*cublasLtCreate)(lt::Handle*) = nullptr;
  std::size_t (*cublasLtGetVersion)() = nullptr;
  const char* (*cublasLtGetStatusName)(lt::Status) = nullptr;
  lt::Status (*cublasLtMatmulDescCreate)(lt::Descriptor*, int compute, int scale) = nullptr;
  lt::Status (*cublasLtMatmulDescDestroy)(lt::Descriptor) = nullptr;
  lt::Status (*cublasLtMatmulDescSetAttribute)(lt::Descriptor, int, const void*,
                                               std::size_t) = nullptr;
  lt::Status (*cublasLtMatrixLayoutCreate)(lt::Descriptor*, int type, std::uint64_t rows,
                                           std::uint64_t cols, std::int64_t ld) = nullptr;
  lt::Status (*cublasLtMatrixLayoutDestroy)(lt::Descriptor) = nullptr;
  lt::Status (*cublasLtMatrixLayoutSetAttribute)(lt::Descriptor, int, const void*,
                                                 std::size_t) = nullptr;
  lt::Status (*cublasLtMatmulPreferenceCreate)(lt::Descriptor*) = nullptr;
  lt::Status (*cublasLtMatmulPreferenceDestroy)(lt::Descriptor) = nullptr;
  lt::Status (*cublasLtMatmulPreferenceSetAttribute)(lt::Descriptor, int, const void*,
                                                     std::size_t) = nullptr;
  lt::Status (*cublasLtMatmulAlgoGetHeuristic)(lt::Handle, lt::Descriptor operation,
                                               lt::Descriptor a, lt::Descriptor b, lt::Descriptor c,
                                               lt::Descriptor d, lt::Descriptor preference,
                                               int wanted, lt::Heuristic*, int* found) = nullptr;
  lt::Status (*cublasLtMatmul)(lt::Handle, lt::Descriptor operation, const void* alpha,
                               const void* a, lt::Descriptor, const void* b, lt::Descriptor,
                               const void* beta, const void* c, lt::Descriptor, void* d,
                               lt::Descriptor, const lt::Algorithm*, void* workspace,
                               std::size_t workspace_bytes, CUstream_st*) = nullptr;

 private:
  Verdict resolve();
};

// The process's library.
const CublasLtLibrary& cublaslt();

}  // namespace dfa::gpu
