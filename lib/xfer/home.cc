#include "xfer/home.h"

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

Home make_home(Options& options, Access& access, Tally& tally, Poller& poller) {
  if (options.instance.is_zero()) static_cast<Id128&>(options.instance) = random_id();
  Home home;
  home.options = &options;
  home.instance = options.instance;
  home.boot = boot_id();
  home.ticket = random_ticket();
  home.access = &access;
  home.poller = &poller;
  home.tally = &tally;
  home.endpoints_max = options.peers_max * 2;
  uint64_t seed;
  std::memcpy(&seed, options.instance.bytes.data(), sizeof seed);
  home.rng = Rng(seed);
  return home;
}

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

}  // namespace mc::xfer
