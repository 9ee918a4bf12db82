// What the devices of the rdma transport tell: ports that go and come, addresses that change, devices that fail
// and are opened again (RDMA notes, A9.3). Paths follow: they end at once when nothing can be sent on them any
// more, and are begun again, with the addresses there are by then.
#include <sys/epoll.h>

#include <algorithm>

#include "base/log.h"
#include "xfer/access.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using State = PathMachine::State;

template <class Select>
void RdmaTransport::fail_where(Select select, PathCause cause, const std::string& text, Reports& out) {
  for (auto& [id, endpoint] : endpoints_)
    for (const auto& rail : endpoint->rails)
      if (!endpoint->doomed && select(*rail)) fail(*endpoint, *rail, cause, text, true, out);
}

/// The addresses of a port changed, ours or the peer's: the dialler's choices for its paths are made anew, best
/// first. A path that is up stays on its pair while both have it; else it starts over with another.
void RdmaTransport::replan(RdmaEndpoint& endpoint, Reports& out) {
  if (endpoint.accepted || endpoint.nics.empty()) return;
  const wire::RdmaNics own = own_nics();
  for (const auto& rail : endpoint.rails) {
    const bool chosen = rail->choice < rail->choices.size();
    const GidChoice current = chosen ? rail->choices[rail->choice] : GidChoice{};
    auto choices = gid_choices(own.nics[rail->local()].gids, endpoint.nics[rail->remote()].gids, kChoicesMax,
                               rail->machine.live() && chosen ? &current : nullptr);
    if (choices == rail->choices) continue;
    const auto kept = std::find(choices.begin(), choices.end(), current);
    const bool gone = kept == choices.end();
    rail->choices = std::move(choices);
    rail->exhausted = false;
    // before an attempt begins the best is taken; one that lives stays where it is
    rail->choice = gone || !rail->machine.live() ? 0 : static_cast<size_t>(kept - rail->choices.begin());
    log_info(
        "rdma addresses planned again",
        {{"peer", endpoint.name}, {"path", rail_name(endpoint, *rail)}, {"pairs", uint64_t{rail->choices.size()}}});
    if (gone && rail->machine.live()) {
      fail(endpoint, *rail, PathCause::restart, "an address of it is gone", true, out);
      rail->choice = 0;  // failing tries the next one
    }
    if (!rail->machine.live()) rail->machine.wake(now());
    due(now());
  }
}

void RdmaTransport::on_port_event(RdmaDevice& device, int number, Reports& out) {
  for (size_t i = 0; i < hardware_.ports.size(); ++i) {
    RdmaPort& port = hardware_.ports[i];
    if (port.device.get() != &device || port.number != number) continue;
    const bool was_active = port.active;
    const uint16_t lid = port.lid;
    port.refresh(home_.options->rdma_gid_index);
    const auto mine = [&](const RdmaRail& rail) { return rail.local() == i; };
    if (port.active != was_active) log_warn(port.active ? "rdma port up" : "rdma port down", {{"port", port.name()}});
    if (!port.active)
      fail_where(mine, PathCause::port, port.name() + " is down", out);
    else if (port.lid != lid)  // the subnet manager moved it: packets to the old one go nowhere
      fail_where(mine, PathCause::restart, port.name() + " has another LID", out);
    for (auto& [id, endpoint] : endpoints_)
      for (const auto& rail : endpoint->rails)
        if (port.active && mine(*rail)) rail->machine.wake(now());
    due(now());
  }
  tell_ports();
  for (auto& [id, endpoint] : endpoints_)
    if (!endpoint->doomed) replan(*endpoint, out);
}

