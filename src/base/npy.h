#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/array.h"

// NumPy's array files, format versions 1 to 3, little-endian and in C order.
namespace dfa {

// Reads <f2, <f4, <f8, and bf16 as NumPy with ml_dtypes writes it (descr '<V2' or '|V2'); integers
// are refused, as they could be bit patterns or values. Throws IoError when the file cannot be
// read, InvalidArgument naming the file and what is wrong with it.
Array read_npy(const std::filesystem::path& path);

// The same from bytes in memory; `place` stands in front of every message.
Array parse_npy(std::string bytes, const std::string& place);

// Bytes of a version 1 file. `data` holds the elements in C order. bf16 has no NumPy name of its
// own and is written as '<V2'.
std::string to_npy(ArrayType type, const std::vector<std::int64_t>& shape, std::string_view data);

}  // namespace dfa
