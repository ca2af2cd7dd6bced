#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/quantity.h"
#include "dfa/error.h"

// What goes over the socket: a JSON object a line, an answer to each request, in order.
//
//   {"op":"hello","version":1}                        first; → {"ok":true,"version":1,"cards":[…]}
//   {"op":"lease","card":"0000:3b:00.0","seconds":60} again: from then on; seconds may be left out
//   {"op":"set","card":…,"limit_w":450}               or "clock_mhz":[1200,1200]: one at a time;
//                                                     null: as it was found
//   {"op":"restore","card":…}                         puts the card back and ends the lease
//   {"op":"status"}                                   who holds what
//
// A refusal is {"ok":false,"error":"…"}. Whatever ends the connection ends its leases.
namespace dfa::privileges {

inline constexpr int kVersion = 1;
inline constexpr std::size_t kMostRequest = 4096;      // bytes of a line, its end among them
inline constexpr std::size_t kMostReply = 256 * 1024;  // of a status of many cards

enum class Op : int { hello, lease, set, restore, status };

struct Request {
  Op op = Op::status;
  int version = 0;
  std::string card{};
  std::optional<double> seconds{};
  std::optional<double> limit_w{};
  std::optional<Range> clock_hz{};
  bool frees_limit = false;    // limit_w is null
  bool unlocks_clock = false;  // clock_mhz is null
};

// Throws InvalidArgument in one line: no JSON, no known op, a key that is missing, unknown or of
// another type.
Request parse_request(std::string_view line);
Json to_json(const Request& request);

Json refusal(const std::string& reason);

// The line with its end; text that is no UTF-8 is replaced.
std::string to_line(const Json& json);

// "…" as JSON has it: on one line, whatever a client sent.
std::string quoted(const std::string& text);

// Bytes as they come, in lines.
class LineBuffer {
 public:
  explicit LineBuffer(std::size_t most) : most_(most) {}

  void add(std::string_view bytes) { text_ += bytes; }
  std::optional<std::string> next();  // a whole line without its end
  bool has_line() const;              // that next() would give

  // More than a line may have, and no end of it: what follows cannot be told apart.
  bool overflows() const;

 private:
  std::size_t most_;
  std::string text_;
};

}  // namespace dfa::privileges
