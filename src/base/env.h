#pragma once

#include <span>
#include <string>

// Every environment variable the library reads, in one table; nothing else calls getenv.
namespace dfa {

struct EnvVariable {
  const char* name;
  const char* fallback;
  const char* help;
};

std::span<const EnvVariable> env_variables();

// Value of a variable of the table, or its fallback. Throws std::logic_error for an unknown name.
std::string env(const char* name);

}  // namespace dfa
