// A sealed StreamIo over a socket pair: plaintext in, plaintext out, records between.
#include "xfer/sealed_io.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/fd.h"
#include "pair.h"
#include "xfer/tally.h"

namespace sealed_io_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr SealSecrets kHere{.out = {1}, .in = {2}};
constexpr SealSecrets kThere{.out = {2}, .in = {1}};

struct Ends {
  Fd left, right;
  Tally tally;
  TcpIoChoice chosen = choose_tcp_io(tcp_io_under_test->name, tally);
  SealedIo from{*chosen.io, kHere, 5};
  SealedIo to{*chosen.io, kThere, 5};
  Ends() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    left = Fd(fds[0]);
    right = Fd(fds[1]);
  }
};

iovec part_of(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

/// Everything that `io` sends, as it is on the wire.
std::vector<std::byte> wire_bytes(std::span<std::byte> plain) {
  Ends ends;
  std::vector<std::byte> out;
  size_t taken = 0;
  while (taken < plain.size() || ends.from.pending() > 0) {
    const iovec rest = part_of(plain.subspan(taken));
    const ssize_t n = ends.from.send(ends.left.get(), {&rest, taken < plain.size() ? 1u : 0u});
    if (n > 0) taken += static_cast<size_t>(n);
    std::vector<std::byte> some(1 << 20);
    const ssize_t got = ::recv(ends.right.get(), some.data(), some.size(), 0);
    if (got > 0) out.insert(out.end(), some.begin(), some.begin() + got);
  }
  return out;
}

}  // namespace

