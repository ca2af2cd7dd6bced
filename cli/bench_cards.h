#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace dfa::cli {

struct CardsArguments {
  std::string out;
  std::optional<double> seconds{};         // of a row
  std::optional<double> energy_seconds{};  // of each of its columns; 0: no energy
};

// `dfa bench --suite context_parallel`: benchmarks/context_parallel.py by a rank a card. Throws
// InvalidArgument for options of `command` that it has no use for, Unsupported where it cannot run.
void bench_several_cards(const CLI::App& command, const CardsArguments& arguments, int& exit_code);

}  // namespace dfa::cli
