#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/element.h"
#include "base/fill.h"
#include "contract/device.h"
#include "dfa/problem.h"
#include "spec/quantize.h"

namespace dfa::measure {

// Memory of a device.
class Buffer {
 public:
  Buffer(const Device& device, std::size_t bytes)
      : device_(device), bytes_(bytes), data_(bytes == 0 ? nullptr : device.allocate(bytes)) {}
  template <typename Value>
  Buffer(const Device& device, const std::vector<Value>& host)
      : Buffer(device, sizeof(Value) * host.size()) {
    if (data_ != nullptr) device.copy_in(data_, host.data(), bytes_);
  }
  ~Buffer() {
    if (data_ != nullptr) device_.release(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  const std::int32_t* integers() const { return static_cast<const std::int32_t*>(data_); }
  std::size_t size() const { return bytes_; }

  // Normal values where none are given.
  void fill(DType type, std::uint64_t seed, const void* given) {
    if (data_ == nullptr) return;
    if (given != nullptr) {
      device_.copy_in(data_, given, bytes_);
      return;
    }
    AlignedBuffer host(bytes_);
    const std::int64_t count = static_cast<std::int64_t>(bytes_) / bytes_of(type);
    fill_normal(host.data(), type, count, seed);
    device_.copy_in(data_, host.data(), bytes_);
  }

  // The same in e4m3; returns the factors of what it drew.
  std::vector<float> fill(const Quantizable& tensor, std::uint64_t seed) {
    std::vector<float> drawn(bytes_);
    fill_normal(drawn.data(), DType::fp32, std::ssize(drawn), seed);
    return fill(tensor, drawn);
  }

  // These values, an element each, in e4m3; returns their factors.
  std::vector<float> fill(const Quantizable& tensor, const std::vector<float>& values) {
    AlignedBuffer host(bytes_);
    std::memset(host.data(), 0, bytes_);
    std::vector<float> factors = quantize(values.data(), tensor, host.data());
    device_.copy_in(data_, host.data(), bytes_);
    return factors;
  }

  std::vector<float> values(DType type) const {
    const AlignedBuffer host = to_host();
    std::vector<float> wide(bytes_ / static_cast<std::size_t>(bytes_of(type)));
    for (std::size_t i = 0; i < wide.size(); ++i) {
      wide[i] = load_element(host.data(), type, static_cast<std::int64_t>(i));
    }
    return wide;
  }

  // All bits set is a NaN in every element type. Only the first `most` bytes.
  void poison(std::size_t most = std::numeric_limits<std::size_t>::max()) {
    if (data_ == nullptr) return;
    const std::size_t bytes = std::min(bytes_, most);
    AlignedBuffer host(bytes);
    std::memset(host.data(), 0xff, bytes);
    device_.copy_in(data_, host.data(), bytes);
  }

  AlignedBuffer to_host() const {
    AlignedBuffer host(bytes_);
    if (data_ != nullptr) device_.copy_out(host.data(), data_, bytes_);
    return host;
  }

 private:
  const Device& device_;
  std::size_t bytes_;
  void* data_;
};

// Factors of q, k and v on a device, and as a call takes them.
struct Factors {
  Factors(HostDescales from, const Device& on)
      : host(std::move(from)), q(on, host.q), k(on, host.k), v(on, host.v) {}

  Descales descales(const Problem& p) const { return descales_of(p, of(q), of(k), of(v)); }

  HostDescales host;
  Buffer q, k, v;

 private:
  static const float* of(const Buffer& buffer) { return static_cast<const float*>(buffer.data()); }
};

// q, k and v of a problem in another type, rounded to e4m3 at the same places.
struct Quantised {
  Quantised(const Problem& p, const Device& on, const Buffer& wide_q, const Buffer& wide_k,
            const Buffer& wide_v)
      : q(on, elements(wide_q, p)),
        k(on, elements(wide_k, p)),
        v(on, elements(wide_v, p)),
        factors({q.fill(quantizable_q(p), wide_q.values(p.dtype)),
                 k.fill(quantizable_k(p), wide_k.values(p.dtype)),
                 v.fill(quantizable_v(p), wide_v.values(p.dtype))},
                on) {}

  Buffer q, k, v;
  Factors factors;

 private:
  static std::size_t elements(const Buffer& wide, const Problem& p) {
    return wide.size() / static_cast<std::size_t>(bytes_of(p.dtype));
  }
};

}  // namespace dfa::measure
