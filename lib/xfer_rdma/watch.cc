#include "xfer_rdma/watch.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "xfer/access.h"
#include "xfer/tally.h"

namespace mc::xfer {

RdmaWatch::RdmaWatch(RdmaParts& parts, RdmaPaths& paths, RdmaFrames& frames)
    : parts_(parts),
      paths_(paths),
      frames_(frames),
      revival_([&memory = parts.memory](size_t index, const std::string& name) { return reopen(memory, index, name); },
               parts.services.options->rdma_cooldown_min, parts.services.options->rdma_cooldown_max) {}

Result<void> RdmaWatch::open() {
  for (const auto& device : parts_.hardware.devices) MC_CHECK(add(*device));
  MC_TRY(revived, revival_.open());
  MC_TRY(token, parts_.services.poller->add(parts_.index, revived, EPOLLIN));
  revival_token_ = token;
  if (parts_.services.options->faults.lose_nic > Duration{}) parts_.due(now());
  return {};
}

bool RdmaWatch::ready(uint64_t token, uint32_t events, Reports& out) {
  if (token == revival_token_) {
    for (const RdmaRevival::Back& back : revival_.take()) returned(back);
    return true;
  }
  if (const auto at = channels_.find(token); at != channels_.end()) {
    RdmaDevice& device = *at->second;
    paths_.on_events(device, out);
    if (device.failed && (events & EPOLLERR) != 0) drop_channel(device);
    return true;
  }
  const auto event = async_.find(token);
  if (event == async_.end()) return false;
  on_device_events(*event->second, out);
  return true;
}

void RdmaWatch::close() {
  revival_.stop();
  for (const auto& [token, device] : channels_) parts_.services.poller->remove(device->channel()->fd);
  for (const auto& [token, device] : async_) parts_.services.poller->remove(device->context()->async_fd);
  channels_.clear();
  async_.clear();
}

void RdmaWatch::on_port_event(RdmaDevice& device, int number, Reports& out) {
  auto& ports = parts_.hardware.ports;
  for (size_t i = 0; i < ports.size(); ++i) {
    RdmaPort& port = ports[i];
    if (port.device.get() != &device || port.number != number) continue;
    const bool was_active = port.active;
    const uint16_t lid = port.lid;
    port.refresh(parts_.services.options->rdma_gid_index);
    const auto mine = [&](const RdmaRail& rail) { return rail.local == i; };
    if (port.active != was_active) log_warn(port.active ? "rdma port up" : "rdma port down", {{"port", port.name()}});
    if (!port.active)
      paths_.fail_where(mine, PathCause::port, port.name() + " is down", out);
    else if (port.lid != lid)  // the subnet manager gave the port another LID, and packets to the old one are lost
      paths_.fail_where(mine, PathCause::restart, port.name() + " has another LID", out);
    if (port.active) paths_.wake_where(mine);
  }
  frames_.tell_ports();
  for (auto& [id, endpoint] : parts_.endpoints)
    if (!endpoint->doomed()) paths_.replan(*endpoint, out);
}

/// Ends every path of the device; revival_ opens it again. Completions of its queue pairs are taken until then.
void RdmaWatch::lose(RdmaDevice& device, const std::string& why, Reports& out) {
  if (std::exchange(device.failed, true)) return;
  log_error("rdma device failed", {{"device", device.name()}, {"why", why}});
  parts_.services.tally->failure("rdma: device failed");
  parts_.services.poller->remove(device.context()->async_fd);
  std::erase_if(async_, [&](const auto& watched) { return watched.second == &device; });
  const auto& devices = parts_.hardware.devices;
  const auto index = static_cast<size_t>(
      std::find_if(devices.begin(), devices.end(), [&](const auto& each) { return each.get() == &device; }) -
      devices.begin());
  MC_ASSERT_LT(index, devices.size());
  for (RdmaPort& port : parts_.hardware.ports)
    // Its ports are not active now.
    if (port.device.get() == &device) port.refresh(parts_.services.options->rdma_gid_index);
  paths_.fail_where([&](const RdmaRail& rail) { return parts_.port_of(rail).device.get() == &device; }, PathCause::nic,
                    device.name() + " failed: " + why, out);
  frames_.tell_ports();
  revival_.failed(index, device.name());
}

Result<void> RdmaWatch::add(RdmaDevice& device) {
  MC_TRY(completions, parts_.services.poller->add(parts_.index, device.channel()->fd, EPOLLIN));
  auto events = parts_.services.poller->add(parts_.index, device.context()->async_fd, EPOLLIN);
  if (!events) {
    parts_.services.poller->remove(device.channel()->fd);
    return std::move(events).error();
  }
  channels_.emplace(completions, &device);
  async_.emplace(*events, &device);
  return {};
}

void RdmaWatch::drop_channel(const RdmaDevice& device) {
  if (std::erase_if(channels_, [&](const auto& watched) { return watched.second == &device; }) > 0)
    parts_.services.poller->remove(device.channel()->fd);
}

/// A device is open again, with all memory registered on it. Peers get the new keys before any path is begun.
void RdmaWatch::returned(const RdmaRevival::Back& back) {
  if (auto watched = add(*back.device); !watched) {
    parts_.services.tally->failure("rdma: device not watched");
    log_error("rdma device not watched", {{"device", back.device->name()}, {"why", watched.error().what}});
    return revival_.failed(back.index, back.device->name());  // the old object stays until a new one is there
  }
  const std::shared_ptr<RdmaDevice> old = std::exchange(parts_.hardware.devices[back.index], back.device);  // shared
  drop_channel(*old);
  log_warn("rdma device opened again", {{"device", back.device->name()}});
  for (RdmaPort& port : parts_.hardware.ports) {
    if (port.device != old) continue;
    port.device = back.device;
    port.refresh(parts_.services.options->rdma_gid_index);
  }
  parts_.services.access->renew();  // a peer that was refused with an old key asks again with a new one
  for (auto& [id, endpoint] : parts_.endpoints) {
    if (!endpoint->live()) continue;
    endpoint->told.clear();
    frames_.tell_keys(*endpoint);
  }
  paths_.wake_where([&](const RdmaRail& rail) { return parts_.port_of(rail).device == back.device; });
  frames_.tell_ports();
}

/// Options::faults: treats the first device as if it had reported a failure.
void RdmaWatch::tick(TimePoint at, Reports& out) {
  const Duration every = parts_.services.options->faults.lose_nic;
  if (every <= Duration{} || parts_.hardware.devices.empty()) return;
  if (lose_nic_at_ == kNever) lose_nic_at_ = at + every;
  if (lose_nic_at_ <= at) {
    lose_nic_at_ = at + every;
    lose(*parts_.hardware.devices[0], "injected", out);
  }
  parts_.due(lose_nic_at_);
}

void RdmaWatch::on_device_events(RdmaDevice& device, Reports& out) {
  ibv_async_event event{};
  while (!device.failed && ::ibv_get_async_event(device.context(), &event) == 0) {
    const std::string what = ::ibv_event_type_str(event.event_type);
    const ibv_event_type type = event.event_type;
    const ibv_qp* pair = event.element.qp;
    const ibv_cq* queue = event.element.cq;
    const int port = event.element.port_num;
    ::ibv_ack_async_event(&event);  // at once, because destroying the object waits for the acknowledgement
    switch (type) {
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER: on_port_event(device, port, out); break;
      case IBV_EVENT_DEVICE_FATAL: lose(device, what, out); break;
      case IBV_EVENT_CQ_ERR:
        paths_.fail_where([&](const RdmaRail& rail) { return rail.attempt.queue() == queue; }, PathCause::nic, what,
                          out);
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        paths_.fail_where([&](const RdmaRail& rail) { return rail.attempt.has(pair); }, PathCause::fault, what, out);
        break;
      default: break;
    }
  }
}

}  // namespace mc::xfer
