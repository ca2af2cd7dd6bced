#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/cudnn_library.h"
#include "dfa/attention.h"

namespace dfa::bench {

// Owner of a descriptor of cuDNN's.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnLibrary& library, int type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : library_(other.library_), handle_(std::exchange(other.handle_, nullptr)) {}
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;

  cudnn::Descriptor handle() const { return handle_; }
  const CudnnDescriptor& finalize(const char* what) const;

  template <typename T>
  void set(int name, int type, const T& value) const {
    set_all(name, type, 1, &value);
  }
  template <typename T>
  void set(int name, int type, const std::vector<T>& values) const {
    set_all(name, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(int name, const CudnnDescriptor& of) const {
    set(name, cudnn::kOfDescriptor, of.handle_);
  }

 private:
  void set_all(int name, int type, std::int64_t count, const void* values) const;

  const CudnnLibrary& library_;
  cudnn::Descriptor handle_ = nullptr;
};

// The forward of a problem as a graph of cuDNN's operations, which it runs as one kernel: scores,
// scale, mask, softmax with its log-sum-exp, values. Throws Unsupported for what the graph does not
// say (masks other than causal with sq = sk, backward, 32-bit elements) and where cuDNN has no
// engine, with its words.
class CudnnForward {
 public:
  CudnnForward(const CudnnLibrary& library, cudnn::Handle handle, const Problem& problem);

  std::size_t workspace_bytes() const { return workspace_bytes_; }

  // Queues on the handle's stream. The workspace has workspace_bytes().
  void run(const ForwardArgs& args) const;

 private:
  // A tensor of the graph, with its place among the pointers where it is none between operations.
  using Tensor = std::shared_ptr<const CudnnDescriptor>;
  using Sizes = std::vector<std::int64_t>;

  Tensor tensor(int type, const Sizes& sizes, const Sizes& strides, bool is_virtual,
                bool by_value = false);
  Tensor between(int type, bool row_values = false);  // scores, or one value a row
  Tensor input(const Strides& strides, std::int64_t heads, std::int64_t rows, std::int64_t columns,
               bool transposed = false);
  Tensor scalar(float value);
  Tensor pointwise(int mode, const Tensor& x, const Tensor& b, Tensor y, const Tensor& t = nullptr,
                   int precision = cudnn::kFloat32, std::int64_t axis = -1);
  Tensor reduce(int mode, const Tensor& x);
  void multiply(const Tensor& a, const Tensor& b, const Tensor& c);
  Tensor hide_later_keys(const Tensor& scores);
  Tensor softmax(const Tensor& scores, const Tensor& lse);
  void make_plan();

  const CudnnLibrary& library_;
  cudnn::Handle handle_;
  Problem problem_;
  int element_;
  std::int64_t next_id_ = 1;
  std::vector<Tensor> kept_;
  std::vector<std::unique_ptr<CudnnDescriptor>> operations_;
  std::unique_ptr<CudnnDescriptor> graph_, plan_;
  std::vector<std::pair<std::int64_t, std::unique_ptr<float>>> scalars_;
  std::int64_t q_id_, k_id_, v_id_, o_id_, lse_id_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace dfa::bench
