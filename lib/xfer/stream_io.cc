#include "xfer/stream_io.h"

#include <cerrno>

namespace mc::xfer {

ssize_t SocketCalls::receive(int fd, std::span<const iovec> parts, int flags) {
  msghdr message = message_of(parts);
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | flags);
  return n < 0 ? -errno : n;
}

ssize_t SocketCalls::send(int fd, std::span<const iovec> parts) {
  const msghdr message = message_of(parts);
  const ssize_t n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return n < 0 ? -errno : n;
}

StreamIo& socket_calls() {
  static SocketCalls calls;
  return calls;
}

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // the kernel only reads the parts
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace mc::xfer
