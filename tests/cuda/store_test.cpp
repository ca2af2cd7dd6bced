#include "cuda/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/file.h"
#include "cuda/cache.h"
#include "cuda/counting_compiler.h"
#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;
using testing::CountingCompiler;

constexpr SourceFile kSources[] = {{"a.cuh", "one"}, {"b.cuh", "two"}};
constexpr SourceFile kChanged[] = {{"a.cuh", "one"}, {"b.cuh", "too"}};
const CompileRequest kRequest{"a.cuh", "kernel<1>", "sm_90a", {"-std=c++20"}};

class StoreTest : public ::testing::Test {
 protected:
  // As another process would have it: nothing in memory.
  KernelStore fresh(std::span<const SourceFile> sources = kSources) {
    return KernelStore({.cache = folder}, compiler, sources);
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> paths;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder / "kernels", error)) {
      paths.push_back(entry.path());
    }
    return paths;
  }

  const testing::TempDir tree;
  const fs::path folder = tree.path() / "deep" / "cache";
  const std::shared_ptr<CountingCompiler> compiler = std::make_shared<CountingCompiler>();
};

void expect_same(const CompiledKernel& a, const CompiledKernel& b) {
  EXPECT_EQ(a.cubin, b.cubin);
  EXPECT_EQ(a.lowered_name, b.lowered_name);
  EXPECT_EQ(a.log, b.log);
  EXPECT_EQ(a.registers, b.registers);
  EXPECT_EQ(a.smem_bytes, b.smem_bytes);
  EXPECT_EQ(a.stack_bytes, b.stack_bytes);
  EXPECT_EQ(a.warning, b.warning);
}

// A kernel that another release made stays beside it, each with its own warning.
TEST_F(StoreTest, TwoReleasesOfTheCompilerShareAFolder) {
  const StoredKernel fits = fresh().get(kRequest);
  compiler->text = "counter 2.0";
  compiler->warning = "by counter 2.0 registers spill";
  const StoredKernel spills = fresh().get(kRequest);
  EXPECT_EQ(spills.origin, KernelOrigin::compiled);
  const StoredKernel again = fresh().get(kRequest);
  EXPECT_EQ(again.origin, KernelOrigin::disk);
  EXPECT_EQ(again.code->warning, compiler->warning);
  compiler->text = "counter 1.0";
  const StoredKernel first = fresh().get(kRequest);
  EXPECT_EQ(first.origin, KernelOrigin::disk);
  expect_same(*first.code, *fits.code);
  EXPECT_EQ(first.code->warning, "");
}

TEST_F(StoreTest, AKernelIsCompiledOnceThenInMemoryThenOnDisk) {
  KernelStore store = fresh();
  const StoredKernel first = store.get(kRequest);
  EXPECT_EQ(first.origin, KernelOrigin::compiled);
  EXPECT_TRUE(first.kept);
  EXPECT_EQ(first.note, "");
  EXPECT_EQ(store.get(kRequest).origin, KernelOrigin::memory);
  EXPECT_TRUE(store.get(kRequest).kept);
  EXPECT_EQ(store.get(kRequest).code, first.code);
  const StoredKernel later = fresh().get(kRequest);
  EXPECT_EQ(later.origin, KernelOrigin::disk);
  EXPECT_TRUE(later.kept);
  EXPECT_EQ(later.digest, first.digest);
  expect_same(*later.code, *first.code);
  EXPECT_EQ(compiler->count, 1);
  EXPECT_EQ(files().size(), 1u);  // no lock and no temporary file stays
}

TEST_F(StoreTest, WhateverTheCodeDependsOnIsInTheKey) {
  KernelStore store = fresh();
  std::vector<CompileRequest> requests(7, kRequest);
  requests[1].name_expression = "kernel<2>";
  requests[2].arch = "sm_80";
  requests[3].source = "b.cuh";
  requests[4].options = {};
  requests[5].options = {"-std=c++20", ""};
  requests[6].preamble = "struct UserText;";
  for (const CompileRequest& request : requests) store.get(request);
  EXPECT_EQ(compiler->count, 7);
  EXPECT_EQ(files().size(), 7u);
}

TEST_F(StoreTest, AChangedSourceIsCompiledAnew) {
  fresh().get(kRequest);
  EXPECT_EQ(fresh(kChanged).get(kRequest).origin, KernelOrigin::compiled);
  EXPECT_EQ(fresh().get(kRequest).origin, KernelOrigin::disk);
}

