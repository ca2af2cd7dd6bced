#include "dfa/problem.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_table.h"
#include "dfa/error.h"
#include "spec/bias.h"
#include "spec/blocks.h"
#include "spec/dropout.h"
#include "spec/dtype_name.h"
#include "spec/expression.h"
#include "spec/lengths.h"
#include "spec/parse.h"
#include "spec/problem_rules.h"
#include "spec/user_text.h"

namespace dfa {
namespace {

using problem_rules::bad;
using problem_rules::kMaxSize;
using problem_rules::kMostSplits;
using problem_rules::require_size;

constexpr auto kPasses = enum_table<Pass>(
    {{Pass::forward, "fwd"}, {Pass::backward, "bwd"}, {Pass::forward_backward, "fwdbwd"}});
constexpr auto kLayouts = enum_table<Layout>({{Layout::bhsd, "bhsd"}, {Layout::bshd, "bshd"}});

Strides dense(Layout layout, std::int64_t h, std::int64_t s, std::int64_t d) {
  if (layout == Layout::bhsd) return {h * s * d, s * d, d};
  return {s * h * d, d, h * d};
}

// Of packed sequences: [total, h, d].
Strides packed(std::int64_t h, std::int64_t d) { return {0, d, h * d}; }

Strides or_dense(const Strides& strides, Layout layout, std::int64_t h, std::int64_t s,
                 std::int64_t d) {
  return strides == Strides{} ? dense(layout, h, s, d) : strides;
}

// The N of "name(…)", or nothing when the token is not of that form.
std::optional<std::string_view> argument_of(std::string_view token, std::string_view name) {
  if (token.size() < name.size() + 2 || token.substr(0, name.size()) != name ||
      token[name.size()] != '(' || token.back() != ')') {
    return std::nullopt;
  }
  return token.substr(name.size() + 1, token.size() - name.size() - 2);
}

// The token in quotes, short; bytes that would end a message, or be read as others, as numbers.
std::string quoted(std::string_view token) {
  constexpr std::size_t kMost = 80;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : token.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return text + (token.size() > kMost ? "...'" : "'");
}

std::vector<std::int64_t> integers(std::string_view token, std::string_view arguments,
                                   std::size_t count, const char* form) {
  const std::vector<std::string_view> parts = between_commas(arguments);
  std::vector<std::int64_t> values;
  for (const std::string_view part : parts) {
    const std::optional<std::int64_t> value = to_integer(part);
    if (!value) break;
    values.push_back(*value);
  }
  if (parts.size() != count || values.size() != count) {
    bad(quoted(token) + " is not of the form " + form);
  }
  return values;
}

// Fills a Problem token by token; sizes that were not given stay unset until finish().
class Parser {
 public:
  void take(std::string_view token) {
    if (take_word(token) || take_call(token) || take_size(token)) return;
    bad("unknown token " + quoted(token) +
        "; expected PASS DTYPE [MASK] bN hqN hkN sqN skN dN [dvN] [window(L,R)] [chunk(N)] "
        "[prefix(P)] [deterministic] [scale(X)] [softcap(X)] [alibi] [bias(b|1,h|1[,q|1,k|1])] "
        "[sink] [dropout(P,SEED)] [blocks(…)] [mask_mod(TEXT)] [score_mod(TEXT)] [page(N)] "
        "[kv(e4m3)] [descale_rows(N)] [num_splits(N)] "
        "[batch_invariant] with PASS fwd|bwd|fwdbwd, DTYPE " +
        dtype_names("|") + ", MASK full|causal");
  }

