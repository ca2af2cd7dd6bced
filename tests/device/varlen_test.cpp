// Packed sequences on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class Varlen : public DeviceTest {};

TEST_F(Varlen, EverySequenceMeetsTheRule) {
  const int all = static_cast<int>(problem_lines("varlen.txt").size());
  EXPECT_EQ(dfa::ran_of({"varlen.txt"}, {.backend = "cuda"}), all);
}

}  // namespace
}  // namespace dfa
