#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "contract/meter.h"

namespace dfa::sensors {

// Reads meters at a fixed period on its own thread into a bounded ring. When nobody drains it, the
// oldest readings are dropped and counted; memory never grows. While it runs, nothing else may read
// these meters.
class Sampler {
 public:
  struct Sample {
    std::size_t meter = 0;  // index into the meters given
    Reading reading;
  };

  // The meters must outlive the sampler. Throws InvalidArgument when period or capacity is not
  // above zero.
  Sampler(std::vector<Meter*> meters, double period_s, std::size_t capacity);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  void start();  // does nothing when it runs already
  void stop();   // returns once the thread has ended; reads no more

  void sample_once();           // what the thread does every period
  std::vector<Sample> drain();  // everything since the last drain, in order of reading
  std::uint64_t dropped() const;

 private:
  void loop();

  std::vector<Meter*> meters_;
  double period_s_;
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Sample> ring_;
  std::uint64_t dropped_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dfa::sensors
