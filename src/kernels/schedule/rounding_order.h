#pragma once

#include "kernels/device.h"

// Who rounds dq, where blocks that own keys do so beside their own work: those of some heads that
// of heads some before, whose sums are still in the L2 and have mostly long been complete. What the
// last have added up is left to blocks at the end of the grid. Blocks start in the order of their
// indices and wait for lower ones only.
namespace dfa {

// Heads are taken some at a time: a group. Counts are of clusters.
struct RoundingOrder {
  int groups;
  int keys;       // that own keys of a group
  int roundings;  // at the end, for each of the last groups
  int behind;     // groups: so far behind is dq rounded by those that own keys
  int last;       // groups whose dq is left to the end

  DFA_HOST_DEVICE int owners() const { return groups * keys; }
  DFA_HOST_DEVICE int clusters() const { return owners() + last * roundings; }

  // Of one that owns keys: the group whose dq it rounds a share of, and its number among those that
  // do. Is there one?
  DFA_HOST_DEVICE bool shares(int cluster) const {
    return shared_group(cluster) >= 0 && below_last(cluster);
  }
  DFA_HOST_DEVICE bool below_last(int cluster) const {
    return shared_group(cluster) < groups - last;
  }
  DFA_HOST_DEVICE int shared_group(int cluster) const { return cluster / keys - behind; }
  DFA_HOST_DEVICE int sharer(int cluster) const { return cluster % keys; }

  // Of one at the end, likewise.
  DFA_HOST_DEVICE int last_group(int cluster) const {
    return groups - last + (cluster - owners()) / roundings;
  }
  DFA_HOST_DEVICE int rounder(int cluster) const { return (cluster - owners()) % roundings; }
};

}  // namespace dfa
