#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "compilers/default_kernels.h"
#include "cuda/nvrtc.h"
#include "cuda/request.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

// `./run test all` puts them there, a folder for each, from PyPI.
fs::path releases_folder() {
  if (const char* folder = std::getenv("DFA_NVRTC_RELEASES")) return folder;
  if (const char* caches = std::getenv("XDG_CACHE_HOME")) return fs::path(caches) / "dfa/nvrtc";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "") / ".cache/dfa/nvrtc";
}

fs::path library_in(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "libnvrtc.so.12" || name == "libnvrtc.so.13") return entry.path();
  }
  return {};
}

// What is known to spill a little (docs/design/0012-driver-and-store.md): sums in turn at d 256,
// and by 12.8 forwards at d 256 that share out keys.
bool may_spill(const std::string& release, const std::string& entry) {
  const auto has = [&](const char* text) { return entry.find(text) != entry.npos; };
  if (!has(".head_dim=256,.value_dim=256,")) return false;
  if (has("sm90_wide_backward"))
    return release != "13.0.88" && has(".dq=dfa::DqAccumulation::serialized,");
  return release.starts_with("12.8.") && has("sm90_forward") && has(".num_splits=");
}

class DefaultRows : public testing::TestWithParam<const char*> {};

TEST_P(DefaultRows, FitByThisReleaseOfTheCompiler) {
  const std::string release = GetParam();
  const fs::path library = library_in(releases_folder() / release);
  if (library.empty()) {
    GTEST_SKIP() << "NVRTC " << release << " is not in " << releases_folder()
                 << "; ./run test all fetches it";
  }
  const Nvrtc nvrtc(kernel_sources(), {library.string()});
  ASSERT_TRUE(nvrtc.available()) << nvrtc.available().reason;
  ASSERT_EQ(nvrtc.version() + ".", "nvrtc " + release.substr(0, release.rfind('.') + 1));
  const auto kernels = defaults_of_problem_files(gpu_limits(90));
  ASSERT_GT(kernels.size(), 100u);
  for (const auto& [entry, kernel] : kernels) {
    try {
      const CompiledKernel compiled = nvrtc.compile(request_of(kernel.launch, "sm_90a"));
      if (may_spill(release, entry)) continue;
      EXPECT_EQ(compiled.warning, "") << kernel.problem << ": " << entry;
      EXPECT_EQ(compiled.stack_bytes, 0) << kernel.problem << ": " << entry;
    } catch (const Error& error) {
      ADD_FAILURE() << kernel.problem << ": " << error.what();
    }
  }
}

// The newest of each minor release from 12.8 on when this was written; tools/fetch_nvrtc.py has the
// same ones.
INSTANTIATE_TEST_SUITE_P(Releases, DefaultRows,
                         testing::Values("12.8.93", "12.9.86", "13.0.88", "13.2.86", "13.3.33",
                                         "13.5.37"),
                         [](const auto& release) {
                           std::string name = release.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace dfa::cuda
