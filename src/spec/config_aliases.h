#pragma once

#include <string_view>
#include <vector>

#include "spec/config.h"

// Fields that configurations had before, as results and profiles still name them. Some have become
// values of `dq` and `masked`, some follow from other fields, and some named kernels that are gone.
namespace dfa {

// Today's name of a field that was renamed; else the name itself.
std::string_view todays_name(std::string_view field);

// Takes the old fields of a text one by one, then sees to it that the configuration is the one that
// was meant.
class OldFields {
 public:
  // Is it one of them? value: as written; sm90: of a configuration of cuda_sm90.
  bool take(std::string_view field, std::string_view value, bool sm90);
  bool any() const { return !fields_.empty(); }

  // Turns what was taken into today's fields. whole: what a whole configuration left out was off.
  // Throws InvalidArgument where a kernel is named that is no more.
  void apply(ForwardConfig& config, bool whole) const;
  void apply(BackwardConfig& config, bool whole) const;

 private:
  struct Field {
    std::string_view name, value;
  };

  std::string_view value_of(std::string_view name) const;  // empty: was not named
  void require(std::string_view name, bool follows, bool whole) const;

  std::vector<Field> fields_;
};

}  // namespace dfa
