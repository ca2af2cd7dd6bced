#include "base/fill.h"

#include "base/element.h"
#include "base/random.h"

namespace dfa {

void fill_normal(void* data, DType type, std::int64_t count, std::uint64_t seed, float deviation) {
  const Random random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(data, type, i,
                  round_to(type, deviation * random.normal(static_cast<std::uint64_t>(i))));
  }
}

}  // namespace dfa
