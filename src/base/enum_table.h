#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dfa/error.h"

namespace dfa {

template <typename Enum>
struct EnumName {
  Enum value;
  const char* name;
};

// The enumerators of one enumeration and the text that each is written as, in files and on command
// lines. What prints, reads or lists the names goes through this one table.
template <typename Enum, std::size_t kCount>
class EnumTable {
 public:
  // Does not compile where an enumerator or a name comes twice.
  explicit consteval EnumTable(const EnumName<Enum> (&rows)[kCount]) {
    for (std::size_t i = 0; i < kCount; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (rows[i].value == rows[j].value) throw "an enumerator has two names";
        if (std::string_view(rows[i].name) == rows[j].name) throw "two enumerators have one name";
      }
      rows_[i] = rows[i];
    }
  }

  constexpr auto begin() const { return rows_.begin(); }
  constexpr auto end() const { return rows_.end(); }

  // "?" for a value that is no enumerator.
  constexpr const char* name(Enum value) const {
    for (const auto& row : rows_) {
      if (row.value == value) return row.name;
    }
    return "?";
  }

  constexpr std::optional<Enum> find(std::string_view name) const {
    for (const auto& row : rows_) {
      if (name == row.name) return row.value;
    }
    return std::nullopt;
  }

  // "auto, standard, flash", in the order of the table.
  std::string names() const {
    std::string all;
    for (const auto& row : rows_) all += (all.empty() ? "" : ", ") + std::string(row.name);
    return all;
  }

  // Throws InvalidArgument "WHAT 'NAME'; accepted: " and the names.
  Enum parse(std::string_view what, std::string_view name) const {
    if (const std::optional<Enum> value = find(name)) return *value;
    throw InvalidArgument(std::string(what) + " '" + std::string(name) + "'; accepted: " + names());
  }

 private:
  std::array<EnumName<Enum>, kCount> rows_{};
};

// constexpr auto kScales = enum_table<Scale>({{Scale::cpu, "cpu"}, {Scale::full, "full"}});
template <typename Enum, std::size_t kCount>
consteval EnumTable<Enum, kCount> enum_table(const EnumName<Enum> (&rows)[kCount]) {
  return EnumTable<Enum, kCount>(rows);
}

}  // namespace dfa
