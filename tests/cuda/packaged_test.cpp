// Kernels compiled ahead, in a folder that is only read.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "base/file.h"
#include "cuda/cache.h"
#include "cuda/counting_compiler.h"
#include "cuda/entry_file.h"
#include "cuda/store.h"
#include "dfa/error.h"
#include "dfa/version.h"
#include "temp_dir.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;
using testing::CountingCompiler;

constexpr SourceFile kPackedSources[] = {{"a.cuh", "one"}, {"b.cuh", "two"}};
constexpr SourceFile kNewerSources[] = {{"a.cuh", "one"}, {"b.cuh", "too"}};
const CompileRequest kAsked{"a.cuh", "kernel<1>", "sm_90a", {"-default-device"}};

class PackagedTest : public ::testing::Test {
 protected:
  // As whoever makes the package does it.
  void compile_ahead(const std::string& version) {
    const auto maker = std::make_shared<CountingCompiler>();
    maker->text = version;
    KernelStore({.cache = package}, maker, kPackedSources).get(kAsked);
  }
  KernelStore fresh(std::span<const SourceFile> sources = kPackedSources) {
    return KernelStore({.cache = cache, .packaged = package}, compiler, sources);
  }
  fs::path only_file() const { return fs::directory_iterator(package / "kernels")->path(); }

  const testing::TempDir tree;
  const fs::path cache = tree / "cache", package = tree / "package";
  const std::shared_ptr<CountingCompiler> compiler = std::make_shared<CountingCompiler>();
};

TEST_F(PackagedTest, AKernelCompiledAheadNeedsNoCompilerAndLeavesNothing) {
  compile_ahead("nvrtc 13.0");
  compiler->verdict = Verdict::no("no compiler here");
  const StoredKernel found = fresh().get(kAsked);
  EXPECT_EQ(found.origin, KernelOrigin::packaged);
  EXPECT_TRUE(found.kept);
  EXPECT_EQ(found.note, "");
  EXPECT_EQ(found.code->registers, 168);
  EXPECT_FALSE(fs::exists(cache));
}

TEST_F(PackagedTest, ItGoesBeforeTheCacheAndTheCompiler) {
  EXPECT_EQ(fresh().get(kAsked).origin, KernelOrigin::compiled);
  compile_ahead("nvrtc 13.0");
  EXPECT_EQ(fresh().get(kAsked).origin, KernelOrigin::packaged);
  EXPECT_EQ(compiler->count, 1);
}

// One of another version of ours has another digest: as if there were none.
TEST_F(PackagedTest, AStaleOneIsNotUsed) {
  compile_ahead("nvrtc 13.0");
  EXPECT_EQ(fresh(kNewerSources).get(kAsked).origin, KernelOrigin::compiled);
  compiler->verdict = Verdict::no("no compiler here");
  CompileRequest other = kAsked;
  other.arch = "sm_80";
  EXPECT_THROW(fresh().get(other), Unsupported);
}

TEST_F(PackagedTest, EveryByteIsVerifiedAndADamagedOneIsPassedOver) {
  compile_ahead("nvrtc 13.0");
  const std::string whole = read_file(only_file());
  for (std::size_t at = 0; at < whole.size(); at += 37) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    write_file_atomic(only_file(), damaged);
    const StoredKernel found = fresh().get(kAsked);
    EXPECT_NE(found.origin, KernelOrigin::packaged) << at;
    EXPECT_EQ(found.note.rfind("packaged kernel " + found.digest, 0), 0u) << found.note;
  }
  EXPECT_EQ(compiler->count, 1);  // the cache had it from then on
}

TEST_F(PackagedTest, OneUnderAnothersNameIsNotTaken) {
  compile_ahead("nvrtc 13.0");
  CompileRequest other = kAsked;
  other.arch = "sm_80";
  const fs::path path = only_file();
  fs::rename(path, path.parent_path() / (fresh().digest_of(other) + ".nvrtc-13.0.kernel"));
  const StoredKernel found = fresh().get(other);
  EXPECT_EQ(found.origin, KernelOrigin::compiled);
  EXPECT_NE(found.note.find("another kernel"), std::string::npos) << found.note;
}

