// The nodes that `mc-conductor --local 2p2d1c` starts beside itself: their command lines, their check, their processes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cli.h"
#include "host/children.h"

namespace mc::host {

struct LocalShape {
  int prefill = 0, decode = 0, cache = 0;
  size_t nodes() const { return static_cast<size_t>(prefill + decode + cache); }
};
/// "2p2d1c" as counts; MC1002 for anything else.
Result<LocalShape> parse_local(std::string_view text);

class LocalCluster {
 public:
  /// Reads --local; starts nothing. The arguments outlive the cluster.
  static Result<LocalCluster> open(const cli::Args& args);

  const LocalShape& shape() const { return shape_; }
  /// The commands that start() would run, one a line. `control`: the endpoint that the nodes connect to.
  std::string command_lines(const std::string& control) const;
  /// Runs one node of each program with --check, which says whether its model, memory and devices would do.
  Result<void> check(const std::string& control) const;
  Result<void> start(const std::string& control);
  /// A node that ended since the last call.
  std::optional<Children::Ended> reap() { return children_->reap(); }
  Children& children() { return *children_; }

 private:
  struct Command {
    std::string name;
    std::vector<std::string> words;
  };

  LocalCluster(const cli::Args& args, LocalShape shape)
      : args_(args), shape_(shape), children_(std::make_unique<Children>()) {}
  /// Memory is divided among the nodes: 80 % of the free memory among the nodes that hold the model, which take less
  /// when the model is small, and to each cache an equal part of a quarter, at most 1 GiB.
  enum class RunBy : uint8_t { conductor, operator_ };  // a command that an operator runs outlives its parent
  std::vector<Command> commands(const std::string& control, RunBy run_by) const;

  const cli::Args& args_;
  LocalShape shape_;
  std::unique_ptr<Children> children_;
};

}  // namespace mc::host
