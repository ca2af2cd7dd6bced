#include "base/shared_library.h"

#include <gtest/gtest.h>

#include <vector>

namespace dfa {
namespace {

TEST(SharedLibrary, OpensTheFirstNameThatLoads) {
  const std::vector<std::string> names{"libdfa_is_not_there.so", "libc.so.6"};
  const SharedLibrary library = SharedLibrary::open_first(names);
  ASSERT_TRUE(library.is_open());
  EXPECT_EQ(library.name(), "libc.so.6");
  EXPECT_NE(library.symbol("getpid"), nullptr);
  EXPECT_EQ(library.symbol("dfa_is_not_there"), nullptr);
}

TEST(SharedLibrary, AbsenceIsAReasonThatNamesTheLibrary) {
  const std::vector<std::string> names{"libdfa_is_not_there.so"};
  const SharedLibrary library = SharedLibrary::open_first(names);
  EXPECT_FALSE(library.is_open());
  EXPECT_NE(library.reason().find("libdfa_is_not_there.so"), std::string::npos);
  EXPECT_EQ(library.symbol("getpid"), nullptr);
}

}  // namespace
}  // namespace dfa
