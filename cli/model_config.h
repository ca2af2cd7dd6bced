#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dfa/problem.h"

namespace dfa::cli {

// Attention as a config.json of Hugging Face's transformers says it.
struct ModelAttention {
  std::string type;               // "llama"
  std::int64_t hq = 0, hk = 0;    // query heads, key heads
  std::vector<std::int64_t> d{};  // head dims: of most models one
  std::int64_t dv = 0;            // 0: as d
  std::optional<DType> dtype{};
  std::int64_t longest = 0;                            // positions that it has; 0: not said
  bool causal = true, full = false, windowed = false;  // masks of its layers
  std::int64_t window = 0;  // keys that a query of a windowed layer sees, itself included
  double softcap = 0;
  bool sink = false, alibi = false;
};

// path: the file, or its folder. Throws IoError where it cannot be read, InvalidArgument that names
// the field where it is no configuration of a model with attention.
ModelAttention read_model(const std::filesystem::path& path);

// "1-8", "4,16", "1,512-8192": all that is named, and of what lies between two ends every number up
// to 16, then powers of two and steps of a sixteenth. Throws InvalidArgument that begins with
// `name`.
std::vector<std::int64_t> parse_sizes(const std::string& name, const std::string& text);

// Calls that a model is asked for.
struct ModelCalls {
  Pass pass = Pass::forward;
  DType dtype = DType::bf16;
  bool deterministic = false;  // gradients
  std::vector<std::int64_t> batches, lengths;
};

// What its layers ask: prompts of every length, at a forward alone also one query that follows so
// many keys; rows before heads in memory, as models have them, and heads before rows, as caches do.
// Throws InvalidArgument where they are more than a million.
std::vector<Problem> problems_of(const ModelAttention& model, const ModelCalls& calls);

// "llama: 32 query heads, 8 key heads, d 128, causal".
std::string to_text(const ModelAttention& model);

}  // namespace dfa::cli
