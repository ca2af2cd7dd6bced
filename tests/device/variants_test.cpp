// Dropout, lists of blocks, texts and heads above 256, by the portable kernels on a card.
#include "device/device_case.h"

namespace dfa {
namespace {

class Variants : public DeviceTest {};

TEST_F(Variants, DropoutMeetsTheRule) {  // but of pages, which the file has one line of
  EXPECT_EQ(dfa::ran_of({"dropout.txt"}, {.backend = "cuda"}), lines_of("dropout.txt") - 1);
}

TEST_F(Variants, ListsOfBlocksMeetTheRule) {  // but beside the gradient of a bias, likewise
  EXPECT_EQ(dfa::ran_of({"blocks.txt"}, {.backend = "cuda"}), lines_of("blocks.txt") - 1);
}

TEST_F(Variants, TextsMeetTheRule) {  // but of pages, likewise
  EXPECT_EQ(dfa::ran_of({"user_text.txt"}, {.backend = "cuda"}), lines_of("user_text.txt") - 1);
}

TEST_F(Variants, TheyMeetTheRuleTogetherAndPacked) {
  EXPECT_EQ(dfa::ran_of({"variants.txt"}, {.backend = "cuda"}), lines_of("variants.txt"));
}

TEST_F(Variants, WideHeadsMeetTheRule) {
  EXPECT_EQ(dfa::ran_of({"wide_heads.txt"}, {.backend = "cuda"}), lines_of("wide_heads.txt"));
}

}  // namespace
}  // namespace dfa
