#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dfa/dtype.h"
#include "gpu/device.h"
#include "gpu/stream.h"

namespace dfa::gpu {

// Matrices of one batch: rows of `cols` contiguous elements, `row_stride` elements apart. Every
// row, matrix and pointer begins at a multiple of kProductAlignment bytes.
struct Matrices {
  DType type = DType::fp32;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t row_stride = 1;
  std::int64_t stride = 0;  // elements from one matrix to the next
  bool transposed = false;  // as a factor

  friend constexpr bool operator==(const Matrices&, const Matrices&) = default;
};

inline constexpr std::size_t kProductAlignment = 16;

// out[n] = alpha left[n] right[n] for every n of the batch, summed in fp32. Factors are of one
// type; tf32 is stored as fp32 and must come rounded to 10 mantissa bits. fp32 is exact fp32.
struct ProductShape {
  Matrices left, right, out;
  std::int64_t batch = 1;

  friend constexpr bool operator==(const ProductShape&, const ProductShape&) = default;
};

// "fp16 16x [512x64] [512x64]^T -> fp32": for messages.
std::string to_text(const ProductShape& shape);

// Are there matrix products (cuBLASLt)? Never throws; the same answer every time.
Verdict products_available();

// "cublasLt 13.1.0, libcublasLt.so.13". Requires products_available().
std::string products_version();

// A product that is ready to run on a device: cuBLASLt's descriptions of it and the kernel that its
// heuristic chose. Immutable; the same bits at every run.
class Product {
 public:
  // At most `workspace_bytes` of device memory may be used by each run. Throws Unsupported where
  // there are no products or none of this shape.
  Product(const Device& device, const ProductShape& shape, std::size_t workspace_bytes);

  // Queues it. `workspace` holds what the constructor was told.
  void queue(const Stream& stream, float alpha, const void* left, const void* right, void* out,
             void* workspace) const;

 private:
  struct PassPlans;
  std::shared_ptr<const PassPlans> prepared_;
};

}  // namespace dfa::gpu
