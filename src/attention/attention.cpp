#include "dfa/attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "attention/plan_memo.h"
#include "attention/plan_part.h"
#include "attention/registry.h"
#include "attention/text_check.h"
#include "base/aligned.h"
#include "spec/bias.h"
#include "spec/config_text.h"
#include "spec/descale.h"
#include "spec/user_text.h"

namespace dfa {
namespace {

struct Pointer {
  const char* name;
  const void* address;
  DType type;
};

void require_pointers(std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    const auto alignment = static_cast<std::uintptr_t>(bytes_of(pointer.type));
    if (pointer.address == nullptr) {
      throw InvalidArgument(std::string("pointer ") + pointer.name + " is null");
    }
    if (reinterpret_cast<std::uintptr_t>(pointer.address) % alignment != 0) {
      throw InvalidArgument(std::string("pointer ") + pointer.name + " is not aligned to its " +
                            std::to_string(alignment) + "-byte elements");
    }
  }
}

void require_probabilities(const Plan& plan, const void* address) {
  if (plan.probabilities_bytes == 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0;
  if (address != nullptr && aligned) return;
  throw InvalidArgument(std::string("pointer probabilities is ") +
                        (aligned ? "null" : "not aligned to 64 bytes") + "; this plan stores " +
                        std::to_string(plan.probabilities_bytes) +
                        " bytes there from forward() to backward()");
}

void require_budget(const char* pass, int budget, int sms) {
  if (budget == 0) return;
  if (sms == 0) {
    throw Unsupported("sm_budget " + std::to_string(budget) + ": the " + pass +
                      " kernels of this plan always take the whole device; accepted: 0");
  }
  if (budget < 0 || budget > sms) {
    throw InvalidArgument("sm_budget " + std::to_string(budget) + "; accepted: 1 to " +
                          std::to_string(sms) + ", or 0 for all");
  }
}

// What says where sequences lie is there, and nothing that says it twice.
void require_places(const Problem& p, const Sequences& sequences) {
  const auto absent = [](const char* name, const char* why) {
    throw InvalidArgument(std::string("pointer ") + name + " is null; " + why);
  };
  constexpr const char* kBegins = "packed sequences say where they begin";
  if (!p.paged()) {
    if (sequences.cu_seqlens_q == nullptr) absent("cu_seqlens_q", kBegins);
    if (sequences.cu_seqlens_k == nullptr) absent("cu_seqlens_k", kBegins);
    if (sequences.block_table == nullptr && sequences.leftpad_k == nullptr) return;
    throw InvalidArgument("block_table and leftpad_k are of paged problems; accepted: null");
  }
  if (sequences.cu_seqlens_q == nullptr && p.total_q != p.b * p.sq) absent("cu_seqlens_q", kBegins);
  if (sequences.seqused_k == nullptr) absent("seqused_k", "paged sequences say how long they are");
  if (sequences.block_table == nullptr) absent("block_table", "paged sequences name their pages");
  if (sequences.cu_seqlens_k != nullptr) {
    throw InvalidArgument("cu_seqlens_k is given; accepted for paged problems: null");
  }
}

void require_sequences(const Problem& p, const Sequences& sequences) {
  if (!p.packed()) {
    if (p.dropout == 0 || sequences.block_table == nullptr) return;
    throw InvalidArgument("block_table is of paged problems; accepted: null");
  }
  require_places(p, sequences);
  const std::pair<const char*, const std::int32_t*> pointers[] = {
      {"cu_seqlens_q", sequences.cu_seqlens_q}, {"cu_seqlens_k", sequences.cu_seqlens_k},
      {"seqused_q", sequences.seqused_q},       {"seqused_k", sequences.seqused_k},
      {"block_table", sequences.block_table},   {"leftpad_k", sequences.leftpad_k}};
  for (const auto& [name, address] : pointers) {
    if (reinterpret_cast<std::uintptr_t>(address) % sizeof(std::int32_t) != 0) {
      throw InvalidArgument(std::string("pointer ") + name + " is not aligned to int32");
    }
  }
}

void require_floats(const char* name, const float* address) {
  if (address == nullptr) {
    throw InvalidArgument(std::string("pointer ") + name + " is null; this problem has them");
  }
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(float) != 0) {
    throw InvalidArgument(std::string("pointer ") + name + " is not aligned to fp32");
  }
}

void require_bias(const Problem& p, const Logits& logits) {
  if (logits.bias == nullptr) {
    throw InvalidArgument("pointer bias is null; this problem has one");
  }
  if (reinterpret_cast<std::uintptr_t>(logits.bias) %
          static_cast<std::uintptr_t>(bytes_of(p.bias->dtype)) !=
      0) {
    throw InvalidArgument(std::string("pointer bias is not aligned to ") + name_of(p.bias->dtype));
  }
}

void require_dropout_state(const Problem& p, const Logits& logits) {
  if (reinterpret_cast<std::uintptr_t>(logits.dropout) % sizeof(std::uint64_t) != 0) {
    throw InvalidArgument("pointer dropout is not aligned to its 64-bit seed and offset");
  }
  constexpr std::int64_t kMostHeads = std::int64_t{1} << 31;  // that masks are numbered by
  const std::int64_t most = kMostHeads / p.hq - p.batches();
  if (logits.dropout_batch >= 0 && logits.dropout_batch <= most) return;
  throw InvalidArgument("dropout_batch is " + std::to_string(logits.dropout_batch) +
                        "; accepted: 0 to " + std::to_string(most));
}

// Where a call runs on the host values can be read, too.
bool on_host(const Device& device) { return device.identity().pci_id.empty(); }

void require_slopes(const Problem& p, const Logits& logits, const Device& device) {
  require_floats("alibi_slopes", logits.alibi_slopes);
  if (logits.slopes_of_batch != 0 && logits.slopes_of_batch != p.hq) {
    throw InvalidArgument("slopes_of_batch is " + std::to_string(logits.slopes_of_batch) +
                          "; accepted: 0, or hq for slopes of each batch");
  }
  if (!on_host(device)) return;
  const std::int64_t count = logits.slopes_of_batch == 0 ? p.hq : p.hq * p.b;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isfinite(logits.alibi_slopes[i])) continue;
    throw InvalidArgument("alibi_slopes has " + std::to_string(logits.alibi_slopes[i]) +
                          " at index " + std::to_string(i) + "; accepted: finite numbers");
  }
}

