#include "host/control_door.h"

#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "host/daemon_flags.h"
#include "node/worker.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {
namespace {

const char* environment_of_process(const char* name) {
  return std::getenv(name);
}

}  // namespace

Result<ControlDoor> ControlDoor::open(const cli::Args& args, const std::string& run_dir, const InstanceId& conductor,
                                      uint64_t epoch, const DescriptorPlan& descriptors) {
  ControlDoor door;
  MC_TRY(keys, KeyFile::of(args, run_dir));
  door.keys_ = std::move(keys);
  ctl::HubOptions hub;
  hub.name = std::string(node::kConductor);
  hub.instance = conductor;
  hub.epoch = epoch;
  hub.seed = args.count(flags::kSeed);
  hub.insecure = insecure(args, Door::control);
  hub.connections_max = descriptors.control;
  hub.keys = door.keys_.keys(Door::control);
  hub.local_keys = door.keys_.lock(Door::control) == ctl::Keys::machine;
  for (const auto& text : args.list(flags::kListen)) {
    MC_TRY(uri, ctl::resolve_endpoint(text, environment_of_process));
    MC_CHECK(ctl::check_exposure(Door::control, uri, door.keys_.lock(Door::control), hub.insecure));
    if (!is_local(uri) && door.keys_.lock(Door::control) != ctl::Keys::cluster) warn_no_lock(Door::control, uri.text());
    hub.listen.push_back(uri);
  }
  if (hub.listen.empty()) return user_error(err::kBadValue, "--listen names no endpoint", "--listen");
  MC_TRY(links, Links::open(std::move(hub), std::nullopt));
  door.links_ = std::move(links);
  MC_ASSERT(!door.links_->bound().empty());
  door.uri_ = door.links_->bound().front().text();
  return door;
}

void ControlDoor::offer_keys() {
  keys_.offer([this](const ctl::KeySet& keys) {
    return keys_.lock(Door::control) == ctl::Keys::none ? Result<void>() : links_->set_keys(keys);
  });
}

}  // namespace mc::host
