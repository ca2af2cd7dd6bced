#include "measure/problem_buffers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/plan_part.h"
#include "attention/registry.h"
#include "base/fill.h"
#include "dfa/attention.h"
#include "measure/buffer.h"
#include "measure/sequence_arrays.h"
#include "reference/rows_check.h"
#include "sensors/host.h"
#include "spec/bias.h"
#include "spec/block_lists.h"
#include "spec/blocks.h"
#include "spec/less_exact.h"
#include "spec/values_in_keys.h"

namespace dfa::measure {
namespace {

std::size_t bytes_in(const Strides& strides, DType type, std::int64_t b, std::int64_t h,
                     std::int64_t s, std::int64_t d) {
  return static_cast<std::size_t>(extent(strides, b, h, s, d)) *
         static_cast<std::size_t>(bytes_of(type));
}

std::size_t q_bytes(const Problem& p) {
  return bytes_in(p.q(), p.dtype, p.batches(), p.hq, p.q_rows(), p.d);
}
std::size_t k_bytes(const Problem& p) {
  return bytes_in(p.k(), p.kv_dtype(), p.k_batches(), p.hk, p.k_rows(), p.d);
}
std::size_t v_bytes(const Problem& p) {
  return bytes_in(p.v(), p.kv_dtype(), p.k_batches(), p.hk, p.k_rows(), p.dv);
}
std::size_t o_bytes(const Problem& p) {
  return bytes_in(p.o(), p.o_dtype(), p.batches(), p.hq, p.q_rows(), p.dv);
}
std::size_t lse_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.batches() * p.hq * p.q_rows()) * sizeof(float);
}

// ALiBi's own slopes, a geometric row, where the problem takes some.
std::vector<float> slopes_of(const Problem& p) {
  std::vector<float> slopes(static_cast<std::size_t>(p.alibi ? p.hq : 0));
  for (std::size_t h = 0; h < slopes.size(); ++h) {
    slopes[h] = std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(p.hq));
  }
  return slopes;
}

// As large as logits are.
std::vector<float> sinks_of(const Problem& p) {
  constexpr std::uint64_t kSeed = 11;
  std::vector<float> sinks(static_cast<std::size_t>(p.sink ? p.hq : 0));
  fill_normal(sinks.data(), DType::fp32, std::ssize(sinks), kSeed);
  return sinks;
}

// As large as logits are, in the bias's element type.
AlignedBuffer bias_values(const Problem& p) {
  constexpr std::uint64_t kSeed = 12;
  if (!p.bias) return {};
  const std::int64_t count = bias_sizes(p).elements();
  AlignedBuffer values(static_cast<std::size_t>(count * bytes_of(p.bias->dtype)));
  fill_normal(values.data(), p.bias->dtype, count, kSeed);
  return values;
}

std::size_t bias_gradient_bytes(const Problem& p) {
  return p.bias ? static_cast<std::size_t>(bias_sizes(p).elements()) * sizeof(float) : 0;
}

// Of a workspace that holds a matrix of all scores, the rest takes too long to be filled.
constexpr std::size_t kPoisonedWorkspace = std::size_t{1} << 30;

void append(CheckReport& all, CheckReport one) {
  all.ok = all.ok && one.ok;
  all.sampled = all.sampled || one.sampled;
  for (TensorCheck& tensor : one.tensors) all.tensors.push_back(std::move(tensor));
}

// The lists of Problem::blocks, on the host and on the device.
struct Lists {
  Lists(const Problem& p, const Device& on)
      : host(p),
        kv_counts(on, host.kv_counts),
        kv_indices(on, host.kv_indices),
        kv_bitmaps(on, host.kv_bitmaps),
        q_counts(on, host.q_counts),
        q_indices(on, host.q_indices),
        q_bitmaps(on, host.q_bitmaps),
        bits(on, host.bits) {}

  BlockLists pointers() const {
    BlockLists lists = host.pointers();
    if (lists.kv_counts == nullptr) return lists;
    lists.kv_counts = kv_counts.integers();
    lists.kv_indices = kv_indices.integers();
    lists.q_counts = q_counts.integers();
    lists.q_indices = q_indices.integers();
    if (lists.bits == nullptr) return lists;
    lists.kv_bitmaps = kv_bitmaps.integers();
    lists.q_bitmaps = q_bitmaps.integers();
    lists.bits = static_cast<const std::uint32_t*>(bits.data());
    return lists;
  }

