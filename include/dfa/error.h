#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "dfa/export.h"

namespace dfa {

// Base of everything the library throws. what() is one line that names the place, the offending
// value and what would be accepted.
class DFA_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A caller's value is wrong: shape, dtype, stride, text, pointer. CLI exit code 2.
class DFA_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file cannot be read or written. CLI exit code 2. Nothing is left half-written.
class DFA_API IoError : public Error {
 public:
  using Error::Error;
};

// The value is fine, but no backend or device here can do it. CLI exit code 3.
class DFA_API Unsupported : public Error {
 public:
  using Error::Error;
};

// Memory for inputs, outputs or workspace could not be had. The process can go on.
class DFA_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

// The answer to "can this be done here?": yes, or no with a reason a user can act on.
struct Verdict {
  bool ok = true;
  std::string reason;

  static Verdict yes() { return {}; }
  static Verdict no(std::string why) { return {false, std::move(why)}; }
  explicit operator bool() const { return ok; }
};

}  // namespace dfa
