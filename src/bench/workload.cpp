#include "bench/workload.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/registry.h"
#include "base/fill.h"
#include "dfa/attention.h"

namespace dfa::bench {
namespace {

std::size_t bytes_in(const Strides& strides, const Problem& p, std::int64_t h, std::int64_t s,
                     std::int64_t d) {
  return static_cast<std::size_t>(extent(strides, p.b, h, s, d)) *
         static_cast<std::size_t>(bytes_of(p.dtype));
}

std::size_t q_bytes(const Problem& p) { return bytes_in(p.q(), p, p.hq, p.sq, p.d); }
std::size_t k_bytes(const Problem& p) { return bytes_in(p.k(), p, p.hk, p.sk, p.d); }
std::size_t v_bytes(const Problem& p) { return bytes_in(p.v(), p, p.hk, p.sk, p.dv); }
std::size_t o_bytes(const Problem& p) { return bytes_in(p.o(), p, p.hq, p.sq, p.dv); }
std::size_t lse_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.b * p.hq * p.sq) * sizeof(float);
}

// Memory of a backend.
class Buffer {
 public:
  Buffer(const Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(bytes == 0 ? nullptr : backend.allocate(bytes)) {}
  ~Buffer() {
    if (data_ != nullptr) backend_.release(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  void fill(const Problem& p, std::uint64_t seed, const void* given) {
    if (data_ == nullptr) return;
    if (given != nullptr) {
      backend_.copy_in(data_, given, bytes_);
      return;
    }
    AlignedBuffer host(bytes_);
    const std::int64_t count = static_cast<std::int64_t>(bytes_) / bytes_of(p.dtype);
    fill_normal(host.data(), p.dtype, count, seed);
    backend_.copy_in(data_, host.data(), bytes_);
  }

  // All bits set is a NaN in every element type.
  void poison() {
    if (data_ == nullptr) return;
    AlignedBuffer host(bytes_);
    std::memset(host.data(), 0xff, bytes_);
    backend_.copy_in(data_, host.data(), bytes_);
  }

  AlignedBuffer to_host() const {
    AlignedBuffer host(bytes_);
    if (data_ != nullptr) backend_.copy_out(host.data(), data_, bytes_);
    return host;
  }

 private:
  const Backend& backend_;
  std::size_t bytes_;
  void* data_;
};

void append(CheckReport& all, CheckReport one) {
  all.ok = all.ok && one.ok;
  all.sampled = all.sampled || one.sampled;
  for (TensorCheck& tensor : one.tensors) all.tensors.push_back(std::move(tensor));
}

}  // namespace

std::size_t Prepared::workspace_bytes() const {
  return std::max(forward ? forward->workspace_bytes : 0, backward ? backward->workspace_bytes : 0);
}

double Prepared::flops() const {
  return (forward ? forward->forward_flops : 0) + (backward ? backward->backward_flops : 0);
}

Problem with_pass(Problem problem, Pass pass) {
  problem.pass = pass;
  return problem;
}

Prepared prepare(const Problem& problem, const PlanOptions& options) {
  Prepared plans;
  if (has_forward(problem)) plans.forward = plan(with_pass(problem, Pass::forward), options);
  if (has_backward(problem)) plans.backward = plan(with_pass(problem, Pass::backward), options);
  return plans;
}

std::size_t tensor_bytes(const Problem& p) {
  const std::size_t inputs = q_bytes(p) + k_bytes(p) + v_bytes(p);
  const std::size_t forward = inputs + o_bytes(p) + lse_bytes(p);
  return has_backward(p) ? forward + inputs + o_bytes(p) : forward;
}

struct Workload::Tensors {
  Tensors(const Problem& p, const Backend& on, bool gradients)
      : problem(p),
        backend(on),
        q(on, q_bytes(p)),
        k(on, k_bytes(p)),
        v(on, v_bytes(p)),
        o(on, o_bytes(p)),
        lse(on, lse_bytes(p)),
        d_o(on, gradients ? o_bytes(p) : 0),
        dq(on, gradients ? q_bytes(p) : 0),
        dk(on, gradients ? k_bytes(p) : 0),
        dv(on, gradients ? v_bytes(p) : 0) {}

  ForwardArgs forward_args(void* space) const {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = static_cast<float*>(lse.data()),
            .workspace = space};
  }

  BackwardArgs backward_args(void* space) const {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = static_cast<const float*>(lse.data()),
            .d_o = d_o.data(),
            .dq = dq.data(),
            .dk = dk.data(),
            .dv = dv.data(),
            .workspace = space};
  }

