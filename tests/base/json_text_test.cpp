#include "base/json_text.h"

#include <gtest/gtest.h>

#include <string>

#include "dfa/error.h"

namespace dfa {
namespace {

std::string json_refusal(const std::string& text) {
  try {
    parse_json(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonText, WhatIsNoJsonIsRefusedInWords) {
  const struct {
    std::string text, expected;
  } cases[] = {
      {"", "empty"},
      {" \r\n", "empty"},
      {R"({"a": 1, "b": {"c": 1, "c": 2}})", "the key 'c' is there twice"},
      {R"([{"a": 1}, {"a": 2, "a": 2}])", "the key 'a' is there twice"},
      {R"({"a": NaN})", "not JSON"},
      {R"({"a": Infinity})", "not JSON"},
      {R"({"a": 1e999})", "not JSON"},
      {R"({"a": 1} x)", "not JSON"},
      {std::string(1000000, '['), "nested deeper"},
      {std::string("{}\0", 3), "not JSON"},
  };
  for (const auto& c : cases) {
    EXPECT_NE(json_refusal(c.text).find(c.expected), std::string::npos) << json_refusal(c.text);
  }
}

TEST(JsonText, AByteOrderMarkAndWindowsLinesAreNoFault) {
  EXPECT_EQ(parse_json("\xef\xbb\xbf{\"a\":\r\n 1}\r\n").at("a"), 1);
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": {"a": 2}}])").at(1).at("a").at("a"), 2);
}

}  // namespace
}  // namespace dfa