  BlockArrays host;
  Buffer kv_counts, kv_indices, kv_bitmaps, q_counts, q_indices, q_bitmaps, bits;
};

// Who has no lists cannot run: those of a problem line are drawn or read.
const Problem& with_lists(const Problem& p) {
  if (!p.blocks || !p.blocks->states.empty()) return p;
  throw InvalidArgument("problem: 'blocks(" + block_mask_text(*p.blocks) +
                        ")' says no lists; accepted: blocks(random,DENSITY,SEED), blocks(FILE)");
}

// A recording and the memory whose addresses are in it.
class WithWorkspace final : public Recording {
 public:
  WithWorkspace(std::unique_ptr<Recording> recording, std::shared_ptr<Buffer> workspace,
                std::shared_ptr<Buffer> probabilities)
      : recording_(std::move(recording)),
        workspace_(std::move(workspace)),
        probabilities_(std::move(probabilities)) {}
  void replay(Queue queue) const override { recording_->replay(queue); }

 private:
  std::unique_ptr<Recording> recording_;
  std::shared_ptr<Buffer> workspace_, probabilities_;
};

constexpr double kMemoryShare = 0.9;  // what the system calls available is an estimate

}  // namespace

std::optional<std::int64_t> allowed_bytes(const Backend& backend) {
  const std::int64_t free =
      backend.device().free_bytes().value_or(sensors::available_memory_bytes());
  if (free == 0) return std::nullopt;
  return static_cast<std::int64_t>(kMemoryShare * static_cast<double>(free));
}

std::size_t PassPlans::workspace_bytes() const {
  return std::max(forward ? forward->workspace_bytes : 0, backward ? backward->workspace_bytes : 0);
}

std::size_t PassPlans::probabilities_bytes() const {
  return forward && backward ? forward->probabilities_bytes : 0;
}

double PassPlans::flops() const {
  return (forward ? forward->forward_flops : 0) + (backward ? backward->backward_flops : 0);
}

int PassPlans::sms() const {
  if (forward && backward) return std::min(forward->forward_sms, backward->backward_sms);
  return forward ? forward->forward_sms : backward->backward_sms;
}

std::vector<std::string> PassPlans::warnings() const {
  std::vector<std::string> all = forward ? dfa::warnings(*forward) : std::vector<std::string>{};
  if (!backward) return all;
  for (std::string& warning : dfa::warnings(*backward)) all.push_back(std::move(warning));
  return all;
}

std::string PassPlans::why() const {
  std::string text = any().why;
  for (const std::string& warning : warnings()) text += "; " + warning;
  return text;
}

Problem with_pass(Problem problem, Pass pass) {
  problem.pass = pass;
  return problem;
}

PassPlans prepare(const Problem& problem, const PlanOptions& options) {
  PassPlans plans;
  const bool both = problem.pass == Pass::forward_backward;
  const auto of = [&](Pass pass) {
    const Problem part = with_pass(problem, pass);
    return both ? plan_part(part, options) : plan(part, options);
  };
  if (has_forward(problem)) plans.forward = of(Pass::forward);
  if (has_backward(problem)) plans.backward = of(Pass::backward);
  if (!both && plans.any().probabilities_bytes > 0) {
    throw InvalidArgument("config: stored probabilities serve a forward with its backward; '" +
                          to_line(problem) + "' is one of them, accepted: fwdbwd");
  }
  return plans;
}

static bool quantises(const Problem& p, const PassPlans& plans) {
  return quantises(p.dtype, plans.any().problem.dtype);
}

std::size_t quantised_bytes(const Problem& problem, const PassPlans& plans) {
  Problem p = problem;
  p.dtype = DType::e4m3;
  return quantises(problem, plans) ? q_bytes(p) + k_bytes(p) + v_bytes(p) : 0;
}

std::size_t tensor_bytes(const Problem& p) {
  const std::size_t inputs = q_bytes(p) + k_bytes(p) + v_bytes(p);
  const std::size_t forward = inputs + o_bytes(p) + lse_bytes(p);
  return has_backward(p) ? forward + inputs + o_bytes(p) : forward;
}

