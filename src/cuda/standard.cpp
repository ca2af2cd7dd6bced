#include "cuda/standard.h"

#include <algorithm>
#include <array>
#include <functional>

#include "cuda/loaded_kernels.h"
#include "cuda/standard_steps.h"
#include "spec/passes.h"

namespace dfa::cuda {
namespace {

// Where a call's tensors are.
class Pointers {
 public:
  explicit Pointers(const ForwardArgs& a) {
    set(Tensor::q, a.q), set(Tensor::k, a.k), set(Tensor::v, a.v), set(Tensor::o, a.o);
    set(Tensor::lse, a.lse), set(Tensor::workspace, a.workspace);
    set(Tensor::probabilities, a.probabilities);
  }
  explicit Pointers(const BackwardArgs& a) {
    set(Tensor::q, a.q), set(Tensor::k, a.k), set(Tensor::v, a.v), set(Tensor::d_o, a.d_o);
    set(Tensor::dq, a.dq), set(Tensor::dk, a.dk), set(Tensor::dv, a.dv);
    set(Tensor::workspace, a.workspace), set(Tensor::probabilities, a.probabilities);
  }

  void* at(Place place) const {
    char* const tensor = tensors_[static_cast<std::size_t>(place.tensor)];
    return tensor == nullptr ? nullptr : tensor + place.offset;
  }

 private:
  void set(Tensor tensor, const void* pointer) {
    tensors_[static_cast<std::size_t>(tensor)] = static_cast<char*>(const_cast<void*>(pointer));
  }

  std::array<char*, static_cast<std::size_t>(Tensor::workspace) + 1> tensors_{};
};

// A step with its product or kernel at hand.
using ReadyStep = std::function<void(const Pointers&, const gpu::Stream&)>;

class Preparing {
 public:
  Preparing(const gpu::Device& device, const StandardPass& pass)
      : device_(device), products_{Tensor::workspace, pass.product_offset} {}

  ReadyStep operator()(const ProductStep& step) const {
    return [step, scratch = products_, product = gpu::Product(device_, step.shape, kProductBytes)](
               const Pointers& at, const gpu::Stream& stream) {
      product.queue(stream, step.alpha, at.at(step.left), at.at(step.right), at.at(step.out),
                    at.at(scratch));
    };
  }

  ReadyStep operator()(const ScoreStep& step) const {
    return [step, kernel = loaded_kernel(device_, step.launch), shape = shape_of(step.launch)](
               const Pointers& at, const gpu::Stream& stream) {
      ScoreArgs args = step.args;
      args.scores = static_cast<float*>(at.at(step.scores));
      args.gradients = static_cast<float*>(at.at(step.gradients));
      args.lse = static_cast<float*>(at.at(step.lse));
      gpu::launch(kernel, shape, stream, args);
    };
  }

  ReadyStep operator()(const CopyStep& step) const {
    return [step, kernel = loaded_kernel(device_, step.launch), shape = shape_of(step.launch)](
               const Pointers& at, const gpu::Stream& stream) {
      CopyArgs args = step.args;
      args.from = at.at(step.from);
      args.to = at.at(step.to);
      gpu::launch(kernel, shape, stream, args);
    };
  }

 private:
  const gpu::Device& device_;
  Place products_;
};

template <class Args>
class StandardLauncher final : public Launcher<Args> {
 public:
  StandardLauncher(const gpu::Device& device, const StandardPass& pass) {
    const Preparing prepare(device, pass);
    for (const StandardStep& step : pass.steps) steps_.push_back(std::visit(prepare, step));
  }

  void queue(const Args& args, const gpu::Stream& stream, int) const override {
    const Pointers at(args);
    for (const ReadyStep& step : steps_) step(at, stream);
  }

 private:
  std::vector<ReadyStep> steps_;
};

std::string why(const Problem& p, const gpu::Device& device, const StandardPass& largest) {
  const std::string type = name_of(p.dtype);
  std::string text = "standard attention on " + device.facts().name +
                     " was asked for: products by " + gpu::products_version() + "; S" +
                     (has_backward(p) ? " and dP" : "") + " of every head at once in fp32, " +
                     std::to_string(largest.matrix_bytes + largest.probabilities_bytes) +
                     " bytes, then P" + (has_backward(p) ? " and dS" : "") + " in their place in " +
                     type;
  if (largest.probabilities_bytes > 0) {
    text += "; P stays, in " + std::to_string(largest.probabilities_bytes) +
            " of these bytes, from the forward to the backward";
  }
  if (largest.copy_bytes > 0) {
    text += "; tensors copied to where products can take them, " +
            std::to_string(largest.copy_bytes) + " bytes";
  }
  return text;
}

}  // namespace

std::string standard_products() {
  const Verdict there = gpu::products_available();
  return there ? gpu::products_version() : there.reason;
}

Verdict standard_supports(const Problem& p, const gpu::Device& device) {
  const Verdict can = check_standard(p, device.facts().capability);
  return can ? gpu::products_available() : can;
}

void describe_standard(Plan& plan, const StandardConfig& config, const gpu::Device& device) {
  const Problem& p = plan.problem;
  describe(plan, config);
  StandardPass largest;
  if (has_forward(p)) largest = standard_forward_pass(p, config.stored());
  if (has_backward(p)) {
    StandardPass backward = standard_backward_pass(p, config.stored());
    if (backward.workspace_bytes > largest.workspace_bytes) largest = std::move(backward);
  }
  plan.workspace_bytes = largest.workspace_bytes;
  plan.probabilities_bytes = largest.probabilities_bytes;
  plan.why = why(p, device, largest);
}

ForwardLauncher standard_forward(const Problem& p, const StandardConfig& config,
                                 const gpu::Device& device) {
  return std::make_unique<const StandardLauncher<ForwardArgs>>(
      device, standard_forward_pass(p, config.stored()));
}

BackwardLauncher standard_backward(const Problem& p, const StandardConfig& config,
                                   const gpu::Device& device) {
  return std::make_unique<const StandardLauncher<BackwardArgs>>(
      device, standard_backward_pass(p, config.stored()));
}

}  // namespace dfa::cuda