TEST_F(StoreTest, AnotherCompilerVersionCompilesAnew) {
  fresh().get(kRequest);
  compiler->text = "counter 1.1";
  EXPECT_EQ(fresh().get(kRequest).origin, KernelOrigin::compiled);
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(StoreTest, WithoutACompilerTheDiskServesAndElseTheReasonIsGiven) {
  fresh().get(kRequest);
  compiler->verdict = Verdict::no("no compiler here");
  EXPECT_EQ(fresh().get(kRequest).origin, KernelOrigin::disk);
  CompileRequest other = kRequest;
  other.arch = "sm_80";
  try {
    fresh().get(other);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(), "no compiler here");
  }
}

// Every byte matters, wherever it is; what is damaged is noticed, made anew and replaced.
TEST_F(StoreTest, ADamagedFileIsNoticedAndMadeAnew) {
  const StoredKernel first = fresh().get(kRequest);
  const fs::path path = files().at(0);
  const std::string whole = read_file(path);
  std::vector<std::string> damaged{"",
                                   "dfa-kernel/1 ",
                                   whole.substr(0, whole.size() / 2),
                                   whole.substr(0, whole.size() - 1),
                                   whole + " ",
                                   "rubbish"};
  for (std::size_t at = 0; at < whole.size(); at += 41) {
    damaged.push_back(whole);
    damaged.back()[at] ^= 1;
  }
  for (const std::string& bytes : damaged) {
    write_file_atomic(path, bytes);
    const StoredKernel again = fresh().get(kRequest);
    EXPECT_EQ(again.origin, KernelOrigin::compiled);
    EXPECT_NE(again.note.find("not used: "), std::string::npos) << again.note;
    expect_same(*again.code, *first.code);
    EXPECT_EQ(fresh().get(kRequest).origin, KernelOrigin::disk);
  }
}

TEST_F(StoreTest, AFileUnderAnothersNameIsNotTaken) {
  CompileRequest other = kRequest;
  other.arch = "sm_80";
  fresh().get(kRequest);
  const fs::path path = files().at(0);
  fresh().get(other);
  for (const fs::path& file : files()) {
    if (file != path) fs::copy_file(file, path, fs::copy_options::overwrite_existing);
  }
  const StoredKernel again = fresh().get(kRequest);
  EXPECT_EQ(again.origin, KernelOrigin::compiled);
  EXPECT_NE(again.note.find("another kernel"), std::string::npos) << again.note;
}

// As the build makes them: the file of another process's store.
TEST_F(StoreTest, AnEmbeddedKernelNeedsNeitherFolderNorCompiler) {
  const StoredKernel compiled = fresh().get(kRequest);
  const std::string bytes = read_file(files().at(0));
  compiler->verdict = Verdict::no("no compiler here");
  const EmbeddedKernel embedded[] = {{"another", "one"}, {compiled.digest, bytes}};
  KernelStore store({}, compiler, kSources, embedded);
  const StoredKernel found = store.get(kRequest);
  EXPECT_EQ(found.origin, KernelOrigin::embedded);
  EXPECT_TRUE(found.kept);
  EXPECT_EQ(found.note, "");
  expect_same(*found.code, *compiled.code);
  EXPECT_EQ(store.get(kRequest).origin, KernelOrigin::memory);
  EXPECT_THROW(KernelStore({}, compiler, kChanged, embedded).get(kRequest), Unsupported);
}

TEST_F(StoreTest, ADamagedEmbeddedKernelIsNotedAndPassedOver) {
  const StoredKernel compiled = fresh().get(kRequest);
  const EmbeddedKernel embedded[] = {{compiled.digest, "dfa-kernel/1 and no more"}};
  KernelStore store({.cache = folder}, compiler, kSources, embedded);
  const StoredKernel found = store.get(kRequest);
  EXPECT_EQ(found.origin, KernelOrigin::disk);
  EXPECT_NE(found.note.find("embedded kernel not used: "), std::string::npos) << found.note;
}

TEST_F(StoreTest, WithoutAFolderKernelsAreKeptInMemory) {
  KernelStore store({}, compiler, kSources);
  EXPECT_NE(store.get(kRequest).note.find("no cache folder"), std::string::npos);
  EXPECT_EQ(store.get(kRequest).origin, KernelOrigin::memory);
}

TEST_F(StoreTest, AFailedCompilationLeavesNothingAndIsTriedAgain) {
  KernelStore store = fresh();
  compiler->work = [] { throw CompileError("in the middle", "log"); };
  EXPECT_THROW(store.get(kRequest), CompileError);
  EXPECT_TRUE(files().empty());
  compiler->work = nullptr;
  EXPECT_EQ(store.get(kRequest).origin, KernelOrigin::compiled);
}

