#include "gpu/graph.h"

#include <utility>

#include "gpu/driver.h"

namespace dfa::gpu {
namespace {

// A recording that ends with the block, also when the work throws.
class Recording {
 public:
  explicit Recording(const Stream& stream) : stream_(&stream) {
    check(driver().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
  }
  ~Recording() {
    CUgraph graph = nullptr;
    if (stream_ != nullptr) driver().cuStreamEndCapture(stream_->handle(), &graph);
    if (graph != nullptr) driver().cuGraphDestroy(graph);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  CUgraphExec finish() {
    CUgraph graph = nullptr;
    check(driver().cuStreamEndCapture(std::exchange(stream_, nullptr)->handle(), &graph),
          "cuStreamEndCapture");
    CUgraphExec executable = nullptr;
    const CUresult result = driver().cuGraphInstantiateWithFlags(&executable, graph, 0);
    driver().cuGraphDestroy(graph);
    check(result, "cuGraphInstantiateWithFlags");
    return executable;
  }

 private:
  const Stream* stream_;
};

}  // namespace

Graph Graph::capture(const Stream& stream, const std::function<void()>& work) {
  const Scope scope(stream.device());
  Recording recording(stream);
  work();
  return Graph(stream.device(), recording.finish());
}

Graph::~Graph() {
  if (handle_ == nullptr) return;
  try {
    const Scope scope(*device_);
    driver().cuGraphExecDestroy(handle_);
  } catch (const Error&) {  // the context is lost, and the graph with it
  }
}

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Graph::launch(const Stream& stream) const {
  const Scope scope(*device_);
  check(driver().cuGraphLaunch(handle_, stream.handle()), "cuGraphLaunch");
}

}  // namespace dfa::gpu
