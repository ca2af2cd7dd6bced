#include "cuda/device.h"

#include <utility>

#include "cuda/chosen_device.h"
#include "gpu/buffer.h"
#include "gpu/event.h"
#include "gpu/graph.h"

namespace dfa::cuda {
namespace {

class GraphRecording final : public Recording {
 public:
  explicit GraphRecording(gpu::Graph graph) : graph_(std::move(graph)) {}

  void replay(Queue queue) const override {
    graph_.launch(gpu::Stream::foreign(graph_.device(), queue.stream));
  }

 private:
  gpu::Graph graph_;
};

class CudaDevice final : public Device {
 public:
  GpuIdentity identity() const override {
    const gpu::DeviceFacts& facts = chosen_device().facts();
    return {.pci_id = facts.pci_id, .name = facts.name, .sm_count = facts.sm_count};
  }

  void* allocate(std::size_t bytes) const override { return gpu::allocate(chosen_device(), bytes); }
  void release(void* pointer) const override { gpu::release(chosen_device(), pointer); }

  void copy_in(void* to, const void* host, std::size_t bytes) const override {
    const gpu::Stream stream = gpu::Stream::foreign(chosen_device(), nullptr);
    gpu::copy_in(stream, to, host, bytes);
    stream.synchronize();
  }

  void copy_out(void* host, const void* from, std::size_t bytes) const override {
    const gpu::Stream stream = gpu::Stream::foreign(chosen_device(), nullptr);
    gpu::copy_out(stream, host, from, bytes);
    stream.synchronize();
  }

  std::optional<std::int64_t> free_bytes() const override {
    return static_cast<std::int64_t>(chosen_device().memory().free_bytes);
  }

  std::optional<std::int64_t> growth_bytes(const std::function<void()>& work) const override {
    return static_cast<std::int64_t>(gpu::growth(work));
  }

  std::unique_ptr<Recording> record(const std::function<void(Queue)>& work) const override {
    const gpu::Stream stream(chosen_device());
    return std::make_unique<GraphRecording>(
        gpu::Graph::capture(stream, [&] { work({.stream = stream.handle()}); }));
  }

  double time_s(const std::function<void()>& work, Queue queue) const override {
    const gpu::Stream stream = gpu::Stream::foreign(chosen_device(), queue.stream);
    gpu::Event start(chosen_device()), stop(chosen_device());
    start.record(stream);
    work();
    stop.record(stream);
    stream.synchronize();
    return elapsed_ms(start, stop) * 1e-3;
  }

  void synchronize(Queue queue) const override {
    gpu::Stream::foreign(chosen_device(), queue.stream).synchronize();
  }
};

}  // namespace

const Device& cuda_device() {
  static const CudaDevice device;
  return device;
}

}  // namespace dfa::cuda
