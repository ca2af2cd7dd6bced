#include "cuda/sources.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "base/file.h"
#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> embedded() {
  std::map<std::string, std::string> files;
  for (const SourceFile& file : embedded_sources()) {
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

TEST(KernelSources, CommentsAndLayoutAreNoPartOfTheCode) {
  const std::string code = code_of("#include \"a/b.h\"\nint f(int a) { return a + 1; }\n");
  EXPECT_EQ(code, "#include\"a/b.h\"\nint f(int a){return a+1;}");
  EXPECT_EQ(
      code_of("// Why.\n#include \"a/b.h\"  // what\n\nint f(int a) {\n  return /* of\n a */ a + 1;"
              "\n}\n"),
      code);
  EXPECT_NE(code_of("int f(int a) { return a + 2; }"), code_of("int f(int a) { return a + 1; }"));
  EXPECT_EQ(code_of("asm(\"x  // \\\" y\");  // z"), "asm(\"x  // \\\" y\");");
  EXPECT_EQ(code_of("int/**/a;//"), "int a;");
  EXPECT_EQ(code_of("/* no end"), "");
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

TEST(KernelSources, AFileIsMadeOfItselfAndAllThatItIncludes) {
  const std::vector<SourceFile> all{{"a.h", "#include \"b.h\"\n#include <c.h>"},
                                    {"b.h", "#include \"d.h\"\n#include \"a.h\""},
                                    {"c.h", ""},
                                    {"d.h", "#include \"of the compiler.h\""}};
  const auto names = [&](std::string_view name) {
    std::vector<std::string_view> found;
    for (const SourceFile& file : sources_of(name, all)) found.push_back(file.name);
    return found;
  };
  EXPECT_EQ(names("a.h"), (std::vector<std::string_view>{"a.h", "b.h", "d.h"}));
  EXPECT_EQ(names("d.h"), std::vector<std::string_view>{"d.h"});
  EXPECT_TRUE(names("nowhere.h").empty());
}

TEST(KernelSources, AFoldersFilesTakeTheirPlaces) {
  const testing::TempDir folder;
  folder.write("kernels/forward/sm90_forward.cuh", "another");
  folder.write("kernels/forward/no_kernel_of_ours.cuh", "not asked for");
  const ReplacedSources replaced(embedded_sources(), folder.path());
  const auto before = embedded_sources();
  ASSERT_EQ(replaced.files().size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(replaced.files()[i].name, before[i].name);
    const bool same = before[i].name != "kernels/forward/sm90_forward.cuh";
    EXPECT_EQ(replaced.files()[i].text, same ? before[i].text : "another");
  }
}

TEST(KernelSources, AFolderWithoutAnyIsRefusedWithWhatItShouldHold) {
  for (const char* folder : {"/nowhere", "/dev/null"}) {
    try {
      const ReplacedSources replaced(embedded_sources(), folder);
      FAIL() << folder;
    } catch (const InvalidArgument& refused) {
      const std::string said = refused.what();
      EXPECT_NE(said.find(std::string("DFA_KERNEL_SOURCES: '") + folder), std::string::npos)
          << said;
      EXPECT_NE(said.find("e.g. kernels/forward/sm90_forward.cuh"), std::string::npos) << said;
    }
  }
}

}  // namespace
}  // namespace dfa::cuda
