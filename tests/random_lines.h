#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/random.h"

// Problem lines drawn from a seed, for tests that take any.
namespace dfa {

// Draws values from a stream, one after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_.below(next_++, static_cast<std::uint64_t>(count)));
  }
  template <typename T, std::size_t N>
  T pick(const T (&values)[N]) {
    return values[static_cast<std::size_t>(below(N))];
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

// What goes beside full or causal; a prefix is of causal alone.
inline std::string random_mask(Dice& dice, bool causal) {
  std::string mask;
  if (causal && dice.below(6) == 0) return " prefix(" + std::to_string(1 + dice.below(150)) + ")";
  if (dice.below(4) == 0) {
    mask +=
        " window(" + std::to_string(dice.below(80)) + "," + std::to_string(dice.below(80)) + ")";
  }
  if (dice.below(5) == 0) mask += " chunk(" + std::to_string(1 + dice.below(150)) + ")";
  return mask;
}

inline std::string random_line(Dice& dice) {
  static constexpr int kLengths[] = {1, 2, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200};
  const std::int64_t hk = 1 + dice.below(3);
  std::string line =
      dice.pick({"fwd", "bwd", "fwdbwd"}) + std::string(" ") + dice.pick({"fp32", "fp16", "bf16"}) +
      " " + dice.pick({"full", "causal"}) + " b" + std::to_string(1 + dice.below(2)) + " hq" +
      std::to_string(hk * (1 + dice.below(3))) + " hk" + std::to_string(hk) + " sq" +
      std::to_string(dice.pick(kLengths)) + " sk" + std::to_string(dice.pick(kLengths)) + " d" +
      std::to_string(8 * (1 + dice.below(20))) + " dv" + std::to_string(8 * (1 + dice.below(20)));
  line += random_mask(dice, line.find(" causal") != std::string::npos);
  if (dice.below(4) == 0) line += " layout(bshd)";
  if (dice.below(8) == 0) {
    line += " scale(" + std::to_string(1 + dice.below(200)) + "e-2)";
  } else if (dice.below(16) == 0) {
    line += " scale(" + std::to_string(3 + dice.below(30)) + ")";
  }
  if (dice.below(4) == 0) line += " deterministic";
  return line;
}

// A mask_mod, a score_mod or both.
inline std::string random_text(Dice& dice) {
  const auto number = [&](std::int64_t most) { return std::to_string(1 + dice.below(most)); };
  std::string text;
  const std::int64_t kinds = 1 + dice.below(3);
  if ((kinds & 1) != 0) {
    const std::string n = number(60);
    text += dice.pick<std::string>(
        {" mask_mod(kv_idx<=q_idx+sk-sq+" + n + ")",
         " mask_mod((kv_idx+" + n + "*h)%" + number(9) + "!=b)",
         " mask_mod(q_idx/" + n + "==kv_idx/" + n + "||kv_idx<" + number(40) + ")",
         " mask_mod((q_idx^kv_idx)&" + n + "||h%2==1)"});
  }
  if ((kinds & 2) != 0) {
    const std::string n = number(30);
    text +=
        dice.pick<std::string>({" score_mod(score-0.00" + n + "f*abs(q_idx-kv_idx))",
                                " score_mod(" + n + ".0f*tanh(score/" + n + ".0f)+0.1f*h)",
                                " score_mod(score>0?1.5f*score:0." + n + "f*score)",
                                " score_mod(score*exp(-0.01f*abs(q_idx-kv_idx))+sin(score))",
                                " score_mod(kv_idx%" + n + "==1?-INFINITY:sqrt(1+score*score))"});
  }
  return text;
}

// Blocks that are drawn, with sides of their own, beside any mask and logits.
inline std::string random_blocks_line(Dice& dice) {
  std::string line = random_line(dice);
  const auto side = [&] { return std::to_string(16 * (1 + dice.below(8))); };
  const std::int64_t percent = dice.below(3) == 0 ? 5 : dice.below(101);
  line += " blocks(random," + std::to_string(percent) + "e-2," + std::to_string(dice.below(1000)) +
          "," + side() + "x" + side();
  for (const char* word : {",b", ",h", ",partial"}) {
    if (dice.below(2) == 0) line += word;
  }
  line += ")";
  for (const char* logits : {" softcap(3)", " alibi", " sink", " bias(1,h)"}) {
    if (dice.below(4) == 0) line += logits;
  }
  return line;
}

// Lists whose blocks tiles of so many queries and keys divide, beside windows.
inline std::string random_lists_line(Dice& dice, const std::string& dtype, const std::string& dims,
                                     int tile) {
  static constexpr int kDensities[] = {0, 5, 20, 50, 80, 100};
  const std::int64_t hk = 1 + dice.below(2);
  const auto length = [&] {
    return std::to_string(dice.below(4) == 0 ? 1 + dice.below(3)
                                             : tile * dice.below(6) + dice.below(3) + 1);
  };
  const auto side = [&] { return std::to_string(tile * (1 + dice.below(2))); };
  std::string line = "fwd " + dtype + " " + dice.pick({"full", "causal"}) + " b" +
                     std::to_string(1 + dice.below(2)) + " hq" +
                     std::to_string(hk * (1 + dice.below(3))) + " hk" + std::to_string(hk) + " sq" +
                     length() + " sk" + length() + " " + dims;
  if (dice.below(3) == 0) {
    line +=
        " window(" + std::to_string(dice.below(200)) + "," + std::to_string(dice.below(80)) + ")";
  }
  line += " blocks(random," + std::to_string(dice.pick(kDensities)) + "e-2," +
          std::to_string(dice.below(1000)) + "," + side() + "x" + side();
  for (const char* word : {",b", ",h", ",partial"}) {
    if (dice.below(2) == 0) line += word;
  }
  return line + ")";
}

// Keys in pages, of packed sequences or of dense queries.
// Prompts and parts of them, in pages of sizes that Hopper's kernel copies.
inline std::string random_prompts_line(Dice& dice, const std::string& dtype,
                                       const std::string& dims) {
  static constexpr int kPages[] = {8, 16, 32, 48, 64, 128, 256};
  const std::int64_t hk = 1 + dice.below(3), sequences = 1 + dice.below(6);
  const int page = dice.pick(kPages);
  std::string line = "fwd " + dtype + " " + dice.pick({"full", "causal"}) + " hq" +
                     std::to_string(hk * (1 + dice.below(4))) + " hk" + std::to_string(hk) + " " +
                     dims;
  std::string queries, keys;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t rows = dice.below(3) == 0 ? dice.below(4) : dice.below(500);
    const std::int64_t near = page * (1 + dice.below(4)) - 1 + dice.below(3);
    queries += (i == 0 ? "" : ",") + std::to_string(i == 0 ? rows + 1 : rows);
    keys += (i == 0 ? "" : ",") + std::to_string(i == 0 || dice.below(2) ? near : dice.below(900));
  }
  line += " lens(" + queries + ") lens_k(" + keys + ") page(" + std::to_string(page) + ")";
  if (dice.below(3) == 0) {
    line +=
        " window(" + std::to_string(dice.below(200)) + "," + std::to_string(dice.below(80)) + ")";
  }
  return line;
}

