#include "spec/algorithm_name.h"

#include "base/enum_table.h"

namespace dfa {
namespace {

constexpr auto kAlgorithms = enum_table<Algorithm>({{Algorithm::automatic, "auto"},
                                                    {Algorithm::standard, "standard"},
                                                    {Algorithm::flash, "flash"}});

}  // namespace

Algorithm parse_algorithm(const std::string& name) { return kAlgorithms.parse("algorithm", name); }

const char* name_of(Algorithm algorithm) { return kAlgorithms.name(algorithm); }

}  // namespace dfa
