#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>

#include "dfa/error.h"

namespace dfa::cli {

// Throws InvalidArgument where one of these options was given, which `what` has no use for.
inline void refuse_unused(const CLI::App& command, const std::string& what,
                          std::initializer_list<const char*> options, const std::string& accepted) {
  for (const char* option : options) {
    if (command.count(option) == 0) continue;
    throw InvalidArgument(fmt::format("{} has no use for {}; accepted {}", what, option, accepted));
  }
}

}  // namespace dfa::cli