/// Every path of it ends; it is opened again by revival_. What its queue pairs still complete is heard until then.
void RdmaTransport::lose_device(RdmaDevice& device, const std::string& why, Reports& out) {
  if (std::exchange(device.failed, true)) return;
  log_error("rdma device failed", {{"device", device.name()}, {"why", why}});
  home_.tally->failure("rdma: device failed");
  home_.poller->remove(device.context()->async_fd);
  std::erase_if(async_, [&](const auto& watched) { return watched.second == &device; });
  size_t index = 0;
  while (hardware_.devices[index].get() != &device) ++index;
  for (RdmaPort& port : hardware_.ports)
    if (port.device.get() == &device) port.refresh(home_.options->rdma_gid_index);  // not active
  fail_where([&](const RdmaRail& rail) { return hardware_.ports[rail.local()].device.get() == &device; },
             PathCause::nic, device.name() + " failed: " + why, out);
  tell_ports();
  revival_.failed(index, device.name());
}

Result<void> RdmaTransport::watch(RdmaDevice& device) {
  MC_TRY(completions, home_.poller->add(index_, device.channel()->fd, EPOLLIN));
  auto events = home_.poller->add(index_, device.context()->async_fd, EPOLLIN);
  if (!events) {
    home_.poller->remove(device.channel()->fd);
    return std::move(events).error();
  }
  channels_.emplace(completions, &device);
  async_.emplace(*events, &device);
  return {};
}

void RdmaTransport::unwatch_channel(const RdmaDevice& device) {
  if (std::erase_if(channels_, [&](const auto& watched) { return watched.second == &device; }) > 0)
    home_.poller->remove(device.channel()->fd);
}

/// Opened again, with all memory registered on it: peers get the new keys before any path is begun.
void RdmaTransport::device_back(const RdmaRevival::Back& back) {
  if (auto watched = watch(*back.device); !watched) {
    home_.tally->failure("rdma: device not watched");
    log_error("rdma device not watched", {{"device", back.device->name()}, {"why", watched.error().what}});
    return revival_.failed(back.index, back.device->name());  // the old one stays until a new one is there
  }
  const std::shared_ptr<RdmaDevice> old = std::exchange(hardware_.devices[back.index], back.device);  // shared: there
  unwatch_channel(*old);
  log_warn("rdma device opened again", {{"device", back.device->name()}});
  for (RdmaPort& port : hardware_.ports) {
    if (port.device != old) continue;
    port.device = back.device;
    port.refresh(home_.options->rdma_gid_index);
  }
  home_.access->renew();  // who was refused with an old key asks again with a new one
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->handshake.complete() || endpoint->doomed) continue;
    endpoint->told.clear();
    tell_keys(*endpoint);
    for (const auto& rail : endpoint->rails)
      if (hardware_.ports[rail->local()].device == back.device) rail->machine.wake(now());
  }
  tell_ports();
  due(now());
}

/// The fault that Options::faults asks for: as if the first device had reported that it failed.
void RdmaTransport::inject_device_loss(TimePoint at, Reports& out) {
  const Duration every = home_.options->faults.lose_nic;
  if (every <= Duration{} || hardware_.devices.empty()) return;
  if (lose_nic_at_ == kNever) lose_nic_at_ = at + every;
  if (lose_nic_at_ <= at) {
    lose_nic_at_ = at + every;
    lose_device(*hardware_.devices[0], "injected", out);
  }
  due(lose_nic_at_);
}

void RdmaTransport::on_device_events(RdmaDevice& device, Reports& out) {
  ibv_async_event event{};
  while (!device.failed && ::ibv_get_async_event(device.context(), &event) == 0) {
    const std::string what = ::ibv_event_type_str(event.event_type);
    const ibv_event_type type = event.event_type;
    const ibv_qp* pair = event.element.qp;
    const ibv_cq* queue = event.element.cq;
    const int port = event.element.port_num;
    ::ibv_ack_async_event(&event);  // at once: destroying its object waits for it
    switch (type) {
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER: on_port_event(device, port, out); break;
      case IBV_EVENT_DEVICE_FATAL: lose_device(device, what, out); break;
      case IBV_EVENT_CQ_ERR:
        fail_where([&](const RdmaRail& rail) { return rail.queue() == queue; }, PathCause::nic, what, out);
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        fail_where([&](const RdmaRail& rail) { return rail.has(pair); }, PathCause::fault, what, out);
        break;
      default: break;
    }
  }
}

}  // namespace mc::xfer
