#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "bench/result_writer.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "dfa/error.h"
#include "simulate/metrics.h"
#include "simulate/rack.h"
#include "simulate/run.h"

namespace dfa::cli {
namespace {

struct SimulateArguments {
  std::string scenario;
  std::string policy;
  std::string trace;
};

std::string text_of(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.3g} {}", *value, unit) : "-";
}

// Points and clocks that ran, in order of their share of the time.
std::string ran(const power::Trace& run, double seconds) {
  std::map<std::string, double> shares;
  for (std::size_t i = 0; i < run.decisions.size(); ++i) {
    const power::Decision& decision = run.decisions[i];
    const double end = i + 1 < run.decisions.size() ? run.decisions[i + 1].time_s : seconds;
    const OperatingPoint& point = run.setup.points[decision.action.point];
    shares[power::text_of(point, decision.action.clock_hz)] += (end - decision.time_s) / seconds;
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, share] : shares) sorted.emplace_back(share, name);
  std::ranges::sort(sorted, std::greater());
  std::string text;
  for (const auto& [share, name] : sorted) {
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * share);
  }
  return text;
}

void print(const simulate::Scenario& scenario, const power::Trace& run, const power::Metrics& m) {
  fmt::print("{}: {}\n", scenario.name, scenario.about);
  fmt::print("  policy             {}\n", to_text(scenario.policy));
  fmt::print("  ran                {}\n", ran(run, scenario.seconds));
  fmt::print("  mean power         {:.1f} W\n", m.mean_power_w);
  fmt::print("  work per joule     {:.4g}\n", m.work_per_j);
  fmt::print("  above the cap      {} of the time (1-s mean, settled)\n",
             text_of(m.violation_pct, "%"));
  fmt::print("  overshoot          {}\n", text_of(m.overshoot_pct, "%"));
  fmt::print("  settling           {}\n", text_of(m.settling_s, "s"));
  fmt::print("  deviation          {} (100 ms, settled)\n", text_of(m.power_deviation_w, "W"));
  fmt::print("  temperature        {} over its cap at most\n", text_of(m.temp_over_c, "C"));
  fmt::print("  point changes      {:.3g} a minute\n", m.switches_per_minute);
  if (m.inexact_s) fmt::print("  beyond max_error   {} at a time\n", text_of(m.inexact_s, "s"));
  if (m.work_vs_pacing) fmt::print("  work, of pacing's  {:.3f}\n", *m.work_vs_pacing);
  fmt::print("  {:.0f} s in {:.0f} ms: {:.0f} times faster than time\n", scenario.seconds,
             1e3 * run.host_s, scenario.seconds / run.host_s);
}

void report_missed(const std::vector<std::string>& missed, int& exit_code) {
  for (const std::string& miss : missed) {
    fmt::print("MISSED: {}\n", miss);
    exit_code = 1;
  }
}

// What was simulated before an interrupt is told and written; metrics' bounds are of the whole, and
// not judged.
void tell_interrupted(double simulated_s, double seconds, int& exit_code) {
  fmt::print(stderr, "dfa: interrupted at {:.1f} of {:g} s; metrics are not judged\n", simulated_s,
             seconds);
  exit_code = 1;
}

template <typename Sample>
double end_of(const std::vector<Sample>& samples) {
  return samples.empty() ? 0 : samples.back().time_s;
}

void simulate_rack(simulate::Scenario scenario, int& exit_code) {
  end_gently();
  const double asked_s = scenario.seconds;
  const simulate::RackRun run = simulate::run_rack(scenario, interrupted);
  if (interrupted()) scenario = until(scenario, end_of(run.samples));
  const simulate::RackMetrics m = simulate::measure_rack(scenario, run, interrupted);
  fmt::print("{}: {}\n", scenario.name, scenario.about);
  fmt::print("  cards              {}\n", scenario.rack->cards);
  fmt::print("  above the budget   {:.3g} % of the time (1-s mean, settled)\n", m.violation_pct);
  fmt::print("  fastest card       {:.3g} % above the slowest at the end\n", m.imbalance_pct);
  fmt::print("  work in step       {} of that with equal shares\n",
             m.work_vs_equal ? fmt::format("{:.4f}", *m.work_vs_equal) : "-");
  fmt::print("  {:.0f} s in {:.0f} ms: {:.0f} times faster than time\n", scenario.seconds,
             1e3 * run.host_s, scenario.seconds / run.host_s);
  if (interrupted()) return tell_interrupted(end_of(run.samples), asked_s, exit_code);
  report_missed(missed(scenario, m), exit_code);
}

void simulate_scenario(const SimulateArguments& arguments, int& exit_code) {
  simulate::Scenario scenario = simulate::read_scenario(arguments.scenario);
  if (scenario.rack) {
    if (!arguments.policy.empty() || !arguments.trace.empty()) {
      throw InvalidArgument("a rack takes neither --policy nor --trace");
    }
    simulate_rack(scenario, exit_code);
    return;
  }
  if (!arguments.trace.empty()) bench::require_writable(arguments.trace);
  if (!arguments.policy.empty()) scenario.policy = power::parse_policy(arguments.policy);
  end_gently();
  const double asked_s = scenario.seconds;
  const power::Trace run = simulate::run(scenario, interrupted);
  if (interrupted()) scenario = until(scenario, end_of(run.samples));
  const power::Metrics metrics = simulate::measure(scenario, run, interrupted);
  if (!arguments.trace.empty()) {
    write_file_atomic(arguments.trace,
                      power::to_trace(simulate::head_of(scenario), run, metrics, "simulated"));
  }
  print(scenario, run, metrics);
  if (interrupted()) return tell_interrupted(end_of(run.samples), asked_s, exit_code);
  report_missed(simulate::missed(scenario, run, metrics), exit_code);
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "The real controller on a simulated GPU, no hardware");
  command->add_option("--scenario", arguments->scenario, "a file of scenarios/, JSON")->required();
  command->add_option(
      "--policy", arguments->policy,
      "instead of the scenario's: max_performance, min_energy, edp, power_cap:500W, "
      "temp_cap:70C, latency:2ms, limit:450W, clock:1200MHz");
  command->add_option("--trace", arguments->trace, "write samples and decisions, JSON lines");
  command->footer(
      "Example: dfa simulate --scenario scenarios/cap_step.json --trace trace.jsonl\n"
      "Exit code 1 where a metric of the scenario is out of its bound, or an interrupt ended it "
      "early.");
  command->callback([arguments, &exit_code] { simulate_scenario(*arguments, exit_code); });
}

}  // namespace dfa::cli
