#include "rfp/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/shared_words.h"

namespace mc::rfp {
namespace {

constexpr uint32_t kSwitchAfter = 2;  // consecutive calls that change the mode
constexpr uint32_t kHeader = wire::kRfpHeaderBytes;

uint32_t round_up(uint32_t bytes) {
  return (bytes + 7) & ~uint32_t{7};
}

wire::RfpResponse header_at(std::span<const std::byte> bytes) {
  wire::RfpResponse header;
  MC_ASSERT_LE(sizeof header, bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

}  // namespace

Client::Client(const ClientOptions& options) : options_(options), slots_(options.geometry.slots) {
  MC_ASSERT(options.geometry.valid());
  MC_ASSERT_LT(0u, options.retries_max);
}

/// Whether a call of the slot is to end, and somebody waits for it.
bool Client::is_open(const Slot& slot) {
  const bool is_over = slot.state == State::idle || slot.state == State::answered || slot.state == State::taken;
  return !is_over && !slot.abandoned;
}

bool Client::free() const {
  return slots_[options_.geometry.slot_of(next_sequence_)].state == State::idle;
}

Result<uint64_t> Client::call(const ClientMemory& memory, uint16_t method, std::span<const std::byte> payload,
                              uint32_t fetch_bytes, TimePoint now, TimePoint deadline) {
  MC_ASSERT_LE(client_bytes(options_.geometry), memory.local.size());
  if (failed_ != Code::ok) return Error{failed_, "rfp: the channel is lost"};
  if (payload.size() > options_.geometry.request_room())
    return Error{Code::invalid, "rfp: request of " + std::to_string(payload.size()) + " bytes, " +
                                    std::to_string(options_.geometry.request_room()) + " fit"};
  if (!free()) return Error{Code::busy, "rfp: every slot is in use"};
  const uint64_t sequence = next_sequence_++;
  MC_ASSERT_EQ(sequence >> 63, 0u);
  const uint32_t index = options_.geometry.slot_of(sequence);
  wire::RfpRequest header{
      .sequence = sequence, .epoch = options_.epoch, .size = static_cast<uint32_t>(payload.size()), .method = method};
  header.crc = wire::rfp_crc(header, payload);
  std::byte* image = memory.local.data() + image_at(index);
  std::memcpy(image, &header, sizeof header);
  if (!payload.empty()) std::memcpy(image + sizeof header, payload.data(), payload.size());
  slots_[index] = {.sequence = sequence,
                   .state = State::request,
                   .bytes = kHeader + header.size,
                   .fetch_bytes = std::clamp(fetch_bytes & ~7u, kHeader, options_.geometry.response_bytes),
                   .due = now,
                   .deadline = deadline};
  return sequence;
}

void Client::expire(TimePoint now) {
  for (Slot& slot : slots_) {
    if (slot.deadline > now || !is_open(slot)) continue;
    slot.state = State::answered;
    slot.code = Code::timeout;
  }
}

std::optional<Transfer> Client::next_of(uint32_t index, TimePoint now) {
  Slot& slot = slots_[index];
  if (slot.busy) return std::nullopt;
  if (slot.state == State::request)
    return Transfer{Transfer::Kind::write_request, index, image_at(index), image_at(index), slot.bytes};
  const uint64_t from = options_.geometry.response_at(index);
  if (slot.state == State::rest) {
    const uint32_t got = slot.fetch_bytes, rest = round_up(slot.bytes) - got;
    return Transfer{Transfer::Kind::read, index, response_at(index) + got, from + got, rest};
  }
  if (slot.state != State::waiting || slot.due > now || !options_.fetches) return std::nullopt;
  if (options_.fault == Fault::no_late_fetch && wire::rfp_pushes(mode_, slot.sequence)) return std::nullopt;
  return Transfer{Transfer::Kind::read, index, response_at(index), from, slot.fetch_bytes};
}

std::optional<Transfer> Client::next(const ClientMemory& memory, TimePoint now) {
  if (failed_ != Code::ok) return std::nullopt;
  if (mode_due_ && !mode_busy_) {
    mode_due_ = false;
    mode_busy_ = true;
    std::memcpy(memory.local.data(), &mode_, sizeof mode_);
    return Transfer{.kind = Transfer::Kind::write_mode, .bytes = sizeof mode_};
  }
  // Requests first, and each time the oldest call first: reads in vain delay no other call's request.
  for (const bool requests : {true, false})
    for (uint32_t i = 0; i < options_.geometry.slots; ++i) {
      const uint32_t index = options_.geometry.slot_of(next_sequence_ + i);
      if ((slots_[index].state == State::request) != requests) continue;
      auto transfer = next_of(index, now);
      if (!transfer) continue;
      slots_[index].busy = true;
      return transfer;
    }
  return std::nullopt;
}

/// Looks at the first `bytes` bytes of the slot's response in the client's own memory.
Client::Look Client::examine(const ClientMemory& memory, uint32_t index, uint32_t bytes) {
  const Slot& slot = slots_[index];
  const auto response = memory.local.subspan(response_at(index), options_.geometry.response_bytes);
  const wire::RfpResponse header = header_at(response);
  if (header.sequence != slot.sequence && (options_.fault != Fault::any_sequence || header.sequence == 0))
    return Look::not_ready;
  if (header.size > options_.geometry.response_room() || header.reserved != 0) return Look::not_ready;
  if (kHeader + header.size > bytes) return Look::partial;
  if (header.crc == wire::rfp_crc(header, response.subspan(kHeader, header.size))) return Look::ready;
  return options_.fault == Fault::response_unchecked ? Look::ready : Look::not_ready;
}

void Client::retry(Slot& slot, TimePoint now) {
  slot.state = State::waiting;
  if (wire::rfp_pushes(mode_, slot.sequence)) {
    slot.due = after(now, options_.push_wait);
    return;
  }
  slot.retries = std::min(slot.retries + 1, options_.retries_max + 1);
  slot.due = after(now, slot.retries <= options_.retries_max ? options_.retry_after : options_.slow_retry_after);
  if (slot.retries <= options_.retries_max || std::exchange(slot.slow, true)) return;
  if (++slow_calls_ < kSwitchAfter || pushes()) return;
  mode_ = wire::rfp_mode(true, slot.sequence);
  mode_due_ = true;
  quick_calls_ = 0;
  slot.due = after(now, options_.push_wait);
}

void Client::ready(const ClientMemory& memory, uint32_t index, bool pushed) {
  Slot& slot = slots_[index];
  const wire::RfpResponse header =
      header_at(memory.local.subspan(response_at(index), options_.geometry.response_bytes));
  slot.state = State::answered;
  slot.pushed = pushed;
  slot.bytes = kHeader + header.size;
  if (header.instance != options_.instance) {  // the server's end is a new one, without a record of this channel
    slot.code = Code::peer_lost;
    return;
  }
  if (!options_.fetches) return;
  const Duration took = std::chrono::microseconds(header.time_us);
  usual_ = std::min(usual_ + (took - usual_) / 8, options_.first_after_max);
  if (!slot.slow) slow_calls_ = 0;
  if (!wire::rfp_pushes(mode_, slot.sequence)) return;
  const bool quick = took <= options_.quick_below;
  quick_calls_ = quick ? quick_calls_ + 1 : 0;
  if (quick_calls_ < kSwitchAfter || !pushes()) return;
  mode_ = wire::rfp_mode(false, next_sequence_);
  mode_due_ = true;
  slow_calls_ = quick_calls_ = 0;
}

void Client::release(Slot& slot) {
  MC_ASSERT(!slot.busy);
  slot.state = State::idle;
  slot.abandoned = false;
}

void Client::done(const ClientMemory& memory, const Transfer& transfer, Code code, TimePoint now) {
  if (transfer.kind == Transfer::Kind::write_mode) {
    mode_busy_ = false;
    if (code != Code::ok) fail(code);
    return;
  }
  Slot& slot = slots_[transfer.slot];
  MC_ASSERT(slot.busy);
  slot.busy = false;
  if (code != Code::ok && failed_ == Code::ok) fail(code);
  if (slot.abandoned) return release(slot);
  if (!is_open(slot)) return;  // it has failed, or its deadline has passed
  if (transfer.kind == Transfer::Kind::write_request) {
    slot.state = State::waiting;
    slot.due = after(now, wire::rfp_pushes(mode_, slot.sequence) ? options_.push_wait : usual_);
    return;
  }
  const uint32_t bytes = slot.state == State::rest ? options_.geometry.response_bytes : slot.fetch_bytes;
  switch (examine(memory, transfer.slot, bytes)) {
    case Look::ready: return ready(memory, transfer.slot, false);
    case Look::not_ready: return retry(slot, now);
    case Look::partial: break;
  }
  const auto response = memory.local.subspan(response_at(transfer.slot), options_.geometry.response_bytes);
  slot.state = State::rest;
  slot.bytes = kHeader + header_at(response).size;
}

void Client::look(const ClientMemory& memory, uint64_t slots) {
  MC_ASSERT_LE(options_.geometry.responses_bytes(), memory.pushed.size());
  for (uint32_t index = 0; index < options_.geometry.slots; ++index) {
    const Slot& slot = slots_[index];
    if ((slots >> index & 1) == 0 || slot.busy || slot.state != State::waiting || failed_ != Code::ok) continue;
    const std::byte* from = memory.pushed.data() + options_.geometry.response_at(index);
    const uint64_t sequence = load_word(from);
    if (sequence != slot.sequence && (options_.fault != Fault::any_sequence || sequence == 0)) continue;
    std::byte* to = memory.local.data() + response_at(index);
    load_words(to, from, kHeader);
    const uint32_t size = header_at({to, kHeader}).size;
    if (size > options_.geometry.response_room()) continue;
    load_words(to + kHeader, from + kHeader, size);
    if (examine(memory, index, kHeader + size) == Look::ready) ready(memory, index, true);
  }
}

std::optional<Answer> Client::take(const ClientMemory& memory) {
  for (uint32_t i = 0; i < options_.geometry.slots; ++i) {
    const uint32_t index = options_.geometry.slot_of(next_sequence_ + i);
    Slot& slot = slots_[index];
    if (slot.state != State::answered || slot.abandoned) continue;
    slot.state = State::taken;
    Answer answer{.sequence = slot.sequence, .code = slot.code, .retries = slot.retries, .pushed = slot.pushed};
    if (slot.code != Code::ok) return answer;
    const auto response = memory.local.subspan(response_at(index), slot.bytes);
    const wire::RfpResponse header = header_at(response);
    answer.status = header.status;
    answer.time_us = header.time_us;
    answer.payload = response.subspan(kHeader);
    return answer;
  }
  return std::nullopt;
}

Client::Slot& Client::slot_of(uint64_t sequence) {
  Slot& slot = slots_[options_.geometry.slot_of(sequence)];
  MC_ASSERT(slot.sequence == sequence && slot.state != State::idle);
  return slot;
}

void Client::finish(uint64_t sequence) {
  Slot& slot = slot_of(sequence);
  MC_ASSERT(slot.state == State::taken);
  abandon(sequence);
}

void Client::abandon(uint64_t sequence) {
  Slot& slot = slot_of(sequence);
  slot.abandoned = true;
  if (!slot.busy) release(slot);
}

void Client::fail(Code code) {
  MC_ASSERT(code != Code::ok);
  if (failed_ != Code::ok) return;
  failed_ = code;
  for (Slot& slot : slots_) {
    if (!is_open(slot)) continue;
    slot.state = State::answered;
    slot.code = code;
  }
}

TimePoint Client::due() const {
  TimePoint out = kNever;
  for (const Slot& slot : slots_) {
    if (slot.state == State::waiting && !slot.busy && options_.fetches) out = std::min(out, slot.due);
    if (is_open(slot)) out = std::min(out, slot.deadline);
  }
  return out;
}

void Client::state(std::vector<uint64_t>& out) const {
  out.push_back(next_sequence_);
  out.push_back(mode_);
  out.push_back(uint64_t{mode_due_} | uint64_t{mode_busy_} << 1 | uint64_t{slow_calls_} << 8 |
                uint64_t{quick_calls_} << 16 | static_cast<uint64_t>(failed_) << 24);
  out.push_back(static_cast<uint64_t>(usual_.count()));
  for (const Slot& slot : slots_) {
    out.push_back(slot.sequence);
    out.push_back(static_cast<uint64_t>(slot.state) | uint64_t{slot.busy} << 8 | uint64_t{slot.abandoned} << 9 |
                  uint64_t{slot.pushed} << 10 | uint64_t{slot.slow} << 11 | static_cast<uint64_t>(slot.code) << 16 |
                  uint64_t{slot.retries} << 32);
    out.push_back(uint64_t{slot.bytes} << 32 | slot.fetch_bytes);
    out.push_back(static_cast<uint64_t>(slot.due.time_since_epoch().count()));
    out.push_back(static_cast<uint64_t>(slot.deadline.time_since_epoch().count()));
  }
}

}  // namespace mc::rfp
