#include "reference/backend.h"

#include <algorithm>

#include "base/element.h"
#include "host/host_device.h"
#include "reference/check_bias.h"
#include "reference/check_sinks.h"
#include "reference/head.h"
#include "reference/packed.h"
#include "spec/bias.h"
#include "spec/block_lists.h"
#include "spec/flops.h"
#include "spec/passes.h"

namespace dfa {
namespace {

void store_row(void* base, DType type, const Strides& strides, std::int64_t b, std::int64_t h,
               std::int64_t s, const std::vector<double>& row) {
  const std::int64_t start = b * strides.batch + h * strides.head + s * strides.row;
  for (std::size_t x = 0; x < row.size(); ++x) {
    store_element(base, type, start + static_cast<std::int64_t>(x), static_cast<float>(row[x]));
  }
}

class ReferenceDiagnostics final : public Diagnostics {
 public:
  Ceilings measure_ceilings(int, double) const override { return {}; }  // it has no roof to sell
};

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  std::string description() const override { return "fp64 on one thread, slow and right"; }
  Verdict available() const override { return Verdict::yes(); }

  Limits limits() const override { return {}; }  // it has no tiles

  Verdict supports(const Problem&, const PlanOptions& options) const override {
    if (options.algorithm == Algorithm::flash) {
      return Verdict::no("fp64 attention by definition has no tiles; ask for algorithm auto");
    }
    return Verdict::yes();
  }

  Plan plan(const Problem& p, const PlanOptions& options) const override {
    if (!options.config.empty()) {
      throw InvalidArgument("config: the reference has no tiles to configure; leave it out");
    }
    Plan plan{.problem = p, .algorithm = Algorithm::standard, .backend = name()};
    plan.origin = "default";
    plan.why = "the fp64 reference was asked for";
    plan.forward_flops = has_forward(p) ? forward_flops(p) : 0;
    plan.backward_flops = has_backward(p) ? backward_flops(p) : 0;
    return plan;
  }

  void forward(const Plan& plan, const ForwardArgs& args, Queue) const override {
    const Problem& p = plan.problem;
    if (p.blocks) require_block_lists(p, args.blocks);
    if (p.packed()) {
      for (PackedSequence& one : sequences_of(p, args)) {
        if (one.problem.sq == 0) continue;  // its keys were not taken out of their pages
        dense_forward(one.problem, one.forward);
        one.write_lse(args.lse);
      }
      return;
    }
    dense_forward(p, args);
  }

  void backward(const Plan& plan, const BackwardArgs& args, Queue) const override {
    if (plan.problem.blocks) require_block_lists(plan.problem, args.blocks);
    for (std::int64_t h = 0; plan.problem.sink && h < plan.problem.hq; ++h) {
      args.d_sinks[h] = static_cast<float>(sink_gradient(plan.problem, args, h));
    }
    if (plan.problem.bias && args.d_bias != nullptr) {
      const std::vector<double> gradient = bias_gradient(plan.problem, args);
      store_bias(plan.problem, gradient, args);
    }
    if (plan.problem.packed()) {
      for (const PackedSequence& one : sequences_of(plan.problem, args)) {
        dense_backward(one.problem, one.backward);
      }
      return;
    }
    dense_backward(plan.problem, args);
  }

  const Device& device() const override { return host_device(); }
  const Diagnostics& diagnostics() const override { return diagnostics_; }

 private:
  static void store_bias(const Problem& p, const std::vector<double>& from,
                         const BackwardArgs& args) {
    const BiasSizes sizes = bias_sizes(p);
    const Strides strides = bias_strides(p, args.d_bias_strides);
    for (std::int64_t row = 0; row < sizes.b * sizes.hq * sizes.sq; ++row) {
      const std::int64_t i = row % sizes.sq, h = row / sizes.sq % sizes.hq;
      const std::int64_t b = row / (sizes.sq * sizes.hq);
      float* to = args.d_bias + b * strides.batch + h * strides.head + i * strides.row;
      const auto* values = from.data() + row * sizes.sk;
      for (std::int64_t j = 0; j < sizes.sk; ++j) to[j] = static_cast<float>(values[j]);
    }
  }

  static void dense_forward(const Problem& p, const ForwardArgs& args) {
    Heads<double> heads(p, args);
    for (std::int64_t b = 0; b < p.b; ++b) {
      for (std::int64_t h = 0; h < p.hq; ++h) {
        const Head<double> head = heads.at(b, h);
        for (std::int64_t i = 0; i < p.sq; ++i) {
          const auto row = head.forward(i);
          store_row(args.o, p.o_dtype(), p.o(), b, h, i, row.o);
          if (args.lse != nullptr) {
            args.lse[(b * p.hq + h) * p.sq + i] = static_cast<float>(row.lse);
          }
        }
      }
    }
  }

  static void dense_backward(const Problem& p, const BackwardArgs& args) {
    for (std::int64_t b = 0; b < p.b; ++b) {
      for (std::int64_t hk = 0; hk < p.hk; ++hk) backward_group(p, args, b, hk);
    }
  }

  // dq of the group's query heads, dk and dv of its key/value head.
  static void backward_group(const Problem& p, const BackwardArgs& args, std::int64_t b,
                             std::int64_t hk) {
    const std::int64_t group = p.hq / p.hk;
    std::vector<Head<double>::KeyGradient> sums(static_cast<std::size_t>(p.sk));
    Heads<double> heads(p, args);
    for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h) {
      const Head<double> head = heads.at(b, h);
      std::vector<double> lse, delta;
      for (std::int64_t i = 0; i < p.sq; ++i) {
        const auto row = head.forward(i);
        lse.push_back(row.lse);
        delta.push_back(head.delta(i, row.o));
        store_row(args.dq, p.dtype, p.q(), b, h, i, head.dq(i, lse.back(), delta.back()).dq);
      }
      for (std::int64_t j = 0; j < p.sk; ++j) {
        head.add_key_gradient(j, lse, delta, sums[static_cast<std::size_t>(j)]);
      }
    }
    for (std::int64_t j = 0; j < p.sk; ++j) {
      auto& of_key = sums[static_cast<std::size_t>(j)];
      of_key.dk.resize(static_cast<std::size_t>(p.d));  // 0, where no query adds anything
      of_key.dv.resize(static_cast<std::size_t>(p.dv));
      for (double& x : of_key.dk) x *= p.softmax_scale();
      store_row(args.dk, p.dtype, p.k(), b, hk, j, of_key.dk);
      store_row(args.dv, p.dtype, p.v(), b, hk, j, of_key.dv);
    }
  }

  ReferenceDiagnostics diagnostics_;
};

}  // namespace

const Backend& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace dfa