inline std::string random_paged_line(Dice& dice) {
  static constexpr int kPages[] = {1, 2, 7, 16, 31, 64, 256};
  const std::int64_t hk = 1 + dice.below(3), sequences = 1 + dice.below(4);
  std::string line = std::string("fwd ") + dice.pick({"fp32", "fp16", "bf16"}) + " " +
                     dice.pick({"full", "causal"}) + " hq" +
                     std::to_string(hk * (1 + dice.below(3))) + " hk" + std::to_string(hk) + " d" +
                     std::to_string(8 * (1 + dice.below(20))) + " dv" +
                     std::to_string(8 * (1 + dice.below(20)));
  const int page = dice.pick(kPages);
  if (dice.below(3) == 0) {
    line += " b" + std::to_string(sequences) + " sq" + std::to_string(1 + dice.below(4)) + " sk" +
            std::to_string(1 + dice.below(3 * page));
  } else {
    std::string queries = std::to_string(1 + dice.below(40)),
                keys = std::to_string(1 + dice.below(3 * page));
    for (std::int64_t i = 1; i < sequences; ++i) {
      queries += "," + std::to_string(dice.below(70));
      keys += "," + std::to_string(dice.below(3 * page));
    }
    line += " lens(" + queries + ") lens_k(" + keys + ")";
  }
  line += " page(" + std::to_string(page) + ")";
  line += random_mask(dice, line.find(" causal") != std::string::npos);
  if (dice.below(4) == 0) line += " softcap(20)";
  if (dice.below(4) == 0) line += " alibi";
  if (dice.below(4) == 0) line += " sink";
  return line;
}

