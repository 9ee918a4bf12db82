// shm, the data path: messages of the control socket, arenas passed along, bytes copied.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/copy_crc.h"
#include "xfer/access.h"
#include "xfer/tally.h"
#include "xfer_shm/transport.h"

namespace mc::xfer {
namespace {

using wire::FrameHeader;
using wire::FrameType;

constexpr size_t kQueueMax = 1024;               // frames waiting for one peer
constexpr size_t kCopyBudget = size_t{1} << 20;  // bytes copied in one turn, so that others get theirs

}  // namespace

bool ShmTransport::send(ShmEndpoint& endpoint, const OutFrame& frame, int fd, Failure& failure) {
  const auto head = wire::encode(frame.header);
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(frame.payload.data()), frame.payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  if (::sendmsg(endpoint.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ETOOMANYREFS)
    failure = {Code::peer_lost, "connection lost", errno_error("send").what};
  return false;
}

ShmTransport::Failure ShmTransport::flush(ShmEndpoint& endpoint) {
  Failure failure;
  while (!endpoint.queue.empty() && send(endpoint, endpoint.queue.front(), -1, failure)) endpoint.queue.pop_front();
  if (failure.code == Code::ok && endpoint.queue.empty() && endpoint.publish_again) failure = send_arenas(endpoint);
  return failure;
}

/// Sends the arenas the peer does not have yet, then the descriptor. Order matters, so it waits (as
/// publish_again) until the socket has taken everything before it.
ShmTransport::Failure ShmTransport::send_arenas(ShmEndpoint& endpoint) {
  endpoint.publish_again = true;
  Failure failure;
  if (!endpoint.queue.empty()) return failure;
  const auto descriptor = home_.describe();  // before the arenas: it must not name one that is not sent
  for (const auto& arena : home_.access->shared_with(endpoint.handshake.peer_instance())) {
    if (endpoint.shared.contains(arena.info.id)) continue;
    OutFrame frame = control_frame(FrameType::share, {});
    frame.header.buffer = arena.info.id;
    frame.header.length = arena.info.length;
    frame.header.snapshot = static_cast<uint32_t>(arena.info.access);
    if (!send(endpoint, frame, arena.fd, failure)) return failure;
    endpoint.shared.insert(arena.info.id);
  }
  if (send(endpoint, control_frame(FrameType::describe, wire::encode(*descriptor)), -1, failure))
    endpoint.publish_again = false;
  return failure;
}

ShmTransport::Failure ShmTransport::receive(ShmEndpoint& endpoint, Reports& out) {
  for (int i = 0; i < 64; ++i) {
    iovec part{inbox_.data(), inbox_.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(endpoint.fd.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (n < 0) return {Code::peer_lost, "connection lost", errno_error("recv").what};
    Fd passed;
    size_t passed_count = 0;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t k = 0; k < count; ++k, ++passed_count) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(head) + k * sizeof fd, sizeof fd);
        passed = Fd(fd);  // of several only the last stays open, and the frame is refused below
      }
    }
    if (n == 0) return {Code::peer_lost, "connection lost", "closed by the peer"};
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || static_cast<size_t>(n) < wire::kFrameHeaderBytes ||
        passed_count > 1)
      return {Code::corrupt, "bad message size", "message of " + std::to_string(n) + " bytes"};
    FrameHeader header;
    const char* why = nullptr;
    const std::span<const std::byte, wire::kFrameHeaderBytes> head(inbox_.data(), wire::kFrameHeaderBytes);
    if (const Code code = wire::decode(head, header, why); code != Code::ok)
      return {code, why, std::string("bad frame: ") + why};
    const std::span<const std::byte> payload(inbox_.data() + head.size(), static_cast<size_t>(n) - head.size());
    if (payload.size() != (header.kind() == FrameType::share ? 0 : header.length) ||
        (header.kind() == FrameType::share) != static_cast<bool>(passed))
      return {Code::corrupt, "bad message size", "message and header disagree"};
    if (Failure failure = take(endpoint, header, payload, std::move(passed), out); failure.code != Code::ok)
      return failure;
  }
  return {};
}

