#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dfa/attention.h"
#include "python/bindings/core.h"
#include "spec/algorithm_name.h"
#include "spec/bias.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

using Pointer = std::uintptr_t;  // 0: null
using StrideTuple = std::array<std::int64_t, 3>;
// softcap, alibi, sink of Problem, and what stands in its line's bias(…); empty: none.
using LogitTuple = std::tuple<double, bool, bool, std::string>;

template <typename T>
T* at(Pointer pointer) {
  return reinterpret_cast<T*>(pointer);  // NOLINT(performance-no-int-to-ptr)
}

Strides strides(const StrideTuple& s) { return {.batch = s[0], .head = s[1], .row = s[2]}; }

// Of Problem::blocks: block_q, block_k, of_batch, of_head, bitmaps; block_q 0: no lists.
using BlockTuple = std::tuple<std::int64_t, std::int64_t, bool, bool, bool>;
std::optional<BlockMask> blocks_of(const BlockTuple& given) {
  BlockMask blocks;
  std::tie(blocks.block_q, blocks.block_k, blocks.of_batch, blocks.of_head, blocks.bitmaps) = given;
  return blocks.block_q == 0 ? std::nullopt : std::optional(blocks);
}

Problem problem_of(const std::string& head, const std::array<std::int64_t, 7>& sizes,
                   const std::array<std::int64_t, 2>& window, double scale, bool deterministic,
                   const std::array<StrideTuple, 4>& tensors,
                   const std::array<std::int64_t, 2>& totals, const LogitTuple& logits,
                   std::int64_t page, const std::array<std::int64_t, 2>& positions, double dropout,
                   const BlockTuple& blocks) {
  // The line's parser knows the names of passes and element types; the numbers are set here.
  Problem p = parse_problem(head + " b1 h1 s1 d8");
  p.mask = {window[0], window[1], positions[0], positions[1]};
  p.b = sizes[0];
  p.hq = sizes[1];
  p.hk = sizes[2];
  p.sq = sizes[3];
  p.sk = sizes[4];
  p.d = sizes[5];
  p.dv = sizes[6];
  p.scale = scale;
  p.deterministic = deterministic;
  p.q_strides = strides(tensors[0]);
  p.k_strides = strides(tensors[1]);
  p.v_strides = strides(tensors[2]);
  p.o_strides = strides(tensors[3]);
  p.total_q = totals[0];
  p.total_k = totals[1];
  std::string bias;
  std::tie(p.softcap, p.alibi, p.sink, bias) = logits;
  if (!bias.empty()) p.bias = bias_of(bias, DType::fp32);
  p.page = page;
  p.dropout = dropout;
  p.blocks = blocks_of(blocks);
  return p;
}

PlanOptions options(const std::string& backend, const std::string& algorithm,
                    const std::string& config, int threads) {
  return {.backend = backend,
          .algorithm = parse_algorithm(algorithm),
          .config = config,
          .threads = threads};
}

// mask_mod and score_mod of Problem; empty: none.
using TextTuple = std::tuple<std::string, std::string>;
// num_splits and batch_invariant of Problem.
using SplitTuple = std::tuple<int, bool>;

// Pointers of Sequences, in its order; 0 where the problem is dense, or none is given.
using SequencePointers = std::array<Pointer, 4>;
// And of a paged problem: block_table, table_row, leftpad_k.
using PagePointers = std::tuple<Pointer, std::int64_t, Pointer>;
Sequences sequences(const SequencePointers& s, const PagePointers& pages = {}) {
  const auto& [table, table_row, leftpad] = pages;
  return {.cu_seqlens_q = at<std::int32_t>(s[0]),
          .cu_seqlens_k = at<std::int32_t>(s[1]),
          .seqused_q = at<std::int32_t>(s[2]),
          .seqused_k = at<std::int32_t>(s[3]),
          .block_table = at<std::int32_t>(table),
          .table_row = table_row,
          .leftpad_k = at<std::int32_t>(leftpad)};
}

// Of Logits: alibi_slopes, slopes_of_batch, sinks, bias and its strides.
using LogitPointers = std::tuple<Pointer, std::int64_t, Pointer, Pointer, StrideTuple>;
// And of dropout: seed and offset.
Logits logits_of(const LogitPointers& given, Pointer dropout) {
  const auto& [slopes, of_batch, sinks, bias, steps] = given;
  return {.alibi_slopes = at<float>(slopes),
          .slopes_of_batch = of_batch,
          .sinks = at<float>(sinks),
          .bias = at<void>(bias),
          .bias_strides = strides(steps),
          .dropout = at<std::uint64_t>(dropout)};
}

// Gradients of sinks and of the bias, and the strides of that.
using LogitGradients = std::tuple<Pointer, Pointer, StrideTuple>;

