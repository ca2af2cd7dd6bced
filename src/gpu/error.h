#pragma once

#include <string>

#include "dfa/error.h"

namespace dfa::gpu {

// A call of the CUDA driver failed for a reason that is neither memory (OutOfMemory) nor a missing
// feature (Unsupported). what() names the call, the driver's code and its text.
class DriverError : public Error {
 public:
  DriverError(const std::string& message, int code, bool sticky)
      : Error(message), code_(code), sticky_(sticky) {}

  int code() const { return code_; }  // a CUresult

  // The device's context is lost: every later call of this process on the device fails the same
  // way, and only a new process helps. what() says so.
  bool sticky() const { return sticky_; }

 private:
  int code_;
  bool sticky_;
};

}  // namespace dfa::gpu