  void queue(const Prepared& plans, void* space) const {
    if (plans.forward) dfa::forward(*plans.forward, forward_args(space));
    if (plans.backward) dfa::backward(*plans.backward, backward_args(space));
  }

  void* space() const { return workspace ? workspace->data() : nullptr; }

  Problem problem;
  const Backend& backend;
  Buffer q, k, v, o, lse, d_o, dq, dk, dv;
  std::unique_ptr<Buffer> workspace;
};

Workload::Workload(const Problem& problem, const std::string& backend, std::uint64_t seed,
                   const HostInputs& inputs)
    : tensors_(std::make_unique<Tensors>(problem, find_backend(backend), has_backward(problem))) {
  tensors_->q.fill(problem, seed, inputs.q);
  tensors_->k.fill(problem, seed + 1, inputs.k);
  tensors_->v.fill(problem, seed + 2, inputs.v);
  tensors_->d_o.fill(problem, seed + 3, inputs.d_o);
  if (problem.pass != Pass::backward) return;
  const Plan plan = dfa::plan(with_pass(problem, Pass::forward), {.backend = backend});
  dfa::forward(plan, tensors_->forward_args(nullptr));
}

Workload::~Workload() = default;

const Problem& Workload::problem() const { return tensors_->problem; }

void Workload::reserve_workspace(std::size_t bytes) {
  auto& workspace = tensors_->workspace;
  if (workspace && workspace->size() >= bytes) return;
  workspace.reset();
  workspace = std::make_unique<Buffer>(tensors_->backend, bytes);
}

void Workload::forward(const Plan& plan) { run({.forward = plan}); }

void Workload::backward(const Plan& plan) { run({.backward = plan}); }

void Workload::run(const Prepared& plans) {
  reserve_workspace(plans.workspace_bytes());
  tensors_->queue(plans, tensors_->space());
  tensors_->backend.synchronize({});
}

double Workload::time_s(const Prepared& plans) {
  reserve_workspace(plans.workspace_bytes());
  return tensors_->backend.time_s([&] { tensors_->queue(plans, tensors_->space()); }, {});
}

HostOutputs Workload::outputs() const {
  const Tensors& t = *tensors_;
  return {t.o.to_host(), t.lse.to_host(), t.dq.to_host(), t.dk.to_host(), t.dv.to_host()};
}

void Workload::release_workspace() { tensors_->workspace.reset(); }

void Workload::run_without_workspace(const Prepared& plans) {
  tensors_->queue(plans, nullptr);
  tensors_->backend.synchronize({});
}

CheckReport Workload::check(const Prepared& plans, const CheckOptions& options) {
  Tensors& t = *tensors_;
  if (plans.forward) {
    t.o.poison();
    t.lse.poison();
  }
  for (Buffer* gradient : {&t.dq, &t.dk, &t.dv}) gradient->poison();
  run(plans);

  const AlignedBuffer q = t.q.to_host(), k = t.k.to_host(), v = t.v.to_host();
  AlignedBuffer o = t.o.to_host(), lse = t.lse.to_host();
  CheckReport report;
  if (plans.forward) {
    append(report,
           check_forward(
               plans.forward->problem,
               {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.as<float>()},
               options));
  }
  if (plans.backward) {
    const AlignedBuffer d_o = t.d_o.to_host();
    AlignedBuffer dq = t.dq.to_host(), dk = t.dk.to_host(), dv = t.dv.to_host();
    append(report, check_backward(plans.backward->problem,
                                  {.q = q.data(),
                                   .k = k.data(),
                                   .v = v.data(),
                                   .o = o.data(),
                                   .lse = lse.as<float>(),
                                   .d_o = d_o.data(),
                                   .dq = dq.data(),
                                   .dk = dk.data(),
                                   .dv = dv.data()},
                                  options));
  }
  return report;
}

}  // namespace dfa::bench
