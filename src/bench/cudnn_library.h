#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/shared_library.h"
#include "dfa/error.h"

namespace dfa::bench {

// Our own declarations of what we call of cuDNN 9's graph interface (cudnn_graph.h): the header is
// not needed to build.
namespace cudnn {

using Status = int;
using Handle = void*;
using Descriptor = void*;

inline constexpr Status kSuccess = 0, kNotSupported = 3000, kInternalError = 4000,
                        kHostAllocation = 4003, kDeviceAllocation = 4004;

// cudnnDataType_t
inline constexpr int kFloat32 = 0, kFloat16 = 2, kInt32 = 4, kBfloat16 = 9, kBoolean = 11;

// cudnnBackendDescriptorType_t
inline constexpr int kPointwise = 0, kEngineConfig = 3, kEngineHeuristic = 4, kExecutionPlan = 5,
                     kPointwiseOperation = 13, kOperationGraph = 15, kVariantPack = 16,
                     kTensor = 17, kMatmul = 18, kMatmulOperation = 19, kReduction = 21,
                     kReductionOperation = 22;

// cudnnBackendAttributeType_t
inline constexpr int kOfHandle = 0, kOfDataType = 1, kOfBoolean = 2, kOfInt64 = 3, kOfPointer = 6,
                     kOfHeuristic = 8, kOfPointwiseMode = 14, kOfDescriptor = 15,
                     kOfReductionMode = 18;

// cudnnPointwiseMode_t, cudnnReduceTensorOp_t
inline constexpr int kAdd = 0, kMultiply = 1, kDivide = 6, kSubtract = 9, kExp = 13, kLog = 15,
                     kGreaterEqual = 303, kIndex = 501, kSelect = 601;
inline constexpr int kReduceAdd = 0, kReduceMax = 3;

// cudnnBackendAttributeName_t
inline constexpr int kPointwiseMode = 0, kPointwisePrecision = 1, kPointwiseAxis = 9;
inline constexpr int kHeuristicMode = 200, kHeuristicGraph = 201, kHeuristicResults = 202;
inline constexpr int kPlanHandle = 400, kPlanConfig = 401, kPlanWorkspace = 402;
inline constexpr int kPointwiseOf = 750, kPointwiseX = 751, kPointwiseB = 752, kPointwiseY = 753,
                     kPointwiseT = 758;
inline constexpr int kGraphHandle = 800, kGraphOperations = 801;
inline constexpr int kTensorAlignment = 900, kTensorType = 901, kTensorSizes = 902,
                     kTensorStrides = 903, kTensorId = 906, kTensorVirtual = 907,
                     kTensorByValue = 908;
inline constexpr int kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003;
inline constexpr int kMatmulPrecision = 1500, kMatmulA = 1520, kMatmulB = 1521, kMatmulC = 1522,
                     kMatmulOf = 1523;
inline constexpr int kReductionMode = 1600, kReductionPrecision = 1601, kReductionX = 1610,
                     kReductionY = 1611, kReductionOf = 1612;
inline constexpr int kHeuristicA = 3;  // cudnnBackendHeurMode_t

}  // namespace cudnn

// cuDNN's functions, loaded at run time.
struct CudnnLibrary {
  static std::vector<std::string> default_names();  // DFA_CUDNN, or base/nvidia_library.h

  explicit CudnnLibrary(const std::vector<std::string>& names);

  // Throws OutOfMemory, Unsupported or Error, the message beginning with `what`.
  void check(cudnn::Status result, const std::string& what) const;

  std::vector<SharedLibrary> companions;  // what cuDNN opens by name alone
  SharedLibrary file;
  Verdict status;
  std::string version;  // "cuDNN 9.19.0"

  std::size_t (*cudnnGetVersion)() = nullptr;
  const char* (*cudnnGetErrorString)(cudnn::Status) = nullptr;
  void (*cudnnGetLastErrorString)(char* message, std::size_t size) = nullptr;
  cudnn::Status (*cudnnCreate)(cudnn::Handle*) = nullptr;
  cudnn::Status (*cudnnDestroy)(cudnn::Handle) = nullptr;
  cudnn::Status (*cudnnBackendCreateDescriptor)(int type, cudnn::Descriptor*) = nullptr;
  cudnn::Status (*cudnnBackendDestroyDescriptor)(cudnn::Descriptor) = nullptr;
  cudnn::Status (*cudnnBackendSetAttribute)(cudnn::Descriptor, int name, int type,
                                            std::int64_t count, const void*) = nullptr;
  cudnn::Status (*cudnnBackendGetAttribute)(cudnn::Descriptor, int name, int type,
                                            std::int64_t wanted, std::int64_t* count,
                                            void*) = nullptr;
  cudnn::Status (*cudnnBackendFinalize)(cudnn::Descriptor) = nullptr;
  cudnn::Status (*cudnnBackendExecute)(cudnn::Handle, cudnn::Descriptor plan,
                                       cudnn::Descriptor pack) = nullptr;

 private:
  Verdict resolve();
};

}  // namespace dfa::bench
