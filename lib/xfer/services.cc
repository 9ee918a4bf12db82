#include "xfer/services.h"

#include <cstring>
#include <fstream>

#include "xfer/access.h"
#include "xfer/auth.h"

namespace mc::xfer {
namespace {

Id128 boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  return Id128::from_hex(text).value_or(Id128{});
}

}  // namespace

Services make_services(Options& options, Access& access, Tally& tally, Poller& poller) {
  if (options.instance.is_zero()) static_cast<Id128&>(options.instance) = random_id();
  Services services;
  services.options = &options;
  services.instance = options.instance;
  services.boot = boot_id();
  services.ticket = random_ticket();
  services.access = &access;
  services.poller = &poller;
  services.tally = &tally;
  services.endpoints_max = options.peers_max * 2;
  uint64_t seed;
  std::memcpy(&seed, options.instance.bytes.data(), sizeof seed);
  services.rng = Rng(seed);
  return services;
}

Descriptor build_descriptor(const Services& services) {
  Descriptor descriptor;
  descriptor.name = services.options->name;
  descriptor.instance = services.instance;
  descriptor.boot = services.boot;
  descriptor.uris = services.uris;
  descriptor.buffers = services.access->offered(descriptor.version);
  return descriptor;
}

std::shared_ptr<const Descriptor> Services::describe() const {
  return std::make_shared<const Descriptor>(build_descriptor(*this));
}

}  // namespace mc::xfer
