#pragma once

#include <filesystem>
#include <vector>

namespace dfa {

// The folder of Python packages that `file` is in, as a part of the package dfa (dfa/_core.*.so,
// dfa/bin/dfa); empty where it is no such part.
std::filesystem::path python_packages_around(const std::filesystem::path& file);

// Where other Python packages may lie, those in front first: beside the package dfa that this code
// is a part of, and in the environment that VIRTUAL_ENV names.
std::vector<std::filesystem::path> python_packages();

}  // namespace dfa
