#include "gpu/product.h"

#include <map>
#include <mutex>

#include "gpu/cublaslt_library.h"

namespace dfa::gpu {
namespace {

// cuBLASLt's handle of a device, made when first asked for. Handles stay for the life of the
// process.
lt::Handle library_of(const Device& device) {
  static std::mutex mutex;
  static auto* const handles = new std::map<int, lt::Handle>;
  const std::lock_guard lock(mutex);
  lt::Handle& handle = (*handles)[device.facts().index];
  if (handle == nullptr) {
    const Scope scope(device);
    cublaslt().check(cublaslt().cublasLtCreate(&handle), "cublasLtCreate");
  }
  return handle;
}

int type_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return lt::kFloat32;
    case DType::fp16: return lt::kFloat16;
    case DType::bf16: return lt::kBfloat16;
    case DType::e4m3: break;
  }
  throw Unsupported(std::string("products of ") + name_of(type) + " are not built");
}

// An object of the library with its destructor.
using Owned = std::unique_ptr<void, lt::Status (*)(lt::Descriptor)>;

template <class Value>
void set(lt::Status (*function)(lt::Descriptor, int, const void*, std::size_t), const Owned& object,
         int attribute, Value value) {
  cublaslt().check(function(object.get(), attribute, &value, sizeof value),
                   "attribute " + std::to_string(attribute));
}

// The library counts in columns, so that a matrix of ours is one of its own transposed: rows x cols
// become cols x rows, and (left right)^T = right^T left^T is asked of it.
Owned layout_of(const Matrices& m, std::int64_t batch) {
  const CublasLtLibrary& library = cublaslt();
  lt::Descriptor made = nullptr;
  library.check(
      library.cublasLtMatrixLayoutCreate(&made, type_of(m.type), static_cast<std::uint64_t>(m.cols),
                                         static_cast<std::uint64_t>(m.rows), m.row_stride),
      "cublasLtMatrixLayoutCreate");
  Owned layout(made, library.cublasLtMatrixLayoutDestroy);
  const auto set_layout = library.cublasLtMatrixLayoutSetAttribute;
  set(set_layout, layout, lt::kBatchCount, static_cast<std::int32_t>(batch));
  set(set_layout, layout, lt::kBatchStride, m.stride);
  return layout;
}

Owned operation_of(const ProductShape& shape) {
  const CublasLtLibrary& library = cublaslt();
  const int compute = shape.left.type == DType::tf32 ? lt::kComputeTf32 : lt::kCompute32;
  lt::Descriptor made = nullptr;
  library.check(library.cublasLtMatmulDescCreate(&made, compute, lt::kFloat32),
                "cublasLtMatmulDescCreate");
  Owned operation(made, library.cublasLtMatmulDescDestroy);
  const auto set_operation = library.cublasLtMatmulDescSetAttribute;
  set(set_operation, operation, lt::kTransposeA,
      shape.right.transposed ? lt::kTransposed : lt::kAsIs);
  set(set_operation, operation, lt::kTransposeB,
      shape.left.transposed ? lt::kTransposed : lt::kAsIs);
  return operation;
}

Owned preference_of(std::size_t workspace_bytes) {
  const CublasLtLibrary& library = cublaslt();
  lt::Descriptor made = nullptr;
  library.check(library.cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Owned preference(made, library.cublasLtMatmulPreferenceDestroy);
  const auto set_preference = library.cublasLtMatmulPreferenceSetAttribute;
  set(set_preference, preference, lt::kMaxWorkspaceBytes, std::uint64_t{workspace_bytes});
  for (const int alignment : lt::kLeastAlignment) {
    set(set_preference, preference, alignment, std::uint32_t{kProductAlignment});
  }
  return preference;
}

const CublasLtLibrary& required_library() {
  if (!cublaslt().status) throw Unsupported(cublaslt().status.reason);
  return cublaslt();
}

std::string text_of(const Matrices& m) {
  return "[" + std::to_string(m.rows) + "x" + std::to_string(m.cols) + "]" +
         (m.transposed ? "^T" : "");
}

}  // namespace

std::string to_text(const ProductShape& shape) {
  return std::string(name_of(shape.left.type)) + " " + std::to_string(shape.batch) + "x " +
         text_of(shape.left) + " " + text_of(shape.right) + " -> " + name_of(shape.out.type);
}

Verdict products_available() { return cublaslt().status; }

std::string products_version() { return cublaslt().version + ", " + cublaslt().file.name(); }

struct Product::PassPlans {
  ProductShape shape;
  lt::Handle handle;
  Owned operation, left, right, out;
  std::size_t workspace_bytes;
  lt::Heuristic chosen{};
};

Product::Product(const Device& device, const ProductShape& shape, std::size_t workspace_bytes) {
  const CublasLtLibrary& library = required_library();
  auto prepared = std::make_shared<PassPlans>(PassPlans{
      shape, library_of(device), operation_of(shape), layout_of(shape.left, shape.batch),
      layout_of(shape.right, shape.batch), layout_of(shape.out, shape.batch), workspace_bytes});
  const Owned preference = preference_of(workspace_bytes);
  int found = 0;
  const Scope scope(device);
  library.check(
      library.cublasLtMatmulAlgoGetHeuristic(
          prepared->handle, prepared->operation.get(), prepared->right.get(), prepared->left.get(),
          prepared->out.get(), prepared->out.get(), preference.get(), 1, &prepared->chosen, &found),
      "no kernel for " + to_text(shape));
  if (found == 0) throw Unsupported("cublasLt: no kernel for " + to_text(shape));
  library.check(prepared->chosen.state, "no kernel for " + to_text(shape));
  prepared_ = std::move(prepared);
}

void Product::queue(const Stream& stream, float alpha, const void* left, const void* right,
                    void* out, void* workspace) const {
  const float beta = 0;
  const PassPlans& p = *prepared_;
  const Scope scope(stream.device());
  const lt::Status result =
      cublaslt().cublasLtMatmul(p.handle, p.operation.get(), &alpha, right, p.right.get(), left,
                                p.left.get(), &beta, out, p.out.get(), out, p.out.get(),
                                &p.chosen.algorithm, workspace, p.workspace_bytes, stream.handle());
  if (result != lt::kSuccess) cublaslt().check(result, to_text(p.shape));
}

}  // namespace dfa::gpu
