#include "gpu/fake_cublaslt.h"

#include <cstring>
#include <map>

#include "base/element.h"

namespace {

using namespace dfa::gpu::lt;

dfa::testing::FakeCublasLt state;

struct Object {
  int type = 0;
  std::uint64_t rows = 0, cols = 0;
  std::int64_t ld = 0;
  std::map<int, std::uint64_t> attributes{};

  std::uint64_t get(int attribute) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? 0 : found->second;
  }
};

Object& object(Descriptor descriptor) { return *static_cast<Object*>(descriptor); }

Status make(Descriptor* out, Object made) {
  *out = new Object(made);
  ++state.descriptors;
  return kSuccess;
}

Status destroy(Descriptor descriptor) {
  delete &object(descriptor);
  --state.descriptors;
  return kSuccess;
}

Status set(Descriptor descriptor, int attribute, const void* value, std::size_t bytes,
           std::size_t right_bytes) {
  if (bytes != right_bytes) return 7;  // invalid value
  std::uint64_t all = 0;
  std::memcpy(&all, value, bytes);
  object(descriptor).attributes[attribute] = all;
  return kSuccess;
}

dfa::DType element_of(const Object& layout) {
  return layout.type == kFloat16    ? dfa::DType::fp16
         : layout.type == kBfloat16 ? dfa::DType::bf16
                                    : dfa::DType::fp32;
}

// Of one matrix stored by columns.
struct Reader {
  const void* data;
  const Object& layout;
  std::int64_t batch;
  bool transposed;

  double at(std::uint64_t row, std::uint64_t col) const {
    if (transposed) std::swap(row, col);
    const auto stride = static_cast<std::int64_t>(layout.get(kBatchStride));
    return dfa::load_element(data, element_of(layout),
                             batch * stride + static_cast<std::int64_t>(col) * layout.ld +
                                 static_cast<std::int64_t>(row));
  }
};

}  // namespace

extern "C" {

dfa::testing::FakeCublasLt* fake_cublaslt() { return &state; }

Status cublasLtCreate(Handle* handle) {
  ++state.handles;
  *handle = &state;
  return kSuccess;
}

std::size_t cublasLtGetVersion() { return 130102; }

const char* cublasLtGetStatusName(Status status) {
  return status == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_FAKE";
}

Status cublasLtMatmulDescCreate(Descriptor* out, int compute, int scale) {
  return scale == kFloat32 ? make(out, {.type = compute}) : kNotSupported;
}
Status cublasLtMatrixLayoutCreate(Descriptor* out, int type, std::uint64_t rows, std::uint64_t cols,
                                  std::int64_t ld) {
  return make(out, {.type = type, .rows = rows, .cols = cols, .ld = ld});
}
Status cublasLtMatmulPreferenceCreate(Descriptor* out) { return make(out, {}); }

Status cublasLtMatmulDescDestroy(Descriptor one) { return destroy(one); }
Status cublasLtMatrixLayoutDestroy(Descriptor one) { return destroy(one); }
Status cublasLtMatmulPreferenceDestroy(Descriptor one) { return destroy(one); }

Status cublasLtMatmulDescSetAttribute(Descriptor one, int attribute, const void* value,
                                      std::size_t bytes) {
  return set(one, attribute, value, bytes, 4);
}
Status cublasLtMatrixLayoutSetAttribute(Descriptor one, int attribute, const void* value,
                                        std::size_t bytes) {
  return set(one, attribute, value, bytes, attribute == kBatchStride ? 8 : 4);
}
Status cublasLtMatmulPreferenceSetAttribute(Descriptor one, int attribute, const void* value,
                                            std::size_t bytes) {
  return set(one, attribute, value, bytes, attribute == kMaxWorkspaceBytes ? 8 : 4);
}

Status cublasLtMatmulAlgoGetHeuristic(Handle, Descriptor, Descriptor, Descriptor, Descriptor,
                                      Descriptor, Descriptor preference, int wanted,
                                      Heuristic* results, int* found) {
  state.max_workspace_bytes = object(preference).get(kMaxWorkspaceBytes);
  state.alignments.clear();
  for (const int which : kLeastAlignment) {
    state.alignments.push_back(static_cast<std::uint32_t>(object(preference).get(which)));
  }
  *found = state.has_kernels && wanted > 0 ? 1 : 0;
  results[0] = {};
  results[0].algorithm.data[0] = 77;
  return kSuccess;
}

Status cublasLtMatmul(Handle, Descriptor operation, const void* alpha, const void* a, Descriptor la,
                      const void* b, Descriptor lb, const void* beta, const void* c, Descriptor lc,
                      void* d, Descriptor ld, const Algorithm* algorithm, void* workspace,
                      std::size_t workspace_bytes, CUstream_st* stream) {
  if (state.matmul_status != kSuccess) return state.matmul_status;
  const Object &op = object(operation), &out = object(ld);
  const bool transpose_a = op.get(kTransposeA) == kTransposed;
  const bool transpose_b = op.get(kTransposeB) == kTransposed;
  const std::uint64_t inner = transpose_a ? object(la).rows : object(la).cols;
  const std::uint64_t inner_b = transpose_b ? object(lb).cols : object(lb).rows;
  const bool fits = inner == inner_b &&
                    out.rows == (transpose_a ? object(la).cols : object(la).rows) &&
                    out.cols == (transpose_b ? object(lb).rows : object(lb).cols);
  const float factor = *static_cast<const float*>(alpha);
  if (!fits || c != d || lc != ld || algorithm->data[0] != 77 ||
      *static_cast<const float*>(beta) != 0 || object(la).type != object(lb).type) {
    return 7;  // invalid value
  }
  for (const Descriptor one : {la, lb, ld}) {
    if (object(one).ld < static_cast<std::int64_t>(object(one).rows)) return 7;
    if (object(one).get(kBatchCount) != out.get(kBatchCount)) return 7;
  }
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(out.get(kBatchCount)); ++n) {
    const Reader left{a, object(la), n, transpose_a}, right{b, object(lb), n, transpose_b};
    for (std::uint64_t col = 0; col < out.cols; ++col) {
      for (std::uint64_t row = 0; row < out.rows; ++row) {
        double sum = 0;
        for (std::uint64_t k = 0; k < inner; ++k) sum += left.at(row, k) * right.at(k, col);
        dfa::store_element(d, element_of(out),
                           n * static_cast<std::int64_t>(out.get(kBatchStride)) +
                               static_cast<std::int64_t>(col) * out.ld +
                               static_cast<std::int64_t>(row),
                           static_cast<float>(factor * sum));
      }
    }
  }
  ++state.products;
  state.compute = op.type;
  state.workspace = workspace;
  state.workspace_bytes = workspace_bytes;
  state.stream = stream;
  return kSuccess;
}

}  // extern "C"
