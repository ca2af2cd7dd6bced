#pragma once

#include <string>
#include <vector>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "plan/prices_forward.h"
#include "spec/config.h"
#include "spec/limits.h"

// Which configuration runs: what there is, less what the rules refuse (validate.h), by its price.
namespace dfa {

// Every legal configuration of a fixed set of tiles, for the problem's element type and dims; on a
// GPU in the order of preference.
std::vector<ForwardConfig> forward_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> backward_candidates(const Problem& problem, const Limits& limits);

// The same of a GPU alone, and of Hopper's kernels alone, in 16 bits and in fp32.
template <typename Config>
std::vector<Config> gpu_candidates(const Problem& problem, const Limits& limits);
std::vector<ForwardConfig> sm90_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits);
std::vector<ForwardConfig> fp32x3_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> fp32x3_backward_candidates(const Problem& problem,
                                                       const Limits& limits);

// The tiles of Hopper's forward whose joules were measured for a problem's element type and head
// dim, the least first (larger ones with a margin on top), also with work tiles cut along their
// keys where that promises enough; none of other types and dims. Whether a tile is legal of the
// problem is not asked. With the time that a call is predicted to take while the card stands at its
// power limit of 700 W, in us. Prices are of all multiprocessors of a card together, and hold for
// sm_count of them as their share.
struct PricedTile {
  double us;
  Sm90Tile tile;
};
std::vector<PricedTile> priced_sm90_tiles(const Problem& problem, int sm_count);

// The GPU's configuration to run with where nothing was measured. When validate_config() refuses
// it, no configuration is legal and its reason is the problem's.
ForwardConfig select_forward(const Problem& problem, const Limits& limits);
BackwardConfig select_backward(const Problem& problem, const Limits& limits);

// Is that of the backward legal? No, with the reason, and where lists of blocks are the reason with
// the sides that are legal.
Verdict backward_fits(const Problem& problem, const Limits& limits);

// Has Hopper a kernel for this pass? No, with the reason.
Verdict sm90_fits(const Problem& problem, const Limits& limits);
Verdict sm90_backward_fits(const Problem& problem, const Limits& limits);

// Can both passes be Hopper's in fp32, whichever the problem has? No, with the reason.
Verdict fp32x3_fits(const Problem& problem, const Limits& limits);
Verdict fp32x3_backward_fits(const Problem& problem, const Limits& limits);  // the backward alone

// `base` with what `text` says on top, if it is legal. Text that names a type serves that type
// only, plain "field=value" text serves both. Throws InvalidArgument with validate_config()'s
// reason.
ForwardConfig legal_config(const std::string& text, const ForwardConfig& base,
                           const Problem& problem, const Limits& limits);
BackwardConfig legal_config(const std::string& text, const BackwardConfig& base,
                            const Problem& problem, const Limits& limits);

// What a text is said of: the selected configuration among the kernels of the target that the text
// names, or the first that is legal with what it says.
ForwardConfig gpu_forward_base(const std::string& text, const Problem& problem,
                               const Limits& limits);
BackwardConfig gpu_backward_base(const std::string& text, const Problem& problem,
                                 const Limits& limits);

// On a GPU: the selected configuration where the text is empty, else the one that it asks for.
// Throws InvalidArgument like legal_config().
ForwardConfig asked_forward(const std::string& text, const Problem& problem, const Limits& limits);
BackwardConfig asked_backward(const std::string& text, const Problem& problem,
                              const Limits& limits);

}  // namespace dfa