ShmTransport::Failure ShmTransport::take(ShmEndpoint& endpoint, const FrameHeader& header,
                                         std::span<const std::byte> payload, Fd fd, Reports& out) {
  if (!endpoint.handshake.complete()) {
    Handshake::Step step = endpoint.handshake.take(header, payload);
    if (endpoint.handshake.complete()) --handshakes_;  // also when its last frame cannot be sent
    Failure failure;
    if (step.send && !send(endpoint, *step.send, -1, failure) && failure.code == Code::ok)
      failure = {Code::io, "socket full", "the socket takes no handshake"};
    if (step.failed) return {step.failed->code, step.reason, step.failed->what, step.gone};
    if (failure.code == Code::ok && endpoint.handshake.complete()) return send_arenas(endpoint);
    return failure;
  }
  switch (header.kind()) {
    case FrameType::share: return take_share(endpoint, header, std::move(fd));
    case FrameType::describe: return take_descriptor(endpoint, payload, out);
    case FrameType::notify:
      if (!endpoint.up) return {Code::corrupt, "notify before describe", "notify before describe"};
      out.news.push_back(
          {.kind = News::Kind::notify, .endpoint = endpoint.id, .bytes = {payload.begin(), payload.end()}});
      return {};
    case FrameType::immediate:
      if (!endpoint.up || header.id > UINT32_MAX)
        return {Code::corrupt, "immediate out of turn", "immediate " + std::to_string(header.id) + " out of turn"};
      out.news.push_back(
          {.kind = News::Kind::immediate, .endpoint = endpoint.id, .immediate = static_cast<uint32_t>(header.id)});
      return {};
    case FrameType::goodbye:
      return {Code::peer_lost, "goodbye",
              "the peer left: " + std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), true};
    default:
      return {Code::corrupt, "unexpected frame", "unexpected frame '" + std::string(to_string(header.kind())) + "'"};
  }
}

ShmTransport::Failure ShmTransport::take_share(ShmEndpoint& endpoint, const FrameHeader& header, Fd fd) {
  if (endpoint.arenas.size() >= wire::kXferBuffersMax || endpoint.arenas.contains(header.buffer) || header.length == 0)
    return {Code::corrupt, "bad share", "share of buffer " + std::to_string(header.buffer)};
  const bool writable = header.snapshot == static_cast<uint32_t>(AccessClass::landing);
  auto arena = mem::SharedBuffer::map(fd.get(), header.length, writable);
  if (!arena)
    return {arena.error().code == Code::invalid ? Code::corrupt : Code::io, "arena cannot be mapped",
            arena.error().what};
  auto shared = std::make_shared<mem::SharedBuffer>(std::move(*arena));
  endpoint.arenas.emplace(header.buffer, shared);
  endpoint.fresh.push_back({header.buffer, shared});
  return {};
}

ShmTransport::Failure ShmTransport::take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload,
                                                    Reports& out) {
  auto decoded = wire::decode_descriptor(payload);
  if (!decoded || decoded->instance != endpoint.handshake.peer_instance())
    return {Code::corrupt, "malformed or foreign descriptor", "malformed or foreign descriptor"};
  const auto descriptor = std::make_shared<const Descriptor>(std::move(*decoded));
  std::erase_if(endpoint.arenas, [&](const auto& arena) { return descriptor->find(arena.first) == nullptr; });
  News news{.kind = News::Kind::described, .endpoint = endpoint.id, .descriptor = descriptor};
  if (!endpoint.up) {
    endpoint.up = true;
    endpoint.deadline = kNever;
    news.kind = News::Kind::up;
    news.accepted = endpoint.accepted;
    news.proven = endpoint.ours || endpoint.handshake.proven();
    news.row = index_ - 1u;
    news.instance = endpoint.handshake.peer_instance();
    news.text = endpoint.handshake.peer_name();
  }
  news.mappings = std::exchange(endpoint.fresh, {});
  out.news.push_back(std::move(news));
  return {};
}