void require_sinks(const Problem& p, const Logits& logits, const Device& device) {
  require_floats("sinks", logits.sinks);
  if (!on_host(device)) return;
  for (std::int64_t i = 0; i < p.hq; ++i) {
    if (logits.sinks[i] < std::numeric_limits<float>::infinity()) continue;  // false of NaN
    throw InvalidArgument("sinks has " + std::to_string(logits.sinks[i]) + " at index " +
                          std::to_string(i) + "; accepted: finite numbers, and -inf for no sink");
  }
}

// Of a text that names it, the first batch's number.
void require_batch_numbers(const Problem& p, const Logits& logits) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (logits.dropout_batch >= 0 && logits.dropout_batch <= kMost - p.b) return;
  throw InvalidArgument("dropout_batch is " + std::to_string(logits.dropout_batch) +
                        "; accepted: 0 to " + std::to_string(kMost - p.b));
}

void require_logits(const Problem& p, const Logits& logits, const Device& device) {
  if (p.has_text()) require_batch_numbers(p, logits);
  if (p.sink) require_sinks(p, logits, device);
  if (p.bias) require_bias(p, logits);
  if (p.dropout > 0) require_dropout_state(p, logits);
  if (p.alibi) require_slopes(p, logits, device);
}

void require_finite(const char* name, const Problem& p, const Descale& descale, std::int64_t rows) {
  const std::int64_t blocks = descale_blocks(p, rows);
  for (std::int64_t i = 0; i < p.b * p.hk * blocks; ++i) {
    const std::int64_t head = i / blocks, block = i % blocks;
    const float value = descale_of(descale, head / p.hk, head % p.hk, block);
    if (std::isfinite(value)) continue;
    const std::string at = p.descale_rows == 0 ? "" : ", block " + std::to_string(block);
    throw InvalidArgument(std::string(name) + " has " + std::to_string(value) + " at batch " +
                          std::to_string(head / p.hk) + ", key head " +
                          std::to_string(head % p.hk) + at + "; accepted: finite numbers");
  }
}

