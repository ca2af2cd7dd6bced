#include "emulated/boxes.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "gpu/tensor_map.h"

namespace dfa {
namespace emulated {
namespace {

// What a map of this program holds.
struct Map {
  std::uint64_t address;
  std::uint64_t sizes[5], strides[4];
  std::uint32_t box_columns, box_rows, box_planes, element_bytes;
};
static_assert(sizeof(Map) <= sizeof(TensorMap));

constexpr unsigned kRowBytes = 128, kChunk = 16;

Map read_map(const TensorMap& map) {
  Map m;
  std::memcpy(&m, &map, sizeof m);
  return m;
}

// Visits the box in chunks of 16 bytes: offset in it, address in memory, bytes that exist.
template <typename Visit>
void each_chunk(const Map& m, Place place, const Visit& visit) {
  const auto inside = [](int index, std::uint64_t size) {
    return index >= 0 && static_cast<std::uint64_t>(index) < size;
  };
  for (unsigned row = 0; row < m.box_rows * m.box_planes; ++row) {
    const int at_row = place.row + static_cast<int>(row % m.box_rows);
    const int at_plane = place.plane + static_cast<int>(row / m.box_rows);
    const bool row_exists = inside(at_row, m.sizes[1]) && inside(at_plane, m.sizes[2]) &&
                            inside(place.batch, m.sizes[3]) && inside(place.fifth, m.sizes[4]);
    for (unsigned at = 0; at < kRowBytes; at += kChunk) {
      const auto column = static_cast<std::uint64_t>(place.column) + at / m.element_bytes;
      if (!row_exists || column >= m.sizes[0]) {
        visit(row * kRowBytes + at, nullptr, 0u);
        continue;
      }
      const std::uint64_t address = m.address + column * m.element_bytes +
                                    static_cast<std::uint64_t>(at_row) * m.strides[0] +
                                    static_cast<std::uint64_t>(at_plane) * m.strides[1] +
                                    static_cast<std::uint64_t>(place.batch) * m.strides[2] +
                                    static_cast<std::uint64_t>(place.fifth) * m.strides[3];
      const std::uint64_t left = (m.sizes[0] - column) * m.element_bytes;
      visit(row * kRowBytes + at, reinterpret_cast<const char*>(address),
            static_cast<unsigned>(std::min<std::uint64_t>(left, kChunk)));
    }
  }
}

}  // namespace

unsigned box_bytes(const TensorMap& map) {
  const Map m = read_map(map);
  return m.box_rows * m.box_planes * kRowBytes;
}

void move_box_in(unsigned target, const TensorMap& map, Place place) {
  each_chunk(read_map(map), place, [&](unsigned offset, const char* from, unsigned bytes) {
    char chunk[kChunk] = {};
    if (bytes > 0) std::memcpy(chunk, from, bytes);
    write_by_copy(swizzled(target + offset, kRowBytes), chunk, kChunk);
  });
}

void BoxStore::read() {
  if (is_read()) return;
  bytes_.resize(box_bytes(map_));
  for (unsigned at = 0; at < bytes_.size(); at += kChunk) {
    std::memcpy(bytes_.data() + at, seen_by_async(swizzled(source_ + at, kRowBytes), kChunk),
                kChunk);
  }
}

void BoxStore::write() {
  if (written_) return;
  written_ = true;
  each_chunk(read_map(map_), place_, [&](unsigned offset, const char* to, unsigned bytes) {
    if (bytes > 0) std::memcpy(const_cast<char*>(to), bytes_.data() + offset, bytes);
  });
}

}  // namespace emulated

std::uint64_t gpu::fifth_stride(const TiledTensor& tensor) {
  return (std::uint64_t{1} << 34) - tensor.strides[2];
}

// In the driver's place, and as particular.
void gpu::encode(const TiledTensor& tensor, void* map) {
  constexpr std::uint64_t kMostStride = 1ULL << 40, kMostSize = 1ULL << 32;
  const auto refuse = [](const char* what) {
    throw std::runtime_error(std::string("no map of a tensor: ") + what);
  };
  if (reinterpret_cast<std::uintptr_t>(tensor.address) % 16 != 0) refuse("its address");
  for (const std::uint64_t size : tensor.sizes) {
    if (size == 0 || size > kMostSize) refuse("a size");
  }
  for (const std::uint64_t stride : tensor.strides) {
    if (stride == 0 || stride % 16 != 0 || stride >= kMostStride) refuse("a stride");
  }
  const std::uint32_t bytes = tensor.element == MapElement::e4m3 ? 1 : 2;
  if (tensor.box_columns * bytes != 128 || tensor.box_rows == 0 || tensor.box_rows > 256 ||
      tensor.box_planes == 0 || tensor.box_planes > 256) {
    refuse("its box");
  }
  emulated::Map m{reinterpret_cast<std::uint64_t>(tensor.address),
                  {},
                  {},
                  tensor.box_columns,
                  tensor.box_rows,
                  tensor.box_planes,
                  bytes};
  std::copy_n(tensor.sizes, 4, m.sizes);
  std::copy_n(tensor.strides, 3, m.strides);
  m.sizes[4] = tensor.has_fifth ? kFifthCoordinate + 1 : 1;
  m.strides[3] = tensor.has_fifth ? fifth_stride(tensor) : 0;
  std::memcpy(map, &m, sizeof m);
}

}  // namespace dfa
