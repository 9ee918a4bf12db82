#include "xfer_shm/socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/assert.h"

namespace mc::xfer {
namespace {

struct UnixAddress {
  sockaddr_un raw{};
  socklen_t size = 0;
  Fd folder{};  // the folder through which `raw` leads, when the path is too long for a socket name
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

/// The address of a URI: "shm:///path" is a file, "shm://name" an abstract name.
Result<UnixAddress> unix_address(std::string_view uri) {
  if (!uri.starts_with("shm://") || uri.size() < 7) return Error{Code::invalid, "bad address " + std::string(uri)};
  std::string name(uri.substr(6));
  UnixAddress address;
  address.raw.sun_family = AF_UNIX;
  const bool abstract = name[0] != '/';
  if (!abstract && name.size() >= sizeof address.raw.sun_path) {
    const size_t slash = name.rfind('/');
    address.folder = Fd(::open(name.substr(0, slash + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.folder) return errno_error("open " + name.substr(0, slash));
    name = "/proc/self/fd/" + std::to_string(address.folder.get()) + name.substr(slash);
  }
  if (name.size() + 1 >= sizeof address.raw.sun_path)
    return Error{Code::invalid, "address longer than a unix socket allows: " + std::string(uri)};
  std::memcpy(address.raw.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  return address;
}

Fd new_socket() {
  return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// The descriptor that came with a message. `count`: how many came; only the last one stays open.
Fd passed_with(msghdr& message, size_t& count) {
  Fd passed;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t k = 0; k < here; ++k, ++count) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(head) + k * sizeof fd, sizeof fd);
      passed = Fd(fd);
    }
  }
  return passed;
}

}  // namespace

/// Whether the process at the other end of the socket belongs to this process's user or to root.
bool of_our_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == ::geteuid() || peer.uid == 0);
}

Result<Fd> listen_shm(const std::string& uri) {
  MC_TRY(address, unix_address(uri));
  const std::string path = uri.substr(std::string_view("shm://").size());
  const bool file = path[0] == '/';
  Fd fd = new_socket();
  if (!fd) return errno_error("xfer: shm socket");
  if (file) {  // a socket file can outlive its process
    const Fd trial = new_socket();
    if (::connect(trial.get(), address.get(), address.size) == 0)
      return Error{Code::busy, "xfer: shm_path " + path + " is in use by another process"};
    if (errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  if (::bind(fd.get(), address.get(), address.size) != 0) return errno_error("xfer: shm bind " + uri);
  if (file) ::chmod(path.c_str(), 0600);
  if (::listen(fd.get(), 128) != 0) {
    const int error = errno;
    if (file) ::unlink(path.c_str());
    return errno_error("xfer: shm listen " + uri, error);
  }
  return fd;
}

Result<Fd> dial_shm(const std::string& uri) {
  const auto address = unix_address(uri);
  if (!address) return Error{Code::invalid, address.error().what};
  Fd fd = new_socket();
  if (fd && ::connect(fd.get(), address->get(), address->size) == 0) return fd;
  const int error = errno;
  return Error{error == ECONNREFUSED || error == ENOENT ? Code::peer_lost : Code::io,
               errno_error("dial " + uri, error).what};
}

bool ShmSocket::send(const OutFrame& frame, ShmFailure& failure, int passed) const {
  MC_ASSERT_LE(frame.payload.size(), wire::kFrameControlMax);
  const auto head = wire::encode(frame.header);
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(frame.payload.data()), frame.payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof passed);
    std::memcpy(CMSG_DATA(part), &passed, sizeof passed);
  }
  if (::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ETOOMANYREFS)
    failure = {Code::peer_lost, "connection lost", errno_error("send").what};
  return false;
}

bool ShmSocket::receive(std::span<std::byte> inbox, ShmMessage& message, ShmFailure& failure) const {
  MC_ASSERT_EQ(inbox.size(), kMessageMax);
  iovec part{inbox.data(), inbox.size()};
  msghdr raw{};
  raw.msg_iov = &part;
  raw.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  raw.msg_control = control;
  raw.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(fd_.get(), &raw, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const auto fail = [&](Code code, const char* reason, std::string text) {
    failure = {code, reason, std::move(text)};
    return false;
  };
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n < 0) return fail(Code::peer_lost, "connection lost", errno_error("recv").what);
  size_t passed_count = 0;
  message.passed = passed_with(raw, passed_count);
  if (n == 0) return fail(Code::peer_lost, "connection lost", "closed by the peer");
  const auto bytes = static_cast<size_t>(n);
  if ((raw.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || bytes < wire::kFrameHeaderBytes || passed_count > 1)
    return fail(Code::corrupt, "bad message size", "message of " + std::to_string(n) + " bytes");
  const char* why = nullptr;
  const std::span<const std::byte, wire::kFrameHeaderBytes> head(inbox.data(), wire::kFrameHeaderBytes);
  if (const Code code = wire::decode(head, message.header, why); code != Code::ok)
    return fail(code, why, std::string("bad frame: ") + why);
  message.payload = inbox.first(bytes).subspan(head.size());
  const bool share = message.header.kind() == wire::FrameType::share;
  if (message.payload.size() != (share ? 0 : message.header.length) || share != static_cast<bool>(message.passed))
    return fail(Code::corrupt, "bad message size", "message and header disagree");
  return true;
}

}  // namespace mc::xfer
