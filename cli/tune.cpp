#include "run/tune.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/file.h"
#include "base/lock_file.h"
#include "bench/machine.h"
#include "bench/result_writer.h"
#include "bench/suites.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory_bound.h"
#include "cli/named_files.h"
#include "cli/owner.h"
#include "cli/unused.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "power/controller.h"
#include "profile/frontier.h"
#include "profile/json.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

struct TuneArguments {
  std::string problems_file;
  std::vector<std::string> problem_lines;
  std::string profile = "dfa-profile.db";
  std::string export_file;
  std::string import_file;
  bool list = false;
  std::string clocks;
  OwnerOptions owner;
  run::TuneOptions tune;
};

std::vector<Problem> problems_of(const TuneArguments& arguments) {
  std::string text;
  for (const std::string& line : arguments.problem_lines) text += line + "\n";
  if (!arguments.problems_file.empty()) text += read_file(arguments.problems_file, kMostText);
  std::vector<Problem> problems;
  if (text.empty()) return problems;  // then rows are only carried or listed
  for (const auto& group : bench::parse_problem_list(text, {"flash"})) {
    problems.push_back(group.problem);
  }
  return problems;
}

std::string or_dash(std::optional<double> value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

void list_rows(const profile::Store& store) {
  fmt::print("{:<36} {:>10} {:>8} {:>9} {:>9}  {:<8} {}\n", "problem", "ms", "W", "J", "error",
             "frontier", "configuration, and the clock it was locked to");
  std::vector<profile::Row> rows = store.rows();
  for (const profile::Row& row : rows) {
    const auto best = profile::frontier(store.rows(row.machine.card, row.problem));
    bool on_it = false;
    for (const auto& other : best) {
      on_it = on_it ||
              (other.point.label == row.point.label && other.point.clock_hz == row.point.clock_hz);
    }
    fmt::print("{:<36} {:>10.4g} {:>8} {:>9} {:>9.2g}  {:<8} {}\n", row.problem,
               1e3 * row.point.time_s, or_dash(row.point.power_w), or_dash(row.point.energy_j),
               row.point.error, on_it ? "yes" : "no", power::text_of(row.point));
  }
}

void show(int done, int rows, double left_s, const std::string& what) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  fmt::print(stderr, "{}[{}/{}] {} {}{}", terminal ? "\r\033[K" : "", done + 1, rows,
             done > 0 ? fmt::format("{:.0f} s left ", left_s) : "", what.substr(0, 90),
             terminal ? "" : "\n");
  std::fflush(stderr);
}

// Of a backend that no build has, nothing would ever be chosen.
void require_known_backends(const std::vector<profile::Row>& rows) {
  std::vector<std::string> names;
  for (const Backend* backend : all_backends()) names.push_back(backend->name());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::ranges::find(names, rows[i].backend) != names.end()) continue;
    throw InvalidArgument(fmt::format("profile: row {}: backend '{}' is unknown; accepted: {}",
                                      i + 1, rows[i].backend, fmt::join(names, ", ")));
  }
}

std::vector<profile::Row> imported(const std::string& file) {
  try {
    std::vector<profile::Row> rows = profile::from_json(read_file(file, kMostText));
    require_known_backends(rows);
    return rows;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--import '{}': {}", file, error.what()));
  }
}

void require_something(const TuneArguments& a, const CLI::App& command) {
  if (!a.list && a.problem_lines.empty() &&
      (a.problems_file + a.import_file + a.export_file).empty()) {
    throw InvalidArgument(
        "tune: nothing to do; accepted: --problem, --problems, --import, --export, --list");
  }
  const bool measures = !a.problem_lines.empty() || !a.problems_file.empty();
  if (!measures) {
    refuse_unused(
        command, "tune without problems",
        {"--budget", "--points", "--point-seconds", "--less-exact", "--memory", "--backend"},
        "with --problem or --problems");
  }
  if (!a.clocks.empty()) run::parse_clocks(a.clocks);
  if (!a.clocks.empty() && !measures) {
    throw InvalidArgument("--clocks '" + a.clocks + "'; accepted with --problem or --problems");
  }
  if (!a.clocks.empty() && !a.owner.allowed && !a.owner.asks) {
    throw InvalidArgument("--clocks '" + a.clocks +
                          "' locks clocks of the card; accepted only with --allow-privileged, or "
                          "with --privileges where a daemon lends them");
  }
  if (a.clocks.empty() && (a.owner.allowed || a.owner.asks)) {
    throw InvalidArgument(
        "--allow-privileged and --privileges; accepted with --clocks, which needs one of them");
  }
}

// Two that measure at once would share the card and measure each other.
std::unique_ptr<LockFile> lock(const std::string& profile) {
  bench::require_writable(profile);
  std::filesystem::path path = output_target(profile);
  path += ".lock";
  return std::make_unique<LockFile>(path, "the profile '" + profile + "'");
}

