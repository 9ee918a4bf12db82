#include "rfp/server.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/assert.h"
#include "base/shared_words.h"

namespace mc::rfp {
namespace {

uint16_t saturated_us(Duration time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return static_cast<uint16_t>(std::clamp<int64_t>(us, 0, UINT16_MAX));
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options), slots_(options.geometry.slots), image_(options.geometry.response_bytes / 8) {
  MC_ASSERT(options.geometry.valid());
  MC_ASSERT_LE(options.bad_looks_max, 7);
}

/// Whether the slot holds a request that is intact. Its payload is copied then.
bool Server::take(const ServerMemory& memory, uint32_t index, std::span<std::byte> payload, Request& out) {
  Slot& slot = slots_[index];
  const std::byte* from = memory.requests.data() + options_.geometry.request_at(index);
  const auto fresh = [&](uint64_t sequence) {
    const bool again = options_.fault == Fault::request_taken_twice && sequence == slot.sequence && sequence != 0;
    return (sequence > slot.sequence || again) && options_.geometry.slot_of(sequence) == index;
  };
  if (!fresh(load_word(from))) return false;
  if (slot.looks_off > 0) return --slot.looks_off, false;
  wire::RfpRequest header;
  alignas(8) std::byte head[sizeof header];
  load_words(head, from, sizeof head);
  std::memcpy(&header, head, sizeof header);
  bool intact = fresh(header.sequence) && header.size <= options_.geometry.request_room() &&
                header.epoch == options_.epoch && header.flags == 0 && header.reserved == 0;
  if (intact) {
    load_words(payload.data(), from + sizeof header, header.size);
    intact =
        header.crc == wire::rfp_crc(header, payload.first(header.size)) || options_.fault == Fault::request_unchecked;
  }
  if (!intact) {
    // Most often the write is still arriving, so the first looks are close to each other.
    slot.looks_off = static_cast<uint8_t>((1u << slot.bad_looks) - 1);
    slot.bad_looks = std::min<uint8_t>(slot.bad_looks + 1, options_.bad_looks_max);
    return false;
  }
  slot.bad_looks = 0;
  slot.sequence = header.sequence;
  out = {.sequence = header.sequence, .method = header.method, .size = header.size};
  return true;
}

std::optional<Server::Request> Server::poll(const ServerMemory& memory, std::span<std::byte> payload, TimePoint now,
                                            uint64_t slots) {
  MC_ASSERT_LE(options_.geometry.requests_bytes(), memory.requests.size());
  MC_ASSERT_LE(options_.geometry.request_room(), payload.size());
  Request request;
  for (uint32_t looks = 0; looks < options_.geometry.slots; ++looks) {
    const uint32_t index = next_;
    next_ = (next_ + 1) % options_.geometry.slots;
    Slot& slot = slots_[index];
    if ((slots >> index & 1) == 0 || slot.state == State::taken) continue;
    if (!take(memory, index, payload, request)) continue;
    slot.state = State::taken;
    slot.push_due = false;
    slot.taken_at = now;
    return request;
  }
  return std::nullopt;
}

uint64_t Server::mode(const ServerMemory& memory) const {
  return options_.always_push ? wire::rfp_mode(true, 0) : load_word(memory.requests.data());
}

void Server::publish(const ServerMemory& memory, uint64_t sequence, uint16_t status, std::span<const std::byte> payload,
                     TimePoint now) {
  const uint32_t index = options_.geometry.slot_of(sequence);
  Slot& slot = slots_[index];
  MC_ASSERT(slot.state == State::taken && slot.sequence == sequence);
  MC_ASSERT_LE(payload.size(), options_.geometry.response_room());
  MC_ASSERT_LE(options_.geometry.responses_bytes(), memory.responses.size());
  wire::RfpResponse header{.sequence = sequence,
                           .instance = options_.instance,
                           .size = static_cast<uint32_t>(payload.size()),
                           .status = status,
                           .time_us = saturated_us(now - slot.taken_at)};
  header.crc = wire::rfp_crc(header, payload);
  slot.bytes = static_cast<uint32_t>(sizeof header + payload.size());
  slot.state = State::published;
  slot.push_due = true;
  auto* image = reinterpret_cast<std::byte*>(image_.data());
  std::memcpy(image, &header, sizeof header);
  if (!payload.empty()) std::memcpy(image + sizeof header, payload.data(), payload.size());
  const bool pushes = wire::rfp_pushes(mode(memory), sequence);
  if (options_.fault == Fault::flag_read_once) slot.push_due = pushes;
  if (options_.fault == Fault::stored_only_pushed && pushes) return;
  store_words(memory.responses.data() + options_.geometry.response_at(index), image, slot.bytes);
}

std::optional<Server::Push> Server::push(const ServerMemory& memory) {
  const uint64_t now_mode = mode(memory);
  for (uint32_t index = 0; index < options_.geometry.slots; ++index) {
    Slot& slot = slots_[index];
    if (slot.state != State::published || !slot.push_due || slot.pushing) continue;
    if (!wire::rfp_pushes(now_mode, slot.sequence)) continue;
    slot.push_due = options_.fault == Fault::pushed_again;
    slot.pushing = true;
    return Push{.slot = index, .at = options_.geometry.response_at(index), .bytes = slot.bytes};
  }
  return std::nullopt;
}

void Server::pushed(uint32_t index, Code code) {
  MC_ASSERT(index < options_.geometry.slots && slots_[index].pushing);
  Slot& slot = slots_[index];
  slot.pushing = false;
  if (options_.fault == Fault::failed_push_left) return;
  // Another push of the same bytes may pass after these. After others, such as a buffer that the client withdrew, the
  // client fetches or its call ends at its deadline.
  const bool may_pass = code == Code::timeout || code == Code::busy || code == Code::io;
  if (may_pass && slot.state == State::published) slot.push_due = true;
}

void Server::state(std::vector<uint64_t>& out) const {
  out.push_back(next_);
  for (const Slot& slot : slots_) {
    out.push_back(slot.sequence);
    out.push_back(static_cast<uint64_t>(slot.state) | uint64_t{slot.push_due} << 8 | uint64_t{slot.pushing} << 9 |
                  uint64_t{slot.bad_looks} << 16 | uint64_t{slot.looks_off} << 24 | uint64_t{slot.bytes} << 32);
    out.push_back(static_cast<uint64_t>(slot.taken_at.time_since_epoch().count()));
  }
}

}  // namespace mc::rfp
