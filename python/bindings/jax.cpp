#include <nanobind/nanobind.h>
#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "dfa/attention.h"
#include "python/bindings/core.h"

// Targets of JAX's foreign function interface. XLA hands over dense buffers [b, h, s, d];
// dimensions in front of them count as batch. A batch of none has nothing to compute; the package
// lets no other empty buffers come here. Packed sequences are [rows of all, h, d], with where they
// lie in int32 buffers on the same device: begins [n + 1] and used lengths [n].
namespace ffi = xla::ffi;
namespace nb = nanobind;

namespace dfa::python {
namespace {

struct Call {
  std::string backend;
  Pass pass;
  std::int64_t left;
  std::int64_t right;
  double scale;
  bool deterministic;
};

DType type_of(const ffi::AnyBuffer& q) {
  switch (q.element_type()) {
    case ffi::DataType::F32: return DType::fp32;
    case ffi::DataType::F16: return DType::fp16;
    case ffi::DataType::BF16: return DType::bf16;
    default: throw InvalidArgument("element type of q; accepted: float32, float16, bfloat16");
  }
}

Problem problem_of(const Call& call, const ffi::AnyBuffer& q, const ffi::AnyBuffer& k,
                   const ffi::AnyBuffer& v) {
  const auto size = [](const ffi::AnyBuffer& buffer, std::size_t from_end) {
    return buffer.dimensions()[buffer.dimensions().size() - from_end];
  };
  Problem p;
  p.pass = call.pass;
  p.dtype = type_of(q);
  p.mask = {call.left, call.right};
  p.hq = size(q, 3);
  p.hk = size(k, 3);
  p.sq = size(q, 2);
  p.sk = size(k, 2);
  p.d = size(q, 1);
  p.dv = size(v, 1);
  const auto leading = q.dimensions().first(q.dimensions().size() - 3);
  p.b = std::accumulate(leading.begin(), leading.end(), std::int64_t{1}, std::multiplies<>());
  p.scale = call.scale;
  p.deterministic = call.deterministic;
  return p;
}

// A bias is [b, hq, sq or 1, sk or 1], with q's dimensions in front.
Problem biased_problem_of(const Call& call, const ffi::AnyBuffer& q, const ffi::AnyBuffer& k,
                          const ffi::AnyBuffer& v, const ffi::AnyBuffer& bias) {
  Problem p = problem_of(call, q, k, v);
  const auto sizes = bias.dimensions().last(2);
  p.bias = Bias{.of_batch = true,
                .of_head = true,
                .of_query = sizes[0] > 1,
                .of_key = sizes[1] > 1,
                .dtype = type_of(bias)};
  return p;
}

struct Lengths {
  ffi::Buffer<ffi::S32> cu_q, cu_k, used_q, used_k;

