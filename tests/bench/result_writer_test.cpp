#include "bench/result_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>

#include "base/file.h"
#include "bench/sample_result.h"
#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::bench {
namespace {

using dfa::testing::TempDir;
using testing::sample_result;

// A disk that is full after `bytes`, as far as this process can tell.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

std::vector<std::vector<Sample>> samples_of(double duration) {
  return {{{0.5, duration, 2e9, 60.0}, {1.5, duration, {}, {}}}, {{2.5, duration, {}, {}}}, {}, {}};
}

int files_in(const std::filesystem::path& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(ResultWriter, SamplesStandBesideTheResultAndAreReadBack) {
  TempDir tree;
  const auto path = tree.path() / "r.json";
  Result result = sample_result();
  write_result(path, result, samples_of(0.25));
  const Result read = read_result(path);
  EXPECT_EQ(read, result);
  ASSERT_TRUE(read.cases[0].samples_file);
  EXPECT_FALSE(read.cases[2].samples_file);
  const auto rows = read_samples(path, read.cases[0]);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], (std::vector<float>{0.5f, 0.25f, 2000.0f, 60.0f}));
  EXPECT_TRUE(std::isnan(rows[1][2]));
  EXPECT_FLOAT_EQ(read_samples(path, read.cases[1]).at(0)[0], 2.5f);
  EXPECT_EQ(files_in(tree.path()), 2);
}

TEST(ResultWriter, ANewerResultReplacesTheOlderOneAndItsSamples) {
  TempDir tree;
  const auto path = tree.path() / "r.json";
  Result first = sample_result(), second = sample_result();
  write_result(path, first, samples_of(0.25));
  write_result(path, second, samples_of(0.5));
  EXPECT_NE(first.cases[0].samples_file, second.cases[0].samples_file);
  EXPECT_EQ(files_in(tree.path()), 2);
  EXPECT_FLOAT_EQ(read_samples(path, read_result(path).cases[0]).at(0)[1], 0.5f);
}

TEST(ResultWriter, OnAFullDiskTheOldResultAndItsSamplesSurvive) {
  TempDir tree;
  const auto path = tree.path() / "r.json";
  Result old = sample_result();
  write_result(path, old, samples_of(0.25));
  const std::string before = read_file(path);
  for (const rlim_t room : {rlim_t{8}, rlim_t{1000}}) {  // the samples fail; the result fails
    Result fresh = sample_result();
    fresh.argv = {"another"};
    const FullDisk disk(room);
    EXPECT_THROW(write_result(path, fresh, samples_of(0.5)), IoError);
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_FLOAT_EQ(read_samples(path, read_result(path).cases[0]).at(0)[1], 0.25f);
  EXPECT_EQ(files_in(tree.path()), 2);  // nothing half-written is left
}

TEST(ResultWriter, OfALinkTheSamplesStandBesideItsTarget) {
  TempDir tree;
  tree.write("far/r.json", "old");
  std::filesystem::create_symlink("far/r.json", tree.path() / "link.json");
  Result result = sample_result();
  write_result(tree.path() / "link.json", result, samples_of(0.25));
  EXPECT_TRUE(std::filesystem::is_symlink(tree.path() / "link.json"));
  EXPECT_EQ(files_in(tree.path() / "far"), 2);
  for (const char* name : {"link.json", "far/r.json"}) {
    const Result read = read_result(tree.path() / name);
    EXPECT_FLOAT_EQ(read_samples(tree.path() / name, read.cases[0]).at(0)[1], 0.25f) << name;
  }
}

TEST(ResultWriter, BesideADeviceNoSamplesAreWrittenAndThatIsTold) {
  Result result = sample_result();
  write_result("/dev/null", result, samples_of(0.25));
  EXPECT_FALSE(result.cases[0].samples_file);
  EXPECT_EQ(result.cases[0].not_measured.at("samples_file"),
            "no file can stand beside '/dev/null'");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(ResultWriter, AShortSidecarIsRefused) {
  TempDir tree;
  const auto path = tree.path() / "r.json";
  Result result = sample_result();
  write_result(path, result, samples_of(0.25));
  tree.write(*result.cases[0].samples_file, "short");
  EXPECT_THROW(read_samples(path, result.cases[0]), InvalidArgument);
}

TEST(ResultWriter, APlaceThatCannotBeWrittenIsKnownBeforeMeasuring) {
  TempDir tree;
  EXPECT_NO_THROW(require_writable(tree.path() / "r.json"));
  EXPECT_NO_THROW(require_writable("r.json"));
  EXPECT_THROW(require_writable(tree.path() / "none" / "r.json"), IoError);
  EXPECT_THROW(require_writable(tree.path()), IoError);
  tree.write("file", "x");
  EXPECT_THROW(require_writable(tree.path() / "file" / "r.json"), IoError);
}

}  // namespace
}  // namespace dfa::bench
