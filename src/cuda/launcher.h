#pragma once

#include <memory>

#include "dfa/attention.h"
#include "gpu/stream.h"

namespace dfa::cuda {

// One pass of a plan on one device, all but its pointers in place: what a kind of kernels gives to
// the backend (portable.h). Queues work and nothing else. Immutable, so that threads may share it.
template <class Args>
class Launcher {
 public:
  virtual ~Launcher() = default;

  // args.workspace has what the plan says; all pointers are memory of the device. sm_budget: see
  // Queue; 0 where the plan takes none.
  virtual void queue(const Args& args, const gpu::Stream& stream, int sm_budget) const = 0;
};

using ForwardLauncher = std::unique_ptr<const Launcher<ForwardArgs>>;
using BackwardLauncher = std::unique_ptr<const Launcher<BackwardArgs>>;

}  // namespace dfa::cuda
