#include "cpu/backend.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>

#include "base/env.h"
#include "cpu/bias.h"
#include "cpu/ceilings.h"
#include "cpu/cpuid.h"
#include "cpu/flash.h"
#include "cpu/parallel.h"
#include "cpu/select.h"
#include "cpu/sequences.h"
#include "cpu/standard.h"
#include "host/host_device.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "spec/block_tiles.h"
#include "spec/config_names.h"
#include "spec/config_text.h"
#include "spec/flops.h"
#include "spec/lengths.h"
#include "spec/limits.h"
#include "spec/passes.h"
#include "spec/plan_config.h"
#include "spec/standard_config.h"

namespace dfa {
namespace {

using namespace dfa::cpu;

constexpr int kMaxThreads = 1024;

ForwardConfig forward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, default_forward(limits.highest, p), p, limits);
}

BackwardConfig backward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, default_backward(limits.highest, p), p, limits);
}

int thread_count(const PlanOptions& options) {
  int threads = options.threads;
  std::string given = "threads " + std::to_string(threads);
  if (threads == 0) {
    const std::string text = env("DFA_THREADS");
    given = "DFA_THREADS '" + text + "' threads";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
    if (error != std::errc{} || end != text.data() + text.size()) threads = -1;
  }
  if (threads < 0 || threads > kMaxThreads) {
    throw InvalidArgument(given + ": accepted are 1 to " + std::to_string(kMaxThreads) +
                          ", or 0 for all this process may use");
  }
  return threads == 0 ? available_threads() : threads;
}

// As engines see it. Heads are packed where every thread still has a key head, which no bit of an
// output tells. Of packed sequences they see the longest there may be, and one after the other.
Problem seen(const Problem& problem, int threads) {
  if (problem.packed()) return sequence_of(problem, problem.sq, problem.sk);
  return problem.b * problem.hk >= threads ? with_pack_gqa(problem) : problem;
}

// A plan of FlashAttention with its configuration as a value.
class ReadyCpuPlan final : public ReadyPlan {
 public:
  ReadyCpuPlan(const Plan& plan, const PlanOptions& options, const FlashConfig& config)
      : plan_(plan), options_(options), highest_(highest_target()), config_(config) {}

  bool current() const override {
    try {
      return thread_count(options_) == plan_.threads && highest_target() == highest_;
    } catch (const Error&) {  // planning will say why
      return false;
    }
  }

  const FlashConfig* config_of(const Plan& plan) const {
    return runs_the_same(plan, plan_) ? &config_ : nullptr;
  }

 private:
  Plan plan_;
  PlanOptions options_;
  Target highest_;
  FlashConfig config_;
};

// As a value, if the plan still carries it.
const FlashConfig* config_of(const Plan& plan) {
  const auto* ready = dynamic_cast<const ReadyCpuPlan*>(plan.ready.plan.get());
  return ready != nullptr ? ready->config_of(plan) : nullptr;
}

