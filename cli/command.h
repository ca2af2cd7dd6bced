#pragma once

#include <CLI/CLI.hpp>

namespace dfa::cli {

// Each command adds itself to the application. Its callback throws dfa::Error (main turns it into
// one line and an exit code: InvalidArgument and IoError 2, Unsupported 3) or sets exit_code to 1
// when a check failed.
void add_info(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_analyze(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_power(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
void add_study(CLI::App& app, int& exit_code);
void add_monitor(CLI::App& app, int& exit_code);
void add_privileges(CLI::App& app, int& exit_code);
void add_cache(CLI::App& app, int& exit_code);

}  // namespace dfa::cli
