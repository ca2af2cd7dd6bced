// Kernels that may begin before the one ahead of them on the stream has ended (programmatic
// dependent launch), on a real device: each call reads what the one before it wrote.
#include <array>
#include <functional>
#include <vector>

#include "base/fill.h"
#include "device/device_case.h"

namespace dfa {
namespace {

class Overlap : public HopperDevice {};

class OnDevice {
 public:
  OnDevice(DType type, std::int64_t elements, std::uint64_t seed)
      : bytes_(static_cast<std::size_t>(elements * bytes_of(type))),
        pointer_(cuda().device().allocate(bytes_)) {
    AlignedBuffer host(bytes_);
    fill_normal(host.data(), type, elements, seed);
    cuda().device().copy_in(pointer_, host.data(), bytes_);
  }
  ~OnDevice() { cuda().device().release(pointer_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* get() const { return pointer_; }
  float* floats() const { return static_cast<float*>(pointer_); }
  std::string bytes() const {
    std::string host(bytes_, '\0');
    cuda().device().copy_out(host.data(), pointer_, bytes_);
    return host;
  }

 private:
  std::size_t bytes_;
  void* pointer_;
};

enum class Calls { waited_for, queued, recorded };

constexpr int kCalls = 12;

// Forward and backward in turns, q of each being o of the one before, and do its dq. What the last
// ones leave: o, lse, dq, dk, dv. With a scale of 0.5 they neither vanish nor grow.
std::vector<std::string> chain(const std::string& line, Calls how) {
  const Problem p = parse_problem(line);
  const measure::PassPlans plans = measure::prepare(p, on_hopper(""));
  const std::int64_t count = p.b * p.hq * p.sq * p.d;
  const std::array<OnDevice, 2> x{{{p.dtype, count, 1}, {p.dtype, count, 2}}};
  const std::array<OnDevice, 2> dx{{{p.dtype, count, 3}, {p.dtype, count, 4}}};
  const OnDevice k(p.dtype, count, 5), v(p.dtype, count, 6), dk(p.dtype, count, 7),
      dv(p.dtype, count, 8), lse(DType::fp32, p.b * p.hq * p.sq, 9),
      space(DType::fp32, static_cast<std::int64_t>(plans.workspace_bytes() / 4 + 1), 10);
  const auto done = [&] {
    if (how == Calls::waited_for) cuda().device().synchronize({});
  };
  const auto calls = [&](Queue queue) {
    for (std::size_t i = 0; i < kCalls; ++i) {
      const void *q = x.at(i % 2).get(), *d_o = dx.at(i % 2).get();
      void *o = x.at(1 - i % 2).get(), *dq = dx.at(1 - i % 2).get();
      forward(*plans.forward, {q, k.get(), v.get(), o, lse.floats(), space.get()}, queue);
      done();
      backward(*plans.backward,
               {q, k.get(), v.get(), o, lse.floats(), d_o, dq, dk.get(), dv.get(), space.get()},
               queue);
      done();
    }
  };
  if (how == Calls::recorded) {
    chain(line, Calls::waited_for);  // nothing is compiled while it is recorded
    cuda().device().record(calls)->replay({});
  } else {
    calls({});
  }
  cuda().device().synchronize({});
  return {x.at(kCalls % 2).bytes(), lse.bytes(), dx.at(kCalls % 2).bytes(), dk.bytes(), dv.bytes()};
}

TEST_F(Overlap, CallsReadWhatTheOnesBeforeWrote) {
  for (const char* line :
       {"fwdbwd bf16 b2 h8 s300 d64 scale(0.5)", "fwdbwd bf16 causal b4 h16 s1024 d128 scale(0.5)",
        "fwdbwd fp16 causal b1 h3 s200 d96 scale(0.5)",
        "fwdbwd bf16 b1 h2 s700 d256 deterministic scale(0.5)",
        "fwdbwd bf16 causal b1 h2 s130 d192 deterministic scale(0.5)"}) {
    const std::vector<std::string> expected = chain(line, Calls::waited_for);
    for (const std::string& bytes : expected) {
      EXPECT_NE(bytes, std::string(bytes.size(), '\0')) << line;
    }
    for (int time = 0; time < 10; ++time) {
      EXPECT_TRUE(expected == chain(line, Calls::queued)) << line << ", queued, " << time;
    }
    EXPECT_TRUE(expected == chain(line, Calls::recorded)) << line << ", recorded";
  }
}

}  // namespace
}  // namespace dfa
