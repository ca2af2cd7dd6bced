#include "base/python_packages.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

#include "base/nvidia_library.h"
#include "temp_dir.h"

namespace dfa {
namespace {

namespace fs = std::filesystem;

TEST(PythonPackages, AreFoundAroundTheModuleAndTheProgramOfThePackage) {
  const testing::TempDir tree;
  tree.write("site/dfa/__init__.py", "");
  EXPECT_EQ(python_packages_around(tree / "site/dfa/_core.abi3.so"), tree / "site");
  EXPECT_EQ(python_packages_around(tree / "site/dfa/bin/dfa"), tree / "site");
}

TEST(PythonPackages, ALibraryElsewhereIsOfNoPackage) {
  const testing::TempDir tree;
  tree.write("site/dfa/__init__.py", "");
  for (const char* other : {"site/libdfa.so", "bin/dfa", "dfa/bin/dfa", "site/dfa/deep/_core.so"}) {
    EXPECT_EQ(python_packages_around(tree / other), "") << other;
  }
}

TEST(PythonPackages, ThoseOfTheEnvironmentAreSearchedForNvidiasLibraries) {
  const testing::TempDir tree;
  const fs::path library =
      tree.write("lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "not a library");
  fs::create_directories(tree / "lib/python3.13/site-packages");
  ::setenv("VIRTUAL_ENV", tree.path().c_str(), 1);
  const std::vector<fs::path> packages = python_packages();
  const auto names = nvidia_library_names("DFA_NVRTC", {"libnvrtc.so.13"});
  ::unsetenv("VIRTUAL_ENV");
  const std::vector<fs::path> expected{tree / "lib/python3.13/site-packages",
                                       tree / "lib/python3.12/site-packages"};
  EXPECT_EQ(packages, expected);  // the newest Python first
  EXPECT_EQ(std::count(names.begin(), names.end(), library.string()), 1);
}

}  // namespace
}  // namespace dfa