// Packed sequences, up to 65 of them: many short ones, some of none, few long ones. Every mask, and
// logits that are not plain where `logits`.
inline std::string random_packed_line(Dice& dice, bool logits) {
  static constexpr int kCounts[] = {1, 2, 5, 16, 33, 65};
  static constexpr const char* kDims[] = {"d64", "d128", "d64",       "d128",
                                          "d96", "d256", "d192 dv128"};
  const std::int64_t hk = 1 + dice.below(2), sequences = dice.pick(kCounts);
  const auto length = [&] { return dice.below(dice.pick({3, 20, 70, 300, 300, 700})); };
  std::string queries = std::to_string(1 + length()), keys = std::to_string(1 + length());
  for (std::int64_t i = 1; i < sequences; ++i) {
    queries += "," + std::to_string(length());
    keys += "," + std::to_string(length());
  }
  std::string line =
      dice.pick({"fwd ", "fwdbwd ", "fwdbwd "}) + std::string(dice.pick({"bf16", "fp16"})) +
      dice.pick({"", " causal", " causal"}) + " hq" + std::to_string(hk * (1 + dice.below(3))) +
      " hk" + std::to_string(hk) + " " + dice.pick(kDims) + " lens(" + queries + ")";
  if (dice.below(3) == 0) line += " lens_k(" + keys + ")";
  if (dice.below(4) == 0) {
    line +=
        " window(" + std::to_string(dice.below(150)) + "," + std::to_string(dice.below(150)) + ")";
  }
  if (dice.below(5) == 0) line += " deterministic";
  if (logits && dice.below(2)) line += " softcap(20)";
  if (logits && dice.below(2)) line += " alibi";
  if (logits && dice.below(2)) line += " sink";
  return line;
}

// Few queries a sequence, in 16 bits: keys in pages or packed, many or few, of every mask.
inline std::string random_decode_line(Dice& dice) {
  static constexpr int kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16, 24};
  static constexpr const char* kDims[] = {"d64", "d128", "d64",        "d128",
                                          "d96", "d256", "d192 dv128", "d40"};
  static constexpr int kPages[] = {0, 0, 1, 7, 16, 64, 256};
  const std::int64_t hk = 1 + dice.below(3), sequences = 1 + dice.below(9);
  const auto keys = [&] { return dice.below(dice.pick({2, 70, 300, 3000})); };
  const auto rows = [&] { return dice.below(dice.pick({2, 2, 2, 5})); };
  std::string lens = std::to_string(1 + rows()), lens_k = std::to_string(1 + keys());
  for (std::int64_t i = 1; i < sequences; ++i) {
    lens += "," + std::to_string(rows());
    lens_k += "," + std::to_string(keys());
  }
  std::string line = std::string("fwd ") + dice.pick({"bf16", "fp16"}) +
                     dice.pick({"", " causal"}) + " hq" + std::to_string(hk * dice.pick(kGroups)) +
                     " hk" + std::to_string(hk) + " " + dice.pick(kDims) + " lens(" + lens +
                     ") lens_k(" + lens_k + ")";
  if (const int page = dice.pick(kPages); page > 0) line += " page(" + std::to_string(page) + ")";
  if (dice.below(4) == 0) line += " window(" + std::to_string(dice.below(500)) + ",0)";
  if (dice.below(5) == 0) line += " softcap(20)";
  if (dice.below(4) == 0) line += " sink";
  if (dice.below(8) == 0) line += " alibi";
  if (dice.below(8) == 0) line += " scale(-0.3)";
  return line;
}

}  // namespace dfa
