#include "spec/standard_config.h"

#include <gtest/gtest.h>

#include "dfa/error.h"

namespace dfa {
namespace {

constexpr StandardConfig kStored{Probabilities::stored};

TEST(StandardConfig, TextThatIsPrintedIsRead) {
  for (const StandardConfig config : {StandardConfig{}, kStored}) {
    EXPECT_EQ(parse_standard_config(to_text(config)), config);
  }
  EXPECT_EQ(to_text(kStored), "StandardConfig{.probabilities=Probabilities::stored}");
  EXPECT_EQ(parse_standard_config("probabilities=stored"), kStored);
  EXPECT_EQ(parse_standard_config(""), StandardConfig{});
}

TEST(StandardConfig, WhatItIsNotIsRefusedWithWhatIsAccepted) {
  for (const char* text : {"block_q=64", "probabilities=kept", "ForwardConfig{.block_q=64}",
                           "StandardConfig{}", "StandardConfig{.probabilities=stored"}) {
    try {
      parse_standard_config(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(std::string("'") + text + "'"), std::string::npos) << what;
      EXPECT_NE(what.find("probabilities=stored"), std::string::npos) << what;
    }
  }
}

TEST(StandardConfig, AsksForStandardAttentionByItself) {
  EXPECT_TRUE(asks_standard({.config = to_text(kStored)}));
  EXPECT_TRUE(asks_standard({.algorithm = Algorithm::standard}));
  EXPECT_FALSE(asks_standard({}));
  EXPECT_FALSE(asks_standard({.config = "ForwardConfig{.block_q=64}"}));
  EXPECT_THROW(asks_standard({.algorithm = Algorithm::flash, .config = to_text(kStored)}),
               InvalidArgument);
}

}  // namespace
}  // namespace dfa