TCP_TEST_CASE("xfer/sealed_io: what one side sends in any parts the other side receives in any parts") {
  Rng rng(mc::test::seed() + 11);
  Ends ends;
  std::vector<std::byte> plain(size_t{3} << 20);
  fill(plain, 5);
  std::vector<std::byte> got(plain.size());
  size_t sent = 0, received = 0;
  const auto cut = [&](std::span<std::byte> bytes, std::vector<iovec>& parts) {
    for (size_t i = 1 + rng.below(5); i > 0; --i) {
      const size_t wish = 1 + (rng.chance(0.5) ? rng.below(200) : rng.below(200'000));
      const size_t size = std::min(bytes.size(), wish);
      parts.push_back(part_of(bytes.first(size)));
      bytes = bytes.subspan(size);
    }
  };
  while (received < plain.size()) {
    std::vector<iovec> parts;
    if (sent < plain.size()) {
      parts.push_back(part_of(std::span(plain).subspan(sent).first(std::min(plain.size() - sent, rng.below(99'999)))));
      parts.push_back(part_of(std::span(plain)
                                  .subspan(sent + parts[0].iov_len)
                                  .first(std::min(plain.size() - sent - parts[0].iov_len,
                                                  rng.chance(0.5) ? rng.below(100) : rng.below(300'000)))));
    }
    const ssize_t n = ends.from.send(ends.left.get(), parts);
    REQUIRE((n >= 0 || n == -EAGAIN));
    if (n > 0) sent += static_cast<size_t>(n);
    for (int i = 0; i < 3; ++i) {
      std::vector<iovec> room;
      if (received == got.size()) break;
      cut(std::span(got).subspan(received), room);
      const ssize_t m = ends.to.receive(ends.right.get(), room, 0);
      REQUIRE((m > 0 || m == -EAGAIN));
      if (m > 0)
        received += static_cast<size_t>(m);
      else
        CHECK(ends.to.drained());
    }
  }
  CHECK(equal(got, plain));
  CHECK(ends.from.pending() == 0);
  ends.left.reset();
  const iovec room = part_of(got);
  CHECK(ends.to.receive(ends.right.get(), {&room, 1}, 0) == 0);
}

TCP_TEST_CASE("xfer/sealed_io: a part from 16 KiB on begins a record, and nothing readable is on the wire") {
  std::vector<std::byte> head(64, std::byte{'h'}), payload(100'000, std::byte{'p'}), next(64, std::byte{'n'});
  Ends ends;
  const iovec parts[] = {part_of(head), part_of(payload), part_of(next), part_of(payload)};
  CHECK(ends.from.send(ends.left.get(), parts) == 2 * (64 + 100'000));
  std::vector<std::byte> wire(1 << 20);
  const ssize_t n = ::recv(ends.right.get(), wire.data(), wire.size(), 0);
  REQUIRE(n > 0);
  std::vector<size_t> lengths;
  for (size_t at = 0; at < static_cast<size_t>(n);) {
    lengths.push_back(record_length(std::span<const std::byte, kRecordHead>(wire.data() + at, kRecordHead)));
    at += lengths.back() + kRecordExtra;
  }
  CHECK(lengths == std::vector<size_t>{64, 65536, 100'000 - 65536 + 64, 65536, 100'000 - 65536});
  const std::vector<std::byte> clear(8, std::byte{'p'});
  CHECK(std::search(wire.begin(), wire.begin() + n, clear.begin(), clear.end()) == wire.begin() + n);
}

TCP_TEST_CASE("xfer/sealed_io: a changed or cut stream ends with its reason, and gives out nothing of the bad record") {
  std::vector<std::byte> plain(150'000);
  fill(plain, 3);
  const auto wire = wire_bytes(plain);
  struct Attack {
    const char* reason;
    size_t good;  // bytes before the bad record
    std::vector<std::byte> bytes;
  };
  constexpr size_t kWhole = kRecordBytes + kRecordExtra;
  const auto flipped = [&](size_t at) {
    auto out = wire;
    out[at] ^= std::byte{4};
    return out;
  };
  const auto joined = [&](std::initializer_list<size_t> records) {
    std::vector<std::byte> out;
    for (const size_t record : records) {
      const auto begin = wire.begin() + static_cast<long>(record * kWhole);
      out.insert(out.end(), begin, record < 2 ? begin + kWhole : wire.end());
    }
    return out;
  };
  const Attack attacks[] = {
      {"seal: first record does not open", 0, flipped(500)},
      {"seal: first record does not open", 0, flipped(3)},
      {"seal: record fails its tag", kRecordBytes, flipped(kWhole + 77)},
      {"seal: record fails its tag", kRecordBytes, flipped(2 * kWhole - 1)},
      {"seal: record length out of bounds", kRecordBytes, flipped(kWhole + 2)},
      {"seal: record fails its tag", kRecordBytes, joined({0, 0, 1, 2})},
      {"seal: record fails its tag", kRecordBytes, joined({0, 2})},
      {"seal: first record does not open", 0, joined({1, 0, 2})},
      {"seal: stream ends inside a record", 2 * kRecordBytes, {wire.begin(), wire.end() - 1}},
      {"seal: stream ends inside a record", 0, {wire.begin(), wire.begin() + 2}},
  };
  for (const Attack& attack : attacks) {
    CAPTURE(attack.reason);
    Ends ends;
    ends.to.feed(std::span(attack.bytes).first(std::min<size_t>(attack.bytes.size(), 200'000)));
    ends.left.reset();
    std::vector<std::byte> got(plain.size() + 1000, std::byte{0x77});
    size_t received = 0;
    ssize_t n = 0;
    for (;;) {
      const iovec room = part_of(std::span(got).subspan(received));
      n = ends.to.receive(ends.right.get(), {&room, 1}, 0);
      if (n <= 0) break;
      received += static_cast<size_t>(n);
    }
    CHECK(n == -EBADMSG);
    CHECK(std::string(ends.to.reason()) == attack.reason);
    CHECK(received == attack.good);
    CHECK(equal(std::span(got).first(received), std::span(plain).first(received)));
    for (size_t i = received; i < got.size(); ++i) {
      if (got[i] != std::byte{0} && got[i] != std::byte{0x77}) {
        FAIL("plaintext of a record that failed was left at ", i);
        break;
      }
    }
    const iovec room = part_of(got);
    CHECK(ends.to.receive(ends.right.get(), {&room, 1}, 0) == -EBADMSG);  // for good
  }
}

TCP_TEST_CASE("xfer/sealed_io: a socket that is full keeps the records, and what was taken is no longer read") {
  Ends ends;
  std::vector<std::byte> plain(size_t{8} << 20);
  fill(plain, 9);
  const auto wanted = plain;
  const iovec part = part_of(plain);
  const ssize_t taken = ends.from.send(ends.left.get(), {&part, 1});
  REQUIRE(taken > 0);
  CHECK(ends.from.pending() > 0);
  CHECK(ends.from.send(ends.left.get(), {&part, 1}) == -EAGAIN);
  std::fill(plain.begin(), plain.begin() + taken, std::byte{0});
  std::vector<std::byte> got(static_cast<size_t>(taken));
  for (size_t received = 0; received < got.size();) {
    const iovec room = part_of(std::span(got).subspan(received));
    const ssize_t n = ends.to.receive(ends.right.get(), {&room, 1}, 0);
    if (n > 0) received += static_cast<size_t>(n);
    (void)ends.from.send(ends.left.get(), {});
  }
  CHECK(equal(got, std::span(wanted).first(got.size())));
}

}  // namespace sealed_io_test
