#include "base/env.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace dfa {
namespace {

constexpr EnvVariable kVariables[] = {
    {"DFA_ISA", "auto", "highest CPU instruction set to use: auto, portable, avx2, avx512, amx"},
    {"DFA_THREADS", "0", "CPU threads, 0 for all this process may use"},
    {"DFA_SYSFS_ROOT", "/sys", "where RAPL energy counters and CPU facts are read"},
};

}  // namespace

std::span<const EnvVariable> env_variables() { return kVariables; }

std::string env(const char* name) {
  for (const EnvVariable& variable : kVariables) {
    if (std::string_view(variable.name) != name) continue;
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : variable.fallback;
  }
  throw std::logic_error(std::string("env: ") + name + " is not in the table of base/env.cpp");
}

}  // namespace dfa
