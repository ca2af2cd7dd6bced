#pragma once

#include <memory>
#include <string>

#include "bench/cudnn_library.h"
#include "bench/implementation.h"
#include "bench/suites.h"
#include "contract/backend.h"
#include "measure/problem_buffers.h"

namespace dfa::bench {

// cuDNN's attention beside ours, called from here through its graph interface: on the very tensors,
// timed by the same events on the same stream.
class CudnnPeer {
 public:
  static constexpr const char* kAlgorithm = "cudnn";

  // Throws Unsupported where there is no cuDNN 9, or where the backend's tensors are not in the
  // memory of the first GPU, where cuDNN would look for them.
  explicit CudnnPeer(const Backend& backend);
  ~CudnnPeer();

  std::string version() const { return library_.version; }

  // The buffers must outlive it. Throws Unsupported with cuDNN's words.
  std::unique_ptr<Implementation> implementation(measure::ProblemBuffers& buffers, Launch launch,
                                                 int calls);

 private:
  const Backend& backend_;
  CudnnLibrary library_;
  cudnn::Handle handle_ = nullptr;
};

}  // namespace dfa::bench
