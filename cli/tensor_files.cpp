#include "cli/tensor_files.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/element.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/safetensors.h"
#include "dfa/error.h"
#include "spec/lengths.h"

namespace dfa::cli {
namespace {

constexpr std::string_view kNpy = ".npy";
constexpr std::string_view kSafetensors = ".safetensors";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

Array read_array(const std::string& file, const std::string& role) {
  if (ends_with(file, kNpy)) return read_npy(file);
  const std::size_t colon = file.rfind(':');
  const bool named = colon != std::string::npos && ends_with(file.substr(0, colon), kSafetensors);
  if (named) return read_safetensors(file.substr(0, colon), file.substr(colon + 1));
  if (!ends_with(file, kSafetensors)) {
    throw InvalidArgument("--" + role + " '" + file +
                          "': accepted are F.npy, F.safetensors and F.safetensors:NAME");
  }
  return read_safetensors(file, role);
}

// Sizes of a file by their meaning.
struct Sizes {
  std::int64_t b = 1, h = 1, s = 1, d = 1;
};

// A file as read, and what its dimensions mean in the problem's layout.
struct Source {
  std::string role;
  std::string file;
  Array array;
  Sizes sizes{};
  bool batched = true;
};

Source open_source(const std::string& role, const std::string& file, Layout layout) {
  Source source{.role = role, .file = file, .array = read_array(file, role)};
  const auto& shape = source.array.shape;
  if (shape.size() != 3 && shape.size() != 4) {
    throw InvalidArgument(
        fmt::format("--{} '{}' has shape {}; accepted are 3 dimensions {} or 4 {}", role, file,
                    shape_text(shape), layout == Layout::bhsd ? "(h,s,d)" : "(s,h,d)",
                    layout == Layout::bhsd ? "(b,h,s,d)" : "(b,s,h,d)"));
  }
  source.batched = shape.size() == 4;
  const std::size_t first = source.batched ? 1 : 0;
  const bool heads_first = layout == Layout::bhsd;
  source.sizes = {.b = source.batched ? shape[0] : 1,
                  .h = shape[first + (heads_first ? 0 : 1)],
                  .s = shape[first + (heads_first ? 1 : 0)],
                  .d = shape[first + 2]};
  return source;
}

// Is one of these sizes in the line, e.g. "hq8" or the shorthand "h8" for hq?
bool gives(const std::string& line, std::initializer_list<std::string_view> names) {
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t end = std::min(line.find_first_of(" \t\r\n", at), line.size());
    const std::string_view token = std::string_view(line).substr(at, end - at);
    for (const std::string_view name : names) {
      if (token.size() > name.size() && token.substr(0, name.size()) == name &&
          std::isdigit(static_cast<unsigned char>(token[name.size()])) != 0) {
        return true;
      }
    }
    at = end + 1;
  }
  return false;
}

std::string complete_line(std::string line, const Sizes& q, const Sizes& k, const Sizes& v) {
  const std::string given = line;
  const auto fill = [&](std::initializer_list<std::string_view> names, std::int64_t size) {
    if (!gives(given, names)) line += fmt::format(" {}{}", *names.begin(), size);
  };
  fill({"b"}, q.b);
  fill({"hq", "h"}, q.h);
  fill({"hk", "h"}, k.h);
  fill({"sq", "s"}, q.s);
  fill({"sk", "s"}, k.s);
  fill({"d"}, q.d);
  fill({"dv"}, v.d);
  return line;
}

void require_shape(const Source& source, const Problem& p, const Sizes& wanted) {
  const Sizes& found = source.sizes;
  const struct {
    const char* name;
    std::int64_t found, wanted;
  } dims[] = {{"b", found.b, wanted.b},
              {"heads", found.h, wanted.h},
              {"rows", found.s, wanted.s},
              {"head dim", found.d, wanted.d}};
  for (const auto& dim : dims) {
    if (dim.found == dim.wanted) continue;
    throw InvalidArgument(fmt::format("--{} '{}' has shape {}: {} is {}, but '{}' needs {}",
                                      source.role, source.file, shape_text(source.array.shape),
                                      dim.name, dim.found, to_line(p), dim.wanted));
  }
}

[[noreturn]] void refuse_value(const Source& source, std::int64_t index, double value, DType type) {
  std::vector<std::int64_t> position(source.array.shape.size());
  for (std::size_t i = position.size(); i-- > 0;) {
    position[i] = index % source.array.shape[i];
    index /= source.array.shape[i];
  }
  const std::string place = fmt::format("--{} '{}' holds {} at {}", source.role, source.file, value,
                                        shape_text(position));
  throw InvalidArgument(std::isfinite(value) ? place + ", beyond the range of " + name_of(type)
                                             : place + "; finite values are needed");
}

float to_problem_type(double value, DType type) {
  if (type == DType::fp32) return static_cast<float>(value);
  return round_to(type, narrow_to_odd(value));
}

// Copies the file into a buffer with the problem's strides; false when a value had to be rounded.
bool convert(const Source& source, const Strides& strides, Layout layout, DType type, void* out) {
  const Sizes& n = source.sizes;
  const bool heads_first = layout == Layout::bhsd;
  bool exact = true;
  std::int64_t index = 0;
  for (std::int64_t b = 0; b < n.b; ++b) {
    for (std::int64_t i = 0; i < (heads_first ? n.h : n.s); ++i) {
      for (std::int64_t j = 0; j < (heads_first ? n.s : n.h); ++j) {
        const std::int64_t row = b * strides.batch + (heads_first ? i : j) * strides.head +
                                 (heads_first ? j : i) * strides.row;
        for (std::int64_t x = 0; x < n.d; ++x, ++index) {
          const double value = source.array.at(index);
          const float rounded = std::isfinite(value) ? to_problem_type(value, type) : INFINITY;
          if (!std::isfinite(rounded)) refuse_value(source, index, value, type);
          exact = exact && static_cast<double>(rounded) == value;
          store_element(out, type, row + x, rounded);
        }
      }
    }
  }
  return exact;
}

// Wider than e4m3, into it: the factors, [b, hk].
std::vector<float> load_quantized(const Source& source, const Quantizable& tensor, Layout layout,
                                  AlignedBuffer& out) {
  std::vector<float> wide(out.size());
  convert(source, tensor.strides, layout, DType::fp32, wide.data());
  return quantize(wide.data(), tensor, out.data());
}

AlignedBuffer load(const Source& source, const Quantizable& tensor, const Problem& p,
                   std::vector<float>& factors, std::vector<std::string>& notes) {
  const Sizes& n = source.sizes;
  const std::int64_t elements = extent(tensor.strides, n.b, n.h, n.s, n.d);
  AlignedBuffer buffer(static_cast<std::size_t>(elements) *
                       static_cast<std::size_t>(bytes_of(p.dtype)));
  std::memset(buffer.data(), 0, buffer.size());
  std::string how;
  if (p.dtype == DType::e4m3 && source.array.type != ArrayType::e4m3) {
    factors = load_quantized(source, tensor, p.layout, buffer);
    how = "a factor for each batch and key head, rounded to";
  } else {
    const bool exact = convert(source, tensor.strides, p.layout, p.dtype, buffer.data());
    how = exact ? "exact in" : "rounded to";
  }
  notes.push_back(fmt::format("{}: '{}', {} {}, {} {}", source.role, source.file,
                              name_of(source.array.type), shape_text(source.array.shape), how,
                              name_of(p.dtype)));
  return buffer;
}

void require_together(const InputFiles& files) {
  if (files.q.empty() || files.k.empty() || files.v.empty()) {
    throw InvalidArgument("--q, --k and --v go together: give all three files, or none");
  }
}

// Indices of the elements, in the order of the view's layout.
template <typename Store>
void for_each_element(const TensorView& view, const Store& store) {
  const bool heads_first = view.layout == Layout::bhsd;
  for (std::int64_t b = 0; b < view.b; ++b) {
    for (std::int64_t i = 0; i < (heads_first ? view.h : view.s); ++i) {
      for (std::int64_t j = 0; j < (heads_first ? view.s : view.h); ++j) {
        const std::int64_t row = b * view.strides.batch +
                                 (heads_first ? i : j) * view.strides.head +
                                 (heads_first ? j : i) * view.strides.row;
        for (std::int64_t x = 0; x < view.d; ++x) store(row + x);
      }
    }
  }
}

template <typename T>
void append(std::string& bytes, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

std::vector<std::int64_t> without_batch(std::vector<std::int64_t> shape, bool batched) {
  if (!batched) shape.erase(shape.begin());
  return shape;
}

}  // namespace

Inputs read_inputs(const std::string& line, const InputFiles& files) {
  Inputs inputs;
  if (!files.any()) {
    inputs.problem = parse_problem(line);
    return inputs;
  }
  require_together(files);
  if (line.find("lens(") != std::string::npos || line.find("lens_k(") != std::string::npos) {
    throw Unsupported(
        "tensors from files: takes no packed sequences; leave lens(…) out, and lens_k(…)");
  }
  const Layout layout =
      line.find("layout(bshd)") == std::string::npos ? Layout::bhsd : Layout::bshd;
  const Source q = open_source("q", files.q, layout);
  const Source k = open_source("k", files.k, layout);
  const Source v = open_source("v", files.v, layout);
  inputs.problem = parse_problem(complete_line(line, q.sizes, k.sizes, v.sizes));
  inputs.batched = q.batched;
  const Problem& p = inputs.problem;
  require_plain(p, "tensors from files");
  require_shape(q, p, {p.b, p.hq, p.sq, p.d});
  require_shape(k, p, {p.b, p.hk, p.sk, p.d});
  require_shape(v, p, {p.b, p.hk, p.sk, p.dv});
  inputs.q = load(q, quantizable_q(p), p, inputs.factors.q, inputs.notes);
  inputs.k = load(k, quantizable_k(p), p, inputs.factors.k, inputs.notes);
  inputs.v = load(v, quantizable_v(p), p, inputs.factors.v, inputs.notes);
  if (files.d_o.empty()) return inputs;
  if (p.pass == Pass::forward) {
    throw InvalidArgument("--do is of no use to a forward pass; start the line with bwd or fwdbwd");
  }
  const Source d_o = open_source("do", files.d_o, layout);
  require_shape(d_o, p, {p.b, p.hq, p.sq, p.dv});
  std::vector<float> none;
  inputs.d_o = load(d_o, {p.o(), p.b, p.hq, p.sq, p.dv}, p, none, inputs.notes);
  return inputs;
}

void write_tensor(const std::filesystem::path& path, const TensorView& view, bool batched) {
  const bool half = view.type == DType::fp16;
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(view.b * view.h * view.s * view.d) * (half ? 2 : 4));
  for_each_element(view, [&](std::int64_t index) {
    if (half) {
      append(bytes, static_cast<const std::uint16_t*>(view.data)[index]);
    } else {
      append(bytes, load_element(view.data, view.type, index));
    }
  });
  const bool heads_first = view.layout == Layout::bhsd;
  const std::vector<std::int64_t> shape{view.b, heads_first ? view.h : view.s,
                                        heads_first ? view.s : view.h, view.d};
  write_file_atomic(
      path, to_npy(half ? ArrayType::fp16 : ArrayType::fp32, without_batch(shape, batched), bytes));
}

void write_lse(const std::filesystem::path& path, const float* lse, const Problem& problem,
               bool batched) {
  const std::string_view bytes(
      reinterpret_cast<const char*>(lse),
      static_cast<std::size_t>(problem.b * problem.hq * problem.sq) * sizeof(float));
  const std::vector<std::int64_t> shape{problem.b, problem.hq, problem.sq};
  write_file_atomic(path, to_npy(ArrayType::fp32, without_batch(shape, batched), bytes));
}

}  // namespace dfa::cli
