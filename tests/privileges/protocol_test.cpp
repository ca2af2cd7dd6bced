#include "privileges/protocol.h"

#include <gtest/gtest.h>

namespace dfa::testing {
namespace {

using privileges::LineBuffer;
using privileges::Op;
using privileges::parse_request;
using privileges::Request;

TEST(Protocol, RequestsSurviveTheirText) {
  const Request all[] = {
      {.op = Op::hello, .version = 1},
      {.op = Op::lease, .card = "0000:3b:00.0"},
      {.op = Op::lease, .card = "GPU-a", .seconds = 0.5},
      {.op = Op::set, .card = "GPU-a", .limit_w = 512.5},
      {.op = Op::set, .card = "GPU-a", .clock_hz = Range{9e8, 1.2e9}},
      {.op = Op::set, .card = "GPU-a", .unlocks_clock = true},
      {.op = Op::set, .card = "GPU-a", .frees_limit = true},
      {.op = Op::restore, .card = "GPU-a"},
      {.op = Op::status},
  };
  for (const Request& one : all) {
    const std::string line = privileges::to_line(privileges::to_json(one));
    const Request read = parse_request(line);
    EXPECT_EQ(privileges::to_line(privileges::to_json(read)), line);
    EXPECT_EQ(read.op, one.op);
    EXPECT_EQ(read.version, one.version);
    EXPECT_EQ(read.card, one.card);
    EXPECT_EQ(read.seconds, one.seconds);
    EXPECT_EQ(read.limit_w, one.limit_w);
    EXPECT_EQ(read.clock_hz, one.clock_hz);
    EXPECT_EQ(read.unlocks_clock, one.unlocks_clock);
    EXPECT_EQ(read.frees_limit, one.frees_limit);
  }
}

TEST(Protocol, WhatIsNoRequestIsOneLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "JSON"},
      {"{", "JSON"},
      {"[]", "no JSON object"},
      {"7", "no JSON object"},
      {"{}", "no \"op\"; accepted: hello, lease, set, restore, status"},
      {R"({"op":7})", "op 7; accepted: hello"},
      {R"({"op":"fly"})", "op \"fly\"; accepted: hello"},
      {R"({"op":"hello"})", "\"hello\" needs version"},
      {R"({"op":"hello","version":"1"})", "version \"1\"; accepted: 1"},
      {R"({"op":"hello","version":1.5})", "version 1.5; accepted: 1"},
      {R"({"op":"lease"})", "\"lease\" needs card"},
      {R"({"op":"lease","card":7})", "card 7; accepted: a string"},
      {R"({"op":"lease","card":"a","seconds":0})", "seconds 0; accepted: a number above 0"},
      {R"({"op":"lease","card":"a","seconds":"9"})", "seconds \"9\""},
      {R"({"op":"lease","card":"a","second":9})",
       "\"second\" of \"lease\"; accepted: op card seconds"},
      {R"({"op":"lease","card":"a","op card":9})", "\"op card\" of \"lease\""},
      {R"({"op":"lease","card":"a","":9})", "\"\" of \"lease\""},
      {R"({"op":"lease","card":"a","card":"b"})", "card"},
      {R"({"op":"set","card":"a"})", "one of them"},
      {R"({"op":"set","card":"a","limit_w":1,"clock_mhz":[1,2]})", "one of them"},
      {R"({"op":"set","card":"a","limit_w":1,"clock_mhz":null})", "one of them"},
      {R"({"op":"set","card":"a","limit_w":-5})", "limit_w -5"},
      {R"({"op":"set","card":"a","limit_w":1e999})", "1e999"},
      {R"({"op":"set","card":"a","limit_w":"null"})", "limit_w \"null\""},
      {R"({"op":"set","card":"a","clock_mhz":1200})",
       "clock_mhz 1200; accepted: [least,most], null"},
      {R"({"op":"set","card":"a","clock_mhz":[2,1]})", "clock_mhz [2,1]"},
      {R"({"op":"set","card":"a","clock_mhz":[1,2,3]})", "clock_mhz [1,2,3]"},
      {R"({"op":"status","card":"a"})", "\"card\" of \"status\"; accepted: op"},
  };
  for (const auto& [line, words] : wrong) {
    try {
      parse_request(line);
      ADD_FAILURE() << line;
    } catch (const InvalidArgument& error) {
      const std::string told = error.what();
      EXPECT_NE(told.find(words), std::string::npos) << line << "\n" << told;
      EXPECT_EQ(told.find('\n'), std::string::npos);
    }
  }
}

TEST(Protocol, AnotherVersionIsReadAndIsNoneOfOurs) {
  EXPECT_EQ(parse_request(R"({"op":"hello","version":2})").version, 0);
  EXPECT_EQ(parse_request(R"({"op":"hello","version":4000000000})").version, 0);
}

TEST(Protocol, RepliesAreLinesWhateverAClientSent) {
  EXPECT_EQ(privileges::to_line(privileges::refusal("a\nb\xff")),
            "{\"ok\":false,\"error\":\"a\\nb\xEF\xBF\xBD\"}\n");
  EXPECT_EQ(privileges::quoted("a\n\x1b"), "\"a\\n\\u001b\"");
}

TEST(Protocol, BytesBecomeLinesHoweverTheyCome) {
  LineBuffer buffer(8);
  buffer.add("on");
  EXPECT_EQ(buffer.next(), std::nullopt);
  buffer.add("e\ntwo\n\nseven77\nth");
  EXPECT_EQ(buffer.next(), "one");
  EXPECT_EQ(buffer.next(), "two");
  EXPECT_EQ(buffer.next(), "");
  EXPECT_EQ(buffer.next(), "seven77");
  EXPECT_EQ(buffer.next(), std::nullopt);
  EXPECT_FALSE(buffer.overflows());
  buffer.add("ree 890");
  EXPECT_TRUE(buffer.overflows());
  EXPECT_EQ(buffer.next(), std::nullopt);
  buffer.add("\n");  // its end comes too late
  EXPECT_TRUE(buffer.overflows());
  EXPECT_EQ(buffer.next(), std::nullopt);
}

}  // namespace
}  // namespace dfa::testing
