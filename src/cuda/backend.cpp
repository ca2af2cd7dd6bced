#include "cuda/backend.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/ceilings.h"
#include "cuda/chosen_device.h"
#include "cuda/request.h"
#include "cuda/store.h"
#include "gpu/buffer.h"
#include "gpu/event.h"
#include "gpu/kernel.h"
#include "kernels/launch.h"
#include "spec/config_text.h"
#include "spec/flops.h"
#include "spec/legality.h"
#include "spec/passes.h"

namespace dfa {
namespace {

using namespace dfa::cuda;

ForwardConfig forward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, default_gpu_forward(p, limits), p, limits);
}

BackwardConfig backward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, default_gpu_backward(p, limits), p, limits);
}

// Kernels that this process has loaded, by device and entry. They stay loaded.
class LoadedKernels {
 public:
  gpu::Kernel get(const gpu::Device& device, const KernelLaunch& launch) {
    const std::lock_guard lock(mutex_);
    const auto key = std::pair(device.facts().index, launch.entry);
    if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
    const StoredKernel stored = kernel_store().get(request_of(launch, device.facts().arch()));
    const gpu::Library library(device, stored.code->cubin);
    const gpu::Kernel kernel = library.kernel(stored.code->lowered_name);
    kernel.allow_smem(static_cast<int>(launch.smem_bytes));
    return kernels_.emplace(key, kernel).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, gpu::Kernel> kernels_;
};

// Never destroyed: the driver may be gone before static objects are.
LoadedKernels& loaded_kernels() {
  static auto* kernels = new LoadedKernels;
  return *kernels;
}

void run(const std::vector<KernelLaunch>& launches, const KernelArgs& args, Queue queue) {
  const gpu::Device& on = chosen_device();
  const gpu::Stream stream = gpu::Stream::foreign(on, queue.stream);
  for (const KernelLaunch& launch : launches) {
    gpu::launch(loaded_kernels().get(on, launch),
                {.grid = {.x = launch.grid},
                 .block = {.x = launch.threads},
                 .smem_bytes = static_cast<int>(launch.smem_bytes)},
                stream, args);
  }
}

struct Pointer {
  const char* name;
  const void* address;
};

// A host pointer would bring the whole context down, so it is found here.
void require_device_memory(std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer.address) % kPointerAlignment != 0) {
      throw InvalidArgument(std::string("pointer ") + pointer.name + " is not aligned to " +
                            std::to_string(kPointerAlignment) + " bytes, as CUDA kernels need it");
    }
    if (gpu::Device::of_pointer(pointer.address) != &chosen_device()) {
      throw InvalidArgument(std::string("pointer ") + pointer.name +
                            " is not memory of the CUDA device " + chosen_device().facts().name);
    }
  }
}

class CudaBackend final : public Backend {
 public:
  std::string name() const override { return "cuda"; }

  std::string description() const override {
    const gpu::DeviceFacts& facts = chosen_device().facts();
    return facts.name + ", " + facts.arch() + ", " + std::to_string(facts.sm_count) +
           " multiprocessors, " + facts.pci_id;
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

  Limits limits() const override { return gpu_limits(chosen_device().facts().capability); }

  Verdict supports(const Problem& p, const PlanOptions& options) const override {
    if (const Verdict there = available(); !there) return there;
    if (options.algorithm == Algorithm::standard) {
      return Verdict::no("standard attention is not built for CUDA; use flash, or backend cpu");
    }
    if (p.dtype == DType::fp32 && options.backend == "auto") {
      return Verdict::no(
          "fp32 kernels do not meet the rule at steep scales yet; name backend cuda to run them");
    }
    const Limits limits = this->limits();
    if (has_forward(p)) {
      if (const Verdict ok = check(default_gpu_forward(p, limits), p, limits); !ok) return ok;
    }
    if (has_backward(p)) {
      if (const Verdict ok = check(default_gpu_backward(p, limits), p, limits); !ok) return ok;
    }
    return Verdict::yes();
  }

  Plan plan(const Problem& p, const PlanOptions& options) const override {
    const Limits limits = this->limits();
    Plan plan{.problem = p, .algorithm = Algorithm::flash, .backend = name()};
    plan.origin = options.config.empty() ? "default" : "forced";
    plan.threads = 0;
    Target target = Target::cuda_sm80;
    if (has_forward(p)) {
      const ForwardConfig config = forward_config(p, options.config, limits);
      plan.config = to_text(config);
      plan.forward_flops = forward_flops(p);
      target = config.target;
    }
    if (has_backward(p)) {
      const BackwardConfig config = backward_config(p, options.config, limits);
      plan.backward_config = to_text(config);
      plan.backward_flops = backward_flops(p);
      plan.workspace_bytes = backward_workspace_bytes(p);
      target = config.target;
    }
    plan.why = std::string("FlashAttention with ") + name_of(target) + " kernels on " +
               chosen_device().facts().name +
               (plan.origin == "forced" ? ", tile as asked for"
                                        : ", the default tile for this element type and head dim");
    return plan;
  }

  void forward(const Plan& plan, const ForwardArgs& args, Queue queue) const override {
    require_device_memory({{"q", args.q}, {"k", args.k}, {"v", args.v}, {"o", args.o}});
    const Problem& p = plan.problem;
    run(forward_launches(p, forward_config(p, plan.config, limits())), kernel_args(p, args), queue);
  }

  void backward(const Plan& plan, const BackwardArgs& args, Queue queue) const override {
    require_device_memory({{"q", args.q},
                           {"k", args.k},
                           {"v", args.v},
                           {"o", args.o},
                           {"do", args.d_o},
                           {"dq", args.dq},
                           {"dk", args.dk},
                           {"dv", args.dv}});
    const Problem& p = plan.problem;
    run(backward_launches(p, backward_config(p, plan.backward_config, limits())),
        kernel_args(p, args), queue);
  }

  GpuIdentity gpu_identity() const override {
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

  Ceilings measure_ceilings(int, double seconds) const override {
    return cuda::measure_ceilings(chosen_device(), seconds);
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

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

}  // namespace dfa
