#pragma once

#include <filesystem>
#include <string>

#include "base/array.h"

// Files of named tensors: a little-endian length, a JSON header, then the data.
namespace dfa {

// Reads one tensor, of type F16, BF16, F32 or F64. Throws IoError when the file cannot be read,
// InvalidArgument naming the file and what is wrong with it, or the tensors that are there.
Array read_safetensors(const std::filesystem::path& path, const std::string& name);

// The same from bytes in memory; `place` stands in front of every message.
Array parse_safetensors(std::string bytes, const std::string& name, const std::string& place);

}  // namespace dfa
