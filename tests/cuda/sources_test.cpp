#include "cuda/sources.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

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
  for (const auto& [name, text] : files) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("#include") != 0) continue;
      const std::size_t begin = line.find('"'), end = line.rfind('"');
      ASSERT_LT(begin, end) << name << ": " << line;
      EXPECT_EQ(files.count(line.substr(begin + 1, end - begin - 1)), 1u) << name << ": " << line;
    }
  }
}

}  // namespace
}  // namespace dfa::cuda
