// A client of bare sockets for tests: sends exactly the bytes it is told, waits with deadlines.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "test.h"

namespace mc::test {

inline constexpr Duration kPatience = 20s;  // only a hang reaches it
inline TimePoint patience() {
  return after(SystemClock::instance().now(), kPatience);
}

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) {
    fd_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(fd_.get() >= 0);
    if (receive_buffer > 0) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE_OK(set_nonblocking(fd_.get(), true));
  }

  /// False when the server has closed.
  bool send(std::string_view bytes) { return write_all(fd_.get(), bytes, patience()).has_value(); }
  /// Reads until `mark` has arrived; returns everything up to and with it. Empty at end or timeout.
  std::string read_through(std::string_view mark) {
    size_t from = 0;
    for (;;) {
      if (const size_t at = held_.find(mark, from); at != std::string::npos) {
        std::string out = held_.substr(0, at + mark.size());
        held_.erase(0, at + mark.size());
        return out;
      }
      from = held_.size() < mark.size() ? 0 : held_.size() - mark.size() + 1;
      if (!fill()) return {};
    }
  }
  /// Everything until the server closes.
  std::string read_to_end() {
    while (fill()) {
    }
    return std::exchange(held_, {});
  }
  /// One response with Content-Length: head and body.
  std::string read_response() {
    std::string head = read_through("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t count = std::stoul(head.substr(at + 16));
    while (held_.size() < count && fill()) {
    }
    head += held_.substr(0, count);
    held_.erase(0, std::min(count, held_.size()));
    return head;
  }
  bool is_reset() const { return is_reset_; }
  void half_close() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  /// Closes with RST.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    fd_.reset();
  }
  int fd() const { return fd_.get(); }

 private:
  bool fill() {
    char buffer[65536];
    if (!wait_fd(fd_.get(), POLLIN, patience())) return false;
    const ssize_t count = ::read(fd_.get(), buffer, sizeof buffer);
    if (count < 0) is_reset_ = true;
    if (count <= 0) return false;
    held_.append(buffer, static_cast<size_t>(count));
    return true;
  }

  Fd fd_;
  std::string held_;
  bool is_reset_ = false;
};

}  // namespace mc::test
