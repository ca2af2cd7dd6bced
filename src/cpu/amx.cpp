#include "cpu/amx_engine.h"
#include "cpu/peak.h"

namespace dfa::cpu {
namespace {

// Dots into six tiles in turn: their latency is hidden, nothing is loaded.
float run_dots(long iterations) {
  using Tiles = amx::HardwareTiles;
  Tiles::configure();
  Tiles::zero<0>(), Tiles::zero<1>(), Tiles::zero<2>(), Tiles::zero<3>();
  Tiles::zero<4>(), Tiles::zero<5>(), Tiles::zero<6>(), Tiles::zero<7>();
  for (long n = iterations; n > 0; --n) {
    Tiles::dot<0, 6, 7>(), Tiles::dot<1, 6, 7>(), Tiles::dot<2, 6, 7>();
    Tiles::dot<3, 6, 7>(), Tiles::dot<4, 6, 7>(), Tiles::dot<5, 6, 7>();
  }
  Tiles::release();
  return 0.0f;
}

constexpr PeakLoop kPeak{6 * 2.0 * 16 * 16 * 32, run_dots};

}  // namespace

const PeakLoop& amx_peak() { return kPeak; }

const Engine& amx_engine() {
  static constexpr Engine engine = amx::make_engine<amx::HardwareTiles>();
  return engine;
}

}  // namespace dfa::cpu
