#pragma once

#include <cstdint>

#include "plan/price.h"

// What the choices of a backward go by: up to which keys, or which steps beside those of another
// kernel, a way was measured to be the faster one (0019, "What was tried").
namespace dfa::prices {

inline constexpr Source kOfPairedKeys{"H200", "results/studies/hopper_backward_pairs_h200.txt",
                                      "23a72ca"};
inline constexpr Source kOfPersistent{"H200", "results/studies/hopper_backward_persistent_h200.txt",
                                      "d6ab129"};
inline constexpr Source kOfRounding{"H200", "results/studies/hopper_backward_rounding_h200.txt",
                                    "49d4087"};
inline constexpr Source kOfHelpedDq{"H200", "results/studies/hopper_helped_dq_h200.txt", "428a9c2"};
inline constexpr Source kOfWidePairs{"H200", "results/studies/hopper_wide_pairs_h200.txt",
                                     "dfd8bce"};
inline constexpr Source kOfWidePersistent{"H200", "results/studies/hopper_wide_stay_h200.txt",
                                          "9d44e1f"};
inline constexpr Source kOfWideHelped{"H200", "results/studies/hopper_wide_helped_h200.txt",
                                      "e6e2a7b"};
inline constexpr Source kOfWindows{"H200", "results/studies/hopper_windows_h200.txt", "8b755f1"};
inline constexpr Source kOfSplitQ{"H200", "results/studies/hopper_work_parts_h200.txt", "2b867de"};
inline constexpr Source kOfTailHeads{"H200", "results/studies/hopper_last_heads_h200.txt",
                                     "9a50f6d"};
inline constexpr Source kOfHeads{"H200", "results/studies/hopper_heads_h200.txt", "7b813f9"};
inline constexpr Source kOfAsTheyCome{"H200", "results/studies/hopper_turns_h200.txt", "b0b8126"};
inline constexpr Source kOfSequences{"H200", "results/studies/varlen_h200.txt", "396ce7d"};
inline constexpr Source kOfPortable{"H200", "results/tables/backward_ordered_h200.txt", "b8a9a21"};

// d and dv up to 128. Pairs of blocks halve what blocks read and add up beside the tensor cores,
// and walk more than one block.
inline constexpr Price kPairSteps{"steps of pairs up to which they are taken", 1.2,
                                  "of one block's", kOfPairedKeys};
inline constexpr Price kNarrowPairSteps{"the same up to d 64", 1.15, "of one block's",
                                        kOfPairedKeys};
inline constexpr Price kMaskedPairSteps{"the same under a mask, half of which is passed over", 1.52,
                                        "of one block's", kOfWindows};
inline constexpr Price kMostPersistentKeys{"keys that a query sees up to which pairs stay", 2048,
                                           "keys", kOfPersistent};
inline constexpr Price kMostOrderedKeys{"keys from above which dq is summed as it comes", 8192,
                                        "keys", kOfAsTheyCome};
inline constexpr Price kMostTurnKeys{"keys and queries above which it is zeroed and rounded beside",
                                     2048, "keys", kOfHelpedDq};
inline constexpr Price kRoundedKeys{"keys from which a warp rounds dq beside the tensor cores",
                                    1024, "keys", kOfRounding};
inline constexpr Price kNarrowRoundedKeys{"the same up to d 64", 512, "keys", kOfRounding};
inline constexpr Price kMostRoundedKeys{"and up to which", 8192, "keys", kOfRounding};

// d or dv from 129 on. Serialized sums cost a quarter of the speed, so only deterministic
// problems take them.
inline constexpr Price kWidePairSteps{"steps of pairs up to which they are taken", 1.08,
                                      "of one block's", kOfWidePairs};
inline constexpr Price kWidestPairSteps{"the same above 192, of pairs that do not stay", 1.03,
                                        "of one block's", kOfWidePairs};
inline constexpr Price kWideSerializedPairSteps{"the same serialized", 1.12, "of one block's",
                                                kNotRecorded};
inline constexpr Price kHelpedPairSteps{"the same where sums are zeroed and rounded beside", 1.25,
                                        "of one block's", kOfWindows};
inline constexpr Price kWidestHelpedPairSteps{"the same above 192", 1.15, "of one block's",
                                              kOfWindows};
inline constexpr Price kMostWidePersistentKeys{"keys that a query sees up to which pairs stay",
                                               1024, "keys", kOfWidePersistent};
inline constexpr Price kMostWidestHelpedKeys{
    "keys that a query sees up to which sums above 192 are zeroed and rounded beside", 2048, "keys",
    kOfWideHelped};
inline constexpr Price kMostKeysUnhelped{
    "keys up to which those of up to 192 without a mask are not", 1024, "keys", kOfWideHelped};

// Of packed sequences: below so many on average pairs would walk what few queries see.
inline constexpr Price kLeastMeanKeys{"keys of a sequence on average from which pairs are taken",
                                      192, "keys", kOfSequences};

// Order of the work tiles (schedule.h).
inline constexpr Price kL2Share{"what is walked again may take of the L2's 50 MB",
                                std::int64_t{32 << 20}, "bytes", kNotRecorded};
// With 8, q, do and the sums of dq of one are read and added to by 16 blocks before they leave the
// L2; blocks of more than that wait for each other's semaphores.
inline constexpr Price kSm90HeadsAtOnce{"key heads whose dq is serialized at once", 8, "heads",
                                        kOfPairedKeys};
inline constexpr Price kPairsAtOnce{"work tiles at once where none waits for a semaphore", 64,
                                    "pairs", kOfHeads};
inline constexpr Price kBlocksBehind{"blocks behind which dq is rounded: a card's, and a half more",
                                     192, "blocks", kOfRounding};
inline constexpr Price kPairBlocksBehind{"the same of serialized pairs", 560, "blocks", kOfHeads};
inline constexpr Price kWorkBesides{"a work tile's keys, dq of its last tile, its gradients", 1.5,
                                    "steps", kNotRecorded};
inline constexpr Price kSharedHeadsCost{"what tail heads cost for each kL2Share of theirs", 0.005,
                                        "of the time", kOfTailHeads};

// Work tiles in parts (BackwardConfig::split_q), in steps of a pair: beside its own a part takes
// its keys and leaves its sums, and who ends last has those of all.
inline constexpr Price kPartBesides{"keys and sums of a part", std::int64_t{4}, "steps", kOfSplitQ};
inline constexpr Price kPartsAStep{"parts whose sums are added up in a step", std::int64_t{2},
                                   "parts", kOfSplitQ};
inline constexpr Price kRoundingSteps{
    "what a shorter last round must gain where dq is rounded beside", std::int64_t{16}, "steps",
    kOfSplitQ};
inline constexpr Price kShareOfAll{"the same of sums as they come, a share of all: one of",
                                   std::int64_t{20}, "steps", kOfSplitQ};
inline constexpr Price kShareOfFew{
    "the same of fewer work tiles than pairs, a share of theirs: one of", std::int64_t{10}, "steps",
    kOfWindows};

}  // namespace dfa::prices
