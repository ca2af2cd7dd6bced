#pragma once

#include <optional>
#include <string>

#include "contract/device.h"
#include "contract/diagnostics.h"
#include "dfa/attention.h"
#include "dfa/version.h"
#include "spec/limits.h"

namespace dfa {

// One way to run attention. A backend never prints and never falls back: it plans, then does
// exactly what the plan says. Thread-safe: a Plan may run from several threads at once, each with
// its own workspace.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual Verdict available() const = 0;

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

  // What its calls run on, and what else it can tell. Both throw Unsupported, on use at the latest,
  // where available() says no.
  virtual const Device& device() const = 0;
  virtual const Diagnostics& diagnostics() const = 0;
};

}  // namespace dfa
