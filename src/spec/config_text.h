#pragma once

#include <string>
#include <string_view>

#include "dfa/problem.h"
#include "spec/config.h"

namespace dfa {

// Designated-initialiser text, e.g. "ForwardConfig{.target=Target::cpu_avx512,.element=DType::bf16,
// .head_dim=64,…}": log line, JSON field, cache key and (later) NVRTC name expression.
std::string to_text(const ForwardConfig& config);
std::string to_text(const BackwardConfig& config);

// Applies "field=value" pairs, separated by commas, on top of `base`; to_text() output is accepted
// as it is, and gives the same configuration on any base. Throws InvalidArgument naming the field
// and what would be accepted.
ForwardConfig parse_config(std::string_view text, ForwardConfig base);
BackwardConfig parse_config(std::string_view text, BackwardConfig base);

// Throws InvalidArgument where a text names a type of configurations that there is none of: nobody
// would read it.
void require_known_type(std::string_view text);

// Does this text name the type of configurations of a pass that a problem of `pass` does not have?
// Plain "field=value" text is for both.
bool names_other_pass(std::string_view text, Pass pass);

}  // namespace dfa
