#include "base/enum_table.h"

#include <gtest/gtest.h>

namespace dfa {
namespace {

enum class Colour : int { red, green, dark_blue };

constexpr auto kColours = enum_table<Colour>(
    {{Colour::red, "red"}, {Colour::green, "green"}, {Colour::dark_blue, "dark-blue"}});

static_assert(kColours.name(Colour::green) == std::string_view("green"));
static_assert(kColours.find("dark-blue") == Colour::dark_blue);

TEST(EnumTable, EveryNameIsReadAsTheEnumeratorThatIsPrintedSo) {
  int count = 0;
  for (const auto& [value, name] : kColours) {
    EXPECT_STREQ(kColours.name(value), name);
    EXPECT_EQ(kColours.parse("colour", name), value);
    ++count;
  }
  EXPECT_EQ(count, 3);
}

TEST(EnumTable, AWrongNameIsToldWithThoseThatAreAccepted) {
  for (const char* wrong : {"", "Red", "red ", "dark", "dark_blue", "?"}) {
    EXPECT_EQ(kColours.find(wrong), std::nullopt) << wrong;
    try {
      kColours.parse("colour", wrong);
      ADD_FAILURE() << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(),
                "colour '" + std::string(wrong) + "'; accepted: red, green, dark-blue");
    }
  }
}

TEST(EnumTable, AValueThatIsNoEnumeratorHasNoName) {
  EXPECT_STREQ(kColours.name(static_cast<Colour>(7)), "?");
}

}  // namespace
}  // namespace dfa