  Sequences sequences() const {
    return {.cu_seqlens_q = cu_q.typed_data(),
            .cu_seqlens_k = cu_k.typed_data(),
            .seqused_q = used_q.typed_data(),
            .seqused_k = used_k.typed_data()};
  }
};

// The most rows of one sequence are said by the caller, who has them from shapes.
Problem packed_problem_of(const Call& call, const ffi::AnyBuffer& q, const ffi::AnyBuffer& k,
                          const ffi::AnyBuffer& v, const Lengths& lengths, std::int64_t most_q,
                          std::int64_t most_k) {
  Problem p;
  p.pass = call.pass;
  p.dtype = type_of(q);
  p.mask = {call.left, call.right};
  p.b = lengths.used_q.dimensions()[0];
  p.total_q = q.dimensions()[0];
  p.total_k = k.dimensions()[0];
  p.sq = most_q;
  p.sk = most_k;
  p.hq = q.dimensions()[1];
  p.hk = k.dimensions()[1];
  p.d = q.dimensions()[2];
  p.dv = v.dimensions()[2];
  p.scale = call.scale;
  p.deterministic = call.deterministic;
  return p;
}

// XLA calls again and again with the same shapes: a plan is made once for each.
Plan plan_of(const Call& call, const Problem& problem) {
  static std::mutex mutex;
  static auto* const plans = new std::map<std::string, Plan>;  // kernels outlive static objects
  const std::string key = call.backend + " " + to_line(problem);
  const std::lock_guard lock(mutex);
  const auto found = plans->find(key);
  if (found != plans->end()) return found->second;
  return plans->emplace(key, plan(problem, {.backend = call.backend})).first->second;
}

// XLA has none to give on the CPU, where the library may allocate: it waits for nothing there.
// It takes alignments of up to 16 bytes alone.
void* workspace_of(const Plan& plan, ffi::ScratchAllocator* scratch) {
  if (plan.workspace_bytes == 0 || scratch == nullptr) return nullptr;
  constexpr std::size_t kGiven = 16, kWanted = 64;
  std::size_t bytes = plan.workspace_bytes + kWanted - kGiven;
  const auto memory = scratch->Allocate(bytes, kGiven);
  if (!memory) throw OutOfMemory("XLA gave no " + std::to_string(bytes) + " bytes of workspace");
  void* aligned = *memory;
  return std::align(kWanted, plan.workspace_bytes, aligned, bytes);
}

template <typename Work>
ffi::Error guarded(Work&& work) {
  try {
    work();
    return ffi::Error::Success();
  } catch (const InvalidArgument& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const OutOfMemory& error) {
    return {ffi::ErrorCode::kResourceExhausted, error.what()};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

ffi::Error run_forward(const std::string& backend, void* stream, ffi::ScratchAllocator* scratch,
                       ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                       ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::Buffer<ffi::F32>> lse,
                       std::int64_t left, std::int64_t right, double scale) {
  return guarded([&] {
    const Call call{backend, Pass::forward, left, right, scale, false};
    const Problem problem = problem_of(call, q, k, v);
    if (problem.b == 0) return;
    const Plan plan = plan_of(call, problem);
    forward(plan,
            {.q = q.untyped_data(),
             .k = k.untyped_data(),
             .v = v.untyped_data(),
             .o = o->untyped_data(),
             .lse = lse->typed_data(),
             .workspace = workspace_of(plan, scratch)},
            {.stream = stream});
  });
}

ffi::Error run_backward(const std::string& backend, void* stream, ffi::ScratchAllocator* scratch,
                        ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer o,
                        ffi::Buffer<ffi::F32> lse, ffi::AnyBuffer d_o,
                        ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                        ffi::Result<ffi::AnyBuffer> dv, std::int64_t left, std::int64_t right,
                        double scale, bool deterministic) {
  return guarded([&] {
    const Call call{backend, Pass::backward, left, right, scale, deterministic};
    const Problem problem = problem_of(call, q, k, v);
    if (problem.b == 0) return;
    const Plan plan = plan_of(call, problem);
    backward(plan,
             {.q = q.untyped_data(),
              .k = k.untyped_data(),
              .v = v.untyped_data(),
              .o = o.untyped_data(),
              .lse = lse.typed_data(),
              .d_o = d_o.untyped_data(),
              .dq = dq->untyped_data(),
              .dk = dk->untyped_data(),
              .dv = dv->untyped_data(),
              .workspace = workspace_of(plan, scratch)},
             {.stream = stream});
  });
}

ffi::Error run_biased_forward(const std::string& backend, void* stream,
                              ffi::ScratchAllocator* scratch, ffi::AnyBuffer q, ffi::AnyBuffer k,
                              ffi::AnyBuffer v, ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> o,
                              ffi::Result<ffi::Buffer<ffi::F32>> lse, std::int64_t left,
                              std::int64_t right, double scale) {
  return guarded([&] {
    const Call call{backend, Pass::forward, left, right, scale, false};
    const Problem problem = biased_problem_of(call, q, k, v, bias);
    if (problem.b == 0) return;
    const Plan plan = plan_of(call, problem);
    forward(plan,
            {.q = q.untyped_data(),
             .k = k.untyped_data(),
             .v = v.untyped_data(),
             .o = o->untyped_data(),
             .lse = lse->typed_data(),
             .workspace = workspace_of(plan, scratch),
             .logits = {.bias = bias.untyped_data()}},
            {.stream = stream});
  });
}

// d_bias: of no elements where it is not wanted.
ffi::Error run_biased_backward(const std::string& backend, void* stream,
                               ffi::ScratchAllocator* scratch, ffi::AnyBuffer q, ffi::AnyBuffer k,
                               ffi::AnyBuffer v, ffi::AnyBuffer o, ffi::Buffer<ffi::F32> lse,
                               ffi::AnyBuffer d_o, ffi::AnyBuffer bias,
                               ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                               ffi::Result<ffi::AnyBuffer> dv,
                               ffi::Result<ffi::Buffer<ffi::F32>> d_bias, std::int64_t left,
                               std::int64_t right, double scale, bool deterministic, bool learned) {
  return guarded([&] {
    const Call call{backend, Pass::backward, left, right, scale, deterministic};
    const Problem problem = biased_problem_of(call, q, k, v, bias);
    if (problem.b == 0) return;
    const Plan plan = plan_of(call, problem);
    backward(plan,
             {.q = q.untyped_data(),
              .k = k.untyped_data(),
              .v = v.untyped_data(),
              .o = o.untyped_data(),
              .lse = lse.typed_data(),
              .d_o = d_o.untyped_data(),
              .dq = dq->untyped_data(),
              .dk = dk->untyped_data(),
              .dv = dv->untyped_data(),
              .workspace = workspace_of(plan, scratch),
              .logits = {.bias = bias.untyped_data()},
              .d_bias = learned ? d_bias->typed_data() : nullptr},
             {.stream = stream});
  });
}

ffi::Error run_packed_forward(const std::string& backend, void* stream,
                              ffi::ScratchAllocator* scratch, ffi::AnyBuffer q, ffi::AnyBuffer k,
                              ffi::AnyBuffer v, ffi::Buffer<ffi::S32> cu_q,
                              ffi::Buffer<ffi::S32> cu_k, ffi::Buffer<ffi::S32> used_q,
                              ffi::Buffer<ffi::S32> used_k, ffi::Result<ffi::AnyBuffer> o,
                              ffi::Result<ffi::Buffer<ffi::F32>> lse, std::int64_t left,
                              std::int64_t right, double scale, std::int64_t most_q,
                              std::int64_t most_k) {
  return guarded([&] {
    const Call call{backend, Pass::forward, left, right, scale, false};
    const Lengths lengths{cu_q, cu_k, used_q, used_k};
    const Plan plan = plan_of(call, packed_problem_of(call, q, k, v, lengths, most_q, most_k));
    forward(plan,
            {.q = q.untyped_data(),
             .k = k.untyped_data(),
             .v = v.untyped_data(),
             .o = o->untyped_data(),
             .lse = lse->typed_data(),
             .workspace = workspace_of(plan, scratch),
             .sequences = lengths.sequences()},
            {.stream = stream});
  });
}

ffi::Error run_packed_backward(const std::string& backend, void* stream,
                               ffi::ScratchAllocator* scratch, ffi::AnyBuffer q, ffi::AnyBuffer k,
                               ffi::AnyBuffer v, ffi::AnyBuffer o, ffi::Buffer<ffi::F32> lse,
                               ffi::AnyBuffer d_o, ffi::Buffer<ffi::S32> cu_q,
                               ffi::Buffer<ffi::S32> cu_k, ffi::Buffer<ffi::S32> used_q,
                               ffi::Buffer<ffi::S32> used_k, ffi::Result<ffi::AnyBuffer> dq,
                               ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                               std::int64_t left, std::int64_t right, double scale,
                               bool deterministic, std::int64_t most_q, std::int64_t most_k) {
  return guarded([&] {
    const Call call{backend, Pass::backward, left, right, scale, deterministic};
    const Lengths lengths{cu_q, cu_k, used_q, used_k};
    const Plan plan = plan_of(call, packed_problem_of(call, q, k, v, lengths, most_q, most_k));
    backward(plan,
             {.q = q.untyped_data(),
              .k = k.untyped_data(),
              .v = v.untyped_data(),
              .o = o.untyped_data(),
              .lse = lse.typed_data(),
              .d_o = d_o.untyped_data(),
              .dq = dq->untyped_data(),
              .dk = dk->untyped_data(),
              .dv = dv->untyped_data(),
              .workspace = workspace_of(plan, scratch),
              .sequences = lengths.sequences()},
             {.stream = stream});
  });
}

template <typename Binding>
auto forward_arguments(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale");
}

template <typename Binding>
auto backward_arguments(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale")
      .template Attr<bool>("deterministic");
}

template <typename Binding>
auto biased_forward_arguments(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale");
}

template <typename Binding>
auto biased_backward_arguments(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale")
      .template Attr<bool>("deterministic")
      .template Attr<bool>("learned");
}

template <typename Binding>
auto lengths_after(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>();
}

template <typename Binding>
auto packed_forward_arguments(Binding binding) {
  return lengths_after(std::move(binding)
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::AnyBuffer>())
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale")
      .template Attr<std::int64_t>("most_q")
      .template Attr<std::int64_t>("most_k");
}

template <typename Binding>
auto packed_backward_arguments(Binding binding) {
  return lengths_after(std::move(binding)
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::AnyBuffer>()
                           .template Arg<ffi::Buffer<ffi::F32>>()
                           .template Arg<ffi::AnyBuffer>())
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale")
      .template Attr<bool>("deterministic")
      .template Attr<std::int64_t>("most_q")
      .template Attr<std::int64_t>("most_k");
}

auto on_cpu() { return ffi::Ffi::Bind(); }
auto on_cuda() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::ScratchAllocator>();
}

XLA_FFI_DEFINE_HANDLER(
    kForwardCpu, [](auto&&... rest) { return run_forward("cpu", nullptr, nullptr, rest...); },
    forward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kBackwardCpu, [](auto&&... rest) { return run_backward("cpu", nullptr, nullptr, rest...); },
    backward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kForwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_forward("cuda", stream, &scratch, rest...);
    },
    forward_arguments(on_cuda()));
XLA_FFI_DEFINE_HANDLER(
    kBackwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_backward("cuda", stream, &scratch, rest...);
    },
    backward_arguments(on_cuda()));

XLA_FFI_DEFINE_HANDLER(
    kBiasedForwardCpu,
    [](auto&&... rest) { return run_biased_forward("cpu", nullptr, nullptr, rest...); },
    biased_forward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kBiasedBackwardCpu,
    [](auto&&... rest) { return run_biased_backward("cpu", nullptr, nullptr, rest...); },
    biased_backward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kBiasedForwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_biased_forward("cuda", stream, &scratch, rest...);
    },
    biased_forward_arguments(on_cuda()));