  Problem finish() {
    if (!pass_) bad("the pass is missing; start with fwd, bwd or fwdbwd");
    if (!dtype_) bad("the dtype is missing; accepted: " + dtype_names());
    if (!problem_.lens_q.empty() || !problem_.lens_k.empty()) {
      take_lengths();
    } else {
      problem_.b = b_.value_or(1);
      problem_.sq = require(sq_, "sqN (or sN)");
      problem_.sk = sk_.value_or(problem_.sq);
      if (problem_.paged() && !problem_.packed()) take_dense_queries();
    }
    problem_.hq = require(hq_, "hqN (or hN)");
    problem_.hk = hk_.value_or(problem_.hq);
    problem_.d = require(d_, "dN");
    problem_.dv = dv_.value_or(problem_.d);
    if (bias_) problem_.bias = bias_of(*bias_, usual_bias_dtype(problem_));
    if (window_) {
      const bool causal = problem_.mask.is_causal();
      problem_.mask = *window_;
      if (causal) problem_.mask.right = 0;
    }
    problem_.mask.chunk = chunk_.value_or(0);
    problem_.mask.prefix = prefix_.value_or(0);
    problem_.descale_rows = descale_rows_.value_or(0);
    if (problem_.blocks && !problem_.packed()) fill_states(problem_);
    validate(problem_);
    return problem_;
  }

 private:
  static std::int64_t require(std::optional<std::int64_t> value, const char* what) {
    if (!value) bad(std::string("the size ") + what + " is missing");
    return *value;
  }

  // What follows from lens(…): how many there are, the longest, the rows of all.
  void take_lengths() {
    Problem& p = problem_;
    if (p.lens_q.empty()) bad("lens_k(…) goes beside lens(…), which is missing");
    if (p.lens_k.empty()) p.lens_k = p.lens_q;
    if (b_ || sq_ || sk_ || p.packed()) {
      bad("lens(…) says b, sq, sk and packed(…) already; leave them out");
    }
    p.b = static_cast<std::int64_t>(p.lens_q.size());
    p.sq = longest_of(p.lens_q);
    p.sk = longest_of(p.lens_k);
    p.total_q = total_of(p.lens_q);
    p.total_k = total_of(p.lens_k);
    if (p.paged()) p.total_k = rows_of_pages(p.lens_k, p.page);
    if (p.total_q == 0 || p.total_k == 0) bad("lens(…): no sequence has a row");
  }

  // b, sq, sk and page(N) alone: each sequence has sq queries, and pages for sk keys of its own.
  void take_dense_queries() {
    Problem& p = problem_;
    require_size("b", p.b);
    require_size("sq", p.sq);
    require_size("sk", p.sk);
    if (p.b > kMaxSize / std::max(p.sq, p.table_columns() * p.page)) {
      bad("the rows of all sequences pass 2^40");
    }
    p.total_q = p.b * p.sq;
    p.total_k = p.b * p.table_columns() * p.page;
  }

  bool take_word(std::string_view token) {
    if (const auto pass = kPasses.find(token)) return set_pass(*pass);
    if (const auto type = dtype_named(token)) {
      return set_once(dtype_, *type, "a second dtype", token);
    }
    if (token == "full" || token == "causal") {
      if (mask_given_) bad("a second mask '" + std::string(token) + "'");
      mask_given_ = true;
      problem_.mask = token == "full" ? kFull : kCausal;
      return true;
    }
    if (token == "deterministic") return problem_.deterministic = true;
    if (token == "alibi") return problem_.alibi = true;
    if (token == "sink") return problem_.sink = true;
    if (token == "batch_invariant") {
      if (problem_.batch_invariant) bad("a second batch_invariant");
      return problem_.batch_invariant = true;
    }
    return false;
  }

  bool set_pass(Pass pass) {
    if (pass_) bad("a second pass; give one of " + kPasses.names());
    pass_ = true;
    problem_.pass = pass;
    return true;
  }

  bool set_once(bool& given, DType type, const char* what, std::string_view token) {
    if (given) bad(std::string(what) + " '" + std::string(token) + "'");
    problem_.dtype = type;
    return given = true;
  }

  // Of chunk(N), prefix(P) and descale_rows(N), which are from 1 on.
  static bool take_positions(std::string_view token, std::string_view name,
                             std::optional<std::int64_t>& positions) {
    const auto text = argument_of(token, name);
    if (!text) return false;
    const std::optional<std::int64_t> value = to_integer(*text);
    if (!value || *value < 1 || *value > kMaxSize) {
      bad(quoted(token) + " is not of the form " + std::string(name) + "(N), N from 1 to 2^40");
    }
    if (positions) bad("a second " + std::string(name) + " " + quoted(token));
    positions = value;
    return true;
  }

