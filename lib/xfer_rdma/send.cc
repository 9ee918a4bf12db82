// Notifies of the rdma transport: SENDs on one path of the connection, frames on its socket when there is
// none. notify.h decides which, and puts what arrives in order. Immediates of WRITEs come the same way.
#include <algorithm>
#include <cerrno>

#include "base/fd.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;
using State = PathMachine::State;
using Way = NotifySender::Way;

/// The path that carries SENDs: it stays the same as long as it is up, because one path keeps order.
RdmaRail* RdmaTransport::voice_of(RdmaEndpoint& endpoint) const {
  if (!home_.options->rdma_sends) return nullptr;
  if (endpoint.voice != nullptr) return endpoint.voice;  // else voice_lost() would have been called
  for (const auto& rail : endpoint.rails)
    if (rail->machine.state() == State::up) return endpoint.voice = rail.get();
  return nullptr;
}

Code RdmaTransport::notify(EndpointId id, std::span<const std::byte> bytes, Reports& out) {
  RdmaEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up || endpoint->doomed) return Code::peer_lost;
  bool path = voice_of(*endpoint) != nullptr;
  Way way = endpoint->notifies_out.way(path);
  if (way == Way::path && send(*endpoint, bytes, out)) return Code::ok;
  if (way == Way::path) way = endpoint->notifies_out.way(false);  // full, or it has just failed
  if (way == Way::wait || endpoint->io.queued() >= kQueueMax) return Code::busy;
  const uint64_t sequence = endpoint->notifies_out.next();
  endpoint->notifies_out.sent_on_socket();
  send_on_socket(*endpoint, sequence, {bytes.begin(), bytes.end()});
  sweep(out);
  return find(id) == nullptr ? Code::peer_lost : Code::ok;
}

/// False: not sent. When the path failed of it, the path is no longer the voice.
bool RdmaTransport::send(RdmaEndpoint& endpoint, std::span<const std::byte> bytes, Reports& out) {
  RdmaRail& rail = *endpoint.voice;
  const bool idle = rail.drained();
  const uint64_t heard = endpoint.notifies_in.heard(!home_.reading_notifies);
  const int error = rail.send({.sequence = endpoint.notifies_out.next(), .heard = heard, .bytes = bytes});
  if (error == ENOMEM) return false;
  if (error != 0) {
    fail(endpoint, rail, PathCause::fault, errno_error("post a notify", error).what, true, out);
    return false;
  }
  if (idle) {  // the stall clock starts with work
    rail.progress = now();
    due(rail.progress + home_.options->stall_timeout);
  }
  endpoint.notifies_out.sent_on_path(bytes);
  endpoint.notifies_in.told(heard);
  home_.tally->add(Count::rdma_sends);
  return true;
}

void RdmaTransport::send_on_socket(RdmaEndpoint& endpoint, uint64_t sequence, std::vector<std::byte> bytes) {
  OutFrame frame = control_frame(FrameType::notify, std::move(bytes));
  frame.header.id = sequence;
  frame.header.offset = endpoint.notifies_in.heard(!home_.reading_notifies);
  endpoint.notifies_in.told(frame.header.offset);
  if (endpoint.io.idle()) endpoint.progress = now();
  endpoint.push(std::move(frame));
}

/// Whether the peer got the last SENDs is unknown: it gets them again, and drops what it has.
void RdmaTransport::voice_lost(RdmaEndpoint& endpoint) {
  endpoint.voice = nullptr;
  for (auto& kept : endpoint.notifies_out.path_lost()) send_on_socket(endpoint, kept.sequence, std::move(kept.bytes));
  due(now());  // to be flushed
}

/// What is wrong with it; null = nothing.
const char* RdmaTransport::take_send(RdmaEndpoint& endpoint, std::span<const std::byte> message) {
  const auto notify = wire::decode_rdma_notify(message);
  if (!notify) return "malformed notify on a queue pair";
  if (!endpoint.notifies_in.from_path(notify->sequence, notify->bytes))
    return "a notify on a queue pair is out of sequence";
  return endpoint.notifies_out.heard(notify->heard) ? nullptr : "heard notifies that were never sent";
}

const char* RdmaTransport::take_immediate(RdmaEndpoint& endpoint, RdmaRail& rail, uint32_t immediate) {
  if (++rail.heard.count - rail.heard.told > wire::kRdmaImmediatesAhead)
    return "more immediates than it has credit for";
  endpoint.immediates.push_back(immediate);
  return nullptr;
}

