#pragma once

#include <filesystem>
#include <string>

namespace dfa::evaluate {

// A program that some steps need, or why it is not there.
struct Tool {
  std::string program{};
  std::string missing{};

  bool there() const { return missing.empty(); }
};

struct Tools {
  std::filesystem::path dfa;     // this very program
  std::filesystem::path source;  // a checkout: benchmarks/, examples/, python/
  Tool source_there{};
  Tool report_python{};    // with pandas, matplotlib, seaborn, plotly
  Tool torch_python{};     // with PyTorch, beside which is measured
  Tool training_python{};  // with PyTorch and the package dfa
  Tool several_cards{};    // likewise, where PyTorch sees more than one GPU
  Tool ncu{};              // hardware counters
};

// source: a checkout; empty: the one that this program was built in.
Tools find_tools(const std::filesystem::path& source);

}  // namespace dfa::evaluate
