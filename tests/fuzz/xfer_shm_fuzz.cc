// links: xfer_shm
// The shm transport's socket as a process of this host that lies would use it: messages with sound headers that say
// whatever the input wants, cut short or drawn out, with descriptors of all sorts beside them, before and after the
// handshake. What it takes for an arena can be read from its first byte to its last; a connection is up once, lost
// once, and leaves no descriptor and no mapping behind.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz_target.h"
#include "mem/mem.h"
#include "wire/xfer_frame.h"
#include "xfer/access.h"
#include "xfer/handshake.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_shm/xfer_shm.h"

namespace mc::xfer_shm_fuzz {
namespace {

using namespace mc::xfer;
using wire::FrameHeader;
using wire::FrameType;

void require(bool ok) {
  if (!ok) std::abort();
}

constexpr size_t kArenaBytes = 8192;

Fd memfd(size_t bytes, int seals) {
  Fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

/// The listener, and what may travel beside a message.
struct World {
  Options options;
  Access access;
  Tally tally;
  Poller poller;
  Services services;
  std::unique_ptr<Transport> transport;
  sockaddr_un address{};
  socklen_t address_bytes = 0;
  std::array<Fd, 6> files{memfd(kArenaBytes, F_SEAL_SHRINK | F_SEAL_GROW),
                          memfd(kArenaBytes, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE),
                          memfd(kArenaBytes, 0),
                          memfd(0, F_SEAL_SHRINK),
                          Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)),
                          Fd(::open("/", O_RDONLY | O_CLOEXEC))};

  World() {
    auto opened = Poller::open();
    require(opened.has_value());
    poller = std::move(*opened);
    services.options = &options;
    services.instance.bytes.fill(7);
    services.instance.bytes[0] = static_cast<uint8_t>(::getpid());
    services.instance.bytes[1] = static_cast<uint8_t>(::getpid() >> 8);
    services.access = &access;
    services.tally = &tally;
    services.poller = &poller;
    services.endpoints_max = 16;
    transport = kTransportShm.make(services, 1);
    const auto uri = transport->listen();
    require(uri.has_value());
    const std::string name = uri->substr(6);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  }

  void pump(Reports& out) {
    std::array<Poller::Ready, 8> ready;
    const TimePoint now = SystemClock::instance().now();
    while (const size_t count = poller.wait(ready, now, now))
      for (size_t i = 0; i < count; ++i) transport->ready(ready[i].token, ready[i].events, out);
  }
};

struct Liar {
  World& world;
  Reports out;
  Fd fd;
  int ups = 0, losses = 0;

  explicit Liar(World& w) : world(w), fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    require(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&world.address), world.address_bytes) == 0);
    listen();
  }

  void listen() {
    world.pump(out);
    for (EndpointEvent& event : out.events) {
      require(ups + losses > 0 || event.kind == EndpointEvent::Kind::up);
      ups += event.kind == EndpointEvent::Kind::up;
      losses += event.kind == EndpointEvent::Kind::lost;
      for (const MappedBuffer& arena : event.mappings) {
        const auto bytes = std::as_const(*arena.mapping).bytes();
        require(bytes.size() == kArenaBytes && (bytes.front() | bytes.back()) == std::byte{0});
      }
    }
    require(ups <= 1 && losses <= ups && out.done.empty());
    out = {};
  }

  void say(FrameHeader header, std::span<const std::byte> payload, int cut, std::span<const int> fds) {
    const auto head = wire::encode(header);
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    if (cut < 0) bytes.resize(std::min<size_t>(bytes.size(), 63));
    if (cut > 0) bytes.resize(bytes.size() + static_cast<size_t>(cut));
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* beside = CMSG_FIRSTHDR(&message);
      beside->cmsg_level = SOL_SOCKET;
      beside->cmsg_type = SCM_RIGHTS;
      beside->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(beside), fds.data(), fds.size_bytes());
    }
    (void)::sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    listen();
    std::array<std::byte, 256> answers;
    while (::recv(fd.get(), answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
    }
  }
  void say(FrameType type, std::vector<std::byte> payload) {
    const OutFrame frame = control_frame(type, std::move(payload));
    say(frame.header, frame.payload, 0, {});
  }

  void join(const Descriptor& descriptor) {
    wire::XferHello hello{.instance = descriptor.instance, .lane_count = 1, .name = "x"};
    hello.connection.bytes.fill(3);
    say(FrameType::hello, wire::encode(hello));
    std::vector<std::byte> proof(32);
    const auto bytes = wire::encode(descriptor);
    proof.insert(proof.end(), bytes.begin(), bytes.end());
    say(FrameType::proof, std::move(proof));
  }
};

}  // namespace

/// [joined u8] then messages: [type u8][descriptors u8][cut i8][id u8][buffer u8][length u16][payload]
FUZZ_TARGET(xfer_shm) {
  static World world;
  if (size == 0) return 0;
  std::span<const std::byte> input = std::as_bytes(std::span(data + 1, size - 1));
  Descriptor descriptor;
  descriptor.name = "x";
  descriptor.instance.bytes.fill(9);
  descriptor.version = 1;
  for (uint32_t id = 1; id < 4; ++id)
    descriptor.buffers.push_back(
        {.id = id, .access = AccessClass::blocks, .length = kArenaBytes, .name = std::string(id, 'b')});
  Liar liar(world);
  if (data[0] % 4 != 0) liar.join(descriptor);
  for (int messages = 0; input.size() >= 7 && messages < 64; ++messages) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(input[i]); };
    FrameHeader header;
    header.type = at(0);
    std::vector<int> fds;
    for (unsigned i = 0; i < at(1) / 6 % 8; ++i) fds.push_back(world.files[(at(1) + i) % world.files.size()].get());
    const int cut = at(2) < 224 ? 0 : static_cast<int8_t>(at(2)) / 2;
    header.id = at(3);
    header.buffer = at(4) % 8;
    header.snapshot = at(4) / 8 % 4;  // of a share: its access class
    uint16_t length;
    std::memcpy(&length, input.data() + 5, sizeof length);
    input = input.subspan(7);
    const size_t payload = std::min<size_t>(length % 4096, input.size());
    header.length = header.kind() == FrameType::share ? (length % 2 == 0 ? kArenaBytes : length) : payload;
    if (header.kind() == FrameType::describe && length % 3 == 0) {
      const auto bytes = wire::encode(descriptor);
      header.length = bytes.size();
      liar.say(header, bytes, cut, fds);
      ++descriptor.version;
      continue;
    }
    liar.say(header, header.kind() == FrameType::share ? std::span<const std::byte>() : input.first(payload), cut, fds);
    input = input.subspan(payload);
  }
  liar.fd.reset();
  liar.listen();
  require(liar.losses == liar.ups);
  return 0;
}

}  // namespace mc::xfer_shm_fuzz