TEST_F(StoreTest, ThreadsWaitForOneCompilation) {
  KernelStore store = fresh();
  compiler->work = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { store.get(kRequest); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler->count, 1);
}

// Runs `body` in a child process, which ends with its result.
pid_t in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(StoreTest, TwoProcessesCompileAKernelOnce) {
  const fs::path log = tree.path() / "compilations";
  compiler->work = [&] {
    std::ofstream(log, std::ios::app) << "x";
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(in_child([&] { return fresh().get(kRequest).code->registers; }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 168);
  EXPECT_EQ(read_file(log), "x");
  EXPECT_EQ(fresh().get(kRequest).origin, KernelOrigin::disk);
}

TEST_F(StoreTest, OnAReadOnlyDiskKernelsAreReadAndNewOnesCompiled) {
  fresh().get(kRequest);
  fs::permissions(folder / "kernels", fs::perms{0555});
  const pid_t child = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 10;  // root may write everywhere
    if (fresh().get(kRequest).origin != KernelOrigin::disk) return 11;
    CompileRequest other = kRequest;
    other.arch = "sm_80";
    const StoredKernel compiled = fresh().get(other);
    if (compiled.origin != KernelOrigin::compiled) return 12;
    return !compiled.kept && compiled.note.find("not kept on disk: ") == 0 ? 0 : 13;
  });
  EXPECT_EQ(wait_for(child), 0);
  fs::permissions(folder / "kernels", fs::perms{0755});
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(StoreTest, OnAFullDiskKernelsAreCompiledAndNothingHalfWrittenStays) {
  const pid_t child = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    KernelStore store = fresh();
    const StoredKernel compiled = store.get(kRequest);
    if (compiled.origin != KernelOrigin::compiled) return 11;
    if (compiled.kept || compiled.note.find("not kept on disk: ") != 0) return 12;
    return store.get(kRequest).origin == KernelOrigin::memory ? 0 : 13;
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(StoreTest, AFileInTheFoldersPlaceIsANoteNotAnError) {
  tree.write("deep", "a file");
  const StoredKernel kernel = fresh().get(kRequest);
  EXPECT_EQ(kernel.origin, KernelOrigin::compiled);
  EXPECT_EQ(kernel.note.find("not kept on disk: "), 0u) << kernel.note;
  EXPECT_FALSE(kernel.kept);
}

TEST_F(StoreTest, ListTellsWhatIsThereAndClearTakesOnlyThat) {
  CompileRequest other = kRequest;
  other.name_expression = "a_kernel<1>";
  fresh().get(kRequest);
  fresh().get(other);
  std::vector<CacheEntry> entries = list_cache(folder);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name_expression, "a_kernel<1>");
  EXPECT_EQ(entries[1].name_expression, "kernel<1>");
  EXPECT_EQ(entries[1].arch, "sm_90a");
  EXPECT_EQ(entries[1].compiler, "counter 1.0");
  EXPECT_EQ(entries[1].digest, fresh().digest_of(kRequest));
  EXPECT_TRUE(entries[1].intact);
  EXPECT_GT(entries[1].bytes, 0u);

  const fs::path one = files().at(0);
  std::ofstream(one, std::ios::app) << "more";
  entries = list_cache(folder);
  EXPECT_EQ(entries[0].intact.ok + entries[1].intact.ok, 1);

  std::ofstream(one.string() + ".Ab12Cd") << "left by a process that was killed";
  std::ofstream(folder / "kernels" / "notes.txt") << "mine";
  EXPECT_EQ(clear_cache(folder), 2);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(files()[0].filename(), "notes.txt");
  EXPECT_EQ(clear_cache(folder), 0);
}

TEST(CacheFolder, IsTheOneNamedThenTheUsersCaches) {
  ::setenv("DFA_CACHE_DIR", "/named", 1);
  ::setenv("XDG_CACHE_HOME", "/caches", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(cache_folder(), "/named");
  ::unsetenv("DFA_CACHE_DIR");
  EXPECT_EQ(cache_folder(), "/caches/dfa");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(cache_folder(), "/home/me/.cache/dfa");
  ::unsetenv("HOME");
  EXPECT_EQ(cache_folder(), "");
  EXPECT_TRUE(list_cache("").empty());
}

}  // namespace
}  // namespace dfa::cuda