class CpuDiagnostics final : public Diagnostics {
 public:
  Ceilings measure_ceilings(int threads, double seconds) const override {
    return cpu::measure_ceilings(highest_target(), threads == 0 ? available_threads() : threads,
                                 seconds);
  }
};

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return "cpu"; }

  std::string description() const override {
    return std::string(name_of(highest_target())) + ", " + std::to_string(available_threads()) +
           " threads";
  }

  Verdict available() const override {
    try {
      highest_target();
    } catch (const Unsupported& error) {
      return Verdict::no(error.what());
    }
    return Verdict::yes();
  }

  // Tiles are chosen to live in the private cache; 1 MiB is what current cores have at least.
  Limits limits() const override {
    constexpr long long kLeastCache = 1LL << 20;
    return {.highest = highest_target(),
            .cache_bytes = std::max<long long>(kLeastCache, l2_cache_bytes())};
  }

  Verdict supports(const Problem& p, const PlanOptions& options) const override {
    if (asks_standard(options) && !p.plain_logits()) {
      return Verdict::no("standard attention takes plain logits alone; leave algorithm to auto");
    }
    if (asks_standard(options) && p.blocks) {
      return Verdict::no("standard attention takes no lists of blocks; leave algorithm to auto");
    }
    if (asks_standard(options) && p.paged()) {
      return Verdict::no("standard attention takes no pages; leave algorithm to auto");
    }
    if (p.dtype == DType::tf32) {
      return Verdict::no("tf32 is a GPU tensor-core format; on the CPU use fp32, fp16 or bf16");
    }
    if (asks_standard(options) && p.kv_dtype() == DType::e4m3) {
      return Verdict::no("standard attention takes no e4m3; leave algorithm to auto");
    }
    return available();
  }

  Plan plan(const Problem& p, const PlanOptions& options) const override {
    Plan plan{.problem = p, .backend = name()};
    plan.threads = thread_count(options);
    plan.forward_flops = has_forward(p) ? forward_flops(p) : 0;
    plan.backward_flops = has_backward(p) ? backward_flops(p) : 0;
    if (asks_standard(options)) {
      plan_standard(plan, options);
    } else {
      plan_flash(plan, options);
    }
    return plan;
  }

  void forward(const Plan& plan, const ForwardArgs& args, Queue) const override {
    const Problem& p = plan.problem;
    const Problem of_engine = seen(p, plan.threads);
    const FlashConfig* flash = config_of(plan);
    const auto run = [&](const Problem& one, const ForwardArgs& one_args) {
      if (plan.algorithm == Algorithm::standard) {
        standard_forward(one, highest_target(), plan.threads, one_args);
      } else {
        flash_forward(one,
                      flash != nullptr ? flash->forward.value()
                                       : forward_config(of_engine, plan.config, limits()),
                      plan.threads, one_args);
      }
    };
    if (p.packed()) {
      for_sequences(p, args, run);
    } else {
      run(plan.algorithm == Algorithm::standard ? p : of_engine, args);
    }
  }

  void backward(const Plan& plan, const BackwardArgs& args, Queue) const override {
    const Problem& p = plan.problem;
    const FlashConfig* flash = config_of(plan);
    if (p.sink) std::fill_n(args.d_sinks, p.hq, 0.0f);
    if (p.bias && args.d_bias != nullptr) clear_bias_gradients(p, args);
    const auto run = [&](const Problem& one, const BackwardArgs& one_args) {
      if (plan.algorithm == Algorithm::standard) {
        standard_backward(one, highest_target(), plan.threads, one_args);
      } else {
        flash_backward(one,
                       flash != nullptr ? flash->backward.value()
                                        : backward_config(one, plan.backward_config, limits()),
                       plan.threads, one_args);
      }
    };
    if (p.packed()) {
      for_sequences(p, args, run);
    } else {
      run(p, args);
    }
  }

  const Device& device() const override { return host_device(); }
  const Diagnostics& diagnostics() const override { return diagnostics_; }

 private:
  static void plan_standard(Plan& plan, const PlanOptions& options) {
    const StandardConfig config = parse_standard_config(options.config);
    describe(plan, config);
    plan.origin = options.config.empty() ? "default" : "forced";
    if (plan.problem.packed() && config.stored()) {
      throw InvalidArgument("config: packed sequences store no probabilities");
    }
    if (plan.problem.dropout > 0 && config.stored()) {
      throw InvalidArgument(
          "config: dropout takes probabilities that are computed anew, not stored");
    }
    const Problem p = plan.problem.packed() ? seen(plan.problem, plan.threads) : plan.problem;
    plan.workspace_bytes =
        standard_workspace_bytes(p, highest_target(), plan.threads, config.stored());
    plan.why = "standard attention was asked for; it materialises S and P for every head: " +
               std::to_string(plan.workspace_bytes) + " bytes";
    if (!config.stored()) return;
    plan.probabilities_bytes = standard_probabilities_bytes(plan.problem);
    plan.why += ", and " + std::to_string(plan.probabilities_bytes) +
                " of P, which the forward keeps for the backward";
  }

  void plan_flash(Plan& plan, const PlanOptions& options) const {
    const Problem p = seen(plan.problem, plan.threads);
    const Limits limits = this->limits();
    plan.algorithm = Algorithm::flash;
    plan.origin = options.config.empty() ? "default" : "forced";
    Target target = target_for(limits.highest, p);
    FlashConfig flash;
    if (has_forward(p)) {
      const ForwardConfig config = forward_config(p, options.config, limits);
      flash.forward = config;
      plan.config = to_text(config);
      plan.workspace_bytes = flash_forward_workspace(p, config, plan.threads);
      target = config.target;
    }
    if (has_backward(p)) {
      const BackwardConfig config = backward_config(p, options.config, limits);
      flash.backward = config;
      plan.backward_config = to_text(config);
      plan.workspace_bytes =
          std::max(plan.workspace_bytes, flash_backward_workspace(p, config, plan.threads));
      target = config.target;
    }
    plan.why = std::string("FlashAttention on ") + name_of(target) +
               (plan.origin == "forced" ? ", tile as asked for"
                                        : ", the default tile for this element type and head dim") +
               rows_of_heads(plan.problem.hq / p.hq);
    if (flash.forward) {
      plan.why += skipped_tiles(p, flash.forward->block_q, flash.forward->block_k);
    } else {
      plan.why += skipped_tiles(p, flash.backward->block_q, flash.backward->block_k);
    }
    if (p.dtype == DType::e4m3) {
      plan.why +=
          "; e4m3 is widened to fp32 and costs the time of fp32: no processor multiplies it";
    }
    plan.ready.plan = std::make_shared<const ReadyCpuPlan>(plan, options, flash);
  }

  CpuDiagnostics diagnostics_;
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace dfa
