#include "bench/cudnn_peer.h"

#include "base/env.h"
#include "bench/cudnn_graph.h"

namespace dfa::bench {
namespace {

class CudnnImplementation final : public Implementation {
 public:
  CudnnImplementation(const CudnnLibrary& library, cudnn::Handle handle, const Backend& backend,
                      measure::ProblemBuffers& buffers, int calls)
      : forward_(library, handle, buffers.problem()),
        backend_(backend),
        buffers_(buffers),
        calls_(calls) {
    plans_.forward = Plan{.problem = buffers.problem(),
                          .backend = backend.name(),
                          .workspace_bytes = forward_.workspace_bytes()};
    run(1);
  }

  void run(int times) override {
    queue(times * calls_);
    backend_.device().synchronize({});
  }

  double time_s() override {
    return backend_.device().time_s([this] { queue(calls_); }, {});
  }

  measure::MemoryGrowth growth() override {
    return {static_cast<std::int64_t>(forward_.workspace_bytes()), ""};
  }

  CheckReport check(const CheckOptions& options) override {
    return buffers_.check(plans_, options, [this] { run(1); });
  }

 private:
  void queue(int calls) {
    buffers_.reserve_workspace(forward_.workspace_bytes());
    const ForwardArgs args = buffers_.forward_args();
    for (int i = 0; i < calls; ++i) forward_.run(args);
  }

  CudnnForward forward_;
  const Backend& backend_;
  measure::ProblemBuffers& buffers_;
  measure::PassPlans plans_;
  int calls_;
};

}  // namespace

CudnnPeer::CudnnPeer(const Backend& backend)
    : backend_(backend), library_(CudnnLibrary::default_names()) {
  if (backend.device().identity().pci_id.empty()) {
    throw Unsupported("cudnn: runs on a GPU, not on backend " + backend.name());
  }
  if (env("DFA_CUDA_DEVICE") != "0" && env("DFA_CUDA_DEVICE") != "current") {
    throw Unsupported("cudnn: DFA_CUDA_DEVICE=" + env("DFA_CUDA_DEVICE") +
                      "; accepted: 0, the device that cuDNN takes");
  }
  if (!library_.status) throw Unsupported(library_.status.reason);
  library_.check(library_.cudnnCreate(&handle_), "cudnnCreate");
}

CudnnPeer::~CudnnPeer() {
  if (handle_ != nullptr) library_.cudnnDestroy(handle_);
}

std::unique_ptr<Implementation> CudnnPeer::implementation(measure::ProblemBuffers& buffers,
                                                          Launch launch, int calls) {
  if (launch == Launch::graph) throw Unsupported("cudnn: calls of it are not recorded as graphs");
  return std::make_unique<CudnnImplementation>(library_, handle_, backend_, buffers, calls);
}

}  // namespace dfa::bench
