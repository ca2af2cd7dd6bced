#include "base/digest.h"

#include <gtest/gtest.h>

#include <set>

namespace dfa {
namespace {

// The values of xxHash's own program (xxhsum -H2).
TEST(Digest, IsXxh3Of128Bits) {
  EXPECT_EQ(digest(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, TellsContentsOfEveryLengthApart) {
  std::set<std::string> seen;
  for (std::size_t length = 0; length < 600; ++length) {
    EXPECT_TRUE(seen.insert(digest(std::string(length, '\0'))).second) << length;
  }
  EXPECT_NE(digest(std::string(64, '\0')), digest(std::string(63, '\0') + '\1'));
}

}  // namespace
}  // namespace dfa
