// The descriptor of this process: what the engine and its transports tell peers.
#include <fstream>

#include "xfer/access.h"
#include "xfer/core.h"
#include "xfer/transport.h"

namespace mc::xfer {

Descriptor build_descriptor(const Home& home) {
  Descriptor descriptor;
  descriptor.name = home.options->name;
  descriptor.instance = home.instance;
  descriptor.boot = home.boot;
  descriptor.uris = home.uris;
  descriptor.buffers = home.access->offered(descriptor.version);
  return descriptor;
}

std::shared_ptr<const Descriptor> Home::describe() const {
  return std::make_shared<const Descriptor>(build_descriptor(*this));
}

Id128 boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  return Id128::from_hex(text).value_or(Id128{});
}

}  // namespace mc::xfer
