#include "evaluate/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "bench/machine.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "dfa/error.h"

namespace dfa::cli {
namespace {

using evaluate::StepRecord;
using evaluate::StepStatus;
using evaluate::StudyStep;

struct StudyArguments {
  std::string out;
  std::string backend = "auto";
  std::string scale;
  std::string source;
  std::vector<std::string> steps;
  bool quick = false, brief = false;
  bool energy = true;
  bool list = false;
};

std::string duration(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

// The name by which `dfa analyze` knows a card.
std::string analyzed_machine(const GpuIdentity& gpu) {
  for (const char* name : {"h200", "h100", "a100", "t4"}) {
    std::string upper = name;
    std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
    if (gpu.name.find(upper) != std::string::npos) return name;
  }
  return "h200";
}

// The report, which is always made where it can be, is of suites: of one at least, here or before.
void require_for_report(const std::vector<StudyStep>& steps,
                        const std::vector<std::string>& names) {
  if (!steps.back().cannot.empty()) return;
  std::vector<std::string> suites;
  for (const StudyStep& step : steps) {
    if (!step.suite) continue;
    if (std::ranges::find(names, step.name) != names.end()) return;
    if (std::filesystem::exists(step.outputs[0])) return;
    suites.push_back(step.name);
  }
  throw InvalidArgument(fmt::format(
      "--steps '{}': no suite is among them or in --out, and the report needs one; accepted beside "
      "them: {}",
      fmt::join(names, ","), fmt::join(suites, ", ")));
}

std::vector<StudyStep> chosen(std::vector<StudyStep> steps, const std::vector<std::string>& names) {
  if (names.empty()) return steps;
  for (const std::string& name : names) {
    if (std::any_of(steps.begin(), steps.end(),
                    [&](const StudyStep& s) { return s.name == name; })) {
      continue;
    }
    std::vector<std::string> known;
    for (const StudyStep& step : steps) known.push_back(step.name);
    throw InvalidArgument(fmt::format("--steps '{}'; accepted: {}", name, fmt::join(known, ", ")));
  }
  require_for_report(steps, names);
  for (StudyStep& step : steps) {
    const bool wanted = std::find(names.begin(), names.end(), step.name) != names.end();
    if (!wanted && !step.always) step.cannot = "not asked for";
  }
  return steps;
}

void show_list(const std::vector<StudyStep>& steps) {
  double sum = 0;
  for (const StudyStep& step : steps) {
    if (step.cannot.empty()) sum += step.estimate_s;
    fmt::print("{:<18}{:>8}  {}{}\n", step.name,
               step.cannot.empty() ? duration(step.estimate_s) : "-", step.question,
               step.cannot.empty() ? "" : " (cannot be run here: " + step.cannot + ")");
  }
  fmt::print("about {} in all\n", duration(sum));
}

void show_done(const StepRecord& record, bool kept) {
  if (kept) {
    fmt::print("{:<18}done before\n", record.name);
  } else if (record.status == StepStatus::done) {
    fmt::print("{:<18}done in {}{}\n", record.name, duration(record.seconds),
               record.reason.empty() ? "" : ": " + record.reason);
  } else {
    fmt::print("{:<18}{}: {}\n", record.name,
               record.status == StepStatus::cannot ? "not run" : name_of(record.status),
               record.reason);
  }
  std::fflush(stdout);
}

std::string machine_text(const GpuIdentity& gpu) {
  return gpu.name.empty() ? bench::describe_machine(0).cpu : gpu.name;
}

void run_study(const StudyArguments& arguments, int& exit_code) {
  evaluate::StepOptions options;
  options.out = std::filesystem::absolute(arguments.out).lexically_normal();
  options.backend = arguments.backend == "auto" ? bench::default_backend() : arguments.backend;
  const GpuIdentity gpu = find_backend(options.backend).device().identity();
  options.scale = !arguments.scale.empty() ? bench::parse_scale(arguments.scale)
                  : gpu.name.empty()       ? bench::Scale::cpu
                                           : bench::Scale::full;
  options.extent = arguments.quick   ? evaluate::Extent::quick
                   : arguments.brief ? evaluate::Extent::brief
                                     : evaluate::Extent::whole;
  options.energy = arguments.energy;
  options.machine = analyzed_machine(gpu);
  const std::vector<StudyStep> steps = chosen(
      evaluate::make_steps(options, evaluate::find_tools(arguments.source)), arguments.steps);
  if (arguments.list) return show_list(steps);
  end_gently();
  evaluate::StudyRun run;
  run.out = options.out;
  run.machine = machine_text(gpu);
  run.interrupted = interrupted;
  run.on_step = [](const evaluate::StudyProgress& progress) {
    fmt::print(stderr, "[{}/{}] {}: {}; {} left in all\n", progress.number, progress.count,
               progress.step.name, progress.step.question, duration(progress.left_s));
  };
  run.on_done = show_done;
  const evaluate::StudyRecord record = run_steps(steps, run);
  const bool failed =
      std::any_of(record.steps.begin(), record.steps.end(),
                  [](const StepRecord& s) { return s.status == StepStatus::failed; });
  if (interrupted()) {
    fmt::print(stderr, "dfa: interrupted; the same command goes on from here\n");
  } else {
    const bool told = record.steps.back().status == StepStatus::done;  // the report is the last
    fmt::print("{}\n", (options.out / (told ? "report.html" : "study.json")).string());
  }
  if (interrupted() || failed) exit_code = 1;
}

}  // namespace

void add_study(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<StudyArguments>();
  StudyArguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "study", "The whole evaluation in one go: suites, theory, counters, training, report");
  command->add_option("--out", a.out, "folder; a study begun there goes on")->required();
  command->add_option("--backend", a.backend, "auto, cuda, cpu or reference");
  command->add_option("--scale", a.scale, "cpu or full; default: cpu where there is no GPU");
  command->add_option("--steps", a.steps, "only these, comma-separated; the report is always made")
      ->delimiter(',');
  command->add_flag("--quick", a.quick, "a second a suite, no joules: to see that all of it works");
  command
      ->add_flag("--brief", a.brief, "four seconds a suite, joules for the three-way study alone")
      ->excludes("--quick");
  command->add_flag("--energy,!--no-energy", a.energy,
                    "joules where the question is about them, seconds a case (default)");
  command->add_option("--source", a.source,
                      "a checkout with the report and the scripts (the one this was built in)");
  command->add_flag("--list", a.list, "show the steps and what they will take, run nothing");
  command->footer(
      "Example: dfa study --out out/study\n"
      "Interrupted or killed, the same command goes on: what is done is not repeated.");
  command->callback([arguments, &exit_code] { run_study(*arguments, exit_code); });
}

}  // namespace dfa::cli