// Of BlockLists, in its order, and how many bitmaps there are.
using BlockPointers = std::tuple<std::array<Pointer, 7>, std::int64_t>;
BlockLists block_lists(const BlockPointers& given) {
  const auto& [lists, bitmaps] = given;
  return {.kv_counts = at<std::int32_t>(lists[0]),
          .kv_indices = at<std::int32_t>(lists[1]),
          .kv_bitmaps = at<std::int32_t>(lists[2]),
          .q_counts = at<std::int32_t>(lists[3]),
          .q_indices = at<std::int32_t>(lists[4]),
          .q_bitmaps = at<std::int32_t>(lists[5]),
          .bits = at<std::uint32_t>(lists[6]),
          .bitmaps = bitmaps};
}

// Of Descales: pointers of q, k, v, and the strides of batch, head and block of each.
using DescalePointer = std::tuple<Pointer, std::int64_t, std::int64_t, std::int64_t>;
using DescalePointers = std::array<DescalePointer, 3>;
Descale descale_of(const DescalePointer& given) {
  const auto& [values, batch, head, block] = given;
  return {at<float>(values), batch, head, block};
}

void run_forward(const Plan& plan, Pointer q, Pointer k, Pointer v, Pointer o, Pointer lse,
                 Pointer workspace, Pointer stream, const SequencePointers& where,
                 const LogitPointers& logits, const PagePointers& pages,
                 const BlockPointers& blocks, Pointer dropout, const DescalePointers& descales) {
  forward(plan,
          {.q = at<void>(q),
           .k = at<void>(k),
           .v = at<void>(v),
           .o = at<void>(o),
           .lse = at<float>(lse),
           .workspace = at<void>(workspace),
           .sequences = sequences(where, pages),
           .logits = logits_of(logits, dropout),
           .blocks = block_lists(blocks),
           .descales = {descale_of(descales[0]), descale_of(descales[1]), descale_of(descales[2])}},
          {.stream = at<void>(stream)});
}

void run_backward(const Plan& plan, Pointer q, Pointer k, Pointer v, Pointer o, Pointer lse,
                  Pointer d_o, Pointer dq, Pointer dk, Pointer dv, Pointer workspace,
                  Pointer stream, const SequencePointers& where, const LogitPointers& logits,
                  const LogitGradients& gradients, const BlockPointers& blocks, Pointer dropout) {
  const auto& [d_sinks, d_bias, d_bias_strides] = gradients;
  backward(plan,
           {.q = at<void>(q),
            .k = at<void>(k),
            .v = at<void>(v),
            .o = at<void>(o),
            .lse = at<float>(lse),
            .d_o = at<void>(d_o),
            .dq = at<void>(dq),
            .dk = at<void>(dk),
            .dv = at<void>(dv),
            .workspace = at<void>(workspace),
            .sequences = sequences(where),
            .logits = logits_of(logits, dropout),
            .d_sinks = at<float>(d_sinks),
            .d_bias = at<float>(d_bias),
            .d_bias_strides = strides(d_bias_strides),
            .blocks = block_lists(blocks)},
           {.stream = at<void>(stream)});
}

std::string why(const Plan& plan) {
  std::string text = plan.why;
  for (const std::string& warning : warnings(plan)) text += "; " + warning;
  return text;
}

std::string explain(const Plan& plan) {
  std::string text = to_line(plan.problem) + "\n  " + why(plan);
  if (!plan.config.empty()) text += "\n  forward  " + plan.config;
  if (!plan.backward_config.empty()) text += "\n  backward " + plan.backward_config;
  return text + "\n  backend " + plan.backend + ", configuration " + plan.origin + ", workspace " +
         std::to_string(plan.workspace_bytes) + " bytes" +
         (plan.probabilities_bytes == 0 ? ""
                                        : ", probabilities kept for the backward " +
                                              std::to_string(plan.probabilities_bytes) + " bytes");
}

std::vector<std::tuple<std::string, bool, std::string>> list_backends() {
  std::vector<std::tuple<std::string, bool, std::string>> list;
  for (const BackendInfo& info : backends()) {
    list.emplace_back(info.name, info.available.ok,
                      info.available ? info.description : info.available.reason);
  }
  return list;
}

}  // namespace