  static bool take_text(std::string_view token, std::string_view name, std::string& to,
                        Expression (*parse)(std::string_view)) {
    if (!token.starts_with(name) || token.size() == name.size() || token[name.size()] != '(') {
      return false;
    }
    const auto text = argument_of(token, name);
    if (!text) bad(quoted(token) + " is not of the form " + std::string(name) + "(TEXT)");
    if (!to.empty()) bad("a second " + std::string(name) + " " + quoted(token));
    to = expression_text(parse(*text));
    return true;
  }

  bool take_call(std::string_view token) {
    if (take_positions(token, "chunk", chunk_)) return true;
    if (take_positions(token, "prefix", prefix_)) return true;
    if (const auto text = argument_of(token, "window")) {
      const auto sides = integers(token, *text, 2, "window(L,R), -1 for no limit");
      if (sides[0] < -1 || sides[1] < -1) bad("'" + std::string(token) + "': -1 is the least");
      if (window_) bad("a second window '" + std::string(token) + "'");
      window_ = within_reach({sides[0], sides[1]});
      return true;
    }
    if (const auto text = argument_of(token, "scale")) {
      const std::optional<double> scale = to_number<double>(*text);
      if (!scale) bad(quoted(token) + " is not of the form scale(X)");
      if (problem_.scale != 0) bad("a second scale " + quoted(token));
      problem_.scale = *scale;
      if (*scale == 0) bad("scale(0) would ignore q and k; leave it out for 1/sqrt(d)");
      return true;
    }
    if (const auto text = argument_of(token, "softcap")) {
      const std::optional<double> cap = to_number<double>(*text);
      if (!cap || *cap <= 0) bad(quoted(token) + " is not of the form softcap(X), X above 0");
      if (problem_.softcap != 0) bad("a second softcap " + quoted(token));
      problem_.softcap = *cap;
      return true;
    }
    if (const auto text = argument_of(token, "bias")) {
      if (bias_) bad("a second bias " + quoted(token));
      bias_ = *text;
      return true;
    }
    if (const auto text = argument_of(token, "dropout")) {
      if (dropout_) bad("a second dropout " + quoted(token));
      dropout_ = true;
      set_dropout(problem_, *text);
      return true;
    }
    if (const auto text = argument_of(token, "blocks")) {
      if (problem_.blocks) bad("a second blocks " + quoted(token));
      problem_.blocks = block_mask_of(*text);
      return true;
    }
    if (take_text(token, "mask_mod", problem_.mask_mod, parse_mask_mod)) return true;
    if (take_text(token, "score_mod", problem_.score_mod, parse_score_mod)) return true;
    if (const auto text = argument_of(token, "layout")) {
      const auto layout = kLayouts.find(*text);
      if (!layout) bad("'" + std::string(token) + "'; accepted: layout(" + kLayouts.names() + ")");
      if (layout_) bad("a second layout " + quoted(token));
      layout_ = true;
      problem_.layout = *layout;
      return true;
    }
    if (const auto text = argument_of(token, "page")) {
      const std::optional<std::int64_t> rows = to_integer(*text);
      if (!rows || *rows < 1 || *rows > kMaxSize) {
        bad(quoted(token) + " is not of the form page(N), N from 1 to 2^40");
      }
      if (problem_.paged()) bad("a second page " + quoted(token));
      problem_.page = *rows;
      return true;
    }
    if (const auto text = argument_of(token, "kv")) {
      if (*text != name_of(DType::e4m3)) bad(quoted(token) + " is not of the form kv(e4m3)");
      if (problem_.kv) bad("a second kv " + quoted(token));
      problem_.kv = DType::e4m3;
      return true;
    }
    if (take_positions(token, "descale_rows", descale_rows_)) return true;
    if (const auto text = argument_of(token, "num_splits")) {
      const std::optional<std::int64_t> splits = to_integer(*text);
      if (!splits || *splits < 1 || *splits > kMostSplits) {
        bad(quoted(token) + " is not of the form num_splits(N), N from 1 to " +
            std::to_string(kMostSplits));
      }
      if (problem_.num_splits != 0) bad("a second num_splits " + quoted(token));
      problem_.num_splits = static_cast<int>(*splits);
      return true;
    }
    if (const auto text = argument_of(token, "lens")) {
      if (!problem_.lens_q.empty()) bad("a second lens(…)");
      problem_.lens_q = lengths_of(*text);
      return true;
    }
    if (const auto text = argument_of(token, "lens_k")) {
      if (!problem_.lens_k.empty()) bad("a second lens_k(…)");
      problem_.lens_k = lengths_of(*text);
      return true;
    }
    if (const auto text = argument_of(token, "packed")) {
      const auto totals = integers(token, *text, 2, "packed(TOTAL_Q,TOTAL_K)");
      if (problem_.total_q != 0) bad("a second packed " + quoted(token));
      if (totals[0] < 1 || totals[1] < 1) bad(quoted(token) + ": totals are from 1 on");
      problem_.total_q = totals[0];
      problem_.total_k = totals[1];
      return true;
    }
    return take_strides(token, "strides_q", problem_.q_strides) ||
           take_strides(token, "strides_k", problem_.k_strides) ||
           take_strides(token, "strides_v", problem_.v_strides) ||
           take_strides(token, "strides_o", problem_.o_strides);
  }

