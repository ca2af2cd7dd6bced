#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dfa/attention.h"

namespace dfa {

// The GPU that calls run on. An empty pci_id: none, they run on the host.
struct GpuIdentity {
  std::string pci_id{};  // "0000:3b:00.0", lower case
  std::string name{};
  int sm_count = 0;
};

// Work that was recorded once and is replayed with one call: a CUDA graph.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay(Queue queue) const = 0;
};

// Where a backend's calls run: its memory, its queues and their clock.
class Device {
 public:
  virtual ~Device() = default;

  // By which its sensors are found.
  virtual GpuIdentity identity() const { return {}; }

  // Memory the pointers in a call's arguments must come from. allocate() is 64-byte aligned and
  // throws OutOfMemory; copies are complete when they return.
  virtual void* allocate(std::size_t bytes) const = 0;
  virtual void release(void* pointer) const = 0;
  virtual void copy_in(void* device, const void* host, std::size_t bytes) const = 0;
  virtual void copy_out(void* host, const void* device, std::size_t bytes) const = 0;

  // Bytes that allocate() can still give, where that is not the host's memory.
  virtual std::optional<std::int64_t> free_bytes() const { return std::nullopt; }

  // Runs `work`: the most bytes it held at once on top of those held before, by allocate() and for
  // the backend itself. Empty, and nothing ran, where that is not counted.
  virtual std::optional<std::int64_t> growth_bytes(const std::function<void()>&) const {
    return std::nullopt;
  }

  // Records what `work` queues on the queue that it is given; nothing of it runs. It must have run
  // once before, so that kernels are loaded, and needs workspaces of its own. Pointers are those of
  // the recording.
  virtual std::unique_ptr<Recording> record(const std::function<void(Queue)>& work) const = 0;

  // Queues `work` and returns when it is done: its seconds, by events on the queue where the device
  // has its own clock, else by the host's.
  virtual double time_s(const std::function<void()>& work, Queue queue) const = 0;

  // Waits for the queue; rethrows asynchronous errors.
  virtual void synchronize(Queue queue) const = 0;
};

}  // namespace dfa
