#include "spec/config_text.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "dfa/error.h"
#include "spec/config_aliases.h"
#include "spec/config_names.h"
#include "spec/dtype_name.h"

namespace dfa {
namespace {

template <typename Visitor>
void for_each_gpu_field(auto& config, Visitor&& visit) {
  const bool sm90 = config.target == Target::cuda_sm90;
  visit("warps", config.warps);
  if constexpr (requires { config.sharing; }) {
    if (!sm90) visit("sharing", config.sharing);
  }
  visit("stages", config.stages);
  visit("ctas", config.ctas);
  if constexpr (requires { config.pingpong; }) {
    if (sm90) {
      visit("q_stages", config.q_stages);
      visit("pingpong", config.pingpong);
      visit("cluster", config.cluster);
      visit("q_columns_in_regs", config.q_columns_in_regs);
      visit("pack_gqa", config.pack_gqa);
      visit("num_splits", config.num_splits);
    }
  }
  if constexpr (requires { config.dq_warps; }) {
    visit("dq", config.dq);
    if (sm90) {
      visit("cluster", config.cluster);
      visit("persistent", config.persistent);
      visit("masked", config.masked);
      visit("split_q", config.split_q);
      visit("gqa_inner_loop", config.gqa_inner_loop);
    } else {
      visit("dq_block_q", config.dq_block_q);
      visit("dq_block_k", config.dq_block_k);
      visit("dq_warps", config.dq_warps);
      visit("dq_ctas", config.dq_ctas);
    }
  }
  if constexpr (requires { config.pack_gqa; }) {
    if (!sm90) {
      visit("pack_gqa", config.pack_gqa);
      visit("num_splits", config.num_splits);
    }
  }
  visit("varlen", config.varlen);  // from here on as in the types: kernels are named by this text
  visit("softcap", config.softcap);
  visit("alibi", config.alibi);
  visit("bias", config.bias);
  if constexpr (requires { config.bias_fp32; }) {
    if (sm90) visit("bias_fp32", config.bias_fp32);
  }
  if constexpr (requires { config.sink; }) visit("sink", config.sink);
  if constexpr (requires { config.paged; }) visit("paged", config.paged);
  visit("ranges", config.ranges);
  visit("dropout", config.dropout);
  visit("blocks", config.blocks);
  visit("text", config.text);
  if constexpr (requires { config.split_kv; }) {
    visit("split_kv", config.split_kv);
    visit("split_keys", config.split_keys);
    if (!sm90) visit("kv_e4m3", config.kv_e4m3);
    if (sm90) visit("descale_blocks", config.descale_blocks);
    if (sm90) visit("transpose_values", config.transpose_values);
  }
}

// Visits every field of the target once, so that printing and parsing cannot disagree. The target
// comes first: it says which fields there are.
template <typename Config, typename Visitor>
void for_each_field(Config& config, Visitor&& visit) {
  visit("target", config.target);
  visit("element", config.element);
  visit("head_dim", config.head_dim);
  visit("value_dim", config.value_dim);
  visit("block_q", config.block_q);
  visit("block_k", config.block_k);
  if (is_gpu(config.target)) for_each_gpu_field(config, visit);
}

std::string value_text(int value) { return std::to_string(value); }
std::string value_text(bool value) { return value ? "true" : "false"; }
std::string value_text(Target value) { return std::string("Target::") + name_of(value); }
std::string value_text(DType value) { return std::string("DType::") + name_of(value); }

std::string value_text(DqAccumulation value) {
  return std::string("DqAccumulation::") + name_of(value);
}

// Fields that are left out where they say this, off: texts that are older, in results and profiles,
// name the same kernels.
constexpr struct {
  std::string_view field, off;
} kLeftOut[] = {{"cluster", "1"},
                {"q_columns_in_regs", "0"},
                {"pack_gqa", "1"},
                {"persistent", "false"},
                {"masked", "false"},
                {"split_q", "false"},
                {"gqa_inner_loop", "false"},
                {"varlen", "false"},
                {"softcap", "false"},
                {"alibi", "false"},
                {"bias", "false"},
                {"bias_fp32", "false"},
                {"sink", "false"},
                {"paged", "false"},
                {"ranges", "false"},
                {"dropout", "false"},
                {"blocks", "false"},
                {"text", "false"},
                {"split_kv", "false"},
                {"split_keys", "0"},
                {"kv_e4m3", "false"},
                {"descale_blocks", "false"},
                {"transpose_values", "false"},
                {"num_splits", "0"}};

// What such a field says where it is left out; empty for others.
std::string_view off_of(std::string_view name) {
  for (const auto& [field, off] : kLeftOut) {
    if (name == field) return off;
  }
  return {};
}

template <typename Config>
std::string print(const char* type, const Config& config) {
  std::string text = std::string(type) + "{";
  for_each_field(config, [&](const char* name, const auto& value) {
    if (value_text(value) == off_of(name)) return;
    if (text.back() != '{') text += ',';
    text += std::string(".") + name + "=" + value_text(value);
  });
  return text + "}";
}

[[noreturn]] void bad_value(std::string_view field, std::string_view value,
                            const std::string& accepted) {
  throw InvalidArgument("config: " + std::string(field) + "=" + std::string(value) +
                        "; accepted: " + accepted);
}

void read_value(std::string_view field, std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const int least = off_of(field) == "0" ? 0 : 1;
  if (error != std::errc{} || end != text.data() + text.size() || value < least) {
    bad_value(field, text, least == 0 ? "an integer from 0" : "an integer from 1");
  }
}

void read_value(std::string_view field, std::string_view text, bool& value) {
  if (text != "true" && text != "false") bad_value(field, text, "true, false");
  value = text == "true";
}

// An enumerator, with its type in front or without.
template <typename Table, typename Enum>
void read_name(std::string_view field, std::string_view text, std::string_view type,
               const Table& table, Enum& value) {
  if (text.starts_with(type)) text.remove_prefix(type.size());
  const auto found = table.find(text);
  if (!found) bad_value(field, text, table.names());
  value = *found;
}

void read_value(std::string_view field, std::string_view text, Target& value) {
  read_name(field, text, "Target::", kTargetNames, value);
}

void read_value(std::string_view field, std::string_view text, DqAccumulation& value) {
  read_name(field, text, "DqAccumulation::", kDqAccumulationNames, value);
}

void read_value(std::string_view field, std::string_view text, DType& value) {
  if (text.substr(0, 7) == "DType::") text.remove_prefix(7);
  const std::optional<DType> type = dtype_named(text);
  if (!type) bad_value(field, text, dtype_names());
  value = *type;
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// A text that names all other fields names a whole configuration: what it leaves out is off,
// whatever the base says. Is it one?
template <typename Config>
bool turn_off_left_out(Config& config, const std::vector<std::string_view>& named) {
  const auto is_named = [&](std::string_view field) {
    return std::find(named.begin(), named.end(), field) != named.end();
  };
  bool whole = true;
  for_each_field(config, [&](const char* field, auto&) {
    whole = whole && (is_named(field) || !off_of(field).empty());
  });
  if (!whole) return false;
  for_each_field(config, [&](const char* field, auto& value) {
    if (!is_named(field) && !off_of(field).empty()) read_value(field, off_of(field), value);
  });
  return true;
}

template <typename Config>
Config parse(std::string_view text, Config config) {
  std::vector<std::string_view> named;
  OldFields old;
  if (const std::size_t open = text.find('{'); open != std::string_view::npos) {
    if (text.empty() || text.back() != '}') {
      throw InvalidArgument("config: '" + std::string(text) + "' opens a brace it does not close");
    }
    text = text.substr(open + 1, text.size() - open - 2);
  }
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    std::string_view item = trim(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    if (!item.empty() && item.front() == '.') item.remove_prefix(1);
    const std::size_t equals = item.find('=');
    const std::string_view name = todays_name(trim(item.substr(0, equals)));
    const std::string_view value = trim(equals == item.npos ? "" : item.substr(equals + 1));
    bool known = old.take(name, value, config.target == Target::cuda_sm90);
    if (known) {
      named.push_back(name);
      continue;
    }
    for_each_field(config, [&](const char* field, auto& field_value) {
      if (name != field || equals == std::string_view::npos) return;
      known = true;
      named.push_back(name);
      read_value(name, value, field_value);
    });
    if (!known) {
      std::string fields;
      for_each_field(config, [&](const char* field, auto&) {
        fields += (fields.empty() ? "" : ", ") + std::string(field);
      });
      throw InvalidArgument("config: '" + std::string(item) + "' is not field=value of " + fields);
    }
  }
  const bool whole = turn_off_left_out(config, named);
  if (old.any()) old.apply(config, whole);
  return config;
}

}  // namespace

std::string to_text(const ForwardConfig& config) { return print("ForwardConfig", config); }
std::string to_text(const BackwardConfig& config) { return print("BackwardConfig", config); }

ForwardConfig parse_config(std::string_view text, ForwardConfig base) { return parse(text, base); }
BackwardConfig parse_config(std::string_view text, BackwardConfig base) {
  return parse(text, base);
}

// The name before the brace, where there is one.
static std::string_view type_of(std::string_view text) {
  const std::size_t brace = text.find('{');
  return brace == std::string_view::npos ? std::string_view{} : text.substr(0, brace);
}

void require_known_type(std::string_view text) {
  if (type_of(text).empty()) return;
  for (const char* type : {"ForwardConfig", "BackwardConfig", "StandardConfig"}) {
    if (type_of(text) == type) return;
  }
  throw InvalidArgument("config: '" + std::string(text) +
                        "' is of no type that is known; accepted: ForwardConfig{…}, "
                        "BackwardConfig{…}, StandardConfig{…}, or field=value alone");
}

bool names_other_pass(std::string_view text, Pass pass) {
  return (pass == Pass::forward && type_of(text) == "BackwardConfig") ||
         (pass == Pass::backward && type_of(text) == "ForwardConfig");
}

}  // namespace dfa
