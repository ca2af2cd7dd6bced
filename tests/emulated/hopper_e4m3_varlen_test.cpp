// Hopper's forward in e4m3 over packed sequences on a processor, held against fp64. Rows that are
// of no sequence are NaN.
#include "emulated/hopper_e4m3.h"
// and then:
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr ForwardConfig varlen(ForwardConfig config) {
  config.varlen = true;
  return config;
}

constexpr std::byte kNan{0x7f};

struct Used {
  Tensors t;
  std::vector<std::int32_t> q, k;

  explicit Used(const std::string& line) : t(line, 7) {
    for (std::size_t n = 0; n < t.p.lens_q.size(); ++n) {
      q.push_back(std::max<std::int32_t>(0, static_cast<std::int32_t>(t.p.lens_q[n]) - 3));
      k.push_back(std::max<std::int32_t>(0, static_cast<std::int32_t>(t.p.lens_k[n]) - 5));
      poison(t.q, t.p.q(), t.p.hq, t.p.d, t.cu_seqlens_q, q, n);
      poison(t.k, t.p.k(), t.p.hk, t.p.d, t.cu_seqlens_k, k, n);
      poison(t.v, t.p.v(), t.p.hk, t.p.dv, t.cu_seqlens_k, k, n);
    }
  }
  ForwardArgs args() {
    ForwardArgs all = t.forward_args();
    all.sequences.seqused_q = q.data();
    all.sequences.seqused_k = k.data();
    return all;
  }

 private:
  static void poison(std::vector<std::byte>& tensor, const Strides& s, std::int64_t heads,
                     std::int64_t columns, const std::vector<std::int32_t>& begins,
                     const std::vector<std::int32_t>& used, std::size_t n) {
    for (std::int64_t row = begins[n] + used[n]; row < begins[n + 1]; ++row) {
      for (std::int64_t at = 0; at < heads * columns; ++at) {
        tensor[static_cast<std::size_t>(row * s.row + at / columns * s.head + at % columns)] = kNan;
      }
    }
  }
};

// `shift` is a fault: by how many rows the begins that pack_values is told are off.
template <ForwardConfig kConfig>
void run(Used& u, Timing asked, unsigned blocks, int shift = 0) {
  const auto launches = forward_launches(u.t.p, kConfig);
  ASSERT_EQ(launches.size(), 3u);
  Workspace workspace(forward_workspace_bytes(u.t.p, kConfig));
  ForwardArgs pointers = u.args();
  pointers.workspace = workspace.data();
  const Sm90E4m3Args args =
      cuda::HopperForwardArgs(u.t.p, kConfig).e4m3_with(pointers, static_cast<int>(blocks));
  std::vector<std::int32_t> begins = u.t.cu_seqlens_k;
  for (std::int32_t& begin : begins) begin += shift;
  PackValuesArgs pack = pack_values_args(u.t.p, kConfig, pointers);
  pack.cu_seqlens_k = begins.data();
  launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
  launch(launches[1].grid, launches[1].threads, [&] { pack_values<kConfig>(pack); });
  const WithTiming with(asked);
  launch(blocks, launches[2].threads, [&] { sm90_e4m3_forward<kConfig>(args); });
}

template <ForwardConfig kConfig>
void expect_packed_right(const std::string& line) {
  Used crossed(line), late(line);
  run<kConfig>(crossed, kCrossed, 3);
  expect_met(check_forward(crossed.t.p, crossed.args()), line);
  run<kConfig>(late, kLate, 1);
  EXPECT_TRUE(crossed.t.o == late.t.o) << line;
}

constexpr const char* kLines[] = {
    "fwd e4m3 causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) d64",
    "fwd e4m3 hq2 hk1 lens(33,128,5) lens_k(64,3,200) d64",
    "fwd e4m3 window(40,9) hq2 hk2 lens(100,0,64,17) d64",
};

TEST(EmulatedHopperE4m3Varlen, MeetsTheRule) {
  for (const char* line : kLines) {
    expect_packed_right<varlen(hopper_e4m3(64, 128, 128, 2, true))>(line);
    expect_packed_right<varlen(hopper_e4m3(64, 64, 64, 2))>(line);
  }
}

TEST(EmulatedHopperE4m3VarlenFaults, ValuesOfOtherRows) {
  Used u(kLines[1]);
  run<varlen(hopper_e4m3(64, 64, 64, 2))>(u, kEager, 2, 1);
  EXPECT_FALSE(check_forward(u.t.p, u.args()).ok);
}

}  // namespace
}  // namespace dfa
