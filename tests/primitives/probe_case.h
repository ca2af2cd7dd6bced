#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "cuda/cache.h"
#include "cuda/nvrtc.h"
#include "cuda/store.h"
#include "dfa/dtype.h"
#include "gpu/buffer.h"
#include "gpu/kernel.h"
#include "primitives/probe_args.h"
#include "primitives/probes.h"

// Runs a probe on the device: fresh random inputs each time (DFA_FUZZ_SEED gives them again),
// outputs full of ones before, which are NaN, and a guard behind them.
namespace dfa::cuda {

// Host memory that a probe reads.
struct Input {
  Input() = default;
  template <typename T>
  Input(const std::vector<T>& values) : data(values.data()), bytes(values.size() * sizeof(T)) {}
  const void* data = nullptr;
  std::size_t bytes = 0;
};

struct Shape {
  unsigned blocks = 1;
  unsigned threads = 32;
  int smem_bytes = 0;
};

class Primitives : public testing::Test {
 protected:
  static constexpr std::size_t kGuardBytes = 256;

  void SetUp() override {
    if (const Verdict there = gpu::available(); !there) GTEST_SKIP() << there.reason;
    const char* seed = std::getenv("DFA_FUZZ_SEED");
    seed_ = seed == nullptr ? std::random_device{}() : std::strtoul(seed, nullptr, 10);
    random_.seed(seed_);
    trace_ = std::make_unique<testing::ScopedTrace>(__FILE__, __LINE__,
                                                    "DFA_FUZZ_SEED=" + std::to_string(seed_));
  }

  const gpu::Device& device() const { return gpu::Device::get(); }

  bool runs_here(const std::string& entry) const {
    return probe_of(entry).least <= device().facts().capability;
  }

  // The output: `count` values, or what `before` says they are at first.
  template <typename T>
  std::vector<T> run(const std::string& entry, const Shape& shape, std::size_t count,
                     probe::Args args, const Input& a, const Input& b = {}, const Input& c = {},
                     const std::vector<T>& before = {}) {
    const gpu::Stream stream(device());
    const auto copied = [&](const Input& input) {
      gpu::Buffer buffer(device(), input.bytes);
      if (input.bytes > 0) gpu::copy_in(stream, buffer.data(), input.data, input.bytes);
      return buffer;
    };
    const gpu::Buffer buffers[] = {copied(a), copied(b), copied(c)};
    const gpu::Buffer out(device(), count * sizeof(T) + kGuardBytes);
    gpu::fill(stream, out.data(), 0xff, out.bytes());
    if (!before.empty()) gpu::copy_in(stream, out.data(), before.data(), count * sizeof(T));
    args.a = buffers[0].data();
    args.b = buffers[1].data();
    args.c = buffers[2].data();
    args.out = out.data();
    const gpu::Kernel kernel = kernel_of(entry);
    kernel.allow_smem(shape.smem_bytes);
    gpu::launch(kernel,
                {.grid = {shape.blocks}, .block = {shape.threads}, .smem_bytes = shape.smem_bytes},
                stream, args);
    std::vector<T> values(count);
    std::vector<unsigned char> guard(kGuardBytes);
    gpu::copy_out(stream, values.data(), out.data(), count * sizeof(T));
    gpu::copy_out(stream, guard.data(), static_cast<char*>(out.data()) + count * sizeof(T),
                  kGuardBytes);
    stream.synchronize();
    EXPECT_EQ(guard, std::vector<unsigned char>(kGuardBytes, 0xff)) << entry << " wrote too far";
    return values;
  }

  std::uint32_t word() { return static_cast<std::uint32_t>(random_()); }
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  float normal() { return std::normal_distribution<float>()(random_); }

  std::vector<std::uint32_t> words(std::size_t count) {
    std::vector<std::uint32_t> values(count);
    for (std::uint32_t& value : values) value = word();
    return values;
  }
  std::vector<float> normals(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal();
    return values;
  }
  // Of a product's operands: elements as they are stored, and as the product takes them.
  struct Elements {
    std::vector<std::uint32_t> stored;
    std::vector<double> values;
    operator Input() const { return stored; }
  };
  Elements elements(DType type, std::size_t count) {
    Elements all{std::vector<std::uint32_t>(count * static_cast<std::size_t>(bytes_of(type)) / 4),
                 std::vector<double>(count)};
    char* to = reinterpret_cast<char*>(all.stored.data());
    for (std::size_t i = 0; i < count; ++i) {
      const float x = normal();
      all.values[i] = taken(type, x);
      const std::uint16_t half = type == DType::bf16 ? to_bf16(x).bits : to_fp16(x).bits;
      if (bytes_of(type) == 2) std::memcpy(to + 2 * i, &half, 2);
      if (bytes_of(type) == 4) std::memcpy(to + 4 * i, &x, 4);
    }
    return all;
  }
  static double taken(DType type, float x) {
    switch (type) {
      case DType::bf16: return to_float(to_bf16(x));
      case DType::fp16: return to_float(to_fp16(x));
      case DType::tf32: return rounded_tf32(x);
      default: return x;
    }
  }
  static float rounded_tf32(float x) {  // to nearest, ties away from zero
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000u) & ~0x1fffu);
  }

  // fp32 sums of `products` in any order, cut and not rounded as tensor cores cut them.
  static void expect_sum(float sum, double expected, double magnitude, int products,
                         const std::string& where) {
    EXPECT_NEAR(sum, expected, 0x1p-23 * (products + 2) * magnitude) << where;
  }

 private:
  static const Probe& probe_of(const std::string& entry) {
    static const std::vector<Probe> all = probes();
    for (const Probe& probe : all) {
      if (probe.name == entry) return probe;
    }
    throw InvalidArgument("no probe '" + entry + "' in probes.h");
  }

  gpu::Kernel kernel_of(const std::string& entry) const {
    static KernelStore store({.cache = cache_folder()},
                             std::make_shared<const Nvrtc>(probe_sources()), probe_sources(), {});
    const StoredKernel stored = store.get(request_of(probe_of(entry), device().facts().arch()));
    return gpu::Library(device(), stored.code->cubin).kernel(stored.code->lowered_name);
  }

  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<testing::ScopedTrace> trace_;
};

inline std::string of(DType type) { return std::string("dfa::DType::") + name_of(type); }

}  // namespace dfa::cuda
