#include "bench/torch_peer.h"

#include <stdlib.h>

#include <fstream>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/torch_script.h"
#include "dfa/error.h"
#include "spec/lengths.h"

namespace dfa::bench {
namespace {

constexpr const char* kFlash3 = "torch-flash3";
constexpr double kTimeout = 300;  // importing torch on a cold disk takes a minute

std::vector<std::string> command() {
  const std::string python = env("DFA_PYTHON");
  const std::string script = env("DFA_TORCH_PEER");
  if (!script.empty()) return {python, script};
  return {python, "-c", kTorchScript};
}

// The answer, or what its status means.
Json ask(ChildProcess& process, const Json& request) {
  const std::string text = process.ask(request.dump(), kTimeout);
  const Json answer = Json::parse(text, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok")) {
    throw Unsupported("torch: no answer to '" + request.value("op", "") +
                      "': " + text.substr(0, 80));
  }
  if (answer["ok"] == true) return answer;
  const std::string reason = "torch: " + answer.value("reason", "no reason given");
  const std::string status = answer.value("status", "failed");
  if (status == "out_of_memory") throw OutOfMemory(reason);
  if (status == "unsupported") throw Unsupported(reason);
  throw Error(reason);
}

void write_bytes(const std::filesystem::path& path, const AlignedBuffer& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw IoError("cannot write '" + path.string() + "'");
}

AlignedBuffer read_bytes(const std::filesystem::path& path) {
  AlignedBuffer bytes(std::filesystem::file_size(path));
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.as<char>(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw IoError("cannot read '" + path.string() + "'");
  return bytes;
}

Json strides_json(const Strides& s) { return Json::array({s.batch, s.head, s.row}); }

Json problem_json(const Problem& p) {
  require_plain(p, "torch");
  if (!p.mask.is_window()) {
    throw Unsupported("torch: takes no chunk(…) and no prefix(…); leave them out");
  }
  return {{"forward", has_forward(p)},
          {"backward", has_backward(p)},
          {"dtype", name_of(p.dtype)},
          {"causal", p.mask == kCausal},
          {"full", p.mask == kFull},
          {"window", Json::array({p.mask.left, p.mask.right})},
          {"b", p.b},
          {"hq", p.hq},
          {"hk", p.hk},
          {"sq", p.sq},
          {"sk", p.sk},
          {"d", p.d},
          {"dv", p.dv},
          {"scale", p.softmax_scale()},
          {"deterministic", p.deterministic},
          {"q_strides", strides_json(p.q())},
          {"k_strides", strides_json(p.k())},
          {"v_strides", strides_json(p.v())},
          {"o_strides", strides_json(p.o())}};
}

}  // namespace

// In memory where the system has a folder for that; gone with the run.
struct TorchPeer::Folder {
  Folder() {
    const bool shared = std::filesystem::is_directory("/dev/shm");
    std::string pattern =
        (shared ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
        "dfa-torch-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw IoError("cannot make folder '" + pattern + "'");
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  std::filesystem::path path;
};

// A way of SDPA, as the program knows it by number.
class TorchImplementation final : public Implementation {
 public:
  TorchImplementation(TorchPeer& peer, int id) : peer_(peer), id_(id) {}

  void run(int times) override { request({{"op", "run"}, {"times", times}}); }

  double time_s() override { return request({{"op", "time"}}).at("seconds").get<double>(); }

  measure::MemoryGrowth growth() override {
    const Json bytes = request({{"op", "growth"}}).at("bytes");
    if (bytes.is_null()) return {std::nullopt, "torch counts no memory of this device"};
    return {bytes.get<std::int64_t>(), ""};
  }

  CheckReport check(const CheckOptions& options) override {
    request({{"op", "outputs"}});
    const auto read = [&](const char* name) { return read_bytes(peer_.folder_->path / name); };
    measure::HostOutputs outputs;
    outputs.o = read("o");
    if (has_backward(peer_.buffers_->problem())) {
      outputs.dq = read("dq");
      outputs.dk = read("dk");
      outputs.dv = read("dv");
    }
    return peer_.buffers_->check(outputs, options);
  }

 private:
  Json request(Json json) {
    json["id"] = id_;
    return ask(*peer_.process_, json);
  }

  TorchPeer& peer_;
  int id_;
};

const std::vector<std::string>& TorchPeer::of_sdpa() {
  static const std::vector<std::string> names{"torch-flash", "torch-cudnn", "torch-efficient",
                                              "torch-math"};
  return names;
}

const std::vector<std::string>& TorchPeer::algorithms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = of_sdpa();
    all.emplace_back(kFlash3);
    return all;
  }();
  return names;
}

std::string TorchPeer::describe(const std::string& algorithm) const {
  return version_ + (algorithm == kFlash3 ? ", flash_attn_3" : ", scaled_dot_product_attention");
}

TorchPeer::TorchPeer(const Backend& backend) : folder_(std::make_unique<Folder>()) {
  process_ = std::make_unique<ChildProcess>(command(), folder_->path / "errors");
  const Json answer =
      ask(*process_, {{"op", "hello"}, {"pci_id", backend.device().identity().pci_id}});
  version_ = answer.value("version", "");
}

TorchPeer::~TorchPeer() = default;

void TorchPeer::load(const measure::ProblemBuffers& buffers) {
  buffers_ = nullptr;
  const measure::ProblemBuffers::Inputs inputs = buffers.inputs();
  const auto& folder = folder_->path;
  write_bytes(folder / "q", inputs.q);
  write_bytes(folder / "k", inputs.k);
  write_bytes(folder / "v", inputs.v);
  write_bytes(folder / "do", inputs.d_o);
  ask(*process_,
      {{"op", "load"}, {"folder", folder.string()}, {"problem", problem_json(buffers.problem())}});
  buffers_ = &buffers;
}

void TorchPeer::drop() {
  buffers_ = nullptr;
  ask(*process_, {{"op", "drop"}});
}

std::unique_ptr<Implementation> TorchPeer::implementation(const std::string& algorithm,
                                                          Launch launch, int calls) {
  const int id = contenders_++;
  ask(*process_, {{"op", "make"},
                  {"id", id},
                  {"kind", algorithm.substr(algorithm.find('-') + 1)},
                  {"launch", name_of(launch)},
                  {"calls", calls}});
  return std::make_unique<TorchImplementation>(*this, id);
}

}  // namespace dfa::bench
