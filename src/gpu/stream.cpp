#include "gpu/stream.h"

#include <utility>

#include "gpu/driver.h"
#include "gpu/event.h"

namespace dfa::gpu {

Stream::Stream(const Device& device) : device_(&device), owned_(true) {
  const Scope scope(device);
  check(driver().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Stream Stream::foreign(const Device& device, void* handle) {
  return Stream(device, static_cast<CUstream>(handle));
}

Stream::~Stream() {
  if (!owned_ || handle_ == nullptr) return;
  try {
    const Scope scope(*device_);
    driver().cuStreamDestroy(handle_);
  } catch (const Error&) {  // the context is lost, and the stream with it
  }
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_),
      handle_(std::exchange(other.handle_, nullptr)),
      owned_(std::exchange(other.owned_, false)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(owned_, other.owned_);
  return *this;
}

void Stream::synchronize() const {
  const Scope scope(*device_);
  check(driver().cuStreamSynchronize(handle_), "cuStreamSynchronize");
}

void Stream::wait(const Event& event) const {
  const Scope scope(*device_);
  check(driver().cuStreamWaitEvent(handle_, event.handle(), CU_EVENT_WAIT_DEFAULT),
        "cuStreamWaitEvent");
}

bool Stream::capturing() const {
  const Scope scope(*device_);
  CUstreamCaptureStatus status{};
  check(driver().cuStreamIsCapturing(handle_, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace dfa::gpu
