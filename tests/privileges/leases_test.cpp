#include "privileges/leases.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace dfa::testing {
namespace {

using privileges::Lease;
using privileges::Leases;

using Cards = std::vector<std::string>;

TEST(Leases, OneConnectionHoldsACardAndMayHoldItLonger) {
  Leases leases;
  EXPECT_TRUE(leases.take("a", {.connection = 1, .pid = 77, .uid = 5, .until_s = 10}, 0));
  const Verdict other = leases.take("a", {.connection = 2, .until_s = 10}, 4);
  EXPECT_EQ(other.reason, "process 77 of user 5 holds a for 6 s at most");
  EXPECT_TRUE(leases.take("b", {.connection = 2, .until_s = 5}, 4));
  EXPECT_EQ(leases.next_end_s(), 5);
  EXPECT_TRUE(leases.take("a", {.connection = 1, .until_s = 20}, 8));
  EXPECT_EQ(leases.of("a")->until_s, 20);
  EXPECT_EQ(leases.of("a")->pid, 77);
  EXPECT_EQ(leases.held("a", 2), nullptr);
  ASSERT_NE(leases.held("a", 1), nullptr);
  EXPECT_EQ(leases.held("c", 1), nullptr);
}

TEST(Leases, WhatWasSetStaysWhereALeaseIsMadeLonger) {
  Leases leases;
  ASSERT_TRUE(leases.take("a", {.connection = 1, .until_s = 10}, 0));
  leases.held("a", 1)->limit_w = 450;
  ASSERT_TRUE(leases.take("a", {.connection = 1, .until_s = 20}, 0));
  EXPECT_EQ(leases.of("a")->limit_w, 450);
}

TEST(Leases, RunOutAtTheirTimeAndGoWithTheirConnection) {
  Leases leases;
  EXPECT_EQ(leases.next_end_s(), std::nullopt);
  ASSERT_TRUE(leases.take("a", {.connection = 1, .until_s = 10}, 0));
  ASSERT_TRUE(leases.take("b", {.connection = 1, .until_s = 12}, 0));
  ASSERT_TRUE(leases.take("c", {.connection = 2, .until_s = 14}, 0));
  EXPECT_EQ(leases.over(9.99), Cards{});
  EXPECT_EQ(leases.over(12), (Cards{"a", "b"}));
  EXPECT_EQ(leases.held_by(1), (Cards{"a", "b"}));
  leases.end("a");
  EXPECT_EQ(leases.of("a"), nullptr);
  EXPECT_EQ(leases.next_end_s(), 12);
  EXPECT_TRUE(leases.take("a", {.connection = 2, .until_s = 30}, 10));
  EXPECT_EQ(leases.held_by(2), (Cards{"a", "c"}));
}

TEST(Peers, AreKnownByTheKernelWithAllTheirGroups) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const auto peer = privileges::peer_of(ends[0]);
  ASSERT_TRUE(peer.value) << peer.status.reason;
  EXPECT_EQ(peer.value->pid, ::getpid());
  EXPECT_EQ(peer.value->uid, ::geteuid());
  EXPECT_TRUE(peer.value->in_group(::getegid()));
  std::vector<gid_t> groups(65536);
  groups.resize(
      static_cast<std::size_t>(::getgroups(static_cast<int>(groups.size()), groups.data())));
  for (const gid_t group : groups) EXPECT_TRUE(peer.value->in_group(group));
  EXPECT_FALSE(peer.value->in_group(424242));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(privileges::peer_of(ends[0]).value);
}

}  // namespace
}  // namespace dfa::testing
