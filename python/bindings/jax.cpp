#include <nanobind/nanobind.h>
#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "dfa/attention.h"
#include "python/bindings/core.h"
#include "python/bindings/jax_problem.h"

// Targets of JAX's foreign function interface. XLA hands over dense buffers [b, h, s, d];
// dimensions in front of them count as batch. A batch of none has nothing to compute; the package
// lets no other empty buffers come here. Packed sequences are [rows of all, h, d], with where they
// lie in int32 buffers on the same device: begins [n + 1] and used lengths [n].
namespace ffi = xla::ffi;
namespace nb = nanobind;

namespace dfa::python {
namespace {

// XLA calls again and again with the same shapes: a plan is made once for each.
Plan plan_of(const char* backend, const Problem& problem) {
  static std::mutex mutex;
  static auto* const plans = new std::map<std::string, Plan>;  // kernels outlive static objects
  const std::string key = backend + (" " + to_line(problem));
  const std::lock_guard lock(mutex);
  const auto found = plans->find(key);
  if (found != plans->end()) return found->second;
  return plans->emplace(key, plan(problem, {.backend = backend})).first->second;
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

// What XLA gives beside the operands: where to run, and on a GPU memory for a while.
struct Place {
  const char* backend;
  void* stream = nullptr;
  ffi::ScratchAllocator* scratch = nullptr;
};

void run(const Problem& problem, const Place& place, ForwardArgs args) {
  if (problem.b == 0) return;
  const Plan plan = plan_of(place.backend, problem);
  args.workspace = workspace_of(plan, place.scratch);
  forward(plan, args, {.stream = place.stream});
}

void run(const Problem& problem, const Place& place, BackwardArgs args) {
  if (problem.b == 0) return;
  const Plan plan = plan_of(place.backend, problem);
  args.workspace = workspace_of(plan, place.scratch);
  backward(plan, args, {.stream = place.stream});
}

ForwardArgs forward_args(const Any& q, const Any& k, const Any& v, ffi::Result<Any>& o,
                         ffi::Result<Floats>& lse) {
  return {.q = q.untyped_data(),
          .k = k.untyped_data(),
          .v = v.untyped_data(),
          .o = o->untyped_data(),
          .lse = lse->typed_data()};
}

BackwardArgs backward_args(const Any& q, const Any& k, const Any& v, const Any& o,
                           const Floats& lse, const Any& d_o, ffi::Result<Any>& dq,
                           ffi::Result<Any>& dk, ffi::Result<Any>& dv) {
  return {.q = q.untyped_data(),
          .k = k.untyped_data(),
          .v = v.untyped_data(),
          .o = o.untyped_data(),
          .lse = lse.typed_data(),
          .d_o = d_o.untyped_data(),
          .dq = dq->untyped_data(),
          .dk = dk->untyped_data(),
          .dv = dv->untyped_data()};
}

ffi::Error run_forward(const Place& place, Any q, Any k, Any v, ffi::Result<Any> o,
                       ffi::Result<Floats> lse, std::int64_t left, std::int64_t right,
                       double scale) {
  return guarded([&] {
    const Call call{Pass::forward, left, right, scale, false};
    run(problem_of(call, q, k, v), place, forward_args(q, k, v, o, lse));
  });
}

ffi::Error run_backward(const Place& place, Any q, Any k, Any v, Any o, Floats lse, Any d_o,
                        ffi::Result<Any> dq, ffi::Result<Any> dk, ffi::Result<Any> dv,
                        std::int64_t left, std::int64_t right, double scale, bool deterministic) {
  return guarded([&] {
    const Call call{Pass::backward, left, right, scale, deterministic};
    run(problem_of(call, q, k, v), place, backward_args(q, k, v, o, lse, d_o, dq, dk, dv));
  });
}

// Of a descale [b, hk, blocks of rows].
Descale descale_of(const Floats& given) {
  const std::int64_t head = given.dimensions()[2];
  return {given.typed_data(), given.dimensions()[1] * head, head, 1};
}

// Of elements of 8 bits. descale_rows: of Problem.
ffi::Error run_scaled_forward(const Place& place, Any q, Any k, Any v, Floats q_descale,
                              Floats k_descale, Floats v_descale, ffi::Result<Any> o,
                              ffi::Result<Floats> lse, std::int64_t left, std::int64_t right,
                              double scale, std::int64_t descale_rows) {
  return guarded([&] {
    const Call call{Pass::forward, left, right, scale, false};
    Problem problem = problem_of(call, q, k, v);
    problem.descale_rows = descale_rows;
    ForwardArgs args = forward_args(q, k, v, o, lse);
    args.descales = {descale_of(q_descale), descale_of(k_descale), descale_of(v_descale)};
    run(problem, place, args);
  });
}

ffi::Error run_variant_forward(const Place& place, Any q, Any k, Any v, ffi::RemainingArgs operands,
                               ffi::Result<Any> o, ffi::Result<Floats> lse, Options options) {
  return guarded([&] {
    const Beside beside(options.with, operands);
    const Problem problem = variant_of(Pass::forward, options, beside, q, k, v);
    ForwardArgs args = forward_args(q, k, v, o, lse);
    args.sequences = beside.sequences();
    args.logits = beside.logits(problem);
    run(problem, place, args);
  });
}

// It has no sinks: they are in lse, and their own gradient is a sum that XLA does. d_bias: of no
// elements where it is not wanted.
ffi::Error run_variant_backward(const Place& place, Any q, Any k, Any v, Any o, Floats lse, Any d_o,
                                ffi::RemainingArgs operands, ffi::Result<Any> dq,
                                ffi::Result<Any> dk, ffi::Result<Any> dv,
                                ffi::Result<Floats> d_bias, Options options) {
  return guarded([&] {
    const Beside beside(options.with, operands);
    const Problem problem = variant_of(Pass::backward, options, beside, q, k, v);
    BackwardArgs args = backward_args(q, k, v, o, lse, d_o, dq, dk, dv);
    args.sequences = beside.sequences();
    args.logits = beside.logits(problem);
    args.d_bias = options.learned ? d_bias->typed_data() : nullptr;
    run(problem, place, args);
  });
}

// Operands, results and attributes of the functions above, in their order.
template <typename Binding>
auto inputs(Binding&& binding) {  // q, k, v
  return std::move(binding).template Arg<Any>().template Arg<Any>().template Arg<Any>();
}

template <typename Binding>
auto inputs_of_backward(Binding&& binding) {  // q, k, v, o, lse, d_o
  return inputs(std::move(binding)).template Arg<Any>().template Arg<Floats>().template Arg<Any>();
}

template <typename Binding>
auto descales_after(Binding&& binding) {
  return std::move(binding).template Arg<Floats>().template Arg<Floats>().template Arg<Floats>();
}

template <typename Binding>
auto results_of_forward(Binding&& binding) {  // o, lse
  return std::move(binding).template Ret<Any>().template Ret<Floats>();
}

template <typename Binding>
auto results_of_backward(Binding&& binding) {  // dq, dk, dv
  return std::move(binding).template Ret<Any>().template Ret<Any>().template Ret<Any>();
}

template <typename Binding>
auto options_of_forward(Binding&& binding) {
  return std::move(binding)
      .template Attr<std::int64_t>("left")
      .template Attr<std::int64_t>("right")
      .template Attr<double>("scale");
}

template <typename Binding>
auto options_of_backward(Binding&& binding) {
  return options_of_forward(std::move(binding)).template Attr<bool>("deterministic");
}

auto forward_binding(auto&& binding) {
  return options_of_forward(results_of_forward(inputs(std::move(binding))));
}
auto backward_binding(auto&& binding) {
  return options_of_backward(results_of_backward(inputs_of_backward(std::move(binding))));
}
auto scaled_forward_binding(auto&& binding) {
  return options_of_forward(results_of_forward(descales_after(inputs(std::move(binding)))))
      .template Attr<std::int64_t>("descale_rows");
}
auto variant_forward_binding(auto&& binding) {
  return results_of_forward(inputs(std::move(binding)).RemainingArgs()).template Attrs<Options>();
}
auto variant_backward_binding(auto&& binding) {
  return results_of_backward(inputs_of_backward(std::move(binding)).RemainingArgs())
      .template Ret<Floats>()
      .template Attrs<Options>();
}

auto on_cpu() { return ffi::Ffi::Bind(); }
auto on_cuda() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::ScratchAllocator>();
}

// XLA's macro makes a function of each handler; these are of run_NAME on both platforms.
#define DFA_JAX_TARGET(name)                                                           \
  XLA_FFI_DEFINE_HANDLER(                                                              \
      name##_on_cpu, [](auto&&... rest) { return run_##name(Place{"cpu"}, rest...); }, \
      name##_binding(on_cpu()));                                                       \
  XLA_FFI_DEFINE_HANDLER(                                                              \
      name##_on_cuda,                                                                  \
      [](void* stream, ffi::ScratchAllocator scratch, auto&&... rest) {                \
        return run_##name(Place{"cuda", stream, &scratch}, rest...);                   \
      },                                                                               \
      name##_binding(on_cuda()))

DFA_JAX_TARGET(forward);
DFA_JAX_TARGET(backward);
DFA_JAX_TARGET(scaled_forward);
DFA_JAX_TARGET(variant_forward);
DFA_JAX_TARGET(variant_backward);
#undef DFA_JAX_TARGET

nb::capsule capsule(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

void bind_jax(nb::module_& core) {
  nb::dict targets;
  const auto add = [&](const char* name, XLA_FFI_Handler* cpu, XLA_FFI_Handler* cuda) {
    targets[nb::make_tuple(name, "cpu")] = capsule(cpu);
    targets[nb::make_tuple(name, "CUDA")] = capsule(cuda);
  };
  add("dfa_forward", forward_on_cpu, forward_on_cuda);
  add("dfa_backward", backward_on_cpu, backward_on_cuda);
  add("dfa_scaled_forward", scaled_forward_on_cpu, scaled_forward_on_cuda);
  add("dfa_variant_forward", variant_forward_on_cpu, variant_forward_on_cuda);
  add("dfa_variant_backward", variant_backward_on_cpu, variant_backward_on_cuda);
  core.attr("jax_targets") = targets;
}

}  // namespace dfa::python
