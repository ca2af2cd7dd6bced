#include "cpu/amx_engine.h"

namespace dfa::cpu {

const Engine& amx_engine() {
  static constexpr Engine engine = amx::make_engine<amx::HardwareTiles>();
  return engine;
}

}  // namespace dfa::cpu
