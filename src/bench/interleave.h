#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dfa::bench {

// The order in which round `round` visits `count` variants: a permutation that depends on the seed
// alone, so that a run can be repeated and drift of temperature or clock hits all variants alike.
std::vector<std::size_t> round_order(std::size_t count, std::uint64_t seed, std::uint64_t round);

}  // namespace dfa::bench
