#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "base/shared_library.h"

namespace dfa {

// Where a library of NVIDIA's may lie, to be tried in this order: the file or folder that the
// environment variable `forced` names and, when that is set, nothing else; by its name alone, where
// the system looks; the lib64 of CUDA_HOME; NVIDIA's packages among python_packages(). `files` are
// its file names, the one to prefer in front.
std::vector<std::string> nvidia_library_names(const char* forced,
                                              std::initializer_list<const char*> files);

// Those in the folder of `library`, a path, whose names begin so. A library that opens another by
// name alone is not given it by the system outside of its own folders, but is once it is loaded.
std::vector<SharedLibrary> open_beside(const std::string& library, const std::string& prefix);

}  // namespace dfa
