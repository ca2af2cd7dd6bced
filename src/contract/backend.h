#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dfa/attention.h"
#include "dfa/version.h"
#include "spec/limits.h"

namespace dfa {

// What the machine can do at most, measured: the roofs of a roofline. Zero: not measured.
struct Ceilings {
  int threads = 1;
  double fp32_flops = 0;  // per second, multiply-add counted as two
  double fp16_flops = 0;
  double bf16_flops = 0;
  double copy_bytes = 0;  // per second, read plus write, far beyond the caches
};

// The GPU that a backend's plans run on. An empty pci_id: none, they run on the host.
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

// Holds rows of o against attention in fp32 on the same inputs.
class RowsCheck {
 public:
  virtual ~RowsCheck() = default;
  // Of rows drawn by the seed, after all that is queued before: the largest difference of an
  // element; infinite where one is not finite and should be. Waits for it.
  virtual double error(const ForwardArgs& args, std::uint64_t seed, Queue queue) = 0;
};

// One way to run attention. A backend never prints and never falls back: it plans, then does
// exactly what the plan says. Thread-safe: a Plan may run from several threads at once, each with
// its own workspace.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual Verdict available() const = 0;

  // By which its sensors are found. Requires available().
  virtual GpuIdentity gpu_identity() const { return {}; }

  // What its kernels of a pass are made from: measurements with other ones tell nothing of these.
  virtual std::string kernels(Pass) const { return kVersion; }

  // What a plan needs to know of the machine. Throws where available() says no.
  virtual Limits limits() const = 0;

  // Can this backend run the problem with these options?
  virtual Verdict supports(const Problem& problem, const PlanOptions& options) const = 0;

  // Requires supports(). Throws InvalidArgument when options.config is malformed or illegal.
  virtual Plan plan(const Problem& problem, const PlanOptions& options) const = 0;

  // plan() of a problem that differs from that of a plan of this backend, which is current, in the
  // number of keys alone (a cache that grows), if the same configuration is selected for it.
  virtual std::optional<Plan> with_keys(const Plan&, const Problem&) const { return std::nullopt; }

  // Require a plan of this backend and a workspace of plan.workspace_bytes.
  virtual void forward(const Plan& plan, const ForwardArgs& args, Queue queue) const = 0;
  virtual void backward(const Plan& plan, const BackwardArgs& args, Queue queue) const = 0;

  // Memory the pointers in the args must come from. allocate() is 64-byte aligned and throws
  // OutOfMemory; copies are complete when they return.
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
  virtual std::unique_ptr<Recording> record(const std::function<void(Queue)>&) const {
    throw Unsupported("backend " + name() + " has no graphs to replay: its calls run when made");
  }

  // Something that checks so many rows of a forward while it runs, at little cost.
  virtual std::unique_ptr<RowsCheck> rows_check(const Problem&, int) const {
    throw Unsupported("backend " + name() + " does not recompute rows of what it made");
  }

  // Runs the ceiling loops for about `seconds` in all. threads 0: all.
  virtual Ceilings measure_ceilings(int threads, double seconds) const = 0;

  // Queues `work` and returns when it is done: its seconds, by events on the queue where the device
  // has its own clock, else by the host's.
  virtual double time_s(const std::function<void()>& work, Queue queue) const = 0;

  // Waits for the queue; rethrows asynchronous errors.
  virtual void synchronize(Queue queue) const = 0;
};

}  // namespace dfa