struct ProblemBuffers::Tensors {
  Tensors(const Problem& p, const Backend& ours, bool gradients)
      : problem(with_lists(p)),
        backend(ours),
        on(ours.device()),
        q(on, q_bytes(p)),
        k(on, k_bytes(p)),
        v(on, v_bytes(p)),
        o(on, o_bytes(p)),
        lse(on, lse_bytes(p)),
        d_o(on, gradients ? o_bytes(p) : 0),
        dq(on, gradients ? q_bytes(p) : 0),
        dk(on, gradients ? k_bytes(p) : 0),
        dv(on, gradients ? v_bytes(p) : 0),
        host_sequences(p),
        host_slopes(slopes_of(p)),
        host_sinks(sinks_of(p)),
        cu_seqlens_q(on, host_sequences.cu_seqlens_q),
        cu_seqlens_k(on, host_sequences.cu_seqlens_k),
        seqused_k(on, host_sequences.seqused_k),
        block_table(on, host_sequences.block_table),
        slopes(on, sizeof(float) * host_slopes.size()),
        sinks(on, sizeof(float) * host_sinks.size()),
        d_sinks(on, gradients ? sizeof(float) * host_sinks.size() : 0),
        host_bias(bias_values(p)),
        bias(on, host_bias.size()),
        d_bias(on, gradients ? bias_gradient_bytes(p) : 0),
        lists(p, on) {
    if (p.bias) on.copy_in(bias.data(), host_bias.data(), bias.size());
    if (p.alibi) on.copy_in(slopes.data(), host_slopes.data(), slopes.size());
    if (p.sink) on.copy_in(sinks.data(), host_sinks.data(), sinks.size());
  }

  Sequences sequences() const {
    return {.cu_seqlens_q = cu_seqlens_q.integers(),
            .cu_seqlens_k = cu_seqlens_k.integers(),
            .seqused_k = seqused_k.integers(),
            .block_table = block_table.integers(),
            .table_row = host_sequences.table_row};
  }

  Logits logits() const {
    return {.alibi_slopes = static_cast<const float*>(slopes.data()),
            .sinks = static_cast<const float*>(sinks.data()),
            .bias = bias.data()};
  }
  Logits host_logits() const {
    return {
        .alibi_slopes = host_slopes.data(), .sinks = host_sinks.data(), .bias = host_bias.data()};
  }

  // Inputs of q, k and v, and the factors that go with them.
  void fill(std::uint64_t seed, const HostInputs& given) {
    const bool draws = problem.kv_dtype() == DType::e4m3 && given.q == nullptr;
    if (!draws) {
      q.fill(problem.dtype, seed, given.q);
      k.fill(problem.kv_dtype(), seed + 1, given.k);
      latent = values_in_keys(problem) && given.v == nullptr && !has_backward(problem);
      if (latent) {
        v.fill(problem.kv_dtype(), 0, k.to_host().data());
      } else {
        v.fill(problem.kv_dtype(), seed + 2, given.v);
      }
      factors = std::make_unique<Factors>(given.factors, on);
    } else {
      std::vector<float> of_q;
      if (problem.kv) {
        q.fill(problem.dtype, seed, nullptr);
      } else {
        of_q = q.fill(quantizable_q(problem), seed);
      }
      HostDescales drawn{std::move(of_q), k.fill(quantizable_k(problem), seed + 1),
                         v.fill(quantizable_v(problem), seed + 2)};
      factors = std::make_unique<Factors>(std::move(drawn), on);
    }
  }

  // What a plan with products in this type reads.
  ForwardArgs forward_args(void* space, DType products) const {
    ForwardArgs args = forward_args(space);
    if (!quantises(problem.dtype, products)) return args;
    args.q = quantised->q.data();
    args.k = quantised->k.data();
    args.v = quantised->v.data();
    args.descales = quantised->factors.descales(problem);
    return args;
  }

