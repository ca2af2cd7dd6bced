#include "cli/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>

#include "base/file.h"
#include "base/json_text.h"
#include "cli/values.h"
#include "dfa/error.h"

namespace dfa::cli {
namespace {

using Names = std::initializer_list<const char*>;

// Names that configurations have for the same.
constexpr Names kHeads{"num_attention_heads", "n_head", "n_heads", "num_heads",
                       "decoder_attention_heads"};
constexpr Names kKeyHeads{"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"};
constexpr Names kHidden{"hidden_size", "n_embd", "d_model", "dim"};
constexpr Names kLongest{"max_position_embeddings", "n_positions", "max_sequence_length",
                         "max_seq_len", "seq_length"};
constexpr Names kText{"text_config", "llm_config", "language_config"};

const Json* find(const Json& config, Names names) {
  for (const char* name : names) {
    const auto found = config.find(name);
    if (found != config.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::int64_t number(const Json& config, Names names, std::int64_t otherwise) {
  const Json* value = find(config, names);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) {
    throw InvalidArgument(
        fmt::format("{} is {}; accepted is a whole number", *names.begin(), value->dump()));
  }
  return value->get<std::int64_t>();
}

bool flag(const Json& config, const char* name, bool otherwise) {
  const Json* value = find(config, {name});
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string word(const Json& config, Names names) {
  const Json* value = find(config, names);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::set<std::string> words(const Json& config, const char* name) {
  std::set<std::string> all;
  const Json* value = find(config, {name});
  if (value == nullptr || !value->is_array()) return all;
  for (const Json& one : *value) {
    if (one.is_string()) all.insert(one.get<std::string>());
  }
  return all;
}

std::optional<DType> dtype_of(const Json& config) {
  std::string name = word(config, {"dtype", "torch_dtype"});
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name.empty() || name == "auto") return std::nullopt;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16" || name == "half") return DType::fp16;
  if (name == "float32" || name == "float") return DType::fp32;
  throw InvalidArgument(
      fmt::format("dtype is '{}'; accepted: bfloat16, float16, float32, or --dtype", name));
}

void read_heads(const Json& config, ModelAttention& model) {
  model.hq = number(config, kHeads, 0);
  if (model.hq == 0) {
    throw InvalidArgument(
        "num_attention_heads is missing; accepted is the config.json of a model with attention");
  }
  const bool one_key_head =
      flag(config, "multi_query", false) && !flag(config, "new_decoder_architecture", false);
  model.hk = one_key_head ? 1 : number(config, kKeyHeads, model.hq);
}

void read_dims(const Json& config, ModelAttention& model) {
  const std::int64_t latent = number(config, {"qk_nope_head_dim"}, 0);
  const std::int64_t hidden = number(config, kHidden, 0);
  if (latent >
      0) {  // DeepSeek's: keys and values are made of a latent vector, for each head its own
    model.hk = model.hq;
    model.d = {latent + number(config, {"qk_rope_head_dim"}, 0)};
    model.dv = number(config, {"v_head_dim"}, 0);
  } else {
    model.d = {number(config, {"head_dim", "d_kv"}, hidden / model.hq)};
  }
  if (const std::int64_t other = number(config, {"global_head_dim"}, 0);
      other > 0 && other != model.d[0]) {
    model.d.push_back(other);
  }
  if (model.d[0] == 0)
    throw InvalidArgument("head_dim and hidden_size are missing; accepted is one of them");
}

void read_masks(const Json& config, const std::set<std::string>& architectures,
                ModelAttention& model) {
  const auto is_decoder = [](const std::string& name) {
    return name.find("CausalLM") != name.npos || name.find("LMHead") != name.npos ||
           name.find("ConditionalGeneration") != name.npos;
  };
  const bool both = flag(config, "is_encoder_decoder", false);
  model.causal = both || architectures.empty() || std::ranges::any_of(architectures, is_decoder);
  model.full = both || !model.causal;
  const std::set<std::string> layers = words(config, "layer_types");
  model.window =
      flag(config, "use_sliding_window", true) ? number(config, {"sliding_window"}, 0) : 0;
  model.windowed =
      model.window > 0 && model.causal && (layers.empty() || layers.contains("sliding_attention"));
}

void read_logits(const Json& config, ModelAttention& model) {
  if (const Json* cap = find(config, {"attn_logit_softcapping"})) {
    if (!cap->is_number())
      throw InvalidArgument("attn_logit_softcapping is " + cap->dump() + "; accepted is a number");
    model.softcap = cap->get<double>();
  }
  model.alibi = flag(config, "alibi", false);
  model.sink = model.type == "gpt_oss";
}

ModelAttention model_of(const Json& whole) {
  const Json* text =
      whole.is_object() && find(whole, kHeads) == nullptr ? find(whole, kText) : &whole;
  if (text == nullptr || !text->is_object()) text = &whole;
  if (!text->is_object())
    throw InvalidArgument("it holds no object; accepted is the config.json of a model");
  ModelAttention model;
  model.type = word(*text, {"model_type"});
  read_heads(*text, model);
  read_dims(*text, model);
  read_masks(*text, words(whole, "architectures"), model);
  read_logits(*text, model);
  model.dtype = dtype_of(*text);
  if (!model.dtype) model.dtype = dtype_of(whole);
  model.longest = number(*text, kLongest, 0);
  return model;
}

std::int64_t parse_size(const std::string& text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  std::int64_t value = 0;
  return read_all(text, value) && value > 0 && value <= kMost ? value : 0;
}

}  // namespace

ModelAttention read_model(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  try {
    return model_of(parse_json(read_file(file, kMostText)));
  } catch (const InvalidArgument& problem) {
    throw InvalidArgument(fmt::format("model '{}': {}", file.string(), problem.what()));
  }
}

std::vector<std::int64_t> parse_sizes(const std::string& name, const std::string& text) {
  std::set<std::int64_t> sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t dash = part.find('-');
    const std::int64_t first = parse_size(part.substr(0, dash));
    const std::int64_t last = dash == part.npos ? first : parse_size(part.substr(dash + 1));
    if (first == 0 || last < first) {
      throw InvalidArgument(fmt::format(
          "{} '{}'; accepted: numbers from 1 to 16777216 and ranges, as 1-8 or 1,4,512-8192", name,
          part));
    }
    for (std::int64_t n = first; n < last; n = n < 16 ? n + 1 : n + n / 16) sizes.insert(n);
    for (std::int64_t n = 1; n <= last; n *= 2) {
      if (n >= first) sizes.insert(n);
    }
    sizes.insert(last);
    at = end + 1;
  }
  return {sizes.begin(), sizes.end()};
}

namespace {

// The masks of so many queries that follow each other and end with the last key.
std::vector<Mask> masks_of(const ModelAttention& model, std::int64_t sq, std::int64_t sk) {
  std::vector<Mask> masks;
  if (model.full || (model.causal && sq == 1)) masks.push_back(kFull);
  if (model.causal && sq > 1) masks.push_back(kCausal);
  if (model.windowed && sk > model.window) masks.push_back({model.window - 1, 0});
  return masks;
}

void add(std::vector<Problem>& problems, const ModelAttention& model, Problem p, std::int64_t sq) {
  p.sq = sq;
  for (const std::int64_t d : model.d) {
    p.d = d;
    p.dv = model.dv > 0 ? model.dv : d;
    for (const Mask& mask : masks_of(model, sq, p.sk)) {
      p.mask = mask;
      for (const Layout layout : {Layout::bshd, Layout::bhsd}) {
        p.layout = layout;
        validate(p);
        problems.push_back(p);
      }
    }
  }
}

}  // namespace

std::vector<Problem> problems_of(const ModelAttention& model, const ModelCalls& calls) {
  constexpr std::size_t kMost = 1'000'000;
  if (calls.batches.size() * calls.lengths.size() > kMost / 16) {
    throw InvalidArgument(
        fmt::format("{} batches and {} lengths are more than {} problems; accepted are fewer",
                    calls.batches.size(), calls.lengths.size(), kMost));
  }
  std::vector<Problem> problems;
  for (const std::int64_t b : calls.batches) {
    for (const std::int64_t n : calls.lengths) {
      Problem p{.pass = calls.pass,
                .dtype = calls.dtype,
                .b = b,
                .hq = model.hq,
                .hk = model.hk,
                .sk = n};
      p.deterministic = calls.deterministic && calls.pass != Pass::forward;
      p.softcap = model.softcap;
      p.alibi = model.alibi;
      p.sink = model.sink;
      add(problems, model, p, n);
      if (calls.pass == Pass::forward && n > 1) add(problems, model, p, 1);
    }
  }
  return problems;
}

std::string to_text(const ModelAttention& model) {
  std::string text = fmt::format("{}: {} query heads, {} key heads, d {}",
                                 model.type.empty() ? "model" : model.type, model.hq, model.hk,
                                 fmt::join(model.d, " and "));
  if (model.dv > 0) text += fmt::format(", dv {}", model.dv);
  if (model.causal) text += ", causal";
  if (model.full) text += ", full";
  if (model.windowed) text += fmt::format(", windows of {}", model.window);
  if (model.softcap > 0) text += fmt::format(", softcap {}", model.softcap);
  if (model.sink) text += ", sinks";
  if (model.alibi) text += ", ALiBi";
  return text;
}

}  // namespace dfa::cli
