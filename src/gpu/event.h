#pragma once

#include "gpu/stream.h"

struct CUevent_st;

namespace dfa::gpu {

// A mark in a stream, with a time stamp.
class Event {
 public:
  explicit Event(const Device& device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  void record(const Stream& stream);
  void synchronize() const;  // waits until the work before the mark is done
  bool done() const;
  CUevent_st* handle() const { return handle_; }

 private:
  friend double elapsed_ms(const Event& start, const Event& stop);

  const Device* device_;
  CUevent_st* handle_ = nullptr;
};

// Device time between two recorded events, in milliseconds, in steps of about half a microsecond.
// Both must be done: synchronize the later one first.
double elapsed_ms(const Event& start, const Event& stop);

}  // namespace dfa::gpu
