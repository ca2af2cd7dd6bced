#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  fs::path make(const std::string& name, const std::string& text, mode_t mode = 0644) const {
    std::ofstream(root_ / name) << text;
    ::chmod((root_ / name).c_str(), mode);
    return root_ / name;
  }
  static struct stat facts(const fs::path& path) {
    struct stat found {};
    ::stat(path.c_str(), &found);
    return found;
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(root_), fs::directory_iterator());
  }
  static std::string refusal(const fs::path& path) {
    try {
      write_file_atomic(path, "new");
    } catch (const IoError& error) {
      return error.what();
    }
    return "written";
  }

  const testing::TempDir folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(Files, AnOldFileKeepsItsModeAndANewOneHasThatOfTheUmask) {
  const fs::path old = make("old", "x", 0600);
  write_file_atomic(old, "new");
  EXPECT_EQ(read_file(old), "new");
  EXPECT_EQ(facts(old).st_mode & 07777, 0600u);
  const mode_t before = ::umask(027);
  write_file_atomic(root_ / "fresh", "new");
  ::umask(before);
  EXPECT_EQ(facts(root_ / "fresh").st_mode & 07777, 0640u);
  EXPECT_EQ(entries(), 2);
}

TEST_F(Files, AnOldFileKeepsItsOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const fs::path old = make("old", "x");
  ASSERT_EQ(::chown(old.c_str(), 1234, 4321), 0);
  write_file_atomic(old, "new");
  EXPECT_EQ(facts(old).st_uid, 1234u);
  EXPECT_EQ(facts(old).st_gid, 4321u);
}

TEST_F(Files, LinksStayAndTheirEndIsWritten) {
  fs::create_directory(root_ / "far");
  make("far/target", "old", 0600);
  fs::create_symlink("far/target", root_ / "inner");
  fs::create_symlink(root_ / "inner", root_ / "outer");
  fs::create_symlink("far/absent", root_ / "dangling");
  write_file_atomic(root_ / "outer", "new");
  write_file_atomic(root_ / "dangling", "made");
  for (const char* link : {"inner", "outer", "dangling"}) {
    EXPECT_TRUE(fs::is_symlink(root_ / link)) << link;
  }
  EXPECT_EQ(read_file(root_ / "far/target"), "new");
  EXPECT_EQ(facts(root_ / "far/target").st_mode & 07777, 0600u);
  EXPECT_EQ(read_file(root_ / "far/absent"), "made");
}

TEST_F(Files, LinksInACircleAndPlacesThatAreNotThereAreRefused) {
  fs::create_symlink("b", root_ / "a");
  fs::create_symlink("a", root_ / "b");
  fs::create_symlink("none/x", root_ / "lost");
  EXPECT_NE(refusal(root_ / "a").find("symbolic links"), std::string::npos) << refusal(root_ / "a");
  EXPECT_NE(refusal(root_ / "lost").find("is not a folder"), std::string::npos);
  EXPECT_NE(refusal(root_ / "none/x").find("is not a folder"), std::string::npos);
  EXPECT_NE(refusal(root_).find("is a folder"), std::string::npos);
  EXPECT_NE(refusal("/dev/full").find("No space"), std::string::npos);
  EXPECT_THROW(require_writable(root_ / "a"), IoError);
  EXPECT_THROW(require_writable(root_ / "lost"), IoError);
}

TEST_F(Files, DevicesPipesAndDescriptorsAreWrittenTo) {
  write_file_atomic("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const fs::path fifo = root_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::string heard;
  std::thread reader([&] { heard = read_file(fifo); });
  write_file_atomic(fifo, "told");
  reader.join();
  EXPECT_EQ(heard, "told");
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_TRUE(is_stream(fifo) && is_stream("/dev/null") && is_stream("/dev/stdout"));
  EXPECT_FALSE(is_stream(root_ / "none"));
}

TEST_F(Files, ADescriptorOfAFileIsWrittenWhereItStands) {
  const fs::path file = root_ / "log";
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "one ", 4), 4);
  write_file_atomic("/dev/fd/" + std::to_string(fd), "two ");
  ASSERT_EQ(::write(fd, "three", 5), 5);
  EXPECT_EQ(read_file(file), "one two three");
  ::close(fd);
  EXPECT_THROW(require_writable("/dev/fd/" + std::to_string(fd)), IoError);
}

TEST_F(Files, AReaderThatWentAwayIsAnErrorNotTheEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_NE(refusal("/dev/fd/" + std::to_string(ends[1])).find("Broken pipe"), std::string::npos);
  ::close(ends[1]);
}

TEST_F(Files, EveryNameOfAFileShowsTheNewText) {
  const fs::path file = make("file", "a text that is longer than the new one");
  fs::create_hard_link(file, root_ / "other");
  write_file_atomic(file, "new");
  EXPECT_EQ(read_file(root_ / "other"), "new");
  EXPECT_EQ(facts(file).st_nlink, 2u);
}

TEST_F(Files, AFullDiskLeavesAFileOfSeveralNamesAsItWas) {
  const fs::path file = make("file", "old");
  fs::create_hard_link(file, root_ / "other");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_file_atomic(file, std::string(100, 'x')), IoError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(file), "old");
}

// Root may write anywhere; these are seen as another user sees them.
class OtherUser {
 public:
  explicit OtherUser(const fs::path& folder) {
    if (::geteuid() != 0) return;
    fs::permissions(folder, fs::perms::others_exec | fs::perms::others_read, fs::perm_options::add);
    changed_ = ::seteuid(65534) == 0;
  }
  ~OtherUser() {
    if (changed_ && ::seteuid(0) != 0) std::abort();
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

 private:
  bool changed_ = false;
};

TEST_F(Files, AWritableFileInAReadOnlyFolderIsWrittenInPlace) {
  const fs::path open = make("open", "old", 0666);
  const fs::path closed = make("closed", "old", 0444);
  fs::permissions(root_, fs::perms(0555));
  {
    const OtherUser user(root_);
    EXPECT_NO_THROW(require_writable(open));
    EXPECT_EQ(refusal(open), "written");
    EXPECT_NE(refusal(closed).find("Permission denied"), std::string::npos);
    EXPECT_NE(refusal(root_ / "fresh").find("Permission denied"), std::string::npos);
  }
  fs::permissions(root_, fs::perms(0755));
  EXPECT_EQ(read_file(open), "new");
  EXPECT_EQ(read_file(closed), "old");
}

TEST_F(Files, ReadingRefusesFoldersCirclesAndTooMuch) {
  fs::create_symlink("a", root_ / "a");
  EXPECT_THROW(read_file(root_), IoError);
  EXPECT_THROW(read_file(root_ / "a"), IoError);
  EXPECT_EQ(read_file(make("five", "12345"), 5), "12345");
  EXPECT_THROW(read_file(root_ / "five", 4), IoError);
  EXPECT_THROW(read_file("/dev/zero", 1 << 20), IoError);
}

}  // namespace
}  // namespace dfa
