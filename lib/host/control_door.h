// The control door of a conductor: the ZeroMQ endpoints of --listen, the keys that peers need there, and the links of
// the peers that came in.
#pragma once

#include <memory>
#include <string>

#include "base/cli.h"
#include "host/key_file.h"
#include "host/links.h"
#include "product/descriptors.h"

namespace mc::host {

class ControlDoor {
 public:
  ControlDoor() = default;  // not open
  /// MC1005 when an endpoint off loopback has neither keys nor consent. The endpoints accept peers from now on. The
  /// keys are those of --auth, or of `run_dir`. `epoch` is greater than that of any conductor before.
  static Result<ControlDoor> open(const cli::Args& args, const std::string& run_dir, const InstanceId& conductor,
                                  uint64_t epoch, const DescriptorPlan& descriptors);

  Links& links() { return *links_; }
  /// The first endpoint, with the port that was chosen for port 0.
  const std::string& uri() const { return uri_; }
  /// The mark of the keys for the registration of a node; none before open().
  node::KeyMark key_mark(const InstanceId& node) const { return keys_.mark(node); }
  /// Reads the key file again. The keys are in use after offer_keys().
  void reload_keys() { keys_.reload(); }
  /// Once a round of the control loop: puts keys into use that were read.
  void offer_keys();

 private:
  KeyFile keys_;
  std::unique_ptr<Links> links_;
  std::string uri_;
};

}  // namespace mc::host