void require_descales(const Problem& p, const Descales& descales, const Device& device) {
  if (p.kv_dtype() != DType::e4m3) return;
  const std::tuple<const char*, const Descale&, std::int64_t> all[] = {
      {"q_descale", descales.q, p.sq},
      {"k_descale", descales.k, p.sk},
      {"v_descale", descales.v, p.sk}};
  for (const auto& [name, descale, rows] : all) {
    if (descale.values != nullptr) require_floats(name, descale.values);
    if (descale.batch < 0 || descale.head < 0 || descale.block < 0) {
      throw InvalidArgument(std::string("strides of ") + name +
                            " are negative; accepted: from 0 on");
    }
    if (on_host(device)) require_finite(name, p, descale, rows);
  }
}

void require_integers(const char* name, const void* address) {
  if (address == nullptr) {
    throw InvalidArgument(std::string("pointer ") + name + " is null; this problem has blocks");
  }
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(std::int32_t) != 0) {
    throw InvalidArgument(std::string("pointer ") + name + " is not aligned to int32");
  }
}

void require_blocks(const Problem& p, const BlockLists& blocks, bool by_keys) {
  if (!p.blocks) return;
  by_keys = by_keys || blocks.q_counts != nullptr;  // given, they are read
  require_integers("kv_counts", blocks.kv_counts);
  require_integers("kv_indices", blocks.kv_indices);
  if (by_keys) {
    require_integers("q_counts", blocks.q_counts);
    require_integers("q_indices", blocks.q_indices);
  }
  if (!p.blocks->bitmaps) {
    if (blocks.kv_bitmaps == nullptr && blocks.q_bitmaps == nullptr) return;
    throw InvalidArgument(
        "kv_bitmaps and q_bitmaps are of blocks that are seen in part; accepted: null");
  }
  require_integers("kv_bitmaps", blocks.kv_bitmaps);
  if (by_keys) require_integers("q_bitmaps", blocks.q_bitmaps);
  if (blocks.bitmaps > 0) require_integers("bits", blocks.bits);
}

// On a GPU texts are compiled when they come.
void require_texts(const Plan& plan, const Backend& backend) {
  if (!plan.problem.has_text() || on_host(backend.device())) return;
  require_right_texts(backend, plan.problem, kernels_named(plan));
}

// The caller's workspace, or one that lives as long as this call.
class Workspace {
 public:
  Workspace(const Device& device, std::size_t bytes, void* given) : device_(device), data_(given) {
    if (given == nullptr && bytes > 0) data_ = owned_ = device.allocate(bytes);
    if (reinterpret_cast<std::uintptr_t>(data_) % kAlignment != 0) {
      throw InvalidArgument("pointer workspace is not aligned to 64 bytes");
    }
  }
  ~Workspace() {
    if (owned_ != nullptr) device_.release(owned_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }
  bool owned() const { return owned_ != nullptr; }

 private:
  const Device& device_;
  void* data_;
  void* owned_ = nullptr;
};

const Backend& choose(const Problem& problem, const PlanOptions& options) {
  if (options.backend != "auto") {
    const Backend& backend = find_backend(options.backend);
    for (const Verdict& verdict : {backend.available(), backend.supports(problem, options)}) {
      if (!verdict) throw Unsupported("backend " + backend.name() + ": " + verdict.reason);
    }
    return backend;
  }
  std::string reasons;
  for (const Backend* backend : all_backends()) {
    if (backend->name() == "reference")
      continue;  // only ever by name: it is the truth, not a fallback
    const Verdict available = backend->available();
    const Verdict verdict = available ? backend->supports(problem, options) : available;
    if (verdict) return *backend;
    reasons += "; " + backend->name() + ": " + verdict.reason;
  }
  throw Unsupported("no backend can run '" + to_line(problem) + "'" + reasons);
}

}  // namespace

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> list;
  for (const Backend* backend : all_backends()) {
    const Verdict available = backend->available();
    list.push_back({backend->name(), available ? backend->description() : "", available});
  }
  return list;
}