  ForwardArgs forward_args(void* space) const {
    return {.q = q.data(),
            .k = k.data(),
            .v = latent ? k.data() : v.data(),
            .o = o.data(),
            .lse = static_cast<float*>(lse.data()),
            .workspace = space,
            .probabilities = kept(),
            .sequences = sequences(),
            .logits = logits(),
            .blocks = lists.pointers(),
            .descales = factors->descales(problem)};
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
            .workspace = space,
            .probabilities = kept(),
            .sequences = sequences(),
            .logits = logits(),
            .d_sinks = static_cast<float*>(d_sinks.data()),
            .d_bias = static_cast<float*>(d_bias.data()),
            .blocks = lists.pointers()};
  }

  void queue(const PassPlans& plans, void* space, Queue to, int times) const {
    to.sm_budget = sm_budget;
    for (int i = 0; i < times; ++i) {
      if (plans.forward) {
        dfa::forward(*plans.forward, forward_args(space, plans.forward->problem.dtype), to);
      }
      if (plans.backward) dfa::backward(*plans.backward, backward_args(space), to);
    }
  }

  const Quantised& quantise() {
    if (!quantised) quantised = std::make_unique<const Quantised>(problem, on, q, k, v);
    return *quantised;
  }

  void* space() const { return workspace ? workspace->data() : nullptr; }
  void* kept() const { return probabilities ? probabilities->data() : nullptr; }

  void grow(std::shared_ptr<Buffer>& buffer, std::size_t bytes) const {
    if (buffer && buffer->size() >= bytes) return;
    buffer.reset();
    buffer = std::make_shared<Buffer>(on, bytes);
  }

  Problem problem;
  const Backend& backend;
  const Device& on;
  int sm_budget = 0;
  bool latent = false;  // values are read where keys lie; v has a copy for the host
  Buffer q, k, v, o, lse, d_o, dq, dk, dv;
  SequenceArrays host_sequences;
  std::vector<float> host_slopes, host_sinks;
  Buffer cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, slopes, sinks, d_sinks;
  AlignedBuffer host_bias;
  Buffer bias, d_bias;
  Lists lists;
  std::unique_ptr<const Factors> factors;
  std::unique_ptr<const Quantised> quantised;  // where a plan read that
  std::shared_ptr<Buffer> workspace, probabilities;
};

ProblemBuffers::ProblemBuffers(const Problem& problem, const std::string& backend,
                               std::uint64_t seed, const HostInputs& inputs)
    : tensors_(std::make_unique<Tensors>(problem, find_backend(backend), has_backward(problem))) {
  tensors_->fill(seed, inputs);
  tensors_->d_o.fill(problem.o_dtype(), seed + 3, inputs.d_o);
  if (problem.pass != Pass::backward) return;
  const Plan plan = dfa::plan(with_pass(problem, Pass::forward), {.backend = backend});
  dfa::forward(plan, tensors_->forward_args(nullptr));
}

ProblemBuffers::~ProblemBuffers() = default;

const Problem& ProblemBuffers::problem() const { return tensors_->problem; }

void ProblemBuffers::reserve_workspace(std::size_t bytes) {
  tensors_->grow(tensors_->workspace, bytes);
}

void ProblemBuffers::reserve(const PassPlans& plans) {
  reserve_workspace(plans.workspace_bytes());
  tensors_->grow(tensors_->probabilities, plans.probabilities_bytes());
  if (quantises(problem(), plans)) tensors_->quantise();
}

void ProblemBuffers::limit_sms(int budget) { tensors_->sm_budget = budget; }

void ProblemBuffers::forward(const Plan& plan) { run({.forward = plan}); }

void ProblemBuffers::backward(const Plan& plan) { run({.backward = plan}); }

void ProblemBuffers::run(const PassPlans& plans, int times) {
  reserve(plans);
  tensors_->queue(plans, tensors_->space(), {}, times);
  tensors_->on.synchronize({});
}

double ProblemBuffers::time_s(const PassPlans& plans, int times) {
  reserve(plans);
  return tensors_->on.time_s([&] { tensors_->queue(plans, tensors_->space(), {}, times); }, {});
}

std::unique_ptr<const Recording> ProblemBuffers::record(const PassPlans& plans, int times) {
  run(plans);
  return std::make_unique<const WithWorkspace>(tensors_->on.record([&](Queue queue) {
    tensors_->queue(plans, tensors_->space(), queue, times);
  }),
                                               tensors_->workspace, tensors_->probabilities);
}

void ProblemBuffers::replay(const Recording& recording, int times) {
  for (int i = 0; i < times; ++i) recording.replay({});
  tensors_->on.synchronize({});
}

double ProblemBuffers::time_s(const Recording& recording) {
  return tensors_->on.time_s([&] { recording.replay({}); }, {});
}

std::unique_ptr<RowsCheck> ProblemBuffers::rows_check(int rows) const {
  auto check = tensors_->backend.diagnostics().rows_check(tensors_->problem, rows);
  return check ? std::move(check) : host_rows_check(tensors_->problem, rows);
}

double ProblemBuffers::error(RowsCheck& check, std::uint64_t seed) {
  return check.error(tensors_->forward_args(nullptr), seed, {});
}