SliceDone ShmTransport::copy(ShmEndpoint& endpoint, const Slice& slice) {
  const auto at = endpoint.arenas.find(slice.buffer);
  if (at == endpoint.arenas.end())
    return {slice.id, Code::not_found, 0, "shm: buffer " + std::to_string(slice.buffer) + " is not shared (any more)"};
  mem::SharedBuffer& arena = *at->second;
  const size_t bytes = slice.local.size();
  if (!inside(slice.offset, bytes, arena.size()))
    return {slice.id, Code::invalid, 0, "shm: range beyond the end of the arena"};
  Tally& tally = *home_.tally;
  SliceDone done{slice.id};
  if (slice.op == Op::read) {
    const std::byte* from = std::as_const(arena).data() + slice.offset;
    if (slice.checksum)
      done.crc32c = copy_crc32c(slice.local.data(), from, bytes);
    else
      copy_bytes(slice.local.data(), from, bytes);
    tally.add(index_ - 1u, Flow::read_bytes, bytes);
    return done;
  }
  if (!arena.writable()) return {slice.id, Code::invalid, 0, "shm: write to a buffer that peers may only read"};
  copy_bytes(arena.data() + slice.offset, slice.local.data(), bytes);
  tally.add(index_ - 1u, Flow::written_bytes, bytes);
  return done;
}

size_t ShmTransport::post(EndpointId id, int, std::span<const Slice> slices, Reports& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return 0;
  size_t copied = 0;
  size_t taken = 0;
  for (const Slice& slice : slices) {
    if (copied >= kCopyBudget) break;
    SliceDone done = copy(*endpoint, slice);
    Failure failure;
    if (slice.immediate && done.code == Code::ok && !tell(*endpoint, *slice.immediate, failure)) {
      if (failure.code != Code::ok) lose(*endpoint, failure, out);
      break;  // not taken: copied once more when the socket has room
    }
    out.done.push_back(std::move(done));
    copied += slice.local.size();
    ++taken;
  }
  return taken;
}

/// Says that a write is in place. False: the socket does not take it now, or is broken. The system call that
/// carries it orders the bytes before it, and the one that the peer receives it by.
bool ShmTransport::tell(ShmEndpoint& endpoint, uint32_t immediate, Failure& failure) {
  OutFrame frame = control_frame(FrameType::immediate, {});
  frame.header.id = immediate;
  if (endpoint.queue.empty() && send(endpoint, frame, -1, failure)) return true;
  endpoint.full = true;
  arm(endpoint);
  return false;
}

Code ShmTransport::notify(EndpointId id, std::span<const std::byte> bytes, Reports& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return Code::peer_lost;
  if (endpoint->queue.size() >= kQueueMax) return Code::busy;
  OutFrame frame = control_frame(FrameType::notify, {bytes.begin(), bytes.end()});
  Failure failure;
  if (!endpoint->queue.empty() || !send(*endpoint, frame, -1, failure)) {
    if (failure.code != Code::ok) {
      lose(*endpoint, failure, out);
      return Code::peer_lost;
    }
    endpoint->queue.push_back(std::move(frame));
    arm(*endpoint);
  }
  return Code::ok;
}

void ShmTransport::publish(Reports& out) {
  std::vector<std::pair<ShmEndpoint*, Failure>> failed;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->handshake.complete()) continue;
    Failure failure = send_arenas(*endpoint);
    if (failure.code != Code::ok)
      failed.emplace_back(endpoint.get(), std::move(failure));
    else
      arm(*endpoint);
  }
  for (auto& [endpoint, failure] : failed) lose(*endpoint, failure, out);
}

}  // namespace mc::xfer
