#include "spec/config_text.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "dfa/error.h"

namespace dfa {
namespace {

constexpr DType kDTypes[] = {DType::fp32, DType::tf32, DType::fp16, DType::bf16, DType::fp8};

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
      visit("fixed_reference", config.fixed_reference);
      visit("skip", config.skip);
      visit("cluster", config.cluster);
      visit("own_output", config.own_output);
      visit("held_columns", config.held_columns);
      visit("packed_heads", config.packed_heads);
      visit("dynamic", config.dynamic);
      visit("key_shares", config.key_shares);
    }
  }
  if constexpr (requires { config.dq_warps; }) {
    visit("dq", config.dq);
    visit("dq_block_q", config.dq_block_q);
    if (sm90) {
      visit("dq_group", config.dq_group);
      visit("early_turns", config.early_turns);
      visit("cluster", config.cluster);
      visit("rounds_dq", config.rounds_dq);
      visit("zeroes_dq", config.zeroes_dq);
      visit("persistent", config.persistent);
      visit("keys_in_registers", config.keys_in_registers);
      visit("skips_hidden", config.skips_hidden);
      visit("nested_keys", config.nested_keys);
      visit("bulk_dq", config.bulk_dq);
      visit("parts_last", config.parts_last);
      visit("heads_by_tile", config.heads_by_tile);
      return;
    }
    visit("dq_block_k", config.dq_block_k);
    visit("dq_warps", config.dq_warps);
    visit("dq_ctas", config.dq_ctas);
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

std::string value_text(DqSum value) { return std::string("DqSum::") + name_of(value); }

// Fields that are left out where they say this, off: texts that are older, in results and profiles,
// name the same kernels.
constexpr struct {
  std::string_view field, off;
} kLeftOut[] = {{"skip", "false"},
                {"cluster", "1"},
                {"own_output", "false"},
                {"held_columns", "0"},
                {"packed_heads", "1"},
                {"dq_group", "false"},
                {"early_turns", "false"},
                {"rounds_dq", "false"},
                {"zeroes_dq", "false"},
                {"persistent", "false"},
                {"keys_in_registers", "false"},
                {"skips_hidden", "false"},
                {"nested_keys", "false"},
                {"bulk_dq", "false"},
                {"parts_last", "false"},
                {"heads_by_tile", "false"},
                {"dynamic", "false"},
                {"key_shares", "0"}};

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

[[noreturn]] void bad_value(std::string_view field, std::string_view value, const char* accepted) {
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

void read_value(std::string_view field, std::string_view text, Target& value) {
  if (text.substr(0, 8) == "Target::") text.remove_prefix(8);
  for (int i = 0; i <= static_cast<int>(Target::cuda_sm90); ++i) {
    if (text == name_of(static_cast<Target>(i))) {
      value = static_cast<Target>(i);
      return;
    }
  }
  bad_value(field, text,
            "cpu_portable, cpu_avx2, cpu_avx512, cpu_amx, cuda_sm75, cuda_sm80, cuda_sm90");
}

void read_value(std::string_view field, std::string_view text, DType& value) {
  if (text.substr(0, 7) == "DType::") text.remove_prefix(7);
  for (const DType type : kDTypes) {
    if (text == name_of(type)) {
      value = type;
      return;
    }
  }
  bad_value(field, text, "fp32, tf32, fp16, bf16, fp8");
}

void read_value(std::string_view field, std::string_view text, DqSum& value) {
  if (text.substr(0, 7) == "DqSum::") text.remove_prefix(7);
  for (const DqSum sum : {DqSum::recomputed, DqSum::ordered, DqSum::unordered}) {
    if (text == name_of(sum)) {
      value = sum;
      return;
    }
  }
  bad_value(field, text, "recomputed, ordered, unordered");
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// A text that names all other fields names a whole configuration: what it leaves out is off,
// whatever the base says.
template <typename Config>
void turn_off_left_out(Config& config, const std::vector<std::string_view>& named) {
  const auto is_named = [&](std::string_view field) {
    return std::find(named.begin(), named.end(), field) != named.end();
  };
  bool whole = true;
  for_each_field(config, [&](const char* field, auto&) {
    whole = whole && (is_named(field) || !off_of(field).empty());
  });
  if (!whole) return;
  for_each_field(config, [&](const char* field, auto& value) {
    if (!is_named(field) && !off_of(field).empty()) read_value(field, off_of(field), value);
  });
}

template <typename Config>
Config parse(std::string_view text, Config config) {
  std::vector<std::string_view> named;
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
    const std::string_view name = trim(item.substr(0, equals));
    bool known = false;
    for_each_field(config, [&](const char* field, auto& value) {
      if (name != field || equals == std::string_view::npos) return;
      known = true;
      named.push_back(name);
      read_value(name, trim(item.substr(equals + 1)), value);
    });
    if (!known) {
      std::string fields;
      for_each_field(config, [&](const char* field, auto&) {
        fields += (fields.empty() ? "" : ", ") + std::string(field);
      });
      throw InvalidArgument("config: '" + std::string(item) + "' is not field=value of " + fields);
    }
  }
  turn_off_left_out(config, named);
  return config;
}

}  // namespace

std::string to_text(const ForwardConfig& config) { return print("ForwardConfig", config); }
std::string to_text(const BackwardConfig& config) { return print("BackwardConfig", config); }

ForwardConfig parse_config(std::string_view text, ForwardConfig base) { return parse(text, base); }
BackwardConfig parse_config(std::string_view text, BackwardConfig base) {
  return parse(text, base);
}

}  // namespace dfa
