#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "attention/registry.h"
#include "base/clock.h"
#include "bench/machine.h"
#include "bench/result.h"
#include "bench/result_writer.h"
#include "bench/runner.h"
#include "cli/command.h"
#include "cli/named_files.h"
#include "cli/tensor_files.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "measure/problem_buffers.h"
#include "measure/statistics.h"
#include "reference/check.h"
#include "sensors/system_clock.h"
#include "spec/algorithm_name.h"
#include "spec/lengths.h"

namespace dfa::cli {
namespace {

constexpr double kRepeatSeconds = 0.25;  // quick problems are repeated for about this long

struct RunArguments {
  std::string problem;
  InputFiles files;
  std::string out;
  std::string json;
  std::string algorithm = "auto";
  PlanOptions options;
  int sm_budget = 0;
  std::uint64_t seed = 1;
  bool check = false;
};

void require_memory(const Problem& problem, const measure::PassPlans& plans) {
  const auto needed = static_cast<double>(measure::tensor_bytes(problem) + plans.memory_bytes());
  const auto allowed = measure::allowed_bytes(find_backend(plans.any().backend));
  if (!allowed || needed <= static_cast<double>(*allowed)) return;
  throw OutOfMemory(fmt::format("'{}' needs {:.2f} GB, of which {:.2f} GB are there",
                                to_line(problem), needed * 1e-9,
                                static_cast<double>(*allowed) * 1e-9));
}

// One run; where it is quick, more runs after it, and only those count.
std::vector<bench::Sample> time_runs(measure::ProblemBuffers& buffers,
                                     const measure::PassPlans& plans) {
  const double begin_s = monotonic_s();
  buffers.run(plans);
  const double first_s = monotonic_s() - begin_s;
  if (first_s > kRepeatSeconds) return {{.start_s = 0, .duration_s = first_s}};
  bench::MeasureOptions options{.warm_up = 0};
  options.stopping.budget_s = kRepeatSeconds;
  const sensors::SystemClock clock;
  return bench::measure({{"run", [&] { buffers.run(plans); }}}, options, clock)[0].samples;
}

measure::Summary summary_ms(const std::vector<bench::Sample>& samples) {
  std::vector<double> ms;
  for (const bench::Sample& sample : samples) ms.push_back(sample.duration_s * 1e3);
  return measure::summarize(ms);
}

void print_plan(const char* pass, const Plan& plan, const std::string& config) {
  fmt::print("{:<10}{}, {}, {} thread{}: {}\n", pass, plan.backend, name_of(plan.algorithm),
             plan.threads, plan.threads == 1 ? "" : "s", plan.why);
  if (!config.empty()) fmt::print("{:<10}{} ({})\n", "", config, plan.origin);
}

void print_head(const RunArguments& arguments, const Inputs& inputs,
                const measure::PassPlans& plans) {
  fmt::print("problem   {}\n", to_line(inputs.problem));
  for (const std::string& note : inputs.notes) fmt::print("input     {}\n", note);
  const bool seeded_do = has_backward(inputs.problem) && inputs.d_o.size() == 0;
  if (inputs.notes.empty() || seeded_do) {
    fmt::print("input     {} of seeded normal values, seed {}\n",
               inputs.notes.empty() ? "all" : "do", arguments.seed);
  }
  if (plans.forward) print_plan("forward", *plans.forward, plans.forward->config);
  if (plans.backward) print_plan("backward", *plans.backward, plans.backward->backward_config);
  const auto mb = [](std::size_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  fmt::print("memory    {:.3f} MB of tensors, {:.3f} MB of workspace{}\n",
             mb(measure::tensor_bytes(inputs.problem)), mb(plans.workspace_bytes()),
             plans.probabilities_bytes() == 0
                 ? ""
                 : fmt::format(", {:.3f} MB of probabilities kept for the backward",
                               mb(plans.probabilities_bytes())));
}

void print_time(const measure::Summary& ms, double flops) {
  fmt::print("time      {:.4f} ms, median of {} (least {:.4f}, p95 {:.4f})\n", ms.median, ms.n,
             ms.min, ms.p95);
  if (!(flops > 0)) return;  // of lengths that are not known ahead
  fmt::print("rate      {:.2f} GFLOP/s ({:.4g} GFLOP of matrix products)\n",
             ms.median > 0 ? flops * 1e-6 / ms.median : 0.0, flops * 1e-9);
}

void print_check(const CheckReport& report) {
  fmt::print("check     {} against fp64{}\n", report.ok ? "ok" : "WRONG",
             report.sampled ? ", on a seeded sample of heads and rows" : "");
  const std::string text = report.summary();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    fmt::print("          {}\n", text.substr(at, end - at));
    at = end + 1;
  }
}

void write_outputs(const std::filesystem::path& folder, const Inputs& inputs,
                   const measure::HostOutputs& outputs) {
  const Problem& p = inputs.problem;
  const auto write = [&](const char* name, const AlignedBuffer& buffer, const Strides& strides,
                         std::int64_t h, std::int64_t s, std::int64_t d) {
    write_tensor(folder / name,
                 {buffer.data(), output_of(p.dtype), strides, p.b, h, s, d, p.layout},
                 inputs.batched);
    fmt::print("wrote     {}\n", (folder / name).string());
  };
  write("o.npy", outputs.o, p.o(), p.hq, p.sq, p.dv);
  write_lse(folder / "lse.npy", outputs.lse.as<float>(), p, inputs.batched);
  fmt::print("wrote     {}\n", (folder / "lse.npy").string());
  if (!has_backward(p)) return;
  write("dq.npy", outputs.dq, p.q(), p.hq, p.sq, p.d);
  write("dk.npy", outputs.dk, p.k(), p.hk, p.sk, p.d);
  write("dv.npy", outputs.dv, p.v(), p.hk, p.sk, p.dv);
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bench::CaseResult describe_case(const RunArguments& arguments, const Problem& problem,
                                const measure::PassPlans& plans, const measure::Summary& ms,
                                const std::optional<CheckReport>& report) {
  bench::CaseResult record;
  record.suite = "run";
  record.problem = to_line(problem);
  record.algorithm = name_of(plans.any().algorithm);
  record.backend = plans.any().backend;
  record.config = plans.forward ? plans.forward->config : "";
  record.backward_config = plans.backward ? plans.backward->backward_config : "";
  record.origin = plans.any().origin;
  record.why = plans.why();
  record.precision = dfa::name_of(problem.dtype);
  record.reason = "one run; energy, power, memory peak and sensors are measured by dfa bench";
  record.time_ms =
      bench::TimeMs{ms.median, ms.min, ms.p95, ms.mad, ms.n, ms.mean, finite(ms.half_width)};
  record.flops = plans.flops();
  if (ms.median > 0) record.tflops = finite(record.flops * 1e-9 / ms.median);
  record.workspace_bytes = static_cast<std::int64_t>(plans.workspace_bytes());
  record.memory_bytes =
      static_cast<std::int64_t>(plans.memory_bytes() + measure::tensor_bytes(problem));
  record.seed = arguments.seed;
  record.sm_budget = arguments.sm_budget;
  if (!report) return record;
  const TensorCheck& worst = report->worst();
  record.check = bench::CheckVerdict{.ok = report->ok,
                                     .max_error = finite(worst.max_error),
                                     .bound = finite(worst.bound),
                                     .seed = arguments.seed,
                                     .tensor = worst.name,
                                     .sampled = report->sampled};
  if (!report->ok) {
    record.status = bench::CaseStatus::failed;
    record.reason = "wrong result: " + worst.name + ": " + worst.detail;
  }
  return record;
}

void write_json(const RunArguments& arguments, bench::CaseResult record,
                std::vector<bench::Sample> samples) {
  bench::Result result;
  result.created = utc_now();
  result.argv = bench::process_arguments();
  result.git = bench::describe_source();
  result.machine = bench::describe_machine(arguments.options.threads);
  result.cases.push_back(std::move(record));
  bench::write_result(arguments.json, result, {std::move(samples)});
  fmt::print("wrote     {}\n", arguments.json);
}

// Trouble with the places to write to is better known before the run than after it.
void require_places(const RunArguments& arguments, bool gradients) {
  const auto output = [&](const char* name, bool written = true) {
    const bool is = written && !arguments.out.empty();
    return NamedFile{"--out", is ? std::filesystem::path(arguments.out) / name : ""};
  };
  const InputFiles& files = arguments.files;
  require_apart({{"--json", arguments.json},
                 {"--out", arguments.out},
                 output("o.npy"),
                 output("lse.npy"),
                 output("dq.npy", gradients),
                 output("dk.npy", gradients),
                 output("dv.npy", gradients)},
                {{"--q", files.q}, {"--k", files.k}, {"--v", files.v}, {"--do", files.d_o}});
  if (!arguments.json.empty()) bench::require_writable(arguments.json);
  if (arguments.out.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(arguments.out, error);
  if (error) {
    throw IoError("--out: cannot make the folder '" + arguments.out + "': " + error.message());
  }
  bench::require_writable(std::filesystem::path(arguments.out) / "o.npy");
}

void run(RunArguments& arguments, int& exit_code) {
  arguments.options.algorithm = parse_algorithm(arguments.algorithm);
  const Inputs inputs = read_inputs(arguments.problem, arguments.files);
  if (!arguments.out.empty()) require_plain(inputs.problem, "--out");
  const measure::PassPlans plans = measure::prepare(inputs.problem, arguments.options);
  require_memory(inputs.problem, plans);
  require_places(arguments, has_backward(inputs.problem));
  print_head(arguments, inputs, plans);

  measure::ProblemBuffers buffers(
      inputs.problem, plans.any().backend, arguments.seed,
      {inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), inputs.factors});
  buffers.limit_sms(arguments.sm_budget);
  std::vector<bench::Sample> samples = time_runs(buffers, plans);
  const measure::Summary ms = summary_ms(samples);
  for (const std::string& text : plans.warnings()) fmt::print("warning   {}\n", text);
  print_time(ms, plans.flops());

  std::optional<CheckReport> report;
  if (arguments.check) {
    report = buffers.check(plans, {.seed = arguments.seed});
    print_check(*report);
    if (!report->ok) exit_code = 1;
  }
  if (!arguments.out.empty()) write_outputs(arguments.out, inputs, buffers.outputs());
  if (!arguments.json.empty()) {
    write_json(arguments, describe_case(arguments, inputs.problem, plans, ms, report),
               std::move(samples));
  }
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  RunArguments& a = *arguments;
  CLI::App* command = app.add_subcommand("run", "Run attention once, on seeded or given tensors");
  command->add_option("--problem", a.problem, "problem line; sizes may be left out with files")
      ->required();
  command->add_option("--q", a.files.q, "F.npy, F.safetensors or F.safetensors:NAME");
  command->add_option("--k", a.files.k, "like --q");
  command->add_option("--v", a.files.v, "like --q");
  command->add_option("--do", a.files.d_o, "gradient of the output, like --q; default: seeded");
  command->add_option("--out", a.out, "folder for o, lse, dq, dk, dv as .npy");
  command->add_option("--backend", a.options.backend, "auto, cuda, cpu or reference");
  command->add_option("--algorithm", a.algorithm, "standard, flash or auto");
  command->add_option("--config", a.options.config, "tiles, e.g. block_q=64,block_k=128");
  command->add_flag("--check", a.check, "hold the result against fp64 attention; exit 1 if wrong");
  command->add_option("--seed", a.seed, "of the inputs, an integer from 0 to 2^64-1")
      ->check(seed());
  command->add_option("--threads", a.options.threads, "CPU threads, 1 to 1024, or 0 for all")
      ->check(thread_count());
  command
      ->add_option(
          "--sm-budget", a.sm_budget,
          "multiprocessors that launches may take, where their kernels take a budget; 0: all")
      ->check(whole_number(0, 100000));
  command->add_option("--json", a.json, "result file, schema dfa-result/1");
  command->footer(
      "Files hold (b,h,s,d) or (h,s,d), with layout(bshd) in the line (b,s,h,d) or (s,h,d), in\n"
      "fp16, bf16, fp32 or fp64, .safetensors in e4m3 too; values are rounded to the problem's\n"
      "type. Outputs are fp16 for fp16 problems, else fp32.\n\n"
      "Example: dfa run --problem \"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64\" --check");
  command->callback([arguments, &exit_code] { run(*arguments, exit_code); });
}

}  // namespace dfa::cli
