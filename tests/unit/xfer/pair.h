// Two engines in one process, talking over real sockets, and the waits that tests need.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "mem/mem.h"
#include "test.h"
#include "transports/transports.h"
#include "xfer/xfer.h"
#include "xfer_tcp/io.h"

namespace mc::xfer::test {

inline TimePoint in(Duration d) {
  return SystemClock::instance().now() + d;
}
// a ceiling: only a hang reaches it
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr Duration kLong = 90s;
#else
inline constexpr Duration kLong = 60s;
#endif

inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  Rng rng(seed);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}

/// Memory that another thread wrote is ours to read once its acknowledgement or answer is here. That order goes
/// through a socket, of which ThreadSanitizer does not know both ends: it must not look at these reads.
__attribute__((no_sanitize("thread"))) inline bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  const std::byte *left = a.data(), *right = b.data(), *const end = left + a.size();
  for (uint64_t x, y; end - left >= 8; left += 8, right += 8) {  // by words: emulated machines compare megabytes
    __builtin_memcpy(&x, left, 8);
    __builtin_memcpy(&y, right, 8);
    if (x != y) return false;
  }
  for (; left != end; ++left, ++right)
    if (*left != *right) return false;
  return true;
}

/// How tcp moves its bytes where a test does not say. Where the kernel gives no io_uring the second run of a
/// TCP_TEST_CASE is a repetition of the first.
inline const TcpIoEntry* tcp_io_under_test = &kTcpIoEpoll;

/// A test case that runs once with each way of tcp_ios().
#define TCP_TEST_CASE(sentence) MC_TCP_TEST_CASE(DOCTEST_ANONYMOUS(tcp_test_case_), sentence)
#define MC_TCP_TEST_CASE(function, sentence)                         \
  static void function();                                            \
  TEST_CASE(sentence) {                                              \
    for (const auto* io : mc::xfer::tcp_ios()) {                     \
      mc::xfer::test::tcp_io_under_test = io;                        \
      CAPTURE(io->name);                                             \
      function();                                                    \
    }                                                                \
    mc::xfer::test::tcp_io_under_test = mc::xfer::tcp_ios().front(); \
  }                                                                  \
  static void function()

/// An engine with an inbox that can be searched. Transport "shm-engine" is shm without the shortcut of
/// small batches, so that the engine's thread copies everything; "tcp-uring" is tcp over an io_uring.
struct Node {
  std::unique_ptr<Engine> engine;
  std::vector<Event> seen;

  explicit Node(const std::string& name, const std::string& transport, Options options = {}) {
    options.name = name;
    options.transport = transport;
    if (transport == "shm-engine") {
      options.transport = "shm";
      options.here_bytes_max = 0;
    }
    if (options.tcp_io == "auto") options.tcp_io = tcp_io_under_test->name;
    if (transport == "tcp-uring") {
      options.transport = "tcp";
      options.tcp_io = kTcpIoUring.name;
    }
    options.tcp_streams = options.tcp_streams == 0 ? 2 : options.tcp_streams;
    options.insecure |= options.secret.empty();
    auto opened = open_engine(options);
    REQUIRE_OK(opened);
    engine = std::move(*opened);
  }
  Engine* operator->() { return engine.get(); }

  /// The first event that matches, removed from the inbox; waits for it.
  template <class Match>
  Event wait(Match match, Duration limit = kLong) {
    const TimePoint deadline = in(limit);
    for (size_t from = 0;;) {
      for (; from < seen.size(); ++from) {
        if (!match(seen[from])) continue;
        Event event = std::move(seen[from]);
        seen.erase(seen.begin() + static_cast<long>(from));
        return event;
      }
      if (engine->poll(seen, deadline) == 0) {
        FAIL("the expected event did not come");
        return {};
      }
    }
  }
  Event wait(Event::Kind kind, Duration limit = kLong) {
    return wait([&](const Event& event) { return event.kind == kind; }, limit);
  }
  Event done(BatchId batch) {
    return wait([&](const Event& event) { return event.kind == Event::Kind::batch_done && event.batch == batch; });
  }
  /// Submits, waits, closes; the batch's code.
  Code run(std::span<const Request> requests, std::vector<RequestResult>* results = nullptr,
           std::string* text = nullptr) {
    auto batch = engine->submit(requests, in(kLong));
    REQUIRE_OK(batch);
    const Event event = done(*batch);
    if (text != nullptr) *text = event.text;
    if (results != nullptr) {
      const auto view = engine->results(*batch);
      results->assign(view.begin(), view.end());
    }
    auto closed = engine->close(*batch, in(kLong));
    REQUIRE_OK(closed);
    return event.code;
  }
};

/// `holder` offers an arena "kv" and a landing arena; `reader` is connected to it and has private memory.
struct Pair {
  static constexpr size_t kDefaultBytes = size_t{4} << 20;
  mem::SharedBuffer kv;
  mem::SharedBuffer landing;
  mem::HostBuffer local;
  Node holder;
  Node reader;
  PeerId peer{};
  uint32_t kv_id = 0;
  uint32_t landing_id = 0;
  BufferId local_id{};

  explicit Pair(const std::string& transport, size_t bytes = kDefaultBytes, const Options& holder_options = {},
                const Options& reader_options = {})
      : holder("holder", transport, holder_options), reader("reader", transport, reader_options) {
    auto made_kv = mem::SharedBuffer::create(bytes);
    auto made_landing = mem::SharedBuffer::create(bytes, {.peers_write = true});
    auto made_local = mem::HostBuffer::allocate(bytes);
    REQUIRE_OK(made_kv);
    REQUIRE_OK(made_landing);
    REQUIRE_OK(made_local);
    kv = std::move(*made_kv);
    landing = std::move(*made_landing);
    local = std::move(*made_local);
    fill(kv.bytes(), 7);
    auto kv_buffer = holder->register_buffer(kv, {"kv", AccessClass::blocks});
    auto landing_buffer = holder->register_buffer(landing, {"landing", AccessClass::landing});
    auto local_buffer = reader->register_buffer(local.bytes(), {"local"});
    REQUIRE_OK(kv_buffer);
    REQUIRE_OK(landing_buffer);
    REQUIRE_OK(local_buffer);
    kv_id = static_cast<uint32_t>(*kv_buffer);
    landing_id = static_cast<uint32_t>(*landing_buffer);
    local_id = *local_buffer;
    connect();
  }
  void connect() {
    auto connected = reader->connect(holder->describe(), in(kLong));
    REQUIRE_OK(connected);
    peer = *connected;
    reader.wait(Event::Kind::peer_up);
  }
  ~Pair() {
    // stop before the memory goes
    reader.engine.reset();
    holder.engine.reset();
  }
  Request read(size_t local_at, size_t remote_at, size_t length) {
    return {.op = Op::read,
            .peer = peer,
            .local = local.bytes().subspan(local_at, length),
            .buffer = kv_id,
            .offset = remote_at};
  }
  Request write(size_t local_at, size_t remote_at, size_t length) {
    return {.op = Op::write,
            .peer = peer,
            .local = local.bytes().subspan(local_at, length),
            .buffer = landing_id,
            .offset = remote_at};
  }
};

}  // namespace mc::xfer::test
