#include "cuda/sources.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>

#include "base/file.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> embedded() {
  std::map<std::string, std::string> files;
  for (const SourceFile& file : kernel_sources()) {
    files.emplace(std::string(file.name), std::string(file.text));
  }
  return files;
}

TEST(KernelSources, EveryFileIsTheOneInTheTree) {
  const fs::path root = DFA_SOURCE_DIR;
  for (const auto& [name, text] : embedded()) {
    const fs::path in_src = root / "src" / name;
    EXPECT_EQ(text, read_file(fs::exists(in_src) ? in_src : root / "include" / name)) << name;
  }
}

TEST(KernelSources, EveryDeviceHeaderIsThere) {
  const auto files = embedded();
  const fs::path src = fs::path(DFA_SOURCE_DIR) / "src";
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(src / "kernels")) {
    if (entry.path().extension() != ".cuh") continue;
    ++count;
    EXPECT_EQ(files.count(fs::relative(entry.path(), src).string()), 1u) << entry.path();
  }
  EXPECT_GT(count, 0);
}

TEST(KernelSources, WhatTheyIncludeIsThereAndIsOurs) {
  const auto files = embedded();
  const std::regex include("(?:^|\n) *# *include +([<\"][^>\"]+[>\"])");
  for (const auto& [name, text] : files) {
    for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at) {
      const std::string included = (*at)[1];
      ASSERT_EQ(included.front(), '"') << name << " includes " << included;
      EXPECT_EQ(files.count(included.substr(1, included.size() - 2)), 1u) << name << included;
    }
  }
}

}  // namespace
}  // namespace dfa::cuda
