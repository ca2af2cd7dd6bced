#pragma once

#include "plan/prices_forward.h"

// By what tiles of Hopper's forward in e4m3 are chosen. Prices are guessed from a step's cycles of
// tensor cores or of exponentials, whichever are more, and from what 16-bit tiles take beside those
// (0035); their order is that of results/studies/e4m3_h200.txt, where no tile gained by pingpong.
namespace dfa::prices {

inline constexpr MeasuredTile kGuessedE4m3[] = {
    {DType::e4m3, 64, {2.0, 0.76}, {2.0, 0.80}, {192, 96, 4, 2, false}},
    {DType::e4m3, 64, {1.5, 0.66}, {1.5, 0.70}, {128, 128, 4, 2, false}},
    {DType::e4m3, 96, {2.2, 0.74}, {2.2, 0.78}, {128, 128, 4, 2, false}},
    {DType::e4m3, 128, {2.4, 0.78}, {2.4, 0.82}, {128, 128, 4, 2, false}},
    {DType::e4m3, 128, {2.4, 0.60}, {2.4, 0.63}, {128, 96, 4, 2, false}},
    {DType::e4m3, 192, {3.4, 0.88}, {3.4, 0.92}, {128, 96, 2, 2, false}},
    {DType::e4m3, 256, {4.2, 0.82}, {4.2, 0.86}, {128, 64, 2, 2, false}},
};

// What v transposed before a forward costs, and in it (0035).
inline constexpr Source kOfTransposing{"H200", "results/studies/e4m3_h200.txt", "77300dba"};
inline constexpr Price kPackUs{"a kernel before the forward", 7., "us", kOfTransposing};
inline constexpr Price kPackBytesPerUs{"what it reads and writes", 2.5e6, "bytes a us",
                                       kOfTransposing};
inline constexpr Price kTransposingStep{"a step with v transposed beside it", 1.13, "of its price",
                                        kOfTransposing};
inline constexpr Price kWideTransposingStep{"the same above 128 columns", 1.16, "of its price",
                                            kOfTransposing};

// Of factors of blocks of rows first, where none of those divides the blocks: as many keys as the
// least block has.
inline constexpr Sm90Tile kE4m3BlockTiles[] = {{192, 64, 4, 2, false}, {128, 64, 4, 2, false}};

// What else there is of it: pairs, other dims of values, and the least.
inline constexpr Sm90Tile kOtherE4m3[] = {
    {128, 96, 4, 2, true, 2}, {128, 64, 4, 2, true}, {128, 64, 2, 2, true},
    {128, 64, 2, 2, true, 2}, {64, 64, 2, 2, false},
};

}  // namespace dfa::prices