void RdmaTransport::take_messages(RdmaEndpoint& endpoint, RdmaRail& rail,
                                  std::span<const RdmaRail::Polled::Message> messages, Reports& out) {
  const char* lie = nullptr;
  for (const auto& message : messages) {
    lie = message.immediate ? take_immediate(endpoint, rail, *message.immediate)
                            : take_send(endpoint, rail.message(message.slot, message.bytes));
    if (lie != nullptr) break;
    // refused: the queue pair has failed and says so itself
    if (rail.machine.live()) (void)rail.give_back(message.slot);
  }
  if (lie != nullptr && !endpoint.doomed) {
    home_.tally->failure(lie);
    doom(endpoint, Code::corrupt, false, lie);
    due(now());
  }
  deliver(endpoint, out);
}

Code RdmaTransport::on_notify(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                              const char*& why) {
  why = "notify before a path was up";
  if (!endpoint.up) return Code::corrupt;
  why = "a notify on an rdma socket is out of sequence";
  if (!endpoint.notifies_in.from_socket(header.id, payload)) return Code::corrupt;
  deliver(endpoint, *endpoint.out);
  return on_heard(endpoint, header.offset, why);
}

Code RdmaTransport::on_heard(RdmaEndpoint& endpoint, uint64_t count, const char*& why) {
  why = "heard notifies that were never sent";
  return endpoint.notifies_out.heard(count) ? Code::ok : Code::corrupt;
}

void RdmaTransport::deliver(RdmaEndpoint& endpoint, Reports& out) {
  if (!endpoint.up) return;
  std::vector<std::byte> bytes;
  while (endpoint.notifies_in.take(bytes))
    out.news.push_back({.kind = News::Kind::notify, .endpoint = endpoint.id, .bytes = std::move(bytes)});
  for (const uint32_t immediate : std::exchange(endpoint.immediates, {}))
    out.news.push_back({.kind = News::Kind::immediate, .endpoint = endpoint.id, .immediate = immediate});
  if (endpoint.doomed) return;
  tell_heard(endpoint);
  tell_landed(endpoint);
}

/// Gives the peer credit when it runs short of it. Otherwise our next notify does.
void RdmaTransport::tell_heard(RdmaEndpoint& endpoint) {
  if (!home_.reading_notifies || !endpoint.notifies_in.owes()) return;
  OutFrame frame = control_frame(FrameType::heard, {});
  frame.header.id = endpoint.notifies_in.heard(false);
  endpoint.notifies_in.told(frame.header.id);
  if (endpoint.io.idle()) endpoint.progress = now();
  endpoint.push(std::move(frame));
  due(now());
}

/// The same for immediates, which every path counts for itself.
void RdmaTransport::tell_landed(RdmaEndpoint& endpoint) {
  if (!home_.reading_notifies) return;
  for (const auto& rail : endpoint.rails)
    if (rail->machine.live() && rail->heard.count - rail->heard.told >= wire::kRdmaImmediatesAhead / 2)
      send_landed(endpoint, *rail, wire::LandedState::open);
}

void RdmaTransport::send_landed(RdmaEndpoint& endpoint, RdmaRail& rail, wire::LandedState state) {
  OutFrame frame = control_frame(FrameType::landed, {});
  frame.header.buffer = rail.id();
  frame.header.snapshot = rail.machine.epoch();
  frame.header.offset = static_cast<uint64_t>(state);
  frame.header.id = rail.heard.told = rail.heard.count;
  if (endpoint.io.idle()) endpoint.progress = now();
  endpoint.push(std::move(frame));
  due(now());
}

Code RdmaTransport::on_landed(RdmaEndpoint& endpoint, const FrameHeader& header, const char*& why) {
  why = "immediates counted that were never sent";
  if (header.buffer >= endpoint.rails.size() || header.offset > static_cast<uint64_t>(wire::LandedState::unsure))
    return Code::corrupt;
  RdmaRail& rail = *endpoint.rails[header.buffer];
  const uint32_t epoch = header.snapshot;
  if (epoch > rail.machine.epoch()) return Code::corrupt;
  const auto state = static_cast<wire::LandedState>(header.offset);
  if (state == wire::LandedState::open) {
    if (!rail.machine.current(epoch)) return Code::ok;  // of an attempt that is over
    if (!rail.landed(header.id)) return Code::corrupt;
    endpoint.out->room = true;
    return Code::ok;
  }
  rail.hold.landed(epoch, header.id, state == wire::LandedState::over);
  rail.hold.take(now(), endpoint.out->done);
  return Code::ok;
}

void RdmaTransport::pause_notifies(bool) {
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->up || endpoint->doomed) continue;
    tell_heard(*endpoint);
    tell_landed(*endpoint);
    arm(*endpoint);
  }
}

}  // namespace mc::xfer
