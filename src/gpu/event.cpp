#include "gpu/event.h"

#include <utility>

#include "gpu/driver.h"

namespace dfa::gpu {

Event::Event(const Device& device) : device_(&device) {
  const Scope scope(device);
  check(driver().cuEventCreate(&handle_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Event::~Event() {
  if (handle_ == nullptr) return;
  try {
    const Scope scope(*device_);
    driver().cuEventDestroy(handle_);
  } catch (const Error&) {  // the context is lost, and the event with it
  }
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(const Stream& stream) {
  const Scope scope(*device_);
  check(driver().cuEventRecord(handle_, stream.handle()), "cuEventRecord");
}

void Event::synchronize() const {
  const Scope scope(*device_);
  check(driver().cuEventSynchronize(handle_), "cuEventSynchronize");
}

bool Event::done() const {
  const Scope scope(*device_);
  const CUresult result = driver().cuEventQuery(handle_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuEventQuery");
  return true;
}

double elapsed_ms(const Event& start, const Event& stop) {
  const Scope scope(*start.device_);
  float milliseconds = 0;
  check(driver().cuEventElapsedTime(&milliseconds, start.handle_, stop.handle_),
        "cuEventElapsedTime");
  return milliseconds;
}

}  // namespace dfa::gpu
