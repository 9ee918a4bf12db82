// The ways tcp moves its bytes, each against the other's results, and what becomes of an io_uring that the
// kernel refuses at the start or in the middle. Refusals are made with a seccomp filter, in a child.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "base/fd.h"
#include "pair.h"
#include "transports/transports.h"
#include "xfer/tally.h"

namespace tcp_io_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

struct Sockets {
  Fd left;
  Fd right;
  Sockets() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);  // blocking: the calls must not
    left = Fd(fds[0]);
    right = Fd(fds[1]);
  }
};

iovec part(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

/// From now on this process gets `error` from that system call.
bool forbid(long call, int error) {
  const std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), const_cast<sock_filter*>(program.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Runs `body` in a child of its own, which a filter then binds alone; true when it says so.
template <class Body>
bool in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool uring_here() {
  Tally tally;
  return choose_tcp_io(kTcpIoUring.name, tally).text == kTcpIoUring.name;
}

uint64_t broken_rings(const Tally& tally) {
  for (const auto& [reason, count] : tally.snapshot({}).failures)
    if (reason == "tcp: the io_uring failed, system calls follow") return count;
  return 0;
}

}  // namespace

TEST_CASE("xfer/tcp_io: parts are filled in order, nothing waits, the end and errors are told") {
  for (const TcpIoEntry* entry : tcp_ios()) {
    CAPTURE(entry->name);
    Tally tally;
    const TcpIoChoice chosen = choose_tcp_io(entry->name, tally);
    StreamIo& io = *chosen.io;
    Sockets sockets;
    std::array<std::byte, 10> first{}, second{}, sent{};
    fill(std::span(sent).first(8), 1);
    const std::array<iovec, 2> parts = {part(std::span(first).first(4)), part(second)};
    CHECK(io.receive(sockets.right.get(), parts, 0) == -EAGAIN);
    const std::array<iovec, 2> out = {part(std::span(sent).first(6)), part(std::span(sent).subspan(6))};
    REQUIRE(io.send(sockets.left.get(), out) == 10);
    CHECK(io.receive(sockets.right.get(), parts, 0) == 10);
    CHECK(equal(std::span(first).first(4), std::span(sent).first(4)));
    CHECK(equal(std::span(second).first(6), std::span(sent).subspan(4)));
    std::vector<std::byte> much(size_t{8} << 20);
    const iovec all = part(much);
    const ssize_t fits = io.send(sockets.left.get(), {&all, 1});
    CHECK(fits > 0);
    CHECK(fits < static_cast<ssize_t>(much.size()));
    CHECK(io.send(sockets.left.get(), {&all, 1}) == -EAGAIN);
    CHECK(io.send(-1, {&all, 1}) == -EBADF);
    CHECK(io.receive(-1, {&all, 1}, 0) == -EBADF);
    sockets.right.reset();
    CHECK(io.send(sockets.left.get(), {&all, 1}) == -EPIPE);  // and no SIGPIPE
    CHECK(broken_rings(tally) == 0);
  }
}

TEST_CASE("xfer/tcp_io: an io_uring that is refused is epoll, with the reason") {
  CHECK(in_child([] {
    if (!forbid(SYS_io_uring_setup, EPERM)) return false;
    Tally tally;
    const TcpIoChoice chosen = choose_tcp_io("uring", tally);
    return chosen.io != nullptr && chosen.text.starts_with("epoll, for uring is unusable: ") &&
           chosen.text.find("seccomp") != std::string::npos;
  }));
  CHECK(in_child([] {
    if (!forbid(SYS_io_uring_setup, ENOSYS)) return false;
    Tally tally;
    return choose_tcp_io("uring", tally).text == "epoll, for uring is unusable: this kernel has no io_uring";
  }));
  CHECK(in_child([] {  // the ring can be made, and not entered
    if (!forbid(SYS_io_uring_enter, EPERM)) return false;
    Tally tally;
    return choose_tcp_io("uring", tally).text.starts_with("epoll, for uring is unusable: ");
  }));
  Tally tally;
  CHECK(choose_tcp_io("auto", tally).text == "epoll");
}

TEST_CASE("xfer/tcp_io: an io_uring that breaks on the way loses nothing and is counted once") {
  if (!uring_here()) return;
  CHECK(in_child([] {
    Tally tally;
    const TcpIoChoice chosen = choose_tcp_io("uring", tally);
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return false;
    std::array<std::byte, 100> sent{}, got{};
    fill(std::span(sent).first(96), 5);
    const iovec out = part(sent), in = part(got);
    if (chosen.io->send(fds[0], {&out, 1}) != 100) return false;
    if (!forbid(SYS_io_uring_enter, EPERM)) return false;
    if (chosen.io->receive(fds[1], {&in, 1}, 0) != 100 || got != sent) return false;
    if (chosen.io->send(fds[1], {&out, 1}) != 100 || chosen.io->receive(fds[0], {&in, 1}, 0) != 100) return false;
    return broken_rings(tally) == 1;
  }));
}

TEST_CASE("xfer/tcp_io: an unknown way is refused by name, and the one in use is told") {
  Options options{.transport = "tcp", .insecure = true, .tcp_io = "aio"};
  const auto refused = open_engine(options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what == "xfer: tcp_io 'aio' is unknown; there are: auto, epoll, uring");
  options.tcp_io = "epoll";
  const auto opened = open_engine(options);
  REQUIRE_OK(opened);
  REQUIRE((*opened)->transports().size() == 1);
  CHECK((*opened)->transports()[0].ends_with(" (epoll)"));
}

}  // namespace tcp_io_test
