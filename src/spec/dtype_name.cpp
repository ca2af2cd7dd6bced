#include "spec/dtype_name.h"

namespace dfa {

std::optional<DType> dtype_named(std::string_view name) {
  for (const DType type : kDTypes) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

std::string dtype_names(std::string_view separator) {
  std::string text;
  for (const DType type : kDTypes) {
    if (!text.empty()) text += separator;
    text += name_of(type);
  }
  return text;
}

}  // namespace dfa
