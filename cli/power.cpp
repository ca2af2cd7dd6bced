#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/file.h"
#include "bench/machine.h"
#include "bench/result_writer.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory_bound.h"
#include "cli/named_files.h"
#include "cli/owner.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "dfa/problem.h"
#include "power/choose.h"
#include "power/metrics.h"
#include "run/governed.h"
#include "run/shipped.h"
#include "run/tune.h"
#include "sensors/system_clock.h"
#include "spec/less_exact.h"

namespace dfa::cli {
namespace {

constexpr double kSlack = 5;  // s that a run may take beyond its policies

struct PowerArguments {
  std::vector<std::string> policies;
  std::vector<std::string> problems;
  std::vector<double> seconds{10};
  double load_seconds = 2;
  std::optional<double> max_error{};
  std::string levers = "gaps";
  std::string trace;
  std::string chrome;
  std::string profile;
  run::PointOptions points;
  OwnerOptions owner;
};

std::string or_dash(std::optional<double> value, const char* unit) {
  return value ? fmt::format("{:.4g} {}", *value, unit) : "not measured";
}

void print_points(const Problem& problem, const std::vector<run::Candidate>& candidates) {
  for (const run::Candidate& candidate : candidates) {
    const OperatingPoint& p = candidate.point;
    const bool quantised = quantises(problem.dtype, p.dtype);
    fmt::print("  {:.4g} ms  {}  {} a call  dynamic {}  clock {:.0f} %  error {:.2g}  {}{}\n",
               1e3 * p.time_s, or_dash(p.power_w, "W"), or_dash(p.energy_j, "J"),
               or_dash(p.dynamic_w, "W"), 100 * p.clock_share, p.error, power::text_of(p),
               quantised ? "  of q, k, v quantised before, which is not in the time" : "");
  }
}

// What a policy does not choose from is told.
void print_left_out(const std::vector<run::Load>& loads, const power::Lent& lent) {
  Levers levers;
  if (lent.clocks) {
    levers.clock_least_hz = lent.clocks->least_hz;
    levers.clock_most_hz = lent.clocks->most_hz;
  }
  int left_out = 0;
  for (const run::Load& load : loads) {
    for (const run::Candidate& candidate : load.candidates) {
      const auto hz = candidate.point.clock_hz;
      if (hz && !power::lends(levers, *hz)) ++left_out;
    }
  }
  if (left_out > 0) fmt::print("{} of them left out: their clocks are not lent here\n", left_out);
}

// On a terminal one line that redraws itself; elsewhere a line a second.
class LiveLine {
 public:
  void show(const power::TraceSample& sample, const power::Decision& decision) {
    if (!terminal_ && sample.time_s - shown_s_ < 1) return;
    shown_s_ = sample.time_s;
    fmt::print(stderr,
               "{}{:6.1f} s {} W ({} in 1 s) {} C {} MHz {:.2f} TFLOP/s {} GFLOP/J SMs {} duty "
               "{:.3f} point {} {}{}",
               terminal_ ? "\r\033[K" : "", sample.time_s, text(sample.power_w),
               text(sample.second_w), text(sample.temp_c), text(sample.clock_hz / 1e6),
               sample.work_per_s / 1e12, text(sample.work_per_s / sample.second_w / 1e9),
               decision.action.sms == 0 ? "all" : std::to_string(decision.action.sms),
               decision.action.duty, decision.action.point, name_of(decision.status),
               terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  ~LiveLine() {
    if (terminal_) fmt::print(stderr, "\n");
  }

 private:
  static std::string text(double value) {
    return std::isfinite(value) ? fmt::format("{:.0f}", value) : "-";
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  double shown_s_ = -1;
};

void print_section(const run::Governed& governed, double begin, double end,
                   const power::Policy& policy) {
  double power = 0, work = 0, above = 0, most = 0, settling = 0;
  double hottest = -INFINITY, last_c = 0;
  int count = 0, settled = 0;
  for (const power::TraceSample& s : governed.trace.samples) {
    if (s.time_s < begin || s.time_s > end) continue;
    const double since = s.time_s - begin;
    if (s.cap_w > 0 && s.power_w > 1.02 * s.cap_w) settling = since;
    if (since < std::min(2.0, (end - begin) / 2)) continue;
    ++settled;
    power += s.second_w;
    work += s.work_per_s;
    above += s.cap_w > 0 && s.second_w > s.cap_w ? 1 : 0;
    most = std::max(most, s.second_w);
    hottest = std::max(hottest, s.temp_c);
    last_c = s.temp_c;
    ++count;
  }
  if (count == 0) return;
  std::optional<double> coldest;  // that a cap of degrees beyond the levers' reach came down to
  for (const power::Decision& d : governed.trace.decisions) {
    if (d.time_s > begin && d.time_s <= end) coldest = d.reachable;
  }
  const double mean = power / count, rate = work / count;
  fmt::print("{:<18} {:>8.2f} TFLOP/s", to_text(policy), rate / 1e12);
  if (std::isfinite(mean)) {
    fmt::print(" {:>7.1f} W, most {:>7.1f} W, {:>7.1f} GFLOP/J", mean, most, rate / mean / 1e9);
  }
  if (policy.power_cap_w()) {
    fmt::print("  above {:.1f} % of {} means, last 100-ms power over 102 % at {:.1f} s",
               100 * above / settled, settled, settling);
  }
  if (policy.temp_cap_c() && std::isfinite(hottest)) {
    fmt::print("  most {:.0f} C, {:.0f} C at the end", hottest, last_c);
    if (coldest) fmt::print(", infeasible: {:.0f} C can be had", *coldest);
  }
  fmt::print("\n");
}

void print_guard(const run::Governed& governed, double bound) {
  if (!governed.unwatched.empty()) {
    fmt::print("accuracy not watched: {}\n", governed.unwatched);
    return;
  }
  const power::Guard& guard = governed.guard;
  fmt::print(
      "accuracy: {} checks of {} rows, largest error {:.2g} of at most {:.2g}, {:.3f} % of the "
      "time\n",
      guard.checks, run::kGuardRows, guard.worst, bound, 100 * guard.spent_s / governed.seconds);
}

// What a load is made of, while it lives.
struct PreparedLoad {
  std::unique_ptr<measure::ProblemBuffers> buffers;
  std::vector<run::Candidate> candidates;
};

std::vector<run::Candidate> measure(measure::ProblemBuffers& buffers,
                                    const run::PointOptions& options,
                                    const measure::Telemetry& telemetry,
                                    std::optional<double> idle_w, Clock& clock) {
  std::vector<run::Candidate> candidates;
  const run::CandidatePlans found = run::candidate_plans(buffers.problem(), options);
  for (const std::string& line : found.refused) fmt::print("{}\n", line);
  for (const measure::PassPlans& plans : found.plans) {
    fmt::print(stderr, "measuring {}\n", run::label_of(plans));
    std::optional<run::Candidate> candidate;
    try {
      candidate = run::measure_candidate(buffers, plans, options, telemetry, idle_w, clock);
    } catch (
        const OutOfMemory& error) {  // of what is asked for alone there is nothing to go on with
      if (found.plans.size() == 1) throw;
      fmt::print("left out, {}: {}\n", error.what(), run::label_of(plans));
      continue;
    }
    if (!candidate) {
      fmt::print("left out, as its check against fp64 failed: {}\n", run::label_of(plans));
      continue;
    }
    candidates.push_back(std::move(*candidate));
  }
  return candidates;
}

void require_there(const std::string& profile) {
  if (profile != "shipped" && !std::filesystem::exists(profile)) {
    throw IoError("--profile '" + profile +
                  "' is not there; accepted: a file that dfa tune made, shipped");
  }
}

std::vector<run::Candidate> stored(const Problem& problem, const std::string& profile,
                                   const run::PointOptions& options) {
  run::KnownPoints known = run::points_from(profile, problem, options);
  if (known.candidates.empty()) throw Unsupported("--profile " + profile + ": " + known.told);
  fmt::print("profile: {}\n", known.told);
  return std::move(known.candidates);
}

// After what was measured is on the screen: a full disk takes none of that.
void write_traces(const PowerArguments& arguments, const run::Governed& governed) {
  std::fflush(stdout);
  const power::Metrics metrics = power::measure(governed.head, governed.trace);
  if (!arguments.trace.empty()) {
    write_file_atomic(arguments.trace,
                      power::to_trace(governed.head, governed.trace, metrics, "measured"));
  }
  if (!arguments.chrome.empty()) {
    write_file_atomic(arguments.chrome, power::to_chrome_trace(governed.trace));
  }
}

void run_power(const PowerArguments& arguments, int& exit_code) {
  require_apart({{"--trace", arguments.trace}, {"--chrome", arguments.chrome}},
                {{"--profile", arguments.profile}});
  for (const std::string& file : {arguments.trace, arguments.chrome}) {
    if (!file.empty()) bench::require_writable(file);
  }
  run::RunOptions options;
  if (arguments.seconds.size() != 1 && arguments.seconds.size() != arguments.policies.size()) {
    throw InvalidArgument(
        fmt::format("--seconds was given {} times for {} policies; accepted: once, "
                    "or once a policy",
                    arguments.seconds.size(), arguments.policies.size()));
  }
  for (std::size_t i = 0; i < arguments.policies.size(); ++i) {
    const double seconds = arguments.seconds[arguments.seconds.size() == 1 ? 0 : i];
    options.sections.push_back({power::parse_policy(arguments.policies[i]), seconds});
  }
  OwnerOptions owner = arguments.owner;
  for (const run::Section& section : options.sections) owner.ask_for(section.policy);
  std::vector<Problem> problems;
  for (const std::string& line : arguments.problems) problems.push_back(parse_problem(line));
  run::PointOptions points = arguments.points;
  if (points.backend != "auto") find_backend(points.backend);
  if (!arguments.profile.empty()) require_there(arguments.profile);
  LentCard card(owner);  // before CUDA and threads
  options.max_error = arguments.max_error;
  options.sm_budget = arguments.levers == "sms,gaps";
  options.load_s = arguments.load_seconds;
  points.less_exact = arguments.max_error.has_value();
  if (points.backend == "auto") points.backend = bench::default_backend();
  sensors::SystemClock clock;
  const GpuIdentity gpu = find_backend(points.backend).device().identity();
  double run_s = kSlack;
  for (const run::Section& section : options.sections) run_s += section.seconds;
  card.take(gpu, run_s);
  for (const run::Section& section : options.sections) card.require_clock(section.policy);
  std::vector<PreparedLoad> prepared;
  std::optional<double> idle_w;
  {
    const measure::Telemetry telemetry = measure::open_telemetry(gpu, clock);
    if (telemetry.power.empty())
      fmt::print("power: not measured: {}\n", telemetry.power.status.reason);
    for (const Problem& problem : problems) {
      prepared.push_back(
          {std::make_unique<measure::ProblemBuffers>(problem, points.backend, 1), {}});
    }
    idle_w = run::idle_power(telemetry, clock, 1);
    for (PreparedLoad& one : prepared) {
      one.candidates = arguments.profile.empty()
                           ? measure(*one.buffers, points, telemetry, idle_w, clock)
                           : stored(one.buffers->problem(), arguments.profile, points);
      for (const run::Candidate& candidate : one.candidates) card.require_clock(candidate.point);
    }
  }
  std::vector<run::Load> loads;
  fmt::print("idle {}; points:\n", or_dash(idle_w, "W"));
  for (PreparedLoad& one : prepared) {
    if (prepared.size() > 1) fmt::print("{}\n", to_line(one.buffers->problem()));
    if (one.candidates.empty()) throw Unsupported("no configuration passed its check");
    print_points(one.buffers->problem(), one.candidates);
    loads.push_back({*one.buffers, std::move(one.candidates)});
  }
  card.hold(run_s);
  options.lent = card.lent();
  print_left_out(loads, options.lent);
  end_gently();
  options.interrupted = interrupted;
  run::Governed governed;
  {
    LiveLine line;
    options.on_sample = [&](const power::TraceSample& sample, const power::Decision& decision) {
      line.show(sample, decision);
    };
    governed = run::run_governed(loads, options, gpu, idle_w, clock);
  }
  const Verdict put_back = card.end();
  double begin = 0;
  for (const run::Section& section : options.sections) {
    print_section(governed, begin, begin + section.seconds, section.policy);
    begin += section.seconds;
  }
  fmt::print("{} calls; the governor took {:.3f} % of one processor's time\n", governed.calls,
             100 * governed.governor_share);
  if (arguments.max_error) print_guard(governed, *arguments.max_error);
  write_traces(arguments, governed);
  if (!put_back) throw Unsupported("the card's own levers: " + put_back.reason);
  if (interrupted()) exit_code = 1;
}

}  // namespace

void add_power(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PowerArguments>();
  PowerArguments& a = *arguments;
  CLI::App* command =
      app.add_subcommand("power", "Run a load under a policy of power, heat or time");
  command
      ->add_option(
          "--policy", a.policies,
          "max_performance, min_energy, edp, power_cap:500W, temp_cap:70C, latency:2ms; of "
          "a card that is lent also limit:450W, clock:1200MHz; several: one after the other")
      ->required()
      ->expected(1)
      ->take_all();
  command
      ->add_option("--problem", a.problems,
                   "the problem line; several take turns, so that the load steps")
      ->required()
      ->expected(1)
      ->take_all();
  CLI::Option* load_seconds =
      command
          ->add_option("--load-seconds", a.load_seconds, "of each turn, with several problems (2)")
          ->check(seconds());
  command
      ->add_option("--seconds", a.seconds,
                   "for each policy (10); several times: one after the other, for each its own")
      ->expected(1)
      ->take_all()
      ->check(seconds());
  command->add_option("--backend", a.points.backend, "auto, cuda, cpu or reference");
  CLI::Option* points =
      command->add_option("--points", a.points.candidates, "configurations to measure first (3)")
          ->check(whole_number(1, 50));
  CLI::Option* point_seconds =
      command->add_option("--point-seconds", a.points.seconds, "for each measurement of one (2)")
          ->check(seconds());
  add_memory_bound(*command, a.points);
  command->add_option("--profile", a.profile,
                      "take the points from what dfa tune measured: a file, or shipped for what "
                      "travels with the program");
  command
      ->add_option(
          "--max-error", a.max_error,
          "largest error that outputs may have: allows tf32 for fp32 and e4m3 for forwards "
          "in bf16, and has rows of the outputs recomputed while it runs")
      ->check(above_zero());
  command
      ->add_option(
          "--levers", a.levers,
          "what is turned once a configuration is chosen: gaps between launches (default), or "
          "sms,gaps: fewer multiprocessors first, where kernels take a budget of them")
      ->check(CLI::IsMember({"sms,gaps", "gaps"}));
  command->add_option("--trace", a.trace, "write samples and decisions, JSON lines");
  command->add_option("--chrome", a.chrome, "write a Chrome trace for ui.perfetto.dev");
  a.owner.add_to(*command);
  command->footer(
      "Example: dfa power --policy power_cap:500W --problem \"fwd bf16 b4 h16 s4096 d128\"");
  command->callback([=, &exit_code] {
    if (load_seconds->count() > 0 && arguments->problems.size() == 1) {
      throw InvalidArgument("--load-seconds is of turns; accepted with several --problem");
    }
    if (points->count() + point_seconds->count() > 0 && !arguments->profile.empty()) {
      throw InvalidArgument(
          "--points and --point-seconds are of measurements; accepted without --profile");
    }
    run_power(*arguments, exit_code);
  });
}

}  // namespace dfa::cli
