#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/cublaslt_library.h"

// A cuBLASLt without a GPU: it multiplies on the host, as the descriptions say and in their own
// terms (columns first). Loaded as the real one is, by the name in DFA_CUBLASLT.
namespace dfa::testing {

struct FakeCublasLt {
  // How it answers; tests change these.
  bool has_kernels = true;
  gpu::lt::Status matmul_status = gpu::lt::kSuccess;

  // What it has seen.
  int handles = 0;
  int descriptors = 0;  // alive
  int products = 0;
  int compute = 0;  // of the latest product
  std::uint64_t max_workspace_bytes = 0;
  std::vector<std::uint32_t> alignments{};  // that the latest preference promised
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  CUstream_st* stream = nullptr;
};

}  // namespace dfa::testing
