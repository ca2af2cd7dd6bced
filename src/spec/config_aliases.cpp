#include "spec/config_aliases.h"

#include <algorithm>
#include <string>

#include "dfa/error.h"

namespace dfa {
namespace {

constexpr std::string_view kGone[] = {"skip", "dynamic", "dq_group", "bulk_dq"};
constexpr std::string_view kFollows[] = {"fixed_reference",   "own_output",  "early_turns",
                                         "keys_in_registers", "nested_keys", "skips_hidden",
                                         "rounds_dq",         "zeroes_dq"};

template <std::size_t kCount>
bool is_of(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_old(std::string_view field, std::string_view value, bool sm90) {
  if (field == "dq") return value.ends_with("ordered") || value.ends_with("recomputed");
  return (field == "dq_block_q" && sm90) || is_of(kGone, field) || is_of(kFollows, field);
}

[[noreturn]] void refuse(std::string_view field, std::string_view value, const std::string& why) {
  throw InvalidArgument("config: " + std::string(field) + "=" + std::string(value) + why);
}

DqAccumulation accumulation(bool separate, bool atomic, bool fused) {
  if (separate) return DqAccumulation::separate;
  if (atomic) return fused ? DqAccumulation::atomic_fused : DqAccumulation::atomic;
  return fused ? DqAccumulation::serialized_fused : DqAccumulation::serialized;
}

}  // namespace

std::string_view todays_name(std::string_view field) {
  constexpr struct {
    std::string_view former, today;
  } kRenamed[] = {{"parts_last", "split_q"},
                  {"heads_by_tile", "gqa_inner_loop"},
                  {"packed_heads", "pack_gqa"},
                  {"key_shares", "num_splits"},
                  {"held_columns", "q_columns_in_regs"}};
  for (const auto& [former, today] : kRenamed) {
    if (field == former) return today;
  }
  return field;
}

bool OldFields::take(std::string_view field, std::string_view value, bool sm90) {
  if (!is_old(field, value, sm90)) return false;
  const bool is_switch = field != "dq" && field != "dq_block_q";
  if (is_switch && value != "true" && value != "false") {
    refuse(field, value, "; accepted: true, false");
  }
  fields_.push_back({field, value});
  return true;
}

std::string_view OldFields::value_of(std::string_view name) const {
  const auto last = std::find_if(fields_.rbegin(), fields_.rend(),
                                 [&](const Field& field) { return field.name == name; });
  return last != fields_.rend() ? last->value : std::string_view{};
}

void OldFields::require(std::string_view name, bool follows, bool whole) const {
  std::string_view value = value_of(name);
  if (value.empty() && whole) value = "false";
  if (value.empty() || (value == "true") == follows) return;
  refuse(
      name, value,
      std::string(" names a kernel that is no more; there it is ") + (follows ? "true" : "false"));
}

void OldFields::apply(ForwardConfig& config, bool whole) const {
  for (const std::string_view name : kGone) require(name, false, whole);
  require("fixed_reference", config.static_max(), whole);
  require("own_output", config.own_output(), whole);
}

void OldFields::apply(BackwardConfig& config, bool whole) const {
  for (const std::string_view name : kGone) require(name, false, whole);
  const std::string_view dq = value_of("dq"), fused = value_of("rounds_dq");
  if (!dq.empty() || !fused.empty()) {
    const bool separate =
        dq.empty() ? config.dq == DqAccumulation::separate : dq.ends_with("recomputed");
    const bool atomic = dq.empty() ? config.dq_atomic() : dq.ends_with("unordered");
    const bool keeps = !whole && config.dq_fused();
    config.dq = accumulation(separate, atomic, fused.empty() ? keeps : fused == "true");
  }
  if (const std::string_view masked = value_of("skips_hidden"); !masked.empty()) {
    config.masked = masked == "true";
  }
  if (config.target != Target::cuda_sm90) return;
  require("nested_keys", config.masked, whole);
  require("zeroes_dq", config.dq == DqAccumulation::atomic_fused, whole);
  require("early_turns", config.early_release(), whole);
  require("keys_in_registers", config.holds_keys(), whole && config.element != DType::fp32);
  const std::string_view rows = value_of("dq_block_q");
  if (rows.empty() || rows == std::to_string(config.dq_semaphore_rows())) return;
  refuse(
      "dq_block_q", rows,
      " names a kernel that is no more; there it is " + std::to_string(config.dq_semaphore_rows()));
}

}  // namespace dfa
