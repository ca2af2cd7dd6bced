#include "attention/text_check.h"

#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/fill.h"
#include "reference/check.h"
#include "spec/passes.h"

namespace dfa {
namespace {

// A tensor on the host and on the device.
class Copied {
 public:
  Copied(const Device& device, DType type, std::int64_t count)
      : device_(device), host_(static_cast<std::size_t>(count * bytes_of(type))) {
    data_ = device.allocate(host_.size());
  }
  ~Copied() { device_.release(data_); }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;

  void fill(DType type, std::int64_t count, std::uint64_t seed) {
    fill_normal(host_.data(), type, count, seed);
    device_.copy_in(data_, host_.data(), host_.size());
  }
  void read() { device_.copy_out(host_.data(), data_, host_.size()); }

  void* data() const { return data_; }
  std::byte* host() { return host_.data(); }

 private:
  const Device& device_;
  std::vector<std::byte> host_;
  void* data_;
};

void require(const CheckReport& report, const Backend& backend, const Problem& p) {
  if (report.ok) return;
  const std::string summary = report.worst().name + " is off by " +
                              std::to_string(report.worst().max_error) + " where " +
                              std::to_string(report.worst().bound) + " is accepted";
  throw Unsupported("backend " + backend.name() + ": '" + to_line(p) +
                    "' gives other numbers there than in fp64: " + summary);
}

void check(const Backend& backend, const Problem& p, const std::string& config) {
  const Plan plan = backend.plan(p, {.backend = backend.name(), .config = config});
  const Device& device = backend.device();
  const std::int64_t q_count = extent(p.q(), p.b, p.hq, p.sq, p.d);
  const std::int64_t k_count = extent(p.k(), p.b, p.hk, p.sk, p.d);
  const std::int64_t v_count = extent(p.v(), p.b, p.hk, p.sk, p.dv);
  const std::int64_t o_count = extent(p.o(), p.b, p.hq, p.sq, p.dv);
  const std::int64_t lse_count = p.b * p.hq * p.sq;
  Copied q(device, p.dtype, q_count), k(device, p.dtype, k_count), v(device, p.dtype, v_count);
  Copied o(device, p.dtype, o_count), lse(device, DType::fp32, lse_count);
  Copied d_o(device, p.dtype, o_count);
  Copied workspace(device, DType::fp32, static_cast<std::int64_t>(plan.workspace_bytes) / 4 + 64);
  q.fill(p.dtype, q_count, 1);
  k.fill(p.dtype, k_count, 2);
  v.fill(p.dtype, v_count, 3);
  d_o.fill(p.dtype, o_count, 4);
  const auto forward_args = [&](auto of) {
    return ForwardArgs{
        .q = of(q), .k = of(k), .v = of(v), .o = of(o), .lse = static_cast<float*>(of(lse))};
  };
  const auto on_device = [](Copied& tensor) { return tensor.data(); };
  const auto on_host = [](Copied& tensor) { return static_cast<void*>(tensor.host()); };
  ForwardArgs args = forward_args(on_device);
  args.workspace = workspace.data();
  backend.forward(plan, args, {});
  device.synchronize({});
  o.read();
  lse.read();
  require(check_forward(p, forward_args(on_host)), backend, p);
  if (!has_backward(p)) return;
  Copied dq(device, p.dtype, q_count), dk(device, p.dtype, k_count), dv(device, p.dtype, v_count);
  const auto backward_args = [&](auto of) {
    return BackwardArgs{.q = of(q),
                        .k = of(k),
                        .v = of(v),
                        .o = of(o),
                        .lse = static_cast<const float*>(of(lse)),
                        .d_o = of(d_o),
                        .dq = of(dq),
                        .dk = of(dk),
                        .dv = of(dv)};
  };
  BackwardArgs gradients = backward_args(on_device);
  gradients.workspace = workspace.data();
  backend.backward(plan, gradients, {});
  device.synchronize({});
  for (Copied* tensor : {&dq, &dk, &dv}) tensor->read();
  require(check_backward(p, backward_args(on_host)), backend, p);
}

}  // namespace

Problem small_problem_of_texts(const Problem& p) {
  return {.pass = has_backward(p) ? Pass::forward_backward : Pass::forward,
          .dtype = p.dtype,
          .b = 2,
          .hq = 4,
          .hk = 2,
          .sq = 70,
          .sk = 100,
          .d = p.d,
          .dv = p.dv,
          .scale = p.scale,
          .mask_mod = p.mask_mod,
          .score_mod = p.score_mod};
}

std::string kernels_named(const Plan& plan) {
  const bool forward = !plan.config.empty();
  const std::string &config = forward ? plan.config : plan.backward_config, field = ".target=";
  const std::size_t at = config.find(field);
  if (at == std::string::npos) return "";
  const std::string target = config.substr(at + 1, config.find(',', at) - at - 1);
  return (forward ? "ForwardConfig{" : "BackwardConfig{") + target + "}";
}

void require_right_texts(const Backend& backend, const Problem& problem,
                         const std::string& config) {
  static std::mutex mutex;
  static auto* const known = new std::set<std::string>;
  const Problem small = small_problem_of_texts(problem);
  const std::string key =
      backend.name() + backend.device().identity().pci_id + " " + to_line(small) + config;
  const std::lock_guard lock(mutex);
  if (known->contains(key)) return;
  check(backend, small, config);
  known->insert(key);
}

}  // namespace dfa
