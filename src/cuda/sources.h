#pragma once

#include <filesystem>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dfa/problem.h"

namespace dfa::cuda {

// One source file as kernels include it: name "kernels/forward/x.cuh", "spec/target.h",
// "dfa/dtype.h"; text is the whole file.
struct SourceFile {
  std::string_view name;
  std::string_view text;
};

// Every file of src/kernels, and the headers those include, put into the library when it was
// built. Sorted by name.
std::span<const SourceFile> embedded_sources();

// The same with what a folder has in its place, by name, for a kernel that is being worked on.
// Throws InvalidArgument where the folder is not one or has no file of these names, IoError where
// one cannot be read.
class ReplacedSources {
 public:
  ReplacedSources(std::span<const SourceFile> sources, const std::filesystem::path& folder);

  std::span<const SourceFile> files() const { return files_; }

 private:
  std::vector<SourceFile> files_;
  std::list<std::string> texts_;
};

// A source without comments and layout, lines' ends behind directives aside: what its code depends
// on.
std::string code_of(std::string_view text);

// What kernels are compiled from: embedded_sources(), with files of DFA_KERNEL_SOURCES in their
// place where it names a folder. Throws as ReplacedSources does.
std::span<const SourceFile> kernel_sources();

// What the kernels of a pass are made from: their files, and what those include.
std::vector<SourceFile> sources_of(Pass pass);

// The same of one file among `all`.
std::vector<SourceFile> sources_of(std::string_view name, std::span<const SourceFile> all);

}  // namespace dfa::cuda
