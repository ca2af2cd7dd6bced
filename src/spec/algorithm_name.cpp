#include "spec/algorithm_name.h"

namespace dfa {

Algorithm parse_algorithm(const std::string& name) {
  if (name == "auto") return Algorithm::automatic;
  if (name == "standard") return Algorithm::standard;
  if (name == "flash") return Algorithm::flash;
  throw InvalidArgument("algorithm '" + name + "'; accepted: auto, standard, flash");
}

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::standard: return "standard";
    case Algorithm::flash: return "flash";
  }
  return "?";
}

}  // namespace dfa
