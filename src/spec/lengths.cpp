#include "spec/lengths.h"

#include <algorithm>
#include <cmath>

#include "dfa/error.h"
#include "spec/parse.h"

namespace dfa {
namespace {

constexpr std::size_t kMostSequences = 65536;
constexpr std::int64_t kLongest = 1LL << 28;  // rows of one: kernels count them in 32 bits
constexpr std::size_t kShown = 40;            // characters of a text that is refused

[[noreturn]] void bad(std::string_view text, const std::string& why) {
  throw InvalidArgument("problem: lens(" + std::string(text.substr(0, kShown)) +
                        (text.size() > kShown ? "…" : "") + "): " + why);
}

// Logarithms are spread evenly. The mixer is splitmix64's.
std::vector<std::int64_t> drawn(std::size_t count, std::uint64_t seed) {
  constexpr double kShort = 16, kLong = 2048;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t x = seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    const double uniform = static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
    lengths.push_back(std::llround(kShort * std::pow(kLong / kShort, uniform)));
  }
  return lengths;
}

}  // namespace

std::vector<std::int64_t> lengths_of(std::string_view text) {
  const std::vector<std::string_view> parts = between_commas(text);
  if (parts.empty()) bad(text, "no lengths");
  if (parts[0] == "zipf") {
    const auto count = parts.size() == 3 ? to_integer(parts[1]) : std::nullopt;
    const auto seed = parts.size() == 3 ? to_integer(parts[2]) : std::nullopt;
    if (!count || !seed || *count < 1 || *count > static_cast<std::int64_t>(kMostSequences)) {
      bad(text, "expected zipf,N,SEED with N from 1 to " + std::to_string(kMostSequences));
    }
    return drawn(static_cast<std::size_t>(*count), static_cast<std::uint64_t>(*seed));
  }
  if (parts.size() > kMostSequences)
    bad(text, "more than " + std::to_string(kMostSequences) + " sequences");
  std::vector<std::int64_t> lengths;
  for (const std::string_view part : parts) {
    const auto length = to_integer(part);
    if (!length || *length < 0 || *length > kLongest) {
      bad(text, "lengths are integers from 0 to 2^28, with commas between");
    }
    lengths.push_back(*length);
  }
  return lengths;
}

std::string lengths_text(const std::vector<std::int64_t>& lengths) {
  std::string text;
  for (const std::int64_t length : lengths) {
    if (!text.empty()) text += ',';
    text += std::to_string(length);
  }
  return text;
}

std::int64_t total_of(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  return sum;
}

std::int64_t rows_of_pages(const std::vector<std::int64_t>& lengths, std::int64_t page) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += (length + page - 1) / page * page;
  return sum;
}

std::int64_t longest_of(const std::vector<std::int64_t>& lengths) {
  std::int64_t longest = 1;
  for (const std::int64_t length : lengths) longest = std::max(longest, length);
  return longest;
}

std::vector<std::int32_t> cu_seqlens_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> begins{0};
  for (const std::int64_t length : lengths) {
    begins.push_back(begins.back() + static_cast<std::int32_t>(length));
  }
  return begins;
}

Problem sequence_of(const Problem& packed, std::int64_t q_rows, std::int64_t k_rows) {
  Problem p = packed;
  p.b = 1;
  p.sq = q_rows;
  p.sk = k_rows;
  p.q_strides = packed.q();
  p.k_strides = packed.k();
  p.v_strides = packed.v();
  p.o_strides = packed.o();
  p.total_q = p.total_k = 0;
  p.lens_q.clear();
  p.lens_k.clear();
  return p;
}

void require_dense(const Problem& p, const char* what) {
  if (!p.packed()) return;
  throw Unsupported(std::string(what) +
                    ": takes no packed sequences; accepted: problems with b, sq "
                    "and sk, in the place of lens(…), packed(…) or page(…)");
}

void require_plain(const Problem& p, const char* what) {
  require_dense(p, what);
  if (p.blocks) throw Unsupported(std::string(what) + ": takes no blocks(…); leave them out");
  if (p.plain()) return;
  throw Unsupported(
      std::string(what) +
      ": takes plain logits alone; leave softcap(…), alibi, bias(…), sink, mask_mod(…), "
      "score_mod(…) and dropout(…) out");
}

Problem of_equal_lengths(const Problem& packed) {
  const auto mean = [&](std::int64_t total) { return (total + packed.b - 1) / packed.b; };
  // A cache may have more pages than are in use.
  const std::int64_t keys =
      packed.paged() ? std::min(mean(packed.total_k), packed.sk) : mean(packed.total_k);
  Problem p = sequence_of(packed, mean(packed.total_q), keys);
  p.b = packed.b;
  p.page = 0;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{};
  return p;
}

}  // namespace dfa
