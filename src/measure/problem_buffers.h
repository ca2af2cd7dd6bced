#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/aligned.h"
#include "contract/backend.h"
#include "measure/memory_peak.h"
#include "reference/check.h"
#include "spec/passes.h"
#include "spec/quantize.h"

namespace dfa::measure {

// Plans of the passes of one problem, so that each pass can have a configuration of its own.
struct PassPlans {
  std::optional<Plan> forward{};
  std::optional<Plan> backward{};

  std::size_t workspace_bytes() const;
  std::size_t probabilities_bytes() const;  // that the forward keeps for the backward
  std::size_t memory_bytes() const { return workspace_bytes() + probabilities_bytes(); }
  double flops() const;
  int sms() const;  // of which a budget chooses, in every pass; 0: they take none
  const Plan& any() const { return forward ? *forward : *backward; }

  // Of both plans, of kernels that have run; and why they run, with that.
  std::vector<std::string> warnings() const;
  std::string why() const;
};

// The same problem with one pass.
Problem with_pass(Problem problem, Pass pass);

// Throws InvalidArgument where probabilities would be stored by one pass alone.
PassPlans prepare(const Problem& problem, const PlanOptions& options);

// Bytes that a backend's tensors may take at most: nine tenths of what is free, the rest being
// margin; empty where the system does not tell.
std::optional<std::int64_t> allowed_bytes(const Backend& backend);

// Bytes of q, k, v, o, lse, and of do, dq, dk, dv where there is a backward.
std::size_t tensor_bytes(const Problem& problem);

// Bytes of q, k and v in e4m3 beside the tensors of a problem, where its plans read those.
std::size_t quantised_bytes(const Problem& problem, const PassPlans& plans);

// Host data for the inputs, in the type and strides of the problem; null: seeded normal values
// (seeds: q seed, k seed + 1, v seed + 2, do seed + 3), which e4m3 keeps with a factor a head. Of a
// forward whose strides say that values are columns of keys (values_in_keys) they are.
struct HostInputs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* d_o = nullptr;
  HostDescales factors{};  // of those in e4m3
};

// Host copies of what the last run left; gradients are empty where there is no backward.
struct HostOutputs {
  AlignedBuffer o, lse, dq, dk, dv, d_sinks, d_bias;
};

// The tensors of one problem on one backend: inputs, outputs, and a workspace that grows to what
// the plans need. Plans of the problem in e4m3 read q, k and v as they are quantised when the first
// of them is run, once, by factors of each batch and key head; no call's time has that in it.
// Throws OutOfMemory, and Unsupported where the problem asks for a backward but forward() of the
// default plan, which makes o and lse, cannot run.
class ProblemBuffers {
 public:
  ProblemBuffers(const Problem& problem, const std::string& backend, std::uint64_t seed,
                 const HostInputs& inputs = {});
  ~ProblemBuffers();
  ProblemBuffers(const ProblemBuffers&) = delete;
  ProblemBuffers& operator=(const ProblemBuffers&) = delete;

  const Problem& problem() const;
  void reserve_workspace(std::size_t bytes);
  // Workspace, where probabilities are kept, and quantised inputs where the plans read those.
  void reserve(const PassPlans& plans);

  // From now on calls take so many multiprocessors (Queue::sm_budget); 0: all.
  void limit_sms(int budget);

  void forward(const Plan& plan);  // returns when done
  void backward(const Plan& plan);
  void run(const PassPlans& plans, int times = 1);       // the passes of the problem, back to back
  double time_s(const PassPlans& plans, int times = 1);  // the same, and its seconds on the device

  // The same recorded, after a run. It keeps the workspace that it was recorded with. Throws
  // Unsupported where the backend has no graphs.
  std::unique_ptr<const Recording> record(const PassPlans& plans, int times);
  void replay(const Recording& recording, int times);
  double time_s(const Recording& recording);

  // To hold rows of o where the last run left them against the problem's inputs, also where a plan
  // read those quantised. Throws Unsupported.
  std::unique_ptr<RowsCheck> rows_check(int rows) const;
  double error(RowsCheck& check, std::uint64_t seed);

  // The tensors of a forward and the workspace, for whoever runs one on them.
  ForwardArgs forward_args() const;

  HostOutputs outputs() const;

  // Bytes that one run takes on top of the tensors, its workspace allocated for the call only.
  MemoryGrowth growth(const PassPlans& plans);

  // Fills the outputs of the problem's passes with NaN, runs once, and holds the outputs against
  // fp64 attention on the inputs that the plans read. `run`: how; empty: run(plans).
  CheckReport check(const PassPlans& plans, const CheckOptions& options,
                    const std::function<void()>& run = {});

  // Outputs that somebody else made of inputs(), by the same rule. Without an lse o is held alone,
  // and gradients with the lse of our own last run.
  // products: in which type they were, where that is another than the problem's: tf32 for fp32, or
  // e4m3, whose truth is that of the quantised inputs.
  CheckReport check(const HostOutputs& outputs, const CheckOptions& options,
                    std::optional<DType> products = {}) const;

  struct Inputs {
    AlignedBuffer q, k, v, d_o;
  };
  Inputs inputs() const;

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace dfa::measure
