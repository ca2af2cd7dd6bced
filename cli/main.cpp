#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cli/command.h"
#include "dfa/error.h"
#include "dfa/version.h"

namespace dfa::cli {
namespace {

constexpr int kBadInput = 2;
constexpr int kNotHere = 3;

// Every error is one line on stderr, whatever the text was.
int fail(int exit_code, std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  std::fflush(stdout);  // where both are one file, it is the last line
  fmt::print(stderr, "dfa: {}\n", text);
  return exit_code;
}

// A value of an option that is there and empty, as of "$FILE" where FILE is not set.
CLI::Validator some_text() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("'' is no value: accepted is some text, or no option")
                            : std::string();
      },
      "");
}

std::string command_names(CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// Its own options and those of its option groups, which are commands without a name.
template <typename Command>
auto options_of(Command& command) {
  auto options = command.get_options();
  const auto is_group = [](const CLI::App* part) { return part->get_name().empty(); };
  for (auto* group : command.get_subcommands(is_group)) {
    for (auto* option : group->get_options()) options.push_back(option);
  }
  return options;
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : options_of(*command)) {
      if (option->get_items_expected_max() > 0) option->check(some_text());
    }
  }
}

std::string option_names(const CLI::App& command) {
  std::string names;
  for (const CLI::Option* option : options_of(command)) {
    names += (names.empty() ? "" : ", ") + option->get_name();
  }
  return names;
}

// What the options that a message names would take.
std::string accepted_values(const CLI::App& command, const std::string& message) {
  std::string text;
  for (const CLI::Option* option : options_of(command)) {
    const std::string name = option->get_name();
    const std::size_t at = message.find(name);
    if (at == std::string::npos || option->get_description().empty()) continue;
    const std::size_t end = at + name.size();
    if (end < message.size() && (std::isalnum(message[end]) != 0 || message[end] == '-')) continue;
    text += "; " + name + ": " + option->get_description();
  }
  return text;
}

std::string describe(CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const bool unexpected = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (chosen.empty()) {
    return std::string(error.what()) + "; accepted: " + command_names(app) + ", --help, --version";
  }
  const CLI::App& command = *chosen.front();
  const std::string text = command.get_name() + ": " + error.what();
  return unexpected ? text + "; accepted: " + option_names(command)
                    : text + accepted_values(command, error.what());
}

void set_up(CLI::App& app, int& exit_code) {
  app.name("dfa");
  app.set_version_flag("--version", std::string("dfa ") + kVersion);
  app.require_subcommand(0, 1);
  app.footer(
      "Example: dfa run --problem \"fwd bf16 causal b1 h8 s1000 d64\" --check\n"
      "Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 3 no such device or feature");
  add_info(app, exit_code);
  add_run(app, exit_code);
  add_bench(app, exit_code);
  add_analyze(app, exit_code);
  add_compare(app, exit_code);
  add_tune(app, exit_code);
  add_power(app, exit_code);
  add_simulate(app, exit_code);
  add_selftest(app, exit_code);
  add_study(app, exit_code);
  add_monitor(app, exit_code);
  add_privileges(app, exit_code);
  add_cache(app, exit_code);
  refuse_empty_values(app);
}

int parse_and_run(CLI::App& app, int argc, char** argv, int& exit_code) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return fail(kBadInput, describe(app, error));
  }
  if (app.get_subcommands().empty()) {
    return fail(kBadInput, "no command given; accepted: " + command_names(app));
  }
  return exit_code;
}

int run(int argc, char** argv) {
  CLI::App app{"Dynamic FlashAttention++: exact attention, measured in time and energy"};
  int exit_code = 0;
  set_up(app, exit_code);
  try {
    exit_code = parse_and_run(app, argc, argv, exit_code);
  } catch (const Unsupported& error) {
    return fail(kNotHere, error.what());
  } catch (const OutOfMemory& error) {
    return fail(kNotHere, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kNotHere, "out of memory");
  } catch (const std::exception& error) {
    return fail(kBadInput, error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return fail(kBadInput, std::string("cannot write to standard output: ") + std::strerror(errno));
  }
  return exit_code;
}

}  // namespace
}  // namespace dfa::cli

int main(int argc, char** argv) {
  // A file-size limit then fails the write, which is reported, instead of ending the process.
  ::signal(SIGXFSZ, SIG_IGN);
  return dfa::cli::run(argc, argv);
}
