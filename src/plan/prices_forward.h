#pragma once

#include "dfa/dtype.h"
#include "plan/price.h"

// What Hopper's forward was measured to take, by which its tiles are chosen (0015, "Tiles by
// joules"), and what the other choices of a forward go by.
namespace dfa {

// What a ForwardConfig says beyond element type and head dims.
struct Sm90Tile {
  int block_q, block_k, stages, q_stages;
  bool pingpong;
  int cluster = 1;
  int q_columns_in_regs = 0;
  int num_splits = 0;
  bool transpose_values = false;
  int pack_gqa = 0;  // 0: as select_pack_gqa has it

  friend bool operator==(const Sm90Tile&, const Sm90Tile&) = default;
};

namespace prices {

// What all multiprocessors of the card take together at its power limit of 700 W, in us: of a work
// tile each, and on top of that of every step along the keys.
struct TilePrice {
  double tile_us, step_us;
};

// Without a mask and with one.
struct MeasuredTile {
  DType element;
  int head_dim;
  TilePrice full, masked;
  Sm90Tile tile;
};

// Solved by benchmarks/tile_prices from the joules of the tile's rows and from what it took beside
// another tile in the same visit. Of d 192 and fp16 there is one row or two a tile, of before
// launches overlapped (tables/hopper_fp16_d192_h200.json, tables/hopper_fp16_d96_h200.json); what
// is not told by them is taken from a tile like it, by that tool's ITEMS_LIKE and BESIDE.
inline constexpr Source kOfTiles{"H200", "results/tables/hopper_forward_h200.json", "9d44e1f"};
inline constexpr MeasuredTile kMeasured[] = {
    {DType::bf16, 64, {2.28, 0.904}, {1.87, 0.918}, {256, 64, 4, 2, false}},
    {DType::bf16, 64, {1.46, 1.044}, {1.46, 1.107}, {128, 128, 3, 2, true}},
    {DType::bf16, 96, {3.86, 0.883}, {2.93, 0.909}, {192, 64, 3, 2, false, 1, 96}},
    {DType::bf16, 96, {2.61, 1.274}, {2.19, 1.491}, {128, 128, 2, 2, true}},
    {DType::bf16, 128, {3.95, 1.335}, {3.71, 1.367}, {192, 80, 2, 2, false}},
    {DType::bf16, 128, {2.61, 1.484}, {2.98, 1.573}, {128, 128, 2, 2, true}},
    {DType::bf16, 128, {2.65, 0.745}, {2.53, 0.792}, {128, 64, 4, 2, false, 1, 128}},
    {DType::bf16, 128, {3.92, 1.296}, {5.21, 1.301}, {192, 80, 2, 2, false, 2}},
    {DType::bf16, 192, {3.87, 1.066}, {4.21, 1.155}, {128, 64, 3, 1, false, 1, 96}},
    {DType::bf16, 192, {4.18, 1.054}, {3.58, 1.096}, {128, 64, 3, 1, false, 2, 96}},
    {DType::bf16, 256, {4.53, 1.42}, {5.12, 1.458}, {128, 64, 2, 1, false, 1, 96}},
    {DType::bf16, 256, {4.99, 1.394}, {4.34, 1.401}, {128, 64, 2, 1, false, 2, 96}},
    {DType::fp16, 64, {2.53, 1.041}, {2.09, 1.074}, {256, 64, 4, 2, false}},
    {DType::fp16, 64, {1.58, 1.056}, {1.58, 1.113}, {128, 128, 3, 2, true}},
    {DType::fp16, 96, {4.01, 1.059}, {3.11, 1.09}, {192, 64, 3, 2, false}},
    {DType::fp16, 96, {2.72, 1.484}, {2.4, 1.718}, {128, 128, 2, 2, true}},
    {DType::fp16, 128, {4.58, 1.465}, {3.98, 1.474}, {192, 80, 2, 2, false}},
    {DType::fp16, 128, {2.89, 1.643}, {3.24, 1.698}, {128, 128, 2, 2, true}},
    {DType::fp16, 128, {2.94, 0.876}, {2.73, 0.907}, {128, 64, 4, 2, false, 1, 128}},
    {DType::fp16, 128, {3.74, 1.45}, {5.73, 1.458}, {192, 80, 2, 2, false, 2}},
    {DType::fp16, 192, {3.87, 1.179}, {4.21, 1.21}, {128, 64, 3, 1, false, 1, 64}},
    {DType::fp16, 192, {4.18, 1.163}, {3.58, 1.157}, {128, 64, 3, 1, false, 2, 64}},
    {DType::fp16, 256, {5.16, 1.522}, {5.61, 1.567}, {128, 64, 2, 1, false, 1, 64}},
    {DType::fp16, 256, {5.57, 1.485}, {4.77, 1.496}, {128, 64, 2, 1, false, 2, 64}},
};

// Of heads above 256 columns, for so many of q and v together: by the time of 16k keys, and what 4k
// took beside that.
inline constexpr Source kOfSliced{"H200", "results/tables/wide_heads_h200.txt", "9313ea4"};
inline constexpr TilePrice kSlicedTile{4.0, 1.71};
inline constexpr int kSlicedColumns = 576 + 512;

inline constexpr Source kOfPairs{"H200", "results/studies/hopper_pairs_h200.txt", "80c6af5"};
inline constexpr Source kOfSplits{"H200", "results/studies/hopper_shares_h200.txt", "e6c32c8"};
inline constexpr Source kOfPingpong{"H200", "results/studies/hopper_turns_h200.txt", "b0b8126"};

// Larger work tiles are to promise this much less, as bursts lose by them.
inline constexpr Price kShortKeys{"keys up to which pairs of blocks gain no joules", 2048, "keys",
                                  kOfPairs};
inline constexpr Price kShortPairMargin{"a pair's time that is compared, up to those keys", 1.03,
                                        "of its price", kOfPairs};
inline constexpr Price kPairMargin{"a pair's time that is compared", 1.01, "of its price",
                                   kOfPairs};
inline constexpr Price kLargeMargin{"that of more than 128 queries", 1.005, "of its price",
                                    kOfPingpong};
// Heads of a group that are rows of one tile under a window, since its keys are then fewer: by the
// model they take 0.62 of the time at d 64 and a window of 128, which they do, but 0.86 at d 128,
// where nothing is gained.
inline constexpr Source kOfPackedWindows{"H200", "results/studies/hopper_packed_heads_h200.txt",
                                         "82afa6c"};
inline constexpr Price kPackedMargin{"time with packed heads that is compared, under a window", 1.2,
                                     "of its price", kOfPackedWindows};
// Ping-pong gains little where tiles are alike, and cost 1 % of few steps and up to 5 % under a
// mask.
inline constexpr Price kPingpongSteps{"steps from above which warpgroups are in ping-pong", 4,
                                      "tiles of keys", kOfPingpong};

// Of causal 4k at d 128; q in registers leaves less room for what ALiBi keeps.
inline constexpr Source kOfLogits{"H200", "results/studies/hopper_logits_h200.txt", "8fb1a91"};
inline constexpr Price kSoftcapStep{"a step with softcap", 1.92, "of its price", kOfLogits};
inline constexpr Price kAlibiStep{"a step with ALiBi", 1.14, "of its price", kOfLogits};
inline constexpr Price kAlibiStepHeld{"the same with q in registers", 1.2, "of its price",
                                      kOfLogits};
inline constexpr Price kAlibiStepPingpong{"the same with ping-pong", 1.5, "of its price",
                                          kOfLogits};

// By its instructions beside those of softcap.
inline constexpr Price kBiasStep{"a step with a bias", 1.6, "of its price", kNotRecorded};

// Of a text likewise, whose instructions instructions_of_texts() counts.
inline constexpr Price kTextStep{"what an instruction of a text adds to a step", 0.045,
                                 "of its price", kNotRecorded};

// Of work tiles that leave multiprocessors idle a call takes less than its joules at 700 W would:
// the clock is high, and what a step waits for is memory.
inline constexpr Price kPaceAlone{"a step's time where few blocks run, of its price", 0.28, "ratio",
                                  kOfSplits};
inline constexpr Price kPaceTogether{"and on top with all blocks", 0.93, "ratio", kOfSplits};
inline constexpr Price kLeastPace{"at least", 0.64, "ratio", kOfSplits};
inline constexpr Price kReadBytesPerUs{"what HBM brings", 4.0e6, "bytes/us", kOfSplits};
inline constexpr Price kBeside{"what the shorter of products and reads adds to the longer", 0.1,
                               "of its time", kOfSplits};
// What the kernel takes that combines splits: for two beginnings in one, what the measured last
// rounds of d 256 lack of the prediction, some 45 us of 115 splits of 256 rows.
inline constexpr Price kCombineUs{"the launch that combines splits", 3.0, "us", kOfSplits};
inline constexpr Price kCombineSplitUs{"and for each split of a work tile", 0.2, "us", kOfSplits};
inline constexpr Price kCombineBytesPerUs{"what splits leave, on its way to memory and back", 2.0e6,
                                          "bytes/us", kOfSplits};
inline constexpr Price kSplitWorth{"time with few work tiles split, of that without, to pay", 0.95,
                                   "ratio", kOfSplits};
// Predicted 0.973 of the time 0.98 came, predicted 0.984 0.99.
inline constexpr Price kLastRoundWorth{"time with the last round split, to pay", 0.975, "ratio",
                                       kOfSplits};

// Tiles of packed sequences that were the fastest, from so many rows on average on: 1.18 and 1.07
// to 1.11 of the speed of the next best, but 0.98 of one long sequence among short ones.
struct VarlenTile {
  int dim;
  int rows;
  Sm90Tile tile;
};
inline constexpr Source kOfVarlen{"H200", "results/studies/varlen_h200.txt", "396ce7d"};
inline constexpr VarlenTile kVarlenTiles[] = {{64, 512, {256, 64, 4, 2, false}},
                                              {128, 0, {128, 64, 4, 2, false, 1, 128}}};

// The tile of lists of blocks at this head dim: a step is no shorter than 128 keys' by its price,
// and a work tile 0.45 us less.
inline constexpr VarlenTile kListedTile{128, 0, {128, 64, 4, 2, false, 1, 128}};

// Dense keys of so few queries are dealt out on the device from so many on: it takes 0.63 to 0.99
// of the time of Hopper's kernel. Below, what a call costs at least weighs more.
inline constexpr Source kOfDense{"H200", "results/studies/decode_h200.txt", "7e983e1"};
inline constexpr Price kDenseRows{"queries by heads of a key head, at most", std::int64_t{32},
                                  "rows", kOfDense};
inline constexpr Price kDenseKeys{"keys of a sequence, at least", std::int64_t{8192}, "keys",
                                  kOfDense};
inline constexpr Price kDenseBytes{"keys and values, at least", std::int64_t{1} << 27, "bytes",
                                   kOfDense};

// Order of the work tiles on a grid (kernels/tile_balance.h).
inline constexpr Price kTileBesides{"first scores, last product and store of a work tile", 1.5,
                                    "steps", kNotRecorded};
inline constexpr Price kSectionWorth{"what other sections must keep a grid busier by", 0.01,
                                     "of the time", kOfPingpong};

}  // namespace prices
}  // namespace dfa
