#pragma once

#include <functional>

#include "gpu/stream.h"

struct CUgraphExec_st;

namespace dfa::gpu {

// Work recorded once and replayed with one call.
class Graph {
 public:
  // Records what `work` queues on the stream, which must be one of our own (the legacy default
  // stream cannot be recorded); nothing of it runs now. When `work` throws, the recording ends and
  // the stream is as before. Kernel arguments are those of the recording; memory must stay.
  static Graph capture(const Stream& stream, const std::function<void()>& work);

  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  void launch(const Stream& stream) const;
  const Device& device() const { return *device_; }

 private:
  Graph(const Device& device, CUgraphExec_st* handle) : device_(&device), handle_(handle) {}

  const Device* device_;
  CUgraphExec_st* handle_ = nullptr;
};

}  // namespace dfa::gpu
