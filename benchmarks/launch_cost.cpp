// What a call costs the host on a GPU: planning, checking pointers, queueing a pass, replaying it
// as a CUDA graph. Prints JSON: nanoseconds a call, over batches of calls with an empty queue
// before each, so that nothing waits for the device.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "attention/registry.h"
#include "base/clock.h"
#include "cuda/chosen_device.h"
#include "dfa/attention.h"
#include "gpu/buffer.h"
#include "gpu/graph.h"

namespace dfa {
namespace {

constexpr int kBatch = 100;  // below the length of the driver's queue
constexpr int kBatches = 200;

struct Cost {
  double median_ns, least_ns, p95_ns;
};

Cost cost_of(const gpu::Stream& stream, const std::function<void()>& call) {
  std::vector<double> ns;
  for (int batch = 0; batch < kBatches + 5; ++batch) {
    const double begin = monotonic_s();
    for (int i = 0; i < kBatch; ++i) call();
    const double end = monotonic_s();
    stream.synchronize();
    if (batch >= 5) ns.push_back((end - begin) / kBatch * 1e9);
  }
  std::sort(ns.begin(), ns.end());
  return {ns[kBatches / 2], ns[0], ns[kBatches * 95 / 100]};
}

void run() {
  const gpu::Device& device = cuda::chosen_device();
  const gpu::Stream stream(device);
  const Problem p = parse_problem("fwdbwd bf16 causal b1 h1 s64 d64");
  const PlanOptions options{.backend = "cuda", .algorithm = Algorithm::flash};
  const Plan planned = plan(p, options);
  Plan read = planned;
  read.ready = {};
  const gpu::Buffer memory(device, 1 << 20);
  char* const base = static_cast<char*>(memory.data());
  const auto at = [&](int slot) { return base + (slot << 15); };
  const ForwardArgs forward_args{.q = at(0),
                                 .k = at(1),
                                 .v = at(2),
                                 .o = at(3),
                                 .lse = reinterpret_cast<float*>(at(4)),
                                 .workspace = at(5)};
  const BackwardArgs backward_args{.q = at(0),
                                   .k = at(1),
                                   .v = at(2),
                                   .o = at(3),
                                   .lse = reinterpret_cast<const float*>(at(4)),
                                   .d_o = at(6),
                                   .dq = at(7),
                                   .dk = at(8),
                                   .dv = at(9),
                                   .workspace = at(5)};
  const Plan decode =
      plan(parse_problem("fwd bf16 causal b4 hq8 hk2 sq1 sk128 d64 page(16)"), options);
  const gpu::Buffer decode_workspace(device, std::max<std::size_t>(decode.workspace_bytes, 1));
  const auto integers = [&](int slot) { return reinterpret_cast<const std::int32_t*>(at(slot)); };
  const ForwardArgs decode_args{.q = at(0),
                                .k = at(1),
                                .v = at(2),
                                .o = at(3),
                                .workspace = decode_workspace.data(),
                                .sequences = {.seqused_k = integers(4),  // zeros: no keys
                                              .block_table = integers(5),
                                              .table_row = 8}};
  gpu::fill(stream, base, 0, memory.bytes());
  const Queue queue{.stream = stream.handle()};
  const auto forward_call = [&] { forward(planned, forward_args, queue); };
  const auto backward_call = [&] { backward(planned, backward_args, queue); };
  forward_call();
  backward_call();
  const gpu::Graph forward_graph = gpu::Graph::capture(stream, forward_call);
  const gpu::Graph backward_graph = gpu::Graph::capture(stream, backward_call);

  int host = 0, held = 0;
  Problem unseen = p;  // of a length not asked for before
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"plan", [&] { held += static_cast<int>(plan(p, options).workspace_bytes & 1); }},
      {"plan_of_an_unseen_length",
       [&] {
         ++unseen.sk;
         held += static_cast<int>(plan(unseen, options).workspace_bytes & 1);
       }},
      {"pointer_check", [&] { held += device.holds(at(3)); }},
      {"pointer_check_of_host_memory", [&] { held += device.holds(&host); }},
      {"forward", forward_call},
      {"forward_of_a_plan_from_text", [&] { forward(read, forward_args, queue); }},
      {"forward_of_pages_2_kernels", [&] { forward(decode, decode_args, queue); }},
      {"backward_3_kernels", backward_call},
      {"forward_graph", [&] { forward_graph.launch(stream); }},
      {"backward_graph", [&] { backward_graph.launch(stream); }},
  };
  fmt::print("{{\n \"device\": \"{}\",\n \"cuda\": {},\n \"ns_a_call\": {{", device.facts().name,
             gpu::driver_version());
  const char* comma = "";
  for (const auto& [name, call] : calls) {
    const Cost cost = cost_of(stream, call);
    fmt::print("{}\n  \"{}\": {{\"median\": {:.0f}, \"least\": {:.0f}, \"p95\": {:.0f}}}", comma,
               name, cost.median_ns, cost.least_ns, cost.p95_ns);
    comma = ",";
  }
  fmt::print("\n }}\n}}\n");
}

}  // namespace
}  // namespace dfa

int main() {
  try {
    dfa::run();
  } catch (const dfa::Error& error) {
    fmt::print(stderr, "launch_cost: {}\n", error.what());
    return 3;
  }
}
