#include "base/safetensors.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json_text.h"

namespace dfa {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own readers
constexpr std::size_t kMaxDims = 32;

[[noreturn]] void bad(const std::string& place, const std::string& what) {
  throw InvalidArgument(place + ": " + what);
}

std::size_t header_size(const std::string& bytes, const std::string& place) {
  if (bytes.size() < kLengthBytes) bad(place, "truncated: a .safetensors file has 8 bytes or more");
  std::uint64_t size = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    size = size << 8 | static_cast<unsigned char>(bytes[i]);
  }
  if (size > kMaxHeader) {
    bad(place, "a header of " + std::to_string(size) + " bytes; at most 100000000 are accepted");
  }
  if (size > bytes.size() - kLengthBytes) bad(place, "truncated in the .safetensors header");
  return size;
}

void require_metadata(const Json& header, const std::string& place) {
  const auto metadata = header.find("__metadata__");
  if (metadata == header.end()) return;
  bool texts = metadata->is_object();
  if (texts) {
    for (const Json& value : *metadata) texts = texts && value.is_string();
  }
  if (!texts) bad(place, "__metadata__ is not an object of texts");
}

// The format: the header begins with '{', spaces may follow its end, and no key is there twice.
Json parse_header(std::string_view text, const std::string& place) {
  if (text.empty() || text.front() != '{') {
    bad(place, "the .safetensors header is not a JSON object");
  }
  try {
    Json header = parse_json(text);
    require_metadata(header, place);
    header.erase("__metadata__");
    return header;
  } catch (const InvalidArgument& error) {
    const std::string why = error.what();
    if (why.rfind(place, 0) == 0) throw;
    bad(place, "the .safetensors header is not a JSON object of the format: " + why);
  }
}

std::string names_in(const Json& header) {
  constexpr std::size_t kShown = 8;
  std::string names;
  std::size_t shown = 0;
  for (const auto& item : header.items()) {
    if (shown == kShown) return names + ", …";
    names += (shown++ > 0 ? ", " : "") + item.key().substr(0, 64);
  }
  return names.empty() ? "none" : names;
}

const Json& find_tensor(const Json& header, const std::string& name, const std::string& place) {
  const auto found = header.find(name);
  if (found == header.end()) {
    bad(place, "no tensor '" + name + "'; it has " + names_in(header) + " (choose by FILE:NAME)");
  }
  return *found;
}

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::string name{};
};

// A list of non-negative integers.
std::vector<std::int64_t> integers(const Json& entry, const char* key, const std::string& place) {
  std::vector<std::int64_t> values;
  const auto list = entry.is_object() ? entry.find(key) : entry.end();
  bool good =
      entry.is_object() && list != entry.end() && list->is_array() && list->size() <= kMaxDims;
  if (good) {
    for (const Json& value : *list) {
      good = good && value.is_number_unsigned() && value.get<std::uint64_t>() >> 62 == 0;
      if (good) values.push_back(value.get<std::int64_t>());
    }
  }
  if (!good) bad(place, std::string("the header's ") + key + " is not a list of sizes");
  return values;
}

Range range_of(const Json& entry, const std::string& name, const std::string& place) {
  const auto offsets = integers(entry, "data_offsets", place);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    bad(place, "data_offsets are not [begin, end]");
  }
  return {static_cast<std::uint64_t>(offsets[0]), static_cast<std::uint64_t>(offsets[1]), name};
}

std::string in_tensor(const std::string& place, const std::string& name) {
  return place + ": tensor '" + name.substr(0, 64) + "'";
}

// The format: the tensors cover the data from its begin to its end, without holes or overlaps.
void require_cover(const Json& header, std::size_t data_bytes, const std::string& place) {
  std::vector<Range> ranges;
  for (const auto& item : header.items()) {
    ranges.push_back(range_of(item.value(), item.key(), in_tensor(place, item.key())));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.end > data_bytes) {
      bad(in_tensor(place, range.name), "truncated: the tensor ends at byte " +
                                            std::to_string(range.end) + " of the data, which has " +
                                            std::to_string(data_bytes));
    }
    if (range.begin != at) {
      bad(in_tensor(place, range.name),
          std::string(range.begin > at ? "a hole before it" : "it overlaps another") +
              ": it begins at byte " + std::to_string(range.begin) + ", what is before ends at " +
              std::to_string(at));
    }
    at = range.end;
  }
  if (at != data_bytes) {
    bad(place, "too long: " + std::to_string(data_bytes) +
                   " bytes of data, but its tensors end at " + std::to_string(at));
  }
}

ArrayType type_of(const Json& entry, const std::string& place) {
  const auto dtype = entry.is_object() ? entry.find("dtype") : entry.end();
  const bool text = entry.is_object() && dtype != entry.end() && dtype->is_string();
  const std::string name = text ? dtype->get<std::string>().substr(0, 32) : "";
  if (name == "F8_E4M3") return ArrayType::e4m3;
  if (name == "F16") return ArrayType::fp16;
  if (name == "BF16") return ArrayType::bf16;
  if (name == "F32") return ArrayType::fp32;
  if (name == "F64") return ArrayType::fp64;
  bad(place, "dtype '" + name + "' is not accepted; use F8_E4M3, F16, BF16, F32 or F64");
}

}  // namespace

Array parse_safetensors(std::string bytes, const std::string& name, const std::string& file) {
  const std::size_t size = header_size(bytes, file);
  const Json header = parse_header(std::string_view(bytes).substr(kLengthBytes, size), file);
  const Json& entry = find_tensor(header, name, file);
  const std::string place = in_tensor(file, name);
  Array array{.type = type_of(entry, place), .shape = integers(entry, "shape", place)};
  require_cover(header, bytes.size() - kLengthBytes - size, file);
  const Range range = range_of(entry, name, place);
  const std::size_t wanted = array_bytes(array.type, array.shape, place);
  if (range.end - range.begin != wanted) {
    bad(place, "data_offsets hold " + std::to_string(range.end - range.begin) + " bytes, but " +
                   name_of(array.type) + shape_text(array.shape) + " takes " +
                   std::to_string(wanted));
  }
  array.data_begin = kLengthBytes + size + range.begin;
  array.bytes = std::move(bytes);
  return array;
}

Array read_safetensors(const std::filesystem::path& path, const std::string& name) {
  return parse_safetensors(read_file(path), name, "'" + path.string() + "'");
}

}  // namespace dfa
