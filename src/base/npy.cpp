#include "base/npy.h"

#include <charconv>
#include <optional>

#include "base/file.h"

namespace dfa {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 16;
constexpr std::size_t kMaxDims = 32;

[[noreturn]] void bad(const std::string& place, const std::string& what) {
  throw InvalidArgument(place + ": " + what);
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

// Reads the header, a Python dict of a string, a bool and a tuple, token by token.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  void read() {
    expect('{');
    while (!accept('}')) {
      read_entry(quoted());
      if (!accept(',') && !closes('}')) fail("',' or '}'");
    }
    skip();
    if (!rest().empty()) fail("nothing after '}' but spaces and a newline");
    if (!descr_ || !fortran_ || !shape_) fail("the keys descr, fortran_order and shape");
  }

  const std::string& descr() const { return *descr_; }
  bool fortran() const { return *fortran_; }
  const std::vector<std::int64_t>& shape() const { return *shape_; }

 private:
  void read_entry(const std::string& key) {
    expect(':');
    const bool again = (key == "descr" && descr_) || (key == "fortran_order" && fortran_) ||
                       (key == "shape" && shape_);
    if (again) bad(place_, "the .npy header names " + key + " twice");
    if (key == "descr") {
      if (closes('[')) bad(place_, "records are not accepted; store one array of <f2, <f4 or <f8");
      descr_ = quoted();
    } else if (key == "fortran_order") {
      fortran_ = boolean();
    } else if (key == "shape") {
      shape_ = tuple();
    } else {
      fail("the keys descr, fortran_order and shape");
    }
  }

  std::string quoted() {
    skip();
    const char quote = rest().empty() ? '\0' : rest().front();
    if (quote != '\'' && quote != '"') fail("a quoted string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a closing quote");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip();
    for (const std::string_view word : {"True", "False"}) {
      if (rest().substr(0, word.size()) != word) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip();
      std::int64_t value = 0;
      const char* begin = rest().data();
      const auto [end, error] = std::from_chars(begin, begin + rest().size(), value);
      if (error != std::errc{} || values.size() == kMaxDims) fail("a tuple of up to 32 sizes");
      at_ += static_cast<std::size_t>(end - begin);
      values.push_back(value);
      if (!accept(',') && !closes(')')) fail("',' or ')'");
    }
    return values;
  }

  std::string_view rest() const { return text_.substr(at_); }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool closes(char character) {
    skip();
    return at_ < text_.size() && text_[at_] == character;
  }
  bool accept(char character) {
    if (!closes(character)) return false;
    ++at_;
    return true;
  }
  void expect(char character) {
    if (!accept(character)) fail(std::string("'") + character + "'");
  }
  [[noreturn]] void fail(const std::string& expected) {
    bad(place_, "bad .npy header at byte " + std::to_string(at_) + ": expected " + expected);
  }

  std::string_view text_;
  const std::string& place_;
  std::size_t at_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_;
  std::optional<std::vector<std::int64_t>> shape_;
};

ArrayType type_of(const std::string& descr, const std::string& place) {
  if (descr == "<f2") return ArrayType::fp16;
  if (descr == "<f4") return ArrayType::fp32;
  if (descr == "<f8") return ArrayType::fp64;
  if (descr == "<V2" || descr == "|V2") return ArrayType::bf16;
  if (descr == "<V1" || descr == "|V1") {
    bad(place, "dtype '" + descr +
                   "' is what NumPy writes for a dozen types of ml_dtypes, and nothing says which; "
                   "store e4m3 as F8_E4M3 of a .safetensors file, or widened as <f4");
  }
  bad(place, "dtype '" + descr.substr(0, 32) +
                 "' is not accepted; use <f2, <f4, <f8, or <V2 for bf16 (little-endian floats)");
}

const char* descr_of(ArrayType type) {
  switch (type) {
    case ArrayType::e4m3: break;  // <V1, which says another dozen types too
    case ArrayType::fp16: return "<f2";
    case ArrayType::bf16: return "<V2";
    case ArrayType::fp32: return "<f4";
    case ArrayType::fp64: return "<f8";
  }
  throw InvalidArgument(std::string("a .npy file cannot say that it holds ") + name_of(type));
}

struct HeaderPlace {
  std::size_t begin = 0;
  std::size_t size = 0;
};

HeaderPlace find_header(std::string_view bytes, const std::string& place) {
  if (bytes.substr(0, kMagic.size()) != kMagic)
    bad(place, "not a .npy file: it has no NumPy magic");
  if (bytes.size() < kMagic.size() + 4) bad(place, "truncated in the .npy header");
  const int version = static_cast<unsigned char>(bytes[kMagic.size()]);
  if (version < 1 || version > 3) {
    bad(place, ".npy version " + std::to_string(version) + " is not accepted; 1, 2 and 3 are");
  }
  const std::size_t width = version == 1 ? 2 : 4;
  const std::size_t begin = kMagic.size() + 2 + width;
  if (bytes.size() < begin) bad(place, "truncated in the .npy header");
  const std::uint64_t size = little_endian(bytes.substr(begin - width, width));
  if (size > kMaxHeader) {
    bad(place, "a .npy header of " + std::to_string(size) + " bytes; at most 65536 are accepted");
  }
  if (size > bytes.size() - begin) bad(place, "truncated in the .npy header");
  return {begin, size};
}

}  // namespace

Array parse_npy(std::string bytes, const std::string& place) {
  const HeaderPlace header = find_header(bytes, place);
  HeaderReader reader(std::string_view(bytes).substr(header.begin, header.size), place);
  reader.read();
  Array array{.type = type_of(reader.descr(), place), .shape = reader.shape()};
  if (reader.fortran()) {
    bad(place, "Fortran order is not accepted; save numpy.ascontiguousarray(x)");
  }
  array.data_begin = header.begin + header.size;
  const std::size_t wanted = array_bytes(array.type, array.shape, place);
  const std::size_t found = bytes.size() - array.data_begin;
  if (found != wanted) {
    bad(place, std::string(found < wanted ? "truncated: " : "too long: ") + std::to_string(found) +
                   " bytes of data, but " + name_of(array.type) + shape_text(array.shape) +
                   " takes " + std::to_string(wanted));
  }
  array.bytes = std::move(bytes);
  return array;
}

Array read_npy(const std::filesystem::path& path) {
  return parse_npy(read_file(path), "'" + path.string() + "'");
}

std::string to_npy(ArrayType type, const std::vector<std::int64_t>& shape, std::string_view data) {
  constexpr std::size_t kAlign = 64;
  std::string tuple = "(";
  for (const std::int64_t size : shape) tuple += std::to_string(size) + ", ";
  std::string header = std::string("{'descr': '") + descr_of(type) +
                       "', 'fortran_order': False, 'shape': " + tuple + "), }";
  const std::size_t before = kMagic.size() + 4;
  header.append(kAlign - (before + header.size() + 1) % kAlign, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes.reserve(before + header.size() + data.size());
  bytes +=
      {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes += data;
  return bytes;
}

}  // namespace dfa
