#include "cuda/backend.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cuda/chosen_device.h"
#include "cuda/device.h"
#include "cuda/diagnostics.h"
#include "cuda/flash.h"
#include "cuda/ready_plan.h"
#include "cuda/standard.h"
#include "cuda/store.h"
#include "kernels/launch.h"
#include "spec/config.h"
#include "spec/flops.h"
#include "spec/passes.h"

namespace dfa {
namespace {

// A block of the kernel owns a tile of queries by keys.
void require_bias_gradient(const Problem& p, const BackwardArgs& args) {
  if (!p.bias || args.d_bias == nullptr || (p.bias->of_query && p.bias->of_key)) return;
  throw Unsupported(
      "a GPU gives the gradient of a bias of every query and key alone; expand the bias and sum "
      "its gradient");
}

using namespace dfa::cuda;

struct Pointer {
  const char* name;
  const void* address;
  std::size_t alignment = kPointerAlignment;
};

// A host pointer would bring the whole context down, so it is found here. Null is for what may be
// left out, and the floor above has seen to the rest.
void require_memory_of(const gpu::Device& device, std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (pointer.address == nullptr) continue;
    if (reinterpret_cast<std::uintptr_t>(pointer.address) % pointer.alignment != 0) {
      throw InvalidArgument(std::string("pointer ") + pointer.name + " is not aligned to " +
                            std::to_string(pointer.alignment) + " bytes, as CUDA kernels need it");
    }
    if (!device.holds(pointer.address)) {
      throw InvalidArgument(std::string("pointer ") + pointer.name +
                            " is not memory of the CUDA device " + device.facts().name);
    }
  }
}

// What a forward and a backward are given alike.
template <typename Args>
void require_memory_of_both(const gpu::Device& device, const Args& args) {
  const Sequences& sequences = args.sequences;
  require_memory_of(device, {{"q", args.q},
                             {"k", args.k},
                             {"v", args.v},
                             {"lse", args.lse, alignof(float)},
                             {"workspace", args.workspace},
                             {"cu_seqlens_q", sequences.cu_seqlens_q, 4},
                             {"cu_seqlens_k", sequences.cu_seqlens_k, 4},
                             {"seqused_q", sequences.seqused_q, 4},
                             {"seqused_k", sequences.seqused_k, 4},
                             {"block_table", sequences.block_table, 4},
                             {"leftpad_k", sequences.leftpad_k, 4},
                             {"alibi_slopes", args.logits.alibi_slopes, 4},
                             {"sinks", args.logits.sinks, 4},
                             {"bias", args.logits.bias, 2},
                             {"probabilities", args.probabilities},
                             {"kv_counts", args.blocks.kv_counts, 4},
                             {"kv_indices", args.blocks.kv_indices, 4},
                             {"kv_bitmaps", args.blocks.kv_bitmaps, 4},
                             {"q_counts", args.blocks.q_counts, 4},
                             {"q_indices", args.blocks.q_indices, 4},
                             {"q_bitmaps", args.blocks.q_bitmaps, 4},
                             {"bits", args.blocks.bits, 4}});
}

class CudaBackend final : public Backend {
 public:
  std::string name() const override { return "cuda"; }

  std::string description() const override {
    const gpu::DeviceFacts& facts = chosen_device().facts();
    return facts.name + ", " + facts.arch() + ", " + std::to_string(facts.sm_count) +
           " multiprocessors, " + facts.pci_id + "; standard attention: " + standard_products();
  }

  Verdict available() const override {
    try {
      if (const Verdict driver = gpu::available(); !driver) return driver;
      chosen_device();
    } catch (const Error& error) {
      return Verdict::no(error.what());
    }
    return Verdict::yes();
  }

  Limits limits() const override { return limits_of(chosen_device()); }

  Verdict supports(const Problem& p, const PlanOptions& options) const override {
    if (const Verdict there = available(); !there) return there;
    if (asks_standard(options)) return standard_supports(p, chosen_device());
    return flash_supports(p, limits());
  }

  Plan plan(const Problem& p, const PlanOptions& options) const override {
    const gpu::Device& device = chosen_device();
    Plan plan{.problem = p, .algorithm = Algorithm::flash, .backend = name()};
    const bool forced = !options.config.empty();
    plan.origin = forced ? "forced" : "default";
    plan.threads = 0;
    plan.forward_flops = has_forward(p) ? forward_flops(p) : 0;
    plan.backward_flops = has_backward(p) ? backward_flops(p) : 0;
    PlanConfig config;
    if (asks_standard(options)) {
      const StandardConfig standard = parse_standard_config(options.config);
      describe_standard(plan, standard, device);
      config = standard;
    } else {
      const FlashConfig flash = asked_flash(p, options.config, limits_of(device));
      describe_flash(plan, flash, forced, device);
      config = flash;
    }
    plan.ready.plan = std::make_shared<const ReadyCudaPlan>(plan, config, device);
    return plan;
  }

  std::optional<Plan> with_keys(const Plan& plan, const Problem& problem) const override {
    const auto ready = std::dynamic_pointer_cast<const ReadyCudaPlan>(plan.ready.plan);
    return ready != nullptr ? ready->with_keys(problem) : std::nullopt;
  }

  void forward(const Plan& plan, const ForwardArgs& args, Queue queue) const override {
    const auto ready = ready_plan(plan);
    require_memory_of(ready->device(), {{"o", args.o},
                                        {"q_descale", args.descales.q.values, 4},
                                        {"k_descale", args.descales.k.values, 4},
                                        {"v_descale", args.descales.v.values, 4}});
    require_memory_of_both(ready->device(), args);
    ready->forward().queue(args, gpu::Stream::foreign(ready->device(), queue.stream),
                           queue.sm_budget);
  }

  void backward(const Plan& plan, const BackwardArgs& args, Queue queue) const override {
    require_bias_gradient(plan.problem, args);
    const auto ready = ready_plan(plan);
    require_memory_of(ready->device(), {{"o", args.o},
                                        {"do", args.d_o},
                                        {"dq", args.dq},
                                        {"dk", args.dk},
                                        {"dv", args.dv},
                                        {"d_sinks", args.d_sinks, 4},
                                        {"d_bias", args.d_bias, 4}});
    require_memory_of_both(ready->device(), args);
    ready->backward().queue(args, gpu::Stream::foreign(ready->device(), queue.stream),
                            queue.sm_budget);
  }

  std::string kernels(Pass pass) const override {
    static const auto texts = [] {
      std::array<std::string, 3> all;
      for (const Pass of : {Pass::forward, Pass::backward, Pass::forward_backward}) {
        const std::string digest = digest_of_sources(sources_of(of)).substr(0, 12);
        all[static_cast<std::size_t>(of)] = kVersion + ("+" + digest);
      }
      return all;
    }();
    return texts.at(static_cast<std::size_t>(pass));
  }

  const Device& device() const override { return cuda_device(); }
  const Diagnostics& diagnostics() const override { return cuda_diagnostics(); }
};

}  // namespace

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

}  // namespace dfa
