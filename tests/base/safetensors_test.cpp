#include "base/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace dfa {
namespace {

std::string file_with(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::string raw(std::initializer_list<float> values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// Two tensors, q (1,2) and k (2,), and the metadata that writers add.
std::string good_file() {
  return file_with(R"({"__metadata__":{"format":"pt"},"q":)" + entry("F32", "[1,2]", "[0,8]") +
                       R"(,"k":)" + entry("BF16", "[2]", "[8,12]") + "}",
                   raw({1.5f, -2}) + std::string("\xc0\x3f\x00\xc0", 4));
}

std::string message_of(const std::string& bytes, const std::string& name = "q") {
  try {
    parse_safetensors(bytes, name, "'f.safetensors'");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, TensorsAreFoundByName) {
  const Array q = parse_safetensors(good_file(), "q", "x");
  EXPECT_EQ(q.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(q.at(1), -2.0);
  const Array k = parse_safetensors(good_file(), "k", "x");
  EXPECT_EQ(k.type, ArrayType::bf16);
  EXPECT_EQ(k.at(0), 1.5);
  EXPECT_EQ(k.at(1), -2.0);
}

TEST(Safetensors, EightBitsAreE4m3) {
  const std::string codes("\x38\xc0\x7e\x01", 4);
  const Array array = parse_safetensors(
      file_with(R"({"q":)" + entry("F8_E4M3", "[2,2]", "[0,4]") + "}", codes), "q", "x");
  EXPECT_EQ(array.type, ArrayType::e4m3);
  const double values[] = {1, -2, 448, 0x1p-9};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(array.at(i), values[i]);
}

TEST(Safetensors, AMissingNameListsThoseThatAreThere) {
  EXPECT_NE(message_of(good_file(), "v").find("no tensor 'v'; it has q, k"), std::string::npos);
}

TEST(Safetensors, WhatIsWrongIsNamed) {
  const auto with = [](const std::string& text) {
    return file_with(R"({"q":)" + text + "}", raw({1, 2}));
  };
  const struct {
    std::string bytes, expected;
  } cases[] = {
      {with(entry("F8_E5M2", "[8]", "[0,8]")), "dtype 'F8_E5M2'"},
      {with(entry("I32", "[2]", "[0,8]")), "dtype 'I32'"},
      {with(entry("F32", "[3]", "[0,8]")), "takes 12"},
      {with(entry("F32", "[2]", "[8,16]")), "truncated"},
      {with(entry("F32", "[2]", "[8,0]")), "data_offsets"},
      {with(entry("F32", "[2]", "[0]")), "data_offsets"},
      {with(entry("F32", "[2]", "[-8,0]")), "data_offsets"},
      {with(entry("F32", "[2.0]", "[0,8]")), "shape"},
      {with(entry("F32", "[-2]", "[0,8]")), "shape"},
      {with(entry("F32", "[4611686018427387903,8]", "[0,8]")), "is not possible"},
      {with(entry("F32", "[18446744073709551615]", "[0,8]")), "shape"},
      {with(entry("F32", "\"2\"", "[0,8]")), "shape"},
      {with("{}"), "dtype ''"},
      {with("7"), "dtype ''"},
      {file_with("[]", ""), "not a JSON object"},
      {file_with("{\"q\":", ""), "not a JSON object"},
      {with(entry("F32", "[NaN]", "[0,8]")), "not JSON"},
      {with(entry("F32", "[1]", "[0,4]")), "too long: 8 bytes of data"},
      {with(entry("F32", "[1]", "[4,8]")), "tensor 'q': a hole before it"},
      {with(entry("F32", "[2]", "[0,8]") + R"(,"q":)" + entry("F32", "[2]", "[0,8]")), "twice"},
      {with(entry("F32", "[2]", "[0,8]") + R"(,"r":)" + entry("F32", "[2]", "[0,8]")),
       "tensor 'r': it overlaps another"},
      {with(entry("F32", "[2]", "[0,8]") + R"(,"r":)" + entry("I8", "[2]", "[9,8]")),
       "tensor 'r': data_offsets"},
      {with(entry("F32", "[2]", "[0,8]") + R"(,"__metadata__":{"step":3})"), "__metadata__"},
      {with(entry("F32", "[2]", "[0,8]") + R"(,"__metadata__":[])"), "__metadata__"},
      {file_with(" {}", ""), "not a JSON object"},
      {file_with("", ""), "not a JSON object"},
      {file_with("{}", "").substr(0, 9), "truncated"},
      {"short", "truncated"},
      {std::string(8, '\xff'), "at most 100000000"},
  };
  for (const auto& c : cases) {
    const std::string message = message_of(c.bytes);
    EXPECT_NE(message.find(c.expected), std::string::npos) << message << "\nwanted " << c.expected;
    EXPECT_EQ(message.rfind("'f.safetensors': ", 0), 0u) << message;
  }
}

TEST(Safetensors, SpacesAfterTheHeaderAndTensorsOfNoSizeAreAccepted) {
  const std::string header = R"({"e":)" + entry("F32", "[0]", "[0,0]") + R"(,"q":)" +
                             entry("F32", "[2]", "[0,8]") + R"(,"z":)" +
                             entry("F32", "[0]", "[8,8]") + "}   ";
  EXPECT_EQ(parse_safetensors(file_with(header, raw({1, 2})), "q", "x").at(1), 2.0);
}

TEST(Safetensors, ADeeplyNestedHeaderIsAnErrorNotACrash) {
  const std::string deep(100000, '[');
  EXPECT_NE(message_of(file_with("{\"q\":" + deep + "}", "")), "accepted");
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = good_file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_safetensors(whole.substr(0, size), "k", "x"), InvalidArgument) << size;
  }
}

TEST(Safetensors, FlippedBitsNeverGiveDataBeyondTheFile) {
  const std::string whole = good_file();
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (auto flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    try {
      const Array array = parse_safetensors(bytes, "q", "x");
      const auto elements = static_cast<std::size_t>(array.count());
      ASSERT_LE(array.data_begin + elements * bytes_of(array.type), array.bytes.size());
    } catch (const InvalidArgument&) {
    }
  }
}

TEST(Safetensors, AFileThatIsNotThereIsAnIoError) {
  EXPECT_THROW(read_safetensors("/nowhere/x.safetensors", "q"), IoError);
}

}  // namespace
}  // namespace dfa
