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

// What reading cost, as it was measured while reading.
struct ReadingCost {
  int rounds = 0;     // each reads every meter once
  double read_s = 0;  // spent in reads
  double wall_s = 0;  // from the first round's start to now, or to stop()
  double share() const { return wall_s > 0 ? read_s / wall_s : 0; }
};

// Reads meters on its own thread into a bounded ring. When nobody drains it, the oldest readings
// are dropped and counted; memory never grows. While it runs, nothing else may read these meters.
//
// It reads every `period_s`, and less often where reading is slow: it waits after each round until
// all reads together have taken no more than `max_share` of the time since it started.
class Sampler {
 public:
  struct Entry {
    std::size_t meter = 0;  // index into the meters given
    Reading reading;
    std::uint64_t round = 0;  // readings of one round belong together
  };

  static constexpr double kMaxShare = 1e-3;

  // The meters must outlive the sampler. Throws InvalidArgument when period, capacity or share is
  // not above zero.
  Sampler(std::vector<Meter*> meters, double period_s, std::size_t capacity,
          double max_share = kMaxShare);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  void start();  // does nothing when it runs already
  void stop();   // returns once the thread has ended; reads no more

  void sample_once();          // what the thread does every period
  std::vector<Entry> drain();  // everything since the last drain, in order of reading
  std::uint64_t dropped() const;
  ReadingCost cost() const;

 private:
  void loop();

  std::vector<Meter*> meters_;
  double period_s_;
  std::size_t capacity_;
  double max_share_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> ring_;
  std::uint64_t dropped_ = 0;
  std::uint64_t round_ = 0;
  ReadingCost cost_;
  double begin_s_ = 0;
  bool running_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dfa::sensors