void bind_plan(nb::module_& core) {
  nb::class_<Plan>(core, "Plan", "What will run, and why; from dfa.plan().")
      .def_prop_ro(
          "problem", [](const Plan& plan) { return to_line(plan.problem); }, "The problem line.")
      .def_ro("backend", &Plan::backend)
      .def_ro("config", &Plan::config, "Forward configuration; empty without a forward.")
      .def_ro("backward_config", &Plan::backward_config)
      .def_ro("origin", &Plan::origin, "default, forced or measured.")
      .def_prop_ro("why", &why,
                   "One sentence, and what compiling the kernels warned of once they have run.")
      .def_ro("threads", &Plan::threads)
      .def_ro("workspace_bytes", &Plan::workspace_bytes)
      .def_ro("probabilities_bytes", &Plan::probabilities_bytes,
              "What the forward leaves for the backward; 0 where it computes them anew.")
      .def_ro("forward_flops", &Plan::forward_flops)
      .def_ro("backward_flops", &Plan::backward_flops)
      .def("_fits_context", [](const Plan& plan) { return fits_context(plan); })
      .def("_forward", &run_forward, nb::call_guard<nb::gil_scoped_release>(), "q"_a, "k"_a, "v"_a,
           "o"_a, "lse"_a, "workspace"_a, "stream"_a, "sequences"_a = SequencePointers{},
           "logits"_a = LogitPointers{}, "pages"_a = PagePointers{}, "blocks"_a = BlockPointers{},
           "dropout"_a = 0, "descales"_a = DescalePointers{})
      .def("_backward", &run_backward, nb::call_guard<nb::gil_scoped_release>(), "q"_a, "k"_a,
           "v"_a, "o"_a, "lse"_a, "d_o"_a, "dq"_a, "dk"_a, "dv"_a, "workspace"_a, "stream"_a,
           "sequences"_a = SequencePointers{}, "logits"_a = LogitPointers{},
           "gradients"_a = LogitGradients{}, "blocks"_a = BlockPointers{}, "dropout"_a = 0)
      .def("__str__", &explain)
      .def("__repr__", [](const Plan& p) { return "<dfa.Plan " + to_line(p.problem) + ">"; });

  core.def(
      "plan_line",
      [](const std::string& line, const std::string& backend, const std::string& algorithm,
         const std::string& config, int threads, const std::string& policy,
         const std::string& profile) {
        const Problem problem = parse_problem(line);
        if (!policy.empty()) return plan_by_policy(problem, backend, policy, profile);
        return plan(problem, options(backend, algorithm, config, threads));
      },
      "line"_a, "backend"_a, "algorithm"_a, "config"_a, "threads"_a, "policy"_a = "",
      "profile"_a = "");
  core.def(
      "plan_sizes",
      [](const std::string& head, const std::array<std::int64_t, 7>& sizes,
         const std::array<std::int64_t, 2>& window, double scale, bool deterministic,
         const std::array<StrideTuple, 4>& tensors, const std::string& backend,
         const std::string& algorithm, const std::string& policy, const std::string& profile,
         int threads, const std::array<std::int64_t, 2>& totals, const LogitTuple& logits,
         std::int64_t page, const std::array<std::int64_t, 2>& positions, double dropout,
         const BlockTuple& blocks, const SplitTuple& splits, bool e4m3_cache, const TextTuple& text,
         std::int64_t descale_rows) {
        Problem problem = problem_of(head, sizes, window, scale, deterministic, tensors, totals,
                                     logits, page, positions, dropout, blocks);
        std::tie(problem.num_splits, problem.batch_invariant) = splits;
        if (e4m3_cache) problem.kv = DType::e4m3;
        std::tie(problem.mask_mod, problem.score_mod) = text;
        problem.descale_rows = descale_rows;
        if (!policy.empty()) return plan_by_policy(problem, backend, policy, profile);
        return plan(problem, options(backend, algorithm, "", threads));
      },
      "head"_a, "sizes"_a, "window"_a, "scale"_a, "deterministic"_a, "strides"_a, "backend"_a,
      "algorithm"_a, "policy"_a = "", "profile"_a = "", "threads"_a = 0,
      "totals"_a = std::array<std::int64_t, 2>{}, "logits"_a = LogitTuple{}, "page"_a = 0,
      "positions"_a = std::array<std::int64_t, 2>{}, "dropout"_a = 0.0, "blocks"_a = BlockTuple{},
      "splits"_a = SplitTuple{}, "e4m3_cache"_a = false, "text"_a = TextTuple{},
      "descale_rows"_a = 0,
      "head: 'fwd bf16'; sizes: b, hq, hk, sq, sk, d, dv; strides of q, k, v, o; totals: rows of "
      "all packed sequences, 0 where dense; logits: softcap, alibi, sink of the problem line, "
      "and what stands in its bias(…); page: rows of a page, 0 where not paged; positions: of a "
      "chunk and of the prefix, 0: none; dropout: its "
      "probability, of a seed that comes with the pointers; blocks: queries and keys of a block, "
      "0: no lists, of each "
      "batch, of each head, with bitmaps; splits: num_splits and batch_invariant of the line; "
      "e4m3_cache: its kv(e4m3); text: its mask_mod(…) and score_mod(…); descale_rows: its "
      "descale_rows(N), 0: none.");
  core.def("backends", &list_backends, "(name, available, description or reason) of each.");
}

}  // namespace dfa::python
