#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"
#include "bench/cudnn_peer.h"
#include "bench/machine.h"
#include "bench/partial_result.h"
#include "bench/result.h"
#include "bench/result_writer.h"
#include "bench/suite_run.h"
#include "bench/suites.h"
#include "bench/three_way.h"
#include "bench/torch_peer.h"
#include "bench/warnings.h"
#include "cli/bench_cards.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/named_files.h"
#include "cli/unused.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "evaluate/several_cards.h"
#include "spec/config_text.h"

namespace dfa::cli {
namespace {

struct BenchArguments {
  std::string suite;
  std::string problems_file;
  std::vector<std::string> problem_lines;
  std::vector<std::string> only;
  std::vector<std::string> algorithms;
  std::vector<std::string> launches;
  std::vector<std::string> peers;
  int calls = 0;  // 0: as the suite says, or chosen
  std::string scale;
  std::string out;
  bench::SuiteOptions options;
};

std::string time_left(double fraction, double elapsed_s) {
  if (fraction < 0.02) return "?";
  return fmt::format("{:.0f} s", elapsed_s * (1 - fraction) / fraction);
}

// A bar that redraws itself on a terminal, one line a problem elsewhere.
class ProgressBar {
 public:
  void show(const bench::Progress& progress) {
    const double now = monotonic_s();
    if (terminal_) {
      if (now - drawn_s_ < 0.1) return;
      drawn_s_ = now;
      constexpr int kWidth = 24;
      const auto filled = static_cast<int>(progress.fraction * kWidth);
      fmt::print(stderr, "\r\033[K[{:#<{}}{:.<{}}] {}/{} ETA {}  {}", "", filled, "",
                 kWidth - filled, progress.problem, progress.problems,
                 time_left(progress.fraction, now - begin_s_), progress.what.substr(0, 60));
      std::fflush(stderr);
    } else if (progress.problem != shown_) {
      shown_ = progress.problem;
      fmt::print(stderr, "{}/{} {}\n", progress.problem, progress.problems, progress.what);
    }
  }

