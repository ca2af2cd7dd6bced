#include "cpu/amx_emulated_engine.h"

#include "cpu/amx_emulation.h"
#include "cpu/amx_engine.h"

namespace dfa::cpu {

const Engine& amx_emulated_engine() {
  static constexpr Engine engine = amx::make_engine<amx::EmulatedTiles>();
  return engine;
}

}  // namespace dfa::cpu