// What is lent is taken before it measures and put back after.
void measure(TuneArguments& arguments, const std::vector<Problem>& problems, LentCard& card,
             profile::Store& store, int& exit_code) {
  if (arguments.tune.points.backend == "auto") {
    arguments.tune.points.backend = bench::default_backend();
  }
  end_gently();
  if (!arguments.clocks.empty()) {
    card.take(find_backend(arguments.tune.points.backend).device().identity(), card.lease_s());
    card.hold(card.lease_s());
    arguments.tune.clocks_hz = card.clocks_of(arguments.clocks);
    arguments.tune.lock_clock = [&card](double hz) { card.lock_clock(hz); };
  }
  arguments.tune.interrupted = interrupted;
  arguments.tune.on_progress = show;
  sensors::SystemClock clock;
  const run::TuneReport report = run::tune(problems, store, arguments.tune, clock);
  if (::isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\033[K");
  fmt::print("{} rows measured, {} there already, {} wrong, {} left; {}\n", report.measured,
             report.kept, report.wrong, report.left, arguments.profile);
  for (const std::string& line : report.refused) fmt::print("{}\n", line);
  if (const Verdict put_back = card.end(); !put_back) {
    throw Unsupported("the card's clocks: " + put_back.reason);
  }
  if (report.wrong > 0 || report.only_refused() || interrupted()) exit_code = 1;
}

// A file that was made for rows and got none goes again.
void remove_if_empty(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return;
  if (profile::Store(file, profile::Access::existing).rows().empty()) std::filesystem::remove(file);
}

void run_tune(TuneArguments& arguments, const CLI::App& command, int& exit_code) {
  require_something(arguments, command);
  require_apart({{"--export", arguments.export_file}},
                {{"--profile", arguments.profile}, {"--problems", arguments.problems_file}});
  if (!arguments.export_file.empty()) bench::require_writable(arguments.export_file);
  const std::vector<Problem> problems = problems_of(arguments);
  const std::string& backend = arguments.tune.points.backend;
  if (backend != "auto") find_backend(backend);
  std::vector<profile::Row> rows;
  if (!arguments.import_file.empty()) rows = imported(arguments.import_file);
  LentCard card(arguments.owner);  // before CUDA and threads
  const bool writing = !problems.empty() || !arguments.import_file.empty();
  const std::unique_ptr<LockFile> alone = writing ? lock(arguments.profile) : nullptr;
  const std::filesystem::path file = output_target(arguments.profile);
  const bool made = writing && !std::filesystem::exists(file);
  try {
    profile::Store store(arguments.profile,
                         writing ? profile::Access::create : profile::Access::existing);
    if (!arguments.import_file.empty()) {
      store.put_all(rows);
      fmt::print("imported {} rows into {}\n", rows.size(), arguments.profile);
    }
    if (!problems.empty()) measure(arguments, problems, card, store, exit_code);
    if (!arguments.export_file.empty()) {
      rows = store.rows();
      write_file_atomic(arguments.export_file, profile::to_json(rows));
      fmt::print("exported {} rows to {}\n", rows.size(), arguments.export_file);
    }
    if (arguments.list) list_rows(store);
  } catch (...) {
    if (made) remove_if_empty(file);
    throw;
  }
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TuneArguments>();
  TuneArguments& a = *arguments;
  CLI::App* command =
      app.add_subcommand("tune", "Measure configurations into a profile that policies choose from");
  command->add_option("--problems", a.problems_file, "a file with one problem line a line");
  command->add_option("--problem", a.problem_lines, "a problem line; may be given several times")
      ->expected(1)
      ->take_all();
  command->add_option("--profile", a.profile, "the store, an SQLite file (dfa-profile.db)");
  command->add_option("--budget", a.tune.budget_s, "seconds; no measurement begins that ends later")
      ->check(seconds());
  command->add_option("--points", a.tune.points.candidates, "configurations of each problem (3)")
      ->check(whole_number(1, 200));
  command->add_option("--point-seconds", a.tune.points.seconds, "for each measurement of one (2)")
      ->check(seconds());
  command->add_flag("--less-exact", a.tune.points.less_exact,
                    "tf32 too, for problems in fp32, and e4m3 for forwards in bf16: policies with "
                    "--max-error choose from it");
  command->add_option(
      "--clocks", a.clocks,
      "each configuration at these locked clocks of the multiprocessors too, after the card's own: "
      "1980,1500,1200MHz, or 1200:1980:60MHz in steps; policies take those rows where clocks are "
      "lent. Needs --allow-privileged or --privileges; clocks are put back at the end");
  a.owner.add_permission(*command);
  add_memory_bound(*command, a.tune.points);
  command->add_option("--backend", a.tune.points.backend, "auto, cuda, cpu or reference");
  command->add_option("--import", a.import_file, "add the rows of a JSON file first");
  command->add_option("--export", a.export_file, "write all rows as JSON at the end");
  command->add_flag("--list", a.list, "print the rows");
  command->footer(
      "Example: dfa tune --problem \"fwd bf16 b1 h8 s1024 d64\" --budget 60 --list\n"
      "Interrupted, it goes on from where it was: rows that hold are kept.");
  command->callback(
      [arguments, command, &exit_code] { run_tune(*arguments, *command, exit_code); });
}

}  // namespace dfa::cli
