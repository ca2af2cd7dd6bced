#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "evaluate/command.h"
#include "evaluate/tools.h"

namespace dfa::evaluate {

// One sequence over all cards: benchmarks/context_parallel.py by as many ranks of PyTorch's
// torchrun as it sees GPUs.
inline constexpr const char* kSeveralCardsQuestion =
    "one sequence over all cards, beside one card and PyTorch; watts of each";

// Why that cannot be run here; empty: it can.
std::string why_no_several_cards(const Tools& tools);

Command several_cards(const Tools& tools, const std::filesystem::path& out,
                      const std::vector<std::string>& options);

}  // namespace dfa::evaluate
