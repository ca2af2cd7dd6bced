#pragma once

#include "plan/prices_forward.h"

// By what tiles of Hopper's forward in e4m3 are chosen. It has run on no card: its prices are
// guessed, not measured, from a step's cycles of tensor cores or of exponentials, whichever are
// more, at 1.7 GHz, and from what 16-bit tiles take beside those (0035).
namespace dfa::prices {

inline constexpr MeasuredTile kGuessedE4m3[] = {
    {DType::e4m3, 64, {2.0, 0.76}, {2.0, 0.80}, {192, 96, 4, 2, false}},
    {DType::e4m3, 64, {1.5, 0.72}, {1.5, 0.76}, {128, 128, 4, 2, true}},
    {DType::e4m3, 96, {2.2, 0.74}, {2.2, 0.78}, {128, 128, 4, 2, true}},
    {DType::e4m3, 128, {2.4, 0.78}, {2.4, 0.82}, {128, 128, 4, 2, true}},
    {DType::e4m3, 128, {2.4, 0.60}, {2.4, 0.63}, {128, 96, 4, 2, true}},
    {DType::e4m3, 192, {3.4, 0.88}, {3.4, 0.92}, {128, 96, 2, 2, true}},
    {DType::e4m3, 256, {4.2, 0.82}, {4.2, 0.86}, {128, 64, 2, 2, true}},
};

// What else there is of it: pairs, other dims of values, and the least.
inline constexpr Sm90Tile kOtherE4m3[] = {
    {128, 96, 4, 2, true, 2}, {128, 64, 4, 2, true}, {128, 64, 2, 2, true},
    {128, 64, 2, 2, true, 2}, {64, 64, 2, 2, false},
};

}  // namespace dfa::prices