  static bool take_strides(std::string_view token, std::string_view name, Strides& strides) {
    const auto text = argument_of(token, name);
    if (!text) return false;
    const auto values = integers(token, *text, 3, "strides_q(BATCH,HEAD,ROW)");
    if (strides != Strides{}) bad("a second " + std::string(name) + " " + quoted(token));
    strides = {values[0], values[1], values[2]};
    if (strides == Strides{}) bad("'" + std::string(token) + "': leave it out for dense tensors");
    return true;
  }

  bool take_size(std::string_view token) {
    struct Name {
      std::string_view text;
      std::optional<std::int64_t> Parser::*first;
      std::optional<std::int64_t> Parser::*second;
    };
    static constexpr Name kNames[] = {
        {"hq", &Parser::hq_, nullptr},     {"hk", &Parser::hk_, nullptr},
        {"sq", &Parser::sq_, nullptr},     {"sk", &Parser::sk_, nullptr},
        {"dv", &Parser::dv_, nullptr},     {"b", &Parser::b_, nullptr},
        {"h", &Parser::hq_, &Parser::hk_}, {"s", &Parser::sq_, &Parser::sk_},
        {"d", &Parser::d_, nullptr},
    };
    for (const Name& name : kNames) {
      if (token.substr(0, name.text.size()) != name.text) continue;
      const std::optional<std::int64_t> value = to_integer(token.substr(name.text.size()));
      if (!value) continue;
      for (const auto member : {name.first, name.second}) {
        if (member == nullptr) continue;
        if (this->*member) bad(quoted(token) + " sets a size a second time");
        this->*member = value;
      }
      return true;
    }
    return false;
  }

  Problem problem_;
  bool pass_ = false;
  bool dtype_ = false;
  bool mask_given_ = false;
  std::optional<Mask> window_;
  std::optional<std::int64_t> chunk_, prefix_, descale_rows_;
  std::optional<std::string> bias_;  // its type may be that of a word yet to come
  bool layout_ = false;
  bool dropout_ = false;
  std::optional<std::int64_t> b_, hq_, hk_, sq_, sk_, d_, dv_;
};

std::string strides_text(const char* name, const Strides& strides) {
  if (strides == Strides{}) return "";
  return std::string(" ") + name + "(" + std::to_string(strides.batch) + "," +
         std::to_string(strides.head) + "," + std::to_string(strides.row) + ")";
}

const char* name_of(Pass pass) { return kPasses.name(pass); }

}  // namespace

double Problem::softmax_scale() const {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(d));
}

