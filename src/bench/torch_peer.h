#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/implementation.h"
#include "bench/suites.h"
#include "contract/backend.h"
#include "measure/problem_buffers.h"

namespace dfa::bench {

// Attention of PyTorch beside ours: a Python program (torch_peer.py) that lives as long as the
// run, gets our inputs as files and is told when to run. It times itself by events on its device.
// Memory it cannot have, combinations it does not know: OutOfMemory, Unsupported with its words.
class TorchPeer {
 public:
  // SDPA by each of its backends: "torch-flash", "torch-cudnn", "torch-efficient", "torch-math";
  // and those with "torch-flash3", FlashAttention-3, where its package is installed.
  static const std::vector<std::string>& of_sdpa();
  static const std::vector<std::string>& algorithms();

  // On the backend's GPU, or on the host. Throws Unsupported where there is no Python with torch.
  explicit TorchPeer(const Backend& backend);
  ~TorchPeer();

  // Whose it is, and what of it is called.
  std::string describe(const std::string& algorithm) const;

  // The tensors of some buffers, for the implementations made after it; until the next one, or
  // drop().
  void load(const measure::ProblemBuffers& buffers);
  void drop();

  // What load() was given must outlive it.
  std::unique_ptr<Implementation> implementation(const std::string& algorithm, Launch launch,
                                                 int calls);

 private:
  friend class TorchImplementation;
  struct Folder;

  std::unique_ptr<Folder> folder_;  // outlives the process that uses it
  std::unique_ptr<ChildProcess> process_;
  std::string version_;
  const measure::ProblemBuffers* buffers_ = nullptr;
  int contenders_ = 0;
};

}  // namespace dfa::bench
