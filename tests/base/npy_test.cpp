#include "base/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

namespace dfa {
namespace {

template <typename T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

// A file with any header text, as a hand-made or damaged one would be.
std::string file_with(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += {version, '\0'};
  const std::size_t width = version == 1 ? 2 : 4;
  for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape,
                      const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

std::string message_of(const std::string& bytes) {
  try {
    parse_npy(bytes, "'f.npy'");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Npy, WhatIsWrittenIsReadBack) {
  const std::string data = raw<float>({1, -2.5f, 3e-8f, 0, 1e30f, 7});
  const Array array = parse_npy(to_npy(ArrayType::fp32, {1, 2, 3}, data), "x");
  EXPECT_EQ(array.type, ArrayType::fp32);
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(array.bytes.substr(array.data_begin), data);
  EXPECT_EQ(array.at(1), -2.5);
  EXPECT_EQ(array.data_begin % 64, 0u);
}

TEST(Npy, EveryAcceptedTypeGivesItsValues) {
  EXPECT_EQ(parse_npy(to_npy(ArrayType::fp16, {1}, raw<std::uint16_t>({0x3e00})), "x").at(0), 1.5);
  EXPECT_EQ(parse_npy(to_npy(ArrayType::bf16, {1}, raw<std::uint16_t>({0x3fc0})), "x").at(0), 1.5);
  EXPECT_EQ(parse_npy(to_npy(ArrayType::fp64, {1}, raw<double>({0.1})), "x").at(0), 0.1);
  EXPECT_EQ(parse_npy(file_with(header_of("|V2", "(1,)"), raw<std::uint16_t>({0x3fc0})), "x").type,
            ArrayType::bf16);
}

TEST(Npy, VersionsOneToThreeAreRead) {
  const std::string data = raw<float>({4});
  for (const char version : {'\1', '\2', '\3'}) {
    EXPECT_EQ(parse_npy(file_with(header_of("<f4", "(1, 1)"), data, version), "x").at(0), 4.0);
  }
  EXPECT_NE(message_of(file_with(header_of("<f4", "(1,)"), data, '\4')).find("version 4"),
            std::string::npos);
}

TEST(Npy, KeysComeInAnyOrderAndEitherQuote) {
  const std::string header = "{\"shape\": (2,), \"fortran_order\": False, \"descr\": \"<f4\"}";
  EXPECT_EQ(parse_npy(file_with(header, raw<float>({1, 2})), "x").at(1), 2.0);
}

TEST(Npy, WhatIsNotAcceptedIsNamed) {
  const std::string one = raw<float>({1});
  const struct {
    std::string bytes, expected;
  } cases[] = {
      {file_with(header_of(">f4", "(1,)"), one), "dtype '>f4'"},
      {file_with(header_of("<i4", "(1,)"), one), "dtype '<i4'"},
      {file_with(header_of("<u2", "(2,)"), one), "dtype '<u2'"},
      {file_with(header_of("<V1", "(4,)"), one), "F8_E4M3 of a .safetensors"},
      {file_with(header_of("|V1", "(4,)"), one), "nothing says which"},
      {file_with(header_of("<f1", "(4,)"), one), "dtype '<f1'"},
      {file_with(header_of("<f4", "(1, 1)", "True"), one), "Fortran order"},
      {file_with(header_of("<f4", "(2,)"), one), "truncated: 4 bytes of data"},
      {file_with(header_of("<f4", "(1,)"), one + one), "too long: 8 bytes of data"},
      {file_with(header_of("<f4", "(-1,)"), one), "shape (-1)"},
      {file_with(header_of("<f4", "(4294967296, 4294967296)"), one), "is not possible"},
      {file_with(header_of("<f4", "(9223372036854775807,)"), one), "is not possible"},
      {file_with(header_of("<f4", "(99999999999999999999,)"), one), "tuple"},
      {file_with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", one),
       "records"},
      {file_with("{'descr': '<f4', 'shape': (1,)}", one), "fortran_order"},
      {file_with("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", one), "True or False"},
      {file_with("", one), "'{'"},
      {"PK\3\4 an npz", "no NumPy magic"},
      {"", "no NumPy magic"},
  };
  for (const auto& c : cases) {
    const std::string message = message_of(c.bytes);
    EXPECT_NE(message.find(c.expected), std::string::npos) << message << "\nwanted " << c.expected;
    EXPECT_EQ(message.rfind("'f.npy': ", 0), 0u) << message;
  }
}

TEST(Npy, AnEmptyArrayIsAnArray) {
  EXPECT_EQ(parse_npy(to_npy(ArrayType::fp32, {2, 0, 3}, ""), "x").count(), 0);
}

TEST(Npy, EveryTruncationIsAnError) {
  const std::string whole = to_npy(ArrayType::fp32, {2, 3}, raw<float>({1, 2, 3, 4, 5, 6}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_npy(whole.substr(0, size), "x"), InvalidArgument) << size;
  }
}

TEST(Npy, FlippedBitsNeverGiveDataBeyondTheFile) {
  const std::string whole = to_npy(ArrayType::fp32, {2, 3}, raw<float>({1, 2, 3, 4, 5, 6}));
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (auto flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    try {
      const Array array = parse_npy(bytes, "x");
      const auto elements = static_cast<std::size_t>(array.count());
      ASSERT_EQ(array.data_begin + elements * bytes_of(array.type), array.bytes.size());
    } catch (const InvalidArgument&) {
    }
  }
}

TEST(Npy, AFileThatIsNotThereIsAnIoError) { EXPECT_THROW(read_npy("/nowhere/x.npy"), IoError); }

TEST(Array, NarrowingToOddMakesTwoRoundingsOne) {
  // 1 + 2^-8 + 2^-40 lies just above the middle of two bf16 values; through fp32 to nearest it
  // would become the middle itself, and then the even neighbour below.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_GT(narrow_to_odd(above), 1 + 0x1p-8f);
  EXPECT_LT(narrow_to_odd(1 + 0x1p-8 - 0x1p-40), 1 + 0x1p-8f);
  EXPECT_LT(narrow_to_odd(-above), -(1 + 0x1p-8f));
  EXPECT_EQ(narrow_to_odd(0.5), 0.5f);
  EXPECT_EQ(narrow_to_odd(1e300), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace dfa
