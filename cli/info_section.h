#pragma once

#include <string>
#include <vector>

namespace dfa::cli {

// One thing that works here, or does not and why.
struct Item {
  std::string name;
  std::string text;  // what it is, or why it is not there
  bool works = true;
};

struct Section {
  std::string name;
  std::vector<Item> items;
  std::vector<std::string> unanswered{};  // what is there, as others count it, and does not answer
};

// The GPUs' sensors, one item each with its value now; a single item with the reason where NVML is
// not there.
Section gpu_sensor_section();

}  // namespace dfa::cli
