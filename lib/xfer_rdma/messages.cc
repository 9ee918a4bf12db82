#include "xfer_rdma/messages.h"

#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "xfer/tally.h"
#include "xfer_rdma/parts.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;
using Way = NotifySender::Way;

RdmaRail* RdmaMessages::carrier() {
  if (!parts_.services.options->rdma_sends) return nullptr;
  MC_ASSERT(carrier_ == nullptr || carrier_->up());  // otherwise path_lost() would have been called
  if (carrier_ == nullptr)
    for (const auto& rail : endpoint_.rails)
      if (carrier_ == nullptr && rail->up()) carrier_ = rail.get();
  return carrier_ != nullptr && sender_.way(true) == Way::path ? carrier_ : nullptr;
}

int RdmaMessages::send(RdmaRail& carrier, std::span<const std::byte> bytes) {
  MC_ASSERT(carrier_ == &carrier && carrier.up());
  const bool idle = carrier.attempt.drained();
  const uint64_t heard = receiver_.heard(!parts_.services.reading_notifies);
  const int error = carrier.attempt.send({.sequence = sender_.next(), .heard = heard, .bytes = bytes});
  if (error != 0) return error;
  if (idle) {  // the stall time-out starts when there is work
    carrier.progress = now();
    parts_.due(carrier.progress + parts_.services.options->stall_timeout);
  }
  sender_.sent_on_path(bytes);
  receiver_.told(heard);
  parts_.services.tally->add(Count::rdma_sends);
  return 0;
}

bool RdmaMessages::send_on_socket(std::span<const std::byte> bytes) {
  if (sender_.way(false) == Way::wait || endpoint_.socket.io.queued() >= kQueueMax) return false;
  const uint64_t sequence = sender_.next();
  sender_.sent_on_socket();
  send_on_socket(sequence, {bytes.begin(), bytes.end()});
  return true;
}

void RdmaMessages::send_on_socket(uint64_t sequence, std::vector<std::byte> bytes) {
  OutFrame frame = control_frame(FrameType::notify, std::move(bytes));
  frame.header.id = sequence;
  frame.header.offset = receiver_.heard(!parts_.services.reading_notifies);
  receiver_.told(frame.header.offset);
  endpoint_.socket.push(std::move(frame));
}

void RdmaMessages::repeat() {
  carrier_ = nullptr;
  for (auto& kept : sender_.path_lost()) send_on_socket(kept.sequence, std::move(kept.bytes));
  parts_.due(now());  // flushed in this turn
}

/// The error in a SEND of the peer; null = none.
const char* RdmaMessages::take_send(std::span<const std::byte> message) {
  const auto notify = wire::decode_rdma_notify(message);
  if (!notify) return "malformed notify on a queue pair";
  if (!receiver_.from_path(notify->sequence, notify->bytes)) return "a notify on a queue pair is out of sequence";
  return sender_.heard(notify->heard) ? nullptr : "the peer confirmed notifies that were never sent";
}

const char* RdmaMessages::take_immediate(RdmaRail& rail, uint32_t immediate) {
  RdmaAttempt::Heard& heard = rail.attempt.heard;
  MC_ASSERT_LE(heard.told, heard.count);
  if (++heard.count - heard.told > wire::kRdmaImmediatesAhead) return "the peer sent more immediates than its credit";
  immediates_.push_back(immediate);
  return nullptr;
}

void RdmaMessages::take(RdmaRail& rail, std::span<const RdmaAttempt::Polled::Message> messages, Reports& out) {
  const char* lie = nullptr;
  for (const auto& message : messages) {
    lie = message.immediate ? take_immediate(rail, *message.immediate)
                            : take_send(rail.attempt.message(message.slot, message.bytes));
    if (lie != nullptr) break;
    // a refused receive means that the queue pair has failed, which is reported separately
    if (rail.machine.live()) (void)rail.attempt.give_back(message.slot);
  }
  if (lie != nullptr && !endpoint_.doomed()) {
    parts_.services.tally->failure(lie);
    endpoint_.doom({Code::corrupt, false, lie});
    parts_.due(now());
  }
  deliver(out);
}

Code RdmaMessages::on_notify(const FrameHeader& header, std::span<const std::byte> payload, Reports& out,
                             const char*& why) {
  why = "notify before a path was up";
  if (!endpoint_.up) return Code::corrupt;
  why = "a notify on an rdma socket is out of sequence";
  if (!receiver_.from_socket(header.id, payload)) return Code::corrupt;
  deliver(out);
  return on_heard(header.offset, why);
}

Code RdmaMessages::on_heard(uint64_t count, const char*& why) {
  why = "the peer confirmed notifies that were never sent";
  return sender_.heard(count) ? Code::ok : Code::corrupt;
}

void RdmaMessages::deliver(Reports& out) {
  if (!endpoint_.up) return;
  std::vector<std::byte> bytes;
  while (receiver_.take(bytes))
    out.events.push_back({.kind = EndpointEvent::Kind::notify, .endpoint = endpoint_.id, .bytes = std::move(bytes)});
  for (const uint32_t immediate : std::exchange(immediates_, {}))
    out.events.push_back({.kind = EndpointEvent::Kind::immediate, .endpoint = endpoint_.id, .immediate = immediate});
  if (!endpoint_.doomed()) give_credit();
}

void RdmaMessages::give_credit() {
  if (!parts_.services.reading_notifies) return;
  if (receiver_.owes()) {
    OutFrame frame = control_frame(FrameType::heard, {});
    frame.header.id = receiver_.heard(false);
    receiver_.told(frame.header.id);
    endpoint_.socket.push(std::move(frame));
    parts_.due(now());
  }
  for (const auto& rail : endpoint_.rails) {  // every path counts its own immediates
    const RdmaAttempt::Heard& heard = rail->attempt.heard;
    MC_ASSERT_LE(heard.told, heard.count);
    if (rail->machine.live() && heard.count - heard.told >= wire::kRdmaImmediatesAhead / 2)
      send_landed(*rail, wire::LandedState::open);
  }
}

void RdmaMessages::end_landed(RdmaRail& rail) {
  send_landed(rail, rail.attempt.receives_done() ? wire::LandedState::over : wire::LandedState::unsure);
}

void RdmaMessages::send_landed(RdmaRail& rail, wire::LandedState state) {
  OutFrame frame = control_frame(FrameType::landed, {});
  frame.header.buffer = rail.id;
  frame.header.snapshot = rail.machine.epoch();
  frame.header.offset = static_cast<uint64_t>(state);
  frame.header.id = rail.attempt.heard.told = rail.attempt.heard.count;
  endpoint_.socket.push(std::move(frame));
  parts_.due(now());
}

Code RdmaMessages::on_landed(const FrameHeader& header, Reports& out, const char*& why) {
  why = "the peer counted immediates that were never sent";
  if (header.buffer >= endpoint_.rails.size() || header.offset > static_cast<uint64_t>(wire::LandedState::unsure))
    return Code::corrupt;
  RdmaRail& rail = *endpoint_.rails[header.buffer];
  const uint32_t epoch = header.snapshot;
  if (epoch > rail.machine.epoch()) return Code::corrupt;
  const auto state = static_cast<wire::LandedState>(header.offset);
  if (state == wire::LandedState::open) {
    if (!rail.machine.current(epoch)) return Code::ok;  // a report of an attempt that is over
    if (!rail.attempt.landed(header.id)) return Code::corrupt;
    out.room = true;
    return Code::ok;
  }
  rail.hold.landed(epoch, header.id, state == wire::LandedState::over);
  rail.hold.take(now(), out.done);
  return Code::ok;
}

}  // namespace mc::xfer