// A driver runs code of its own major version of CUDA and of those before.
TEST_F(PackagedTest, CodeThatTheDriverIsTooOldForIsPassedOver) {
  compile_ahead("nvrtc 13.0");
  EXPECT_EQ(fresh().get(kAsked, 12080).origin, KernelOrigin::compiled);
  EXPECT_EQ(fresh().get(kAsked, 13000).origin, KernelOrigin::packaged);
  EXPECT_EQ(fresh().get(kAsked, 14020).origin, KernelOrigin::packaged);
  compile_ahead("nvrtc 12.9");
  const StoredKernel older = fresh().get(kAsked, 12000);
  EXPECT_EQ(older.origin, KernelOrigin::packaged);
}

// Where there is no compiler the cache is asked in the same way.
TEST_F(PackagedTest, SoIsCodeOfTheCache) {
  compiler->text = "nvrtc 13.0";
  fresh().get(kAsked);
  compiler->verdict = Verdict::no("no compiler here");
  EXPECT_THROW(fresh().get(kAsked, 12080), Unsupported);
  EXPECT_EQ(fresh().get(kAsked, 13000).origin, KernelOrigin::disk);
}

TEST(CudaMajor, IsThatOfTheCompilersNameAndOfAFiles) {
  EXPECT_EQ(cuda_major("nvrtc 13.0"), 13);
  EXPECT_EQ(cuda_major(".nvrtc-12.9.kernel"), 12);
  for (const char* other : {"", "nvrtc", "nvrtc ", "counter 14.0"}) EXPECT_EQ(cuda_major(other), 0);
}

class PackagedInfoTest : public ::testing::Test {
 protected:
  PackagedInfoTest() { ::setenv("DFA_KERNELS", folder.c_str(), 1); }
  ~PackagedInfoTest() override { ::unsetenv("DFA_KERNELS"); }

  // By the sources of this library, or others.
  void add(const std::string& arch, std::span<const SourceFile> sources) const {
    const auto maker = std::make_shared<CountingCompiler>();
    maker->text = "nvrtc 13.0";
    CompileRequest request = kAsked;
    request.arch = arch;
    KernelStore({.cache = folder}, maker, sources).get(request);
  }

  const testing::TempDir tree;
  const fs::path folder = tree / "package";
};

TEST_F(PackagedInfoTest, TellsWhatIsThere) {
  add("sm_80", kernel_sources());
  add("sm_90a", kernel_sources());
  const PackagedInfo info = packaged_info();
  EXPECT_TRUE(info.works);
  EXPECT_EQ(info.kernels, 2);
  EXPECT_EQ(info.text,
            "2 compiled ahead by nvrtc 13.0 for sm_80, sm_90a in '" + folder.string() + "'");
  add("sm_86", kPackedSources);
  EXPECT_EQ(packaged_info().text, info.text + ", and 1 of another version or build, not used");
}

TEST_F(PackagedInfoTest, TellsWhyTheyAreNotUsed) {
  const auto why = [] {
    const PackagedInfo info = packaged_info();
    EXPECT_FALSE(info.works);
    EXPECT_EQ(info.usable, 0);
    return info.text.substr(info.text.find(", not used: "));
  };
  EXPECT_EQ(packaged_info().text, "none is compiled ahead in '" + folder.string() + "'");
  add("sm_80", kPackedSources);
  EXPECT_EQ(why(), std::string(", not used: they are of another version or build than this, dfa ") +
                       kVersion);
  const fs::path file = fs::directory_iterator(folder / "kernels")->path();
  for (const char* text : {"", "rubbish\n{}\n", "dfa-kernel/2 0\n{}\n", "dfa-kernel/2 0\n[\n"}) {
    std::ofstream(file) << text;
    EXPECT_EQ(why(), ", not used: none can be read") << text;
  }
}

}  // namespace
}  // namespace dfa::cuda