Plan plan(const Problem& problem, const PlanOptions& options) {
  if (names_other_pass(options.config, problem.pass)) {
    throw InvalidArgument("config '" + options.config + "' is of the other pass than '" +
                          to_line(problem) + "'");
  }
  return plan_part(problem, options);
}

Plan plan_part(const Problem& asked, const PlanOptions& options) {
  require_known_type(options.config);
  Problem problem = with_short_text(asked);
  problem.mask = within_reach(problem.mask);
  if (auto remembered = remembered_plan(problem, options)) return *std::move(remembered);
  validate(problem);
  std::optional<Plan> made;
  if (const auto other = plan_of_other_keys(problem, options)) {
    made = find_backend(other->backend).with_keys(*other, problem);
  }
  if (!made) made = choose(problem, options).plan(problem, options);
  remember_plan(problem, options, *made);
  return *std::move(made);
}

std::vector<std::string> warnings(const Plan& plan) {
  return plan.ready.plan == nullptr ? std::vector<std::string>{} : plan.ready.plan->warnings();
}

bool fits_context(const Plan& plan) {
  return plan.ready.plan == nullptr || plan.ready.plan->fits_context();
}

void forward(const Plan& plan, const ForwardArgs& args, Queue queue) {
  const Problem& p = plan.problem;
  if (p.pass == Pass::backward) throw InvalidArgument("forward: the plan is for the backward only");
  require_pointers({{"q", args.q, p.dtype},
                    {"k", args.k, p.kv_dtype()},
                    {"v", args.v, p.kv_dtype()},
                    {"o", args.o, p.o_dtype()}});
  require_sequences(p, args.sequences);
  const Backend& backend = find_backend(plan.backend);
  require_logits(p, args.logits, backend.device());
  require_blocks(p, args.blocks, false);
  require_descales(p, args.descales, backend.device());
  require_probabilities(plan, args.probabilities);
  require_texts(plan, backend);
  require_budget("forward", queue.sm_budget, plan.forward_sms);
  const Workspace workspace(backend.device(), plan.workspace_bytes, args.workspace);
  ForwardArgs with = args;
  with.workspace = workspace.data();
  with.logits = with_bias_strides(p, args.logits);
  if (plan.probabilities_bytes == 0) with.probabilities = nullptr;
  backend.forward(plan, with, queue);
  if (workspace.owned()) backend.device().synchronize(queue);
}

void backward(const Plan& plan, const BackwardArgs& args, Queue queue) {
  const Problem& p = plan.problem;
  if (p.pass == Pass::forward) throw InvalidArgument("backward: the plan is for the forward only");
  require_pointers({{"q", args.q, p.dtype},
                    {"k", args.k, p.dtype},
                    {"v", args.v, p.dtype},
                    {"o", args.o, p.dtype},
                    {"lse", args.lse, DType::fp32},
                    {"do", args.d_o, p.dtype},
                    {"dq", args.dq, p.dtype},
                    {"dk", args.dk, p.dtype},
                    {"dv", args.dv, p.dtype}});
  require_sequences(p, args.sequences);
  const Backend& backend = find_backend(plan.backend);
  require_logits(p, args.logits, backend.device());
  require_blocks(p, args.blocks, true);
  if (p.sink) require_floats("d_sinks", args.d_sinks);
  if (p.bias && args.d_bias != nullptr) require_floats("d_bias", args.d_bias);
  require_probabilities(plan, args.probabilities);
  require_texts(plan, backend);
  require_budget("backward", queue.sm_budget, plan.backward_sms);
  const Workspace workspace(backend.device(), plan.workspace_bytes, args.workspace);
  BackwardArgs with = args;
  with.workspace = workspace.data();
  with.logits = with_bias_strides(p, args.logits);
  if (p.bias) with.d_bias_strides = bias_strides(p, args.d_bias_strides);
  if (plan.probabilities_bytes == 0) with.probabilities = nullptr;
  backend.backward(plan, with, queue);
  if (workspace.owned()) backend.device().synchronize(queue);
}

}  // namespace dfa
