#include "bench/selftest.h"

#include <fmt/format.h>

#include <cstdio>
#include <set>
#include <string>

#include "base/clock.h"
#include "cli/command.h"

namespace dfa::cli {
namespace {

using Outcome = bench::SelftestCase::Outcome;

void print(const bench::SelftestCase& one) {
  switch (one.outcome) {
    case Outcome::ok:
      fmt::print("{:<13} ok     {:<55} error {:3.0f} % of the bound, {:4.0f} ms\n", one.target,
                 one.problem, 100 * one.share, 1e3 * one.seconds);
      break;
    case Outcome::wrong:
      fmt::print("{:<13} WRONG  {}: {}\n", one.target, one.problem, one.text);
      break;
    case Outcome::refused: fmt::print("{:<13} –      {}\n", one.target, one.text); break;
  }
}

void run(int& exit_code) {
  const double begin_s = monotonic_s();
  std::set<std::string> said;  // a target that is not there says so once, not for every problem
  const bench::SelftestCount count = bench::selftest([&](const bench::SelftestCase& one) {
    if (one.outcome == Outcome::refused && !said.insert(one.target + one.text).second) return;
    print(one);
    std::fflush(stdout);
  });
  fmt::print("selftest: {} ok, {} wrong, {} not for what is here, {:.1f} s\n", count.ok,
             count.wrong, count.refused, monotonic_s() - begin_s);
  if (count.wrong > 0 || count.ok == 0) exit_code = 1;
}

}  // namespace

void add_selftest(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "selftest", "Hold every kernel family that works here against fp64 attention, in seconds");
  command->footer(
      "Exit code 1 where a result is wrong. `dfa run --problem LINE --config target=TARGET "
      "--check`\n"
      "repeats a line of it. On a GPU the first run compiles kernels, which takes a minute.\n\n"
      "Example: dfa selftest");
  command->callback([&exit_code] { run(exit_code); });
}

}  // namespace dfa::cli
