// How many backwards Hopper's rules let through: what a kernel change has to keep right.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/hopper_plan.h"
#include "plan/select.h"
#include "plan/validate_gpu.h"
#include "spec/config_names.h"

namespace dfa {
namespace {

// What a backward of cuda_sm90 is, apart from its tiles and head dims.
using Flags = std::tuple<DqAccumulation, int, bool, bool, bool, bool>;

Flags flags_of(const BackwardConfig& c) {
  return {c.dq, c.cluster, c.persistent, c.masked, c.split_q, c.gqa_inner_loop};
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const char* mask : {"", " causal", " window(300,0)", " window(200,100)"}) {
    for (const char* heads : {" hq16 hk16", " hq16 hk4", " hq32 hk1"}) {
      for (const char* s : {" s256", " s1024", " s4096", " s16384"}) {
        for (const char* d : {" d64", " d96", " d128", " d192", " d192 dv128", " d256"}) {
          for (const char* rest : {"", " deterministic"}) {
            all.push_back(
                parse_problem(std::string("bwd bf16") + mask + " b2" + heads + s + d + rest));
          }
        }
      }
    }
  }
  return all;
}

template <typename Visitor>
void for_each_flags(BackwardConfig c, Visitor&& visit) {
  for (const auto& [dq, name] : kDqAccumulationNames) {
    for (const int cluster : {1, 2}) {
      for (int bits = 0; bits < 16; ++bits) {
        c.dq = dq;
        c.cluster = cluster;
        c.persistent = bits & 1;
        c.masked = bits & 2;
        c.split_q = bits & 4;
        c.gqa_inner_loop = bits & 8;
        visit(c);
      }
    }
  }
}

TEST(Combinations, OfHoppersBackwardAreFewAndThoseThatAreChosenFewer) {
  std::set<Flags> legal, chosen;
  for (const Problem& p : problems()) {
    const BackwardConfig planned = hopper_backward(p);
    ASSERT_EQ(planned.target, Target::cuda_sm90) << to_line(p);
    chosen.insert(flags_of(planned));
    for_each_flags(planned, [&](const BackwardConfig& c) {
      if (validate_sm90(c, p, kHopper90)) legal.insert(flags_of(c));
    });
  }
  for (const Flags& flags : chosen) EXPECT_TRUE(legal.contains(flags));
  EXPECT_LE(legal.size(), 40u);
  EXPECT_LT(chosen.size(), legal.size());
}

}  // namespace
}  // namespace dfa