Strides Problem::q() const {
  if (packed() && q_strides == Strides{}) return dfa::packed(hq, d);
  return or_dense(q_strides, layout, hq, sq, d);
}
Strides Problem::k() const {
  if (paged()) return or_dense(k_strides, Layout::bshd, hk, page, d);
  if (packed() && k_strides == Strides{}) return dfa::packed(hk, d);
  return or_dense(k_strides, layout, hk, sk, d);
}
Strides Problem::v() const {
  if (paged()) return or_dense(v_strides, Layout::bshd, hk, page, dv);
  if (packed() && v_strides == Strides{}) return dfa::packed(hk, dv);
  return or_dense(v_strides, layout, hk, sk, dv);
}
Strides Problem::o() const {
  if (packed() && o_strides == Strides{}) return dfa::packed(hq, dv);
  return or_dense(o_strides, layout, hq, sq, dv);
}

std::int64_t extent(const Strides& strides, std::int64_t b, std::int64_t h, std::int64_t s,
                    std::int64_t d) {
  return (b - 1) * strides.batch + (h - 1) * strides.head + (s - 1) * strides.row + d;
}

Problem parse_problem(std::string_view line) {
  Parser parser;
  for (const std::string_view token : tokens_of(line)) parser.take(token);
  return parser.finish();
}

std::string to_line(const Problem& p) {
  std::string line = std::string(name_of(p.pass)) + " " + name_of(p.dtype);
  const bool causal = p.mask.left < 0 && p.mask.right == 0;
  if (causal) line += " causal";
  const auto size = [&](const char* name, std::int64_t value) {
    line += std::string(" ") + name + std::to_string(value);
  };
  const bool by_lengths = !p.lens_q.empty();
  if (!by_lengths) size("b", p.b);
  size("hq", p.hq);
  size("hk", p.hk);
  if (!by_lengths) {
    size("sq", p.sq);
    size("sk", p.sk);
  }
  size("d", p.d);
  if (p.dv != p.d) size("dv", p.dv);
  if (!causal && (p.mask.left >= 0 || p.mask.right >= 0)) {
    line += " window(" + std::to_string(p.mask.left) + "," + std::to_string(p.mask.right) + ")";
  }
  if (p.mask.chunk > 0) line += " chunk(" + std::to_string(p.mask.chunk) + ")";
  if (p.mask.prefix > 0) line += " prefix(" + std::to_string(p.mask.prefix) + ")";
  if (by_lengths) {
    line += " lens(" + lengths_text(p.lens_q) + ")";
    if (p.lens_k != p.lens_q) line += " lens_k(" + lengths_text(p.lens_k) + ")";
  } else if (p.packed()) {
    line += " packed(" + std::to_string(p.total_q) + "," + std::to_string(p.total_k) + ")";
  }
  if (p.paged()) line += " page(" + std::to_string(p.page) + ")";
  if (p.deterministic) line += " deterministic";
  if (p.scale != 0) line += " scale(" + shortest(p.scale) + ")";
  if (p.softcap != 0) line += " softcap(" + shortest(p.softcap) + ")";
  if (p.alibi) line += " alibi";
  if (p.bias) line += bias_text(*p.bias, usual_bias_dtype(p));
  if (p.sink) line += " sink";
  line += dropout_text(p);
  if (p.blocks) line += " blocks(" + block_mask_text(*p.blocks) + ")";
  line += user_text(p);
  if (p.kv) line += std::string(" kv(") + name_of(*p.kv) + ")";
  if (p.descale_rows != 0) line += " descale_rows(" + std::to_string(p.descale_rows) + ")";
  if (p.num_splits != 0) line += " num_splits(" + std::to_string(p.num_splits) + ")";
  if (p.batch_invariant) line += " batch_invariant";
  if (p.layout == Layout::bshd) line += " layout(bshd)";
  line += strides_text("strides_q", p.q_strides) + strides_text("strides_k", p.k_strides) +
          strides_text("strides_v", p.v_strides) + strides_text("strides_o", p.o_strides);
  return line;
}

}  // namespace dfa
