#include "bench/compare.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "bench/result.h"
#include "cli/command.h"
#include "cli/values.h"

namespace dfa::cli {
namespace {

struct CompareArguments {
  std::string a;
  std::string b;
  double tolerance_pct = 2;
  bool json = false;
};

std::string change_text(bench::Change change, const std::optional<double>& ratio) {
  return ratio ? fmt::format("{} ({:+.1f} %)", name_of(change), (*ratio - 1) * 100)
               : name_of(change);
}

void print(const bench::Comparison& comparison) {
  fmt::print("{:<44} {:<9} {:<22} {:<22} {}\n", "problem", "algorithm", "time", "joules", "note");
  for (const bench::CaseComparison& c : comparison.cases) {
    fmt::print("{:<44} {:<9} {:<22} {:<22} {}\n", c.problem, c.algorithm,
               change_text(c.time, c.time_ratio), change_text(c.joules, c.joules_ratio), c.note);
  }
  for (const std::string& line : comparison.machine) fmt::print("machines differ: {}\n", line);
  for (const std::string& key : comparison.only_a) fmt::print("gone, only in A: {}\n", key);
  for (const std::string& key : comparison.only_b) fmt::print("only in B: {}\n", key);
  if (comparison.cases.empty()) {
    fmt::print("no case is in both files: nothing was compared\n");
  } else if (comparison.nothing_timed()) {
    fmt::print("no case has a time in both files: nothing was compared\n");
  }
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<CompareArguments>();
  CompareArguments& a = *arguments;
  CLI::App* command = app.add_subcommand("compare", "Compare two result files, case by case");
  command->add_option("A", a.a, "result file, before")->required();
  command->add_option("B", a.b, "result file, after")->required();
  command->add_option("--tolerance", a.tolerance_pct, "percent that counts as no change")
      ->check(above_zero())
      ->capture_default_str();
  command->add_flag("--json", a.json, "print JSON");
  command->footer(
      "same, faster, slower or unclear by the 95 % intervals of the medians; in joules, faster\n"
      "means fewer. Exit code 1 when a case got slower, took more joules, is wrong, no longer"
      " runs\n"
      "or is gone, and when nothing could be compared. A line tells where the machines differ.\n\n"
      "Example: dfa compare before.json after.json");
  command->callback([arguments, &exit_code] {
    const bench::Result before = bench::read_result(arguments->a);
    const bench::Result after = bench::read_result(arguments->b);
    const bench::Comparison comparison =
        bench::compare(before, after, arguments->tolerance_pct / 100);
    if (arguments->json) {
      fmt::print("{}", to_json(comparison));
    } else {
      print(comparison);
      std::error_code ignored;
      if (std::filesystem::equivalent(arguments->a, arguments->b, ignored)) {
        fmt::print("A and B are the same file\n");
      }
    }
    if (comparison.worse()) exit_code = 1;
  });
}

}  // namespace dfa::cli
