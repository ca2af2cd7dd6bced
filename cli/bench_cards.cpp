#include "cli/bench_cards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "bench/suites.h"
#include "cli/interrupt.h"
#include "dfa/error.h"
#include "evaluate/several_cards.h"

namespace dfa::cli {
namespace {

constexpr const char* kTaken[] = {"--suite", "--out", "--seconds", "--energy", "--energy-seconds"};

void refuse_others(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool taken = std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken);
    if (option->count() == 0 || taken) continue;
    throw InvalidArgument(fmt::format("--suite {} has no use for {}; accepted beside it: {}",
                                      bench::kSeveralCardsSuite, name,
                                      fmt::join(std::begin(kTaken) + 1, std::end(kTaken), ", ")));
  }
}

std::vector<std::string> options_of(const CardsArguments& arguments) {
  std::vector<std::string> options;
  const auto add = [&](const char* name, double value) {
    options.insert(options.end(), {name, fmt::format("{}", value)});
  };
  if (arguments.seconds) add("--seconds", *arguments.seconds);
  if (arguments.energy_seconds) add("--energy-seconds", *arguments.energy_seconds);
  return options;
}

}  // namespace

void bench_several_cards(const CLI::App& command, const CardsArguments& arguments, int& exit_code) {
  refuse_others(command);
  const evaluate::Tools tools = evaluate::find_tools({});
  const auto refuse = [](const std::string& why) {
    throw Unsupported(fmt::format("suite {}: {}", bench::kSeveralCardsSuite, why));
  };
  if (!tools.several_cards.there()) refuse(tools.several_cards.missing);
  if (!tools.source_there.there()) {
    refuse("its script lies in a checkout of dfa, and '" + tools.source.string() + "' is none");
  }
  end_gently();
  const evaluate::Ended ended = evaluate::run_command(
      evaluate::several_cards(tools, arguments.out, options_of(arguments)), {}, interrupted);
  if (ended.reason.empty()) {
    fmt::print("wrote {}\n", arguments.out);
    return;
  }
  fmt::print(stderr, "dfa: {}\n", interrupted() ? "interrupted" : ended.reason);
  exit_code = 1;
}

}  // namespace dfa::cli
