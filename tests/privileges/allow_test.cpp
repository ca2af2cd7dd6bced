#include "privileges/allow.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::testing {
namespace {

using privileges::Grant;
using privileges::parse_allow_list;
using privileges::Peer;

std::string refused(const std::string& text) {
  try {
    parse_allow_list(text, "allow");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(AllowList, SaysWhoMayTurnWhatOfWhichCardAndHowFar) {
  const auto grants = parse_allow_list(
      "# cards of the group\n"
      "\n"
      "00000000:3B:00.0\tgroup:0 limit:350:700W clock:900:1980MHz lease:2h  # all of it\r\n"
      "GPU-5a7c user:root clock:1200MHz\n"
      "GPU-5a7c user:4242 limit:500.5:700W lease:90s",
      "allow");
  ASSERT_EQ(grants.size(), 3U);
  EXPECT_EQ(grants[0].line, 3);
  EXPECT_EQ(grants[0].card, "00000000:3b:00.0");
  EXPECT_TRUE(grants[0].is_group);
  EXPECT_EQ(grants[0].limit_w, (Range{350, 700}));
  EXPECT_EQ(grants[0].clock_hz, (Range{900e6, 1980e6}));
  EXPECT_EQ(grants[0].lease_s, 7200);
  EXPECT_EQ(grants[1].id, 0U);
  EXPECT_EQ(grants[1].limit_w, std::nullopt);
  EXPECT_EQ(grants[1].clock_hz, (Range{1200e6, 1200e6}));
  EXPECT_EQ(grants[1].lease_s, 3600);
  EXPECT_EQ(grants[2].id, 4242U);
  EXPECT_EQ(grants[2].limit_w, (Range{500.5, 700}));
  EXPECT_EQ(grants[2].lease_s, 90);
}

TEST(AllowList, IsForAUserOrForAnyGroupThatTheProcessIsIn) {
  const auto grants =
      parse_allow_list("GPU-a user:7 limit:1:2W\nGPU-a group:9 limit:1:2W\n", "allow");
  EXPECT_TRUE(grants[0].is_for(Peer{1, 7, {}}));
  EXPECT_FALSE(grants[0].is_for(Peer{1, 8, {7}}));
  EXPECT_TRUE(grants[1].is_for(Peer{1, 8, {7, 9}}));
  EXPECT_FALSE(grants[1].is_for(Peer{1, 9, {7}}));
  EXPECT_FALSE(grants[1].is_for(Peer{1, 0, {0}}));  // root is nobody special
}

TEST(AllowList, WhatItDoesNotKnowIsOneLineWithItsNumber) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "allow: it allows nothing"},
      {"# nothing\n\n", "allow: it allows nothing"},
      {"\n0 user:1 limit:1:2W", "allow:2: card '0'; accepted: a PCI bus id"},
      {"card1 user:1 limit:1:2W", "allow:1: card 'card1'"},
      {"GPU-a", "allow:1: no user or group; accepted: user:NAME"},
      {"GPU-a alice limit:1:2W", "allow:1: 'alice'; accepted: user:NAME"},
      {"GPU-a user: limit:1:2W", "'user:' is not known here"},
      {"GPU-a user:-1 limit:1:2W", "'user:-1' is not known here"},
      {"GPU-a group:no-such-group limit:1:2W", "'group:no-such-group' is not known here"},
      {"GPU-a user:1", "no lever; accepted: limit:350:700W"},
      {"GPU-a user:1 lease:1h", "no lever"},
      {"GPU-a user:1 limit:700:350W", "'limit:700:350W'; accepted: limit:350:700W"},
      {"GPU-a user:1 limit:350:700", "'limit:350:700'"},
      {"GPU-a user:1 limit:nan:700W", "'limit:nan:700W'"},
      {"GPU-a user:1 limit:-1:700W", "'limit:-1:700W'"},
      {"GPU-a user:1 limit:1:1e9W", "'limit:1:1e9W'"},
      {"GPU-a user:1 limit:", "'limit:'"},
      {"GPU-a user:1 limit", "'limit'"},
      {"GPU-a user:1 clock:1200W", "'clock:1200W'"},
      {"GPU-a user:1 clock:0:1200MHz", "'clock:0:1200MHz'"},
      {"GPU-a user:1 limit:1:2W lease:0s", "'lease:0s'"},
      {"GPU-a user:1 limit:1:2W lease:2d", "'lease:2d'"},
      {"GPU-a user:1 limit:1:2W limit:1:3W", "'limit:1:3W' comes twice"},
      {"GPU-a user:1 limit:1:2W fan:1", "'fan:1'; accepted: limit:350:700W"},
      {"GPU-a user:1 limit:1:2W\nGPU-a user:1 clock:9MHz", "allow:2: line 1 is for the same card"},
  };
  for (const auto& [text, words] : wrong) {
    const std::string told = refused(text);
    EXPECT_NE(told.find(words), std::string::npos) << text << "\n" << told;
    EXPECT_EQ(told.find('\n'), std::string::npos);
  }
}

TEST(AllowList, AFileThatOthersMayWriteIsNotBelieved) {
  const TempDir tree;
  const auto file = tree.write("allow", "GPU-a user:1 limit:1:2W\n");
  ::chmod(file.c_str(), 0644);
  EXPECT_EQ(privileges::read_allow_list(file).size(), 1U);
  ::chmod(file.c_str(), 0664);
  EXPECT_THROW(privileges::read_allow_list(file), IoError);
  ::chmod(file.c_str(), 0606);
  EXPECT_THROW(privileges::read_allow_list(file), IoError);
  ::chmod(file.c_str(), 0600);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file.c_str(), 4242, 0), 0);
    EXPECT_THROW(privileges::read_allow_list(file), IoError);
  }
  EXPECT_THROW(privileges::read_allow_list(tree / "nowhere"), IoError);
}

}  // namespace
}  // namespace dfa::testing
