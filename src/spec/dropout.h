#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Dropout of the attention probabilities (docs/design/0032-dropout.md).
namespace dfa {

struct Problem;
struct Logits;

// What masks are drawn by, as engines of a processor and kernels are told it.
struct DropoutDraw {
  static constexpr std::uint32_t kNumbers = 1 << 16;

  std::uint32_t key[2] = {0, 0};
  std::uint32_t offset = 0;       // its low half; the high one is in the key
  std::uint32_t kept = kNumbers;  // so many of kNumbers keep a probability
  float factor = 1;               // kNumbers / kept

  bool drops() const { return kept < kNumbers; }
};

// The draw without its seed and offset, which a GPU reads from memory.
DropoutDraw dropout_of(const Problem& problem);
// The draw with both, from host memory.
DropoutDraw dropout_of(const Problem& problem, const Logits& logits);

// Sets dropout and its seed by what stands in dropout(P,SEED). Throws InvalidArgument.
void set_dropout(Problem& problem, std::string_view text);
// " dropout(P,SEED)", or nothing.
std::string dropout_text(const Problem& problem);
// Throws InvalidArgument.
void require_dropout(const Problem& problem);

}  // namespace dfa
