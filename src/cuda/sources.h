#pragma once

#include <span>
#include <string_view>

namespace dfa::cuda {

// One source file as kernels include it: name "kernels/forward/x.cuh", "spec/config.h",
// "dfa/dtype.h"; text is the whole file.
struct SourceFile {
  std::string_view name;
  std::string_view text;
};

// Every file of src/kernels, and the headers those include, put into the library when it was
// built. Sorted by name.
std::span<const SourceFile> kernel_sources();

}  // namespace dfa::cuda
