#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/schedule/block_args.h"
#include "kernels/schedule/block_order.h"

namespace dfa {

// What sm90_blocks_forward and block_order are passed.
struct Sm90BlocksForwardArgs : Sm90ForwardArgs {
  BlockArgs blocks;
  BlockOrderArgs order;
};

}  // namespace dfa
