#include "base/lock_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa {
namespace {

std::string lock_refusal(const std::filesystem::path& path) {
  try {
    const LockFile lock(path, "the place");
  } catch (const IoError& error) {
    return error.what();
  }
  return "locked";
}

TEST(LockFile, ASecondHolderIsToldWhoTheFirstIs) {
  const testing::TempDir folder;
  const auto path = folder / "lock";
  {
    const LockFile held(path, "the place");
    const std::string text = lock_refusal(path);
    EXPECT_NE(text.find("the place is in use by process " + std::to_string(::getpid())),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("base_test"), std::string::npos) << text;
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(lock_refusal(path), "locked");
  EXPECT_NE(lock_refusal("/nowhere/lock").find("cannot lock"), std::string::npos);
}

TEST(LockFile, TheLockOfAProcessThatWasKilledIsFree) {
  const testing::TempDir folder;
  const auto path = folder / "lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const int pid = ::fork();
  if (pid == 0) {
    const LockFile held(path, "the place");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(lock_refusal(path).find("process " + std::to_string(pid)), std::string::npos);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(lock_refusal(path), "locked");
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace dfa
