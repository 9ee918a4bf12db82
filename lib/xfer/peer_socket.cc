#include "xfer/peer_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/assert.h"
#include "base/errors.h"
#include "base/uri.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"

namespace mc::xfer {
namespace {

/// A refused connect() to a wanted instance proves that the instance is gone. Without a wanted instance it proves
/// nothing.
Loss connect_loss(const std::string& what, int error, bool wanted) {
  const bool gone = error == ECONNREFUSED && wanted;
  return {.code = gone ? Code::peer_lost : Code::io,
          .gone = gone,
          .text = errno_error(what, error).what,
          .no_listener = error == ECONNREFUSED};
}

}  // namespace

PeerDialling dial_peer(const std::string& scheme, const Dial& dial, const Options& options) {
  const std::string prefix = scheme + "://";
  const auto refuse = [](Loss why) { return PeerDialling{.fd = {}, .refused = std::move(why)}; };
  if (!dial.uri.starts_with(prefix)) return refuse({Code::invalid, false, "bad address " + dial.uri});
  const auto place = parse_host_port(std::string_view(dial.uri).substr(prefix.size()));
  if (!place) return refuse({Code::invalid, false, "bad address " + dial.uri});
  if (const Reach reach = may_dial(dial.uri, place->host, options); !reach.usable)
    return refuse({reach.code, false, reach.reason,
                   reach.mc == err::kAuthRequired ? wire::Mismatch::secret : wire::Mismatch::none});
  const auto address = numeric_address(*place);
  if (!address) return refuse({Code::invalid, false, address.error().what});
  Dialling dialling = dial_tcp(*address);
  if (dialling.error != 0) return refuse(connect_loss("dial " + dial.uri, dialling.error, !dial.wanted.is_zero()));
  return {.fd = std::move(dialling.fd), .seal = seal_setting(options, stays_on_host(*address)), .refused = {}};
}

bool PeerSocket::open(uint8_t owner) {
  MC_ASSERT(token_ == 0);
  tune_socket(io.fd());
  connecting_ = handshake.dialled();
  armed_ = connecting_ ? EPOLLOUT : EPOLLIN;
  const auto token = services_.poller->add(owner, io.fd(), armed_);
  if (!token) return false;
  token_ = *token;
  progress = now();
  return true;
}

std::optional<Loss> PeerSocket::connected() {
  MC_ASSERT(connecting_);
  if (const int error = connect_error(io.fd()); error != 0)
    return connect_loss("connect", error, !handshake.hello().wanted.is_zero());
  connecting_ = false;
  push(handshake.opening());
  return {};
}

FrameStream::Io PeerSocket::receive(FrameConsumer& consumer, size_t budget, Reports& reports) {
  out = &reports;
  const FrameStream::Io result = io.receive(consumer, budget);
  out = nullptr;
  progress = now();
  return result;
}

void PeerSocket::push(OutFrame frame) {
  if (io.idle()) progress = now();
  io.push(frame.header, std::move(frame.payload));
}

FrameStream::Io PeerSocket::flush(size_t budget, std::vector<FrameStream::Gone>& gone) {
  const size_t before = io.queued_bytes();
  const FrameStream::Io result = io.flush(budget, gone);
  if (io.queued_bytes() != before) progress = now();
  return result;
}

void PeerSocket::watch(bool paused) {
  if (connecting_) return;
  const uint32_t events = (paused ? EPOLLRDHUP : EPOLLIN) | (io.idle() ? 0u : EPOLLOUT);
  if (events == armed_) return;
  services_.poller->modify(token_, io.fd(), events);
  armed_ = events;
}

Code PeerSocket::take_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why) {
  MC_ASSERT(!handshake.complete());
  Handshake::Step step = handshake.take(header, payload, io);
  if (!step.failed) return Code::ok;
  why = step.reason;
  failure = Loss{step.failed->code, step.gone, step.failed->what, step.mismatch};
  return step.failed->code;
}

Code PeerSocket::take_goodbye(std::span<const std::byte> payload, const char*& why) {
  why = "goodbye";
  const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
  failure = Loss{Code::peer_lost, true, "the peer left: " + text};
  return Code::peer_lost;
}

Loss PeerSocket::broken() {
  const Code code = io.code();
  const bool complete = handshake.complete();
  if (code != Code::peer_lost || !complete)
    services_.tally->failure(failure || code != Code::peer_lost ? io.reason() : "handshake: closed by the peer");
  if (!complete && !failure && code != Code::peer_lost) push(refusal(code, io.error()));
  const bool foreign = !complete && code == Code::unsupported;
  return failure ? *failure : Loss{code, false, io.error(), foreign ? wire::Mismatch::version : wire::Mismatch::none};
}

void PeerSocket::close() {
  services_.poller->remove(io.fd());
  ::shutdown(io.fd(), SHUT_RDWR);
}

}  // namespace mc::xfer