  ~ProgressBar() {
    if (terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  double begin_s_ = monotonic_s();
  double drawn_s_ = 0;
  int shown_ = 0;
};

bench::Scale scale_of(const BenchArguments& arguments) {
  if (!arguments.scale.empty()) return bench::parse_scale(arguments.scale);
  const std::string backend =
      arguments.options.backend == "auto" ? bench::default_backend() : arguments.options.backend;
  return backend == "cpu" || backend == "reference" ? bench::Scale::cpu : bench::Scale::full;
}

std::vector<bench::ProblemGroup> chosen_problems(const BenchArguments& arguments) {
  if (!arguments.suite.empty()) {
    return bench::make_suite(arguments.suite, arguments.options.scale);
  }
  std::string text;
  for (const std::string& line : arguments.problem_lines) text += line + "\n";
  if (!arguments.problems_file.empty()) text = read_file(arguments.problems_file, kMostText);
  return bench::parse_problem_list(text, {"standard", "flash"});
}

bool has_words(const std::string& line, const std::string& words) {
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    if ((" " + line + " ").find(" " + word + " ") == std::string::npos) return false;
  }
  return true;
}

// Those whose line has every word of one of --only.
void keep_only(const std::vector<std::string>& only, std::vector<bench::ProblemGroup>& groups) {
  if (only.empty()) return;
  std::erase_if(groups, [&](const bench::ProblemGroup& group) {
    const std::string line = to_line(group.problem);
    return std::none_of(only.begin(), only.end(),
                        [&](const std::string& words) { return has_words(line, words); });
  });
  if (groups.empty()) {
    throw InvalidArgument("--only '" + only.front() + "': no problem has these words in its line");
  }
}

// A case is known by its names: what is there twice could not be told apart in the result.
void refuse_twice(const char* option, std::vector<std::string> names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return;
  throw InvalidArgument(fmt::format("{} '{}' comes twice; accepted: each once", option, *twice));
}

void refuse_problems_twice(const std::vector<bench::ProblemGroup>& groups) {
  std::vector<std::string> lines;
  for (const bench::ProblemGroup& group : groups) {
    if (group.suite == "custom") lines.push_back(to_line(group.problem));
  }
  refuse_twice("problem", std::move(lines));
}

std::vector<bench::ProblemGroup> groups_of(const BenchArguments& arguments) {
  auto groups = chosen_problems(arguments);
  keep_only(arguments.only, groups);
  refuse_problems_twice(groups);
  const std::string& config = arguments.options.config;
  require_known_type(config);
  const bool unused = std::ranges::all_of(
      groups, [&](const auto& group) { return names_other_pass(config, group.problem.pass); });
  if (unused) {
    throw InvalidArgument("--config '" + config + "' is of the other pass than every problem");
  }
  refuse_twice("--algorithms", arguments.algorithms);
  refuse_twice("--launch", arguments.launches);
  std::vector<bench::Launch> launches;
  for (const std::string& name : arguments.launches) launches.push_back(bench::parse_launch(name));
  for (auto& group : groups) {
    if (!arguments.algorithms.empty()) group.algorithms = arguments.algorithms;
    if (!launches.empty()) group.launches = launches;
    if (arguments.calls > 0) group.calls = arguments.calls;
  }
  return groups;
}

std::vector<std::string> peers_of(const BenchArguments& arguments) {
  std::vector<std::string> peers;
  const auto& torch = bench::TorchPeer::of_sdpa();
  std::vector<std::string> known = bench::TorchPeer::algorithms();
  known.emplace_back(bench::CudnnPeer::kAlgorithm);
  for (const std::string& name : arguments.peers) {
    if (name == "torch") {
      peers.insert(peers.end(), torch.begin(), torch.end());
    } else if (std::find(known.begin(), known.end(), name) != known.end()) {
      peers.push_back(name);
    } else {
      throw InvalidArgument(
          fmt::format("--peers '{}'; accepted: torch, {}", name, fmt::join(known, ", ")));
    }
  }
  refuse_twice("--peers", peers);
  return peers;
}

std::string number_or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string check_text(const bench::CaseResult& record) {
  if (!record.check) return "-";
  return record.check->ok ? "ok" : "WRONG";
}

std::string variant_text(const bench::CaseResult& record) {
  return record.algorithm + (record.launch == "eager" ? "" : ", " + record.launch);
}

void print_summary(const bench::Result& result) {
  fmt::print("{:<44} {:<16} {:>10} {:>7} {:>7} {:>9} {:>9} {:>6}  {}\n", "problem", "algorithm",
             "median ms", "± mad", "n", "TFLOP/s", "J/run", "check", "status");
  for (const bench::CaseResult& c : result.cases) {
    const bool timed = c.time_ms.has_value();
    fmt::print(
        "{:<44} {:<16} {:>10} {:>7} {:>7} {:>9} {:>9} {:>6}  {}\n", c.problem, variant_text(c),
        timed ? fmt::format("{:.3f}", c.time_ms->median) : "-",
        timed ? fmt::format("{:.3f}", c.time_ms->mad) : "-", timed ? c.time_ms->n : 0,
        number_or_dash(c.tflops, "{:.3f}"), number_or_dash(c.energy_j, "{:.4g}"), check_text(c),
        c.status == bench::CaseStatus::ok
            ? "ok"
            : fmt::format("{}: {}", name_of(c.status), c.reason.value_or("no reason given")));
  }
}

// What the whole run could not measure, once instead of once a case.
void print_not_measured(const bench::Result& result) {
  std::map<std::string, std::string> fields_by_reason;
  for (const bench::CaseResult& c : result.cases) {
    for (const auto& [field, reason] : c.not_measured) {
      std::string& fields = fields_by_reason[reason];
      if (fields.find(field) == std::string::npos) fields += (fields.empty() ? "" : ", ") + field;
    }
  }
  for (const auto& [reason, fields] : fields_by_reason) {
    fmt::print("not measured: {} ({})\n", fields, reason);
  }
}

bool any_failed(const bench::Result& result) {
  return std::any_of(result.cases.begin(), result.cases.end(), [](const bench::CaseResult& c) {
    return c.status == bench::CaseStatus::failed;
  });
}

// Of a result without a number: whoever asked for one is told so by the exit code, too.
void require_measured(const bench::Result& result, const std::string& out) {
  if (std::ranges::any_of(result.cases, [](const bench::CaseResult& c) {
        return c.status == bench::CaseStatus::ok || c.status == bench::CaseStatus::failed;
      })) {
    return;
  }
  throw Unsupported(fmt::format(
      "bench: nothing was measured, all {} cases are unsupported or out of memory; '{}' says why",
      result.cases.size(), out));
}

// The three lists stand beside the result.
void write_three_way(const std::string& out, const bench::Result& result) {
  if (is_stream(out)) {
    fmt::print("baseline, flash and dynamic lists: not written, no file can stand beside '{}'\n",
               out);
    return;
  }
  const std::filesystem::path folder = output_target(out).parent_path();
  bench::write_three_way(folder.empty() ? "." : folder, result);
}

// What would change nothing that is measured.
void require_used(const BenchArguments& a, const CLI::App& command) {
  if (!a.options.energy) {
    refuse_unused(command, "bench --no-energy", {"--energy-seconds"}, "without --no-energy");
  }
  if (!a.algorithms.empty() && std::ranges::find(a.algorithms, "flash") == a.algorithms.end()) {
    refuse_unused(command, fmt::format("bench --algorithms {}", fmt::join(a.algorithms, ",")),
                  {"--config"}, "with flash among them");
  }
}

void run_bench(BenchArguments& arguments, const CLI::App& command, int& exit_code) {
  require_used(arguments, command);
  require_apart({{"--out", arguments.out}}, {{"--problems", arguments.problems_file}});
  bench::require_writable(arguments.out);
  arguments.options.scale = scale_of(arguments);
  arguments.options.peers = peers_of(arguments);
  const auto groups = groups_of(arguments);
  end_gently();
  arguments.options.interrupted = interrupted;
  bench::SuiteRun suite;
  bench::PartialResult partial(arguments.out);
  {
    ProgressBar bar;
    suite = bench::run_suite(
        groups, arguments.options, [&](const bench::Progress& progress) { bar.show(progress); },
        [&](const bench::SuiteRun& so_far) { partial.keep(so_far); });
  }
  suite.result.created = utc_now();
  suite.result.argv = bench::process_arguments();
  bench::write_result(arguments.out, suite.result, suite.samples);
  partial.remove();
  if (arguments.suite == "three_way") write_three_way(arguments.out, suite.result);
  print_summary(suite.result);
  print_not_measured(suite.result);
  for (const std::string& line : bench::warnings(suite.result)) fmt::print("{}\n", line);
  fmt::print("wrote {}\n", arguments.out);
  if (interrupted()) fmt::print(stderr, "dfa: interrupted; the problems left are not in it\n");
  if (any_failed(suite.result) || interrupted()) {
    exit_code = 1;
  } else {
    require_measured(suite.result, arguments.out);
  }
}

CardsArguments cards_arguments(const CLI::App& command, const BenchArguments& arguments) {
  CardsArguments cards{.out = arguments.out};
  if (command.count("--seconds") > 0) cards.seconds = arguments.options.seconds;
  if (command.count("--energy-seconds") > 0)
    cards.energy_seconds = arguments.options.energy_seconds;
  if (!arguments.options.energy) cards.energy_seconds = 0;
  return cards;
}

std::string suites_help() {
  std::string text = "suites:\n";
  for (const bench::SuiteInfo& suite : bench::suite_list()) {
    text += fmt::format("  {:<18}{}\n", suite.name, suite.question);
  }
  text += fmt::format("  {:<18}{}\n", bench::kSeveralCardsSuite, evaluate::kSeveralCardsQuestion);
  return text + "\nExample: dfa bench --suite three_way --out r.json";
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  BenchArguments& a = *arguments;
  CLI::App* command = app.add_subcommand("bench", "Measure time, energy and memory, and check");
  auto* what = command->add_option_group("what to measure");
  what->add_option("--suite", a.suite, "a named set of problems, see below");
  what->add_option("--problems", a.problems_file, "a file with one problem line a line");
  what->add_option("--problem", a.problem_lines, "a problem line; may be given several times")
      ->expected(1)
      ->take_all();
  what->require_option(1);
  command
      ->add_option("--only", a.only,
                   "words that a problem's line has to have, e.g. \"fp16 sq512\"; may be given "
                   "several times, and one of them has to fit")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--algorithms", a.algorithms,
                   "of standard, flash, dynamic, stored (standard, P kept for the "
                   "backward); comma-separated")
      ->delimiter(',');
  command->add_option("--config", a.options.config,
                      "tiles of flash, e.g. BackwardConfig{target=cuda_sm90}; default: as planned");
  command
      ->add_option(
          "--peers", a.peers,
          "PyTorch's SDPA in the same run, by the Python of DFA_PYTHON: torch for all of "
          "torch-flash, torch-cudnn, torch-efficient, torch-math; torch-flash3: "
          "FlashAttention-3, where flash_attn_3 or xformers has it; cudnn: cuDNN called from "
          "here, forward")
      ->delimiter(',');
  command
      ->add_option("--launch", a.launches,
                   "eager, graph (replayed CUDA graphs); of PyTorch's peers also compile, "
                   "compile-reduce-overhead, compile-max-autotune (the modes of torch.compile); "
                   "comma-separated")
      ->delimiter(',');
  command
      ->add_option(
          "--calls", a.calls,
          "calls in a row of each timed run, of which times are the mean; default: one on the CPU, "
          "some milliseconds of them on a GPU")
      ->check(whole_number(1, 1000000));
  command->add_option("--seconds", a.options.seconds, "for the timed samples of the whole run")
      ->check(seconds());
  command
      ->add_option("--sm-budget", a.options.sm_budget,
                   "multiprocessors that our launches may take, where their kernels take a budget; "
                   "0: all")
      ->check(whole_number(0, 100000));
  command->add_flag("--interleave,!--no-interleave", a.options.interleave,
                    "algorithms in turns, in random order (default)");
  command->add_flag("--energy,!--no-energy", a.options.energy,
                    "joules and watts by sustained runs, seconds a case (default)");
  command
      ->add_option("--energy-seconds", a.options.energy_seconds,
                   "of each sustained run; default: as long as the energy counter wants")
      ->check(seconds());
  command->add_option("--scale", a.scale, "cpu or full; default: cpu where the backend is the CPU");
  command->add_option("--backend", a.options.backend, "auto, cuda, cpu or reference");
  command->add_option("--threads", a.options.threads, "CPU threads, 1 to 1024, or 0 for all")
      ->check(thread_count());
  command
      ->add_option("--seed", a.options.seed,
                   "of the inputs and of the order, an integer from 0 to 2^64-1")
      ->check(seed());
  command->add_option("--out", a.out, "result file, JSON")->required();
  command->footer(suites_help());
  command->callback([arguments, command, &exit_code] {
    if (arguments->suite != bench::kSeveralCardsSuite) {
      return run_bench(*arguments, *command, exit_code);
    }
    bench::require_writable(arguments->out);
    bench_several_cards(*command, cards_arguments(*command, *arguments), exit_code);
  });
}

}  // namespace dfa::cli
