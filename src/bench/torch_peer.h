#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/contender.h"
#include "bench/suites.h"
#include "bench/workload.h"
#include "contract/backend.h"

namespace dfa::bench {

// Attention of PyTorch beside ours: a Python program (torch_peer.py) that lives as long as the
// study, gets our inputs as files and is told when to run. It times itself by events on its device.
// Memory it cannot have, combinations it does not know: OutOfMemory, Unsupported with its words.
class TorchPeer {
 public:
  // "torch-flash", "torch-cudnn", "torch-efficient", "torch-math" of SDPA; and FlashAttention-3,
  // where its package is installed.
  static constexpr const char* kFlash3 = "torch-flash3";
  static const std::vector<std::string>& algorithms();
  static std::vector<std::string> of_sdpa();

  // On the backend's GPU, or on the host. Throws Unsupported where there is no Python with torch.
  explicit TorchPeer(const Backend& backend);
  ~TorchPeer();

  std::string version() const { return version_; }

  // The tensors of a workload, for the contenders made after it; until the next one, or drop().
  void load(const Workload& workload);
  void drop();

  // What load() was given must outlive it.
  std::unique_ptr<Contender> contender(const std::string& algorithm, Launch launch, int calls);

 private:
  friend class TorchContender;
  struct Folder;

  std::unique_ptr<Folder> folder_;  // outlives the process that uses it
  std::unique_ptr<ChildProcess> process_;
  std::string version_;
  const Workload* workload_ = nullptr;
  int contenders_ = 0;
};

}  // namespace dfa::bench