ForwardArgs ProblemBuffers::forward_args() const {
  return tensors_->forward_args(tensors_->space());
}

HostOutputs ProblemBuffers::outputs() const {
  const Tensors& t = *tensors_;
  return {t.o.to_host(),  t.lse.to_host(),     t.dq.to_host(),    t.dk.to_host(),
          t.dv.to_host(), t.d_sinks.to_host(), t.d_bias.to_host()};
}

MemoryGrowth ProblemBuffers::growth(const PassPlans& plans) {
  tensors_->workspace.reset();
  tensors_->probabilities.reset();
  if (quantises(problem(), plans)) tensors_->quantise();
  const auto run = [&] {
    tensors_->grow(tensors_->probabilities, plans.probabilities_bytes());
    tensors_->queue(plans, nullptr, {}, 1);
    tensors_->on.synchronize({});
  };
  if (const auto bytes = tensors_->on.growth_bytes(run)) return {bytes, ""};
  return measure_growth(run);
}

CheckReport ProblemBuffers::check(const PassPlans& plans, const CheckOptions& options,
                                  const std::function<void()>& run_once) {
  Tensors& t = *tensors_;
  if (plans.forward) {
    t.o.poison();
    t.lse.poison();
  }
  for (Buffer* gradient : {&t.dq, &t.dk, &t.dv, &t.d_sinks, &t.d_bias}) gradient->poison();
  reserve(plans);
  t.workspace->poison(kPoisonedWorkspace);
  t.probabilities->poison(kPoisonedWorkspace);
  run_once ? run_once() : run(plans);
  return check(outputs(), options, plans.any().problem.dtype);
}

CheckReport ProblemBuffers::check(const HostOutputs& outputs, const CheckOptions& options,
                                  std::optional<DType> products) const {
  Problem p = problem();
  p.dtype = products.value_or(p.dtype);
  const Quantised* const narrow =
      quantises(problem().dtype, p.dtype) ? &tensors_->quantise() : nullptr;
  const Inputs in = narrow != nullptr
                        ? Inputs{narrow->q.to_host(), narrow->k.to_host(), narrow->v.to_host(), {}}
                        : inputs();
  const Factors& factors = narrow != nullptr ? narrow->factors : *tensors_->factors;
  const auto mutable_of = [](const AlignedBuffer& buffer) {
    return const_cast<void*>(static_cast<const void*>(buffer.data()));
  };
  const auto lse_of = [&](const AlignedBuffer& buffer) {
    return static_cast<float*>(mutable_of(buffer));
  };
  CheckReport report;
  if (has_forward(p)) {
    append(report, check_forward(with_pass(p, Pass::forward),
                                 {.q = in.q.data(),
                                  .k = in.k.data(),
                                  .v = in.v.data(),
                                  .o = mutable_of(outputs.o),
                                  .lse = outputs.lse.size() > 0 ? lse_of(outputs.lse) : nullptr,
                                  .sequences = tensors_->host_sequences.pointers(),
                                  .logits = tensors_->host_logits(),
                                  .blocks = tensors_->lists.host.pointers(),
                                  .descales = descales_of(p, factors.host)},
                                 options));
  }
  if (has_backward(p)) {
    const AlignedBuffer own_lse =
        outputs.lse.size() > 0 ? AlignedBuffer() : tensors_->lse.to_host();
    append(report,
           check_backward(with_pass(p, Pass::backward),
                          {.q = in.q.data(),
                           .k = in.k.data(),
                           .v = in.v.data(),
                           .o = outputs.o.data(),
                           .lse = lse_of(outputs.lse.size() > 0 ? outputs.lse : own_lse),
                           .d_o = in.d_o.data(),
                           .dq = mutable_of(outputs.dq),
                           .dk = mutable_of(outputs.dk),
                           .dv = mutable_of(outputs.dv),
                           .sequences = tensors_->host_sequences.pointers(),
                           .logits = tensors_->host_logits(),
                           .d_sinks = lse_of(outputs.d_sinks),
                           .d_bias = outputs.d_bias.size() > 0 ? lse_of(outputs.d_bias) : nullptr,
                           .blocks = tensors_->lists.host.pointers()},
                          options));
  }
  return report;
}

ProblemBuffers::Inputs ProblemBuffers::inputs() const {
  const Tensors& t = *tensors_;
  return {t.q.to_host(), t.k.to_host(), t.v.to_host(), t.d_o.to_host()};
}

}  // namespace dfa::measure
