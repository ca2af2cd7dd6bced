#include "evaluate/several_cards.h"

namespace dfa::evaluate {

std::string why_no_several_cards(const Tools& tools) {
  return tools.several_cards.there() ? tools.source_there.missing : tools.several_cards.missing;
}

Command several_cards(const Tools& tools, const std::filesystem::path& out,
                      const std::vector<std::string>& options) {
  Command command{{tools.several_cards.program, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node=gpu",
                   (tools.source / "benchmarks/context_parallel.py").string(), "--out",
                   out.string()}};
  command.words.insert(command.words.end(), options.begin(), options.end());
  return command;
}

}  // namespace dfa::evaluate