XLA_FFI_DEFINE_HANDLER(
    kBiasedBackwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_biased_backward("cuda", stream, &scratch, rest...);
    },
    biased_backward_arguments(on_cuda()));

XLA_FFI_DEFINE_HANDLER(
    kPackedForwardCpu,
    [](auto&&... rest) { return run_packed_forward("cpu", nullptr, nullptr, rest...); },
    packed_forward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kPackedBackwardCpu,
    [](auto&&... rest) { return run_packed_backward("cpu", nullptr, nullptr, rest...); },
    packed_backward_arguments(on_cpu()));
XLA_FFI_DEFINE_HANDLER(
    kPackedForwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_packed_forward("cuda", stream, &scratch, rest...);
    },
    packed_forward_arguments(on_cuda()));
XLA_FFI_DEFINE_HANDLER(
    kPackedBackwardCuda,
    [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {
      return run_packed_backward("cuda", stream, &scratch, rest...);
    },
    packed_backward_arguments(on_cuda()));

nb::capsule capsule(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

void bind_jax(nb::module_& core) {
  nb::dict targets;
  targets[nb::make_tuple("dfa_forward", "cpu")] = capsule(kForwardCpu);
  targets[nb::make_tuple("dfa_backward", "cpu")] = capsule(kBackwardCpu);
  targets[nb::make_tuple("dfa_forward", "CUDA")] = capsule(kForwardCuda);
  targets[nb::make_tuple("dfa_backward", "CUDA")] = capsule(kBackwardCuda);
  targets[nb::make_tuple("dfa_biased_forward", "cpu")] = capsule(kBiasedForwardCpu);
  targets[nb::make_tuple("dfa_biased_backward", "cpu")] = capsule(kBiasedBackwardCpu);
  targets[nb::make_tuple("dfa_biased_forward", "CUDA")] = capsule(kBiasedForwardCuda);
  targets[nb::make_tuple("dfa_biased_backward", "CUDA")] = capsule(kBiasedBackwardCuda);
  targets[nb::make_tuple("dfa_packed_forward", "cpu")] = capsule(kPackedForwardCpu);
  targets[nb::make_tuple("dfa_packed_backward", "cpu")] = capsule(kPackedBackwardCpu);
  targets[nb::make_tuple("dfa_packed_forward", "CUDA")] = capsule(kPackedForwardCuda);
  targets[nb::make_tuple("dfa_packed_backward", "CUDA")] = capsule(kPackedBackwardCuda);
  core.attr("jax_targets") = targets;
}

}  // namespace dfa::python
