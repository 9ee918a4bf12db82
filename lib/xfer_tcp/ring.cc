// tcp over an io_uring (the fence of liburing). No operation may wait, so each has ended when the call that submits it
// returns. The ring replaces system calls and keeps no state. Any thread may have the loop's turn, so the ring uses
// neither a single issuer nor deferred task work.
//
// Methods that were measured and rejected, on one machine over loopback: one receive and one send in flight with a
// single issuer and deferred task work moved 0.76 to 1.10 of what system calls move. Receiving into registered buffers
// (READ_FIXED) took 1.0 to 1.1 times the CPU of recvmsg for each byte. Loopback copies zero-copy sends after all. A
// header linked behind its payload does no more than one recvmsg of two parts.
#include <liburing.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "xfer/tally.h"
#include "xfer_tcp/io.h"

namespace mc::xfer {
namespace {

class TcpRing final : public StreamIo {
 public:
  explicit TcpRing(Tally& tally) : tally_(tally) {}
  ~TcpRing() override { close(); }
  TcpRing(const TcpRing&) = delete;
  TcpRing& operator=(const TcpRing&) = delete;

  bool open(std::string& why) {
    if (const int rc = ::io_uring_queue_init(kEntries, &ring_, IORING_SETUP_CLAMP); rc != 0) {
      why = refusal(-rc);
      return false;
    }
    live_ = true;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    const bool known = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_SENDMSG) != 0 &&
                       ::io_uring_opcode_supported(probe, IORING_OP_RECVMSG) != 0;
    ::io_uring_free_probe(probe);
    if (!known) {
      why = "this kernel's io_uring lacks sendmsg and recvmsg (Linux 5.6 has them)";
      return false;
    }
    // A filter may allow a ring to be made but not to be entered.
    ::io_uring_prep_nop(::io_uring_get_sqe(&ring_));
    ssize_t result = 0;
    if (const int error = finish(result); error != 0 || !live_) why = refusal(error != 0 ? error : EIO);
    return live_;
  }

  ssize_t receive(int fd, std::span<const iovec> parts, int flags) override {
    if (!live_) return socket_calls().receive(fd, parts, flags);
    msghdr message = message_of(parts);
    ::io_uring_prep_recvmsg(::io_uring_get_sqe(&ring_), fd, &message, static_cast<unsigned>(MSG_DONTWAIT | flags));
    ssize_t result = 0;
    return finish(result) == 0 ? result : socket_calls().receive(fd, parts, flags);
  }
  ssize_t send(int fd, std::span<const iovec> parts) override {
    if (!live_) return socket_calls().send(fd, parts);
    const msghdr message = message_of(parts);
    ::io_uring_prep_sendmsg(::io_uring_get_sqe(&ring_), fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    ssize_t result = 0;
    return finish(result) == 0 ? result : socket_calls().send(fd, parts);
  }

 private:
  static constexpr unsigned kEntries = 4;
  // For a ring that fails with an operation in it, which ended when it was submitted.
  static constexpr int kTries = 1000;

  static std::string refusal(int error) {
    const std::string what = ::strerror(error);
    switch (error) {
      case ENOSYS: return "this kernel has no io_uring";
      case EPERM: return what + ": forbidden by kernel.io_uring_disabled or by a seccomp filter (containers' default)";
      case ENOMEM: return what + ": raise the limit of locked memory (ulimit -l)";
      default: return what;
    }
  }

  /// Runs the one prepared operation. Not 0: an errno; nothing was done, and the ring is closed. An operation that the
  /// ring took and does not return ends as EIO, which ends the connection, because its progress is unknown.
  int finish(ssize_t& result) {
    unsigned taken = 0;
    int failed = 0;
    for (;;) {
      const int rc = ::io_uring_submit_and_wait(&ring_, 1);
      if (rc > 0) taken += static_cast<unsigned>(rc);
      io_uring_cqe* done = nullptr;
      if (::io_uring_peek_cqe(&ring_, &done) == 0) {
        result = done->res;
        ::io_uring_cqe_seen(&ring_, done);
        return 0;
      }
      if (rc >= 0 || rc == -EINTR) continue;
      // The kernel may use the memory of a submitted operation until the operation has ended.
      if (taken > 0 && ++failed < kTries) continue;
      tally_.failure("tcp: the io_uring failed, system calls follow");
      close();
      if (taken == 0) return -rc;
      result = -EIO;
      return 0;
    }
  }

  void close() {
    if (std::exchange(live_, false)) ::io_uring_queue_exit(&ring_);
  }

  Tally& tally_;
  io_uring ring_{};
  bool live_ = false;
};

std::unique_ptr<StreamIo> open_ring(Tally& tally, std::string& why) {
  auto ring = std::make_unique<TcpRing>(tally);
  if (!ring->open(why)) return nullptr;
  return ring;
}

}  // namespace

const TcpIoEntry kTcpIoUring = {
    .name = "uring",
    .summary = "each transfer through an io_uring",
    .open = open_ring,
};

}  // namespace mc::xfer
