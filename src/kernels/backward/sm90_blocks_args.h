#pragma once

#include "kernels/backward/sm90_args.h"
#include "kernels/schedule/block_args.h"

namespace dfa {

// What sm90_blocks_backward is passed.
struct Sm90BlocksBackwardArgs : Sm90BackwardArgs {
  BlockArgs blocks;
};

}  // namespace dfa
