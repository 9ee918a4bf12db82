#include <cstring>
#include <optional>

#include "base/rng.h"
#include "test.h"
#include "xfer_rdma/notify.h"

namespace rdma_notify_test {

using namespace mc;
using namespace mc::xfer;
using Way = NotifySender::Way;

namespace {

constexpr uint64_t kAhead = NotifySender::kAhead;

std::vector<std::byte> word(uint64_t value) {
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

uint64_t value(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  REQUIRE(bytes.size() == 8);
  std::memcpy(&word, bytes.data(), 8);
  return word;
}

std::vector<uint64_t> all(NotifyReceiver& receiver) {
  std::vector<uint64_t> out;
  for (std::vector<std::byte> bytes; receiver.take(bytes);) out.push_back(value(bytes));
  return out;
}

}  // namespace

TEST_CASE("xfer/rdma_notify: SENDs end at the credit, wait for more, and are repeated when their path dies") {
  NotifySender sender;
  CHECK(sender.way(false) == Way::socket);
  for (uint64_t i = 0; i < kAhead; ++i) {
    CHECK(sender.way(true) == Way::path);
    sender.sent_on_path(word(i));
  }
  CHECK(sender.way(true) == Way::wait);
  CHECK(sender.way(false) == Way::wait);
  CHECK(!sender.heard(kAhead + 1));  // never said
  CHECK(sender.heard(3));
  CHECK(sender.heard(1));  // a late report
  CHECK(sender.way(true) == Way::path);
  const auto again = sender.path_lost();
  REQUIRE(again.size() == kAhead - 3);
  CHECK(again.front().sequence == 3);
  CHECK(value(again.back().bytes) == kAhead - 1);
  CHECK(sender.way(false) == Way::socket);
  while (sender.next() < 3 + kAhead) sender.sent_on_socket();
  CHECK(sender.way(true) == Way::socket);  // nothing is under way on a path: no reason to wait
  CHECK(sender.heard(4));
  CHECK(sender.way(true) == Way::path);
}

TEST_CASE("xfer/rdma_notify: a receiver delivers in order, drops what it has, and refuses what no credit allowed") {
  NotifyReceiver receiver;
  CHECK(receiver.from_path(1, word(1)));  // ahead of the socket
  CHECK(all(receiver).empty());
  CHECK(receiver.from_socket(0, word(0)));
  CHECK(receiver.from_path(1, word(77)));
  CHECK(all(receiver) == std::vector<uint64_t>{0, 1});
  CHECK(receiver.from_path(0, word(78)));
  CHECK(receiver.from_socket(1, word(79)));
  CHECK(all(receiver).empty());
  CHECK(!receiver.from_path(2 + kAhead, word(1)));
  CHECK(receiver.from_path(1 + kAhead, word(1)));
  CHECK(!receiver.from_socket(3, word(1)));  // the socket leaves nothing out
  CHECK(!receiver.from_socket(UINT64_MAX, word(1)));
  CHECK(!receiver.from_path(UINT64_MAX, word(1)));
  for (uint64_t i = 2; i <= kAhead; ++i) CHECK(receiver.from_socket(i, word(i)));
  CHECK(all(receiver).size() == kAhead);
  CHECK(receiver.from_socket(2, word(2)));  // an old repetition
}

// Two paths: all SENDs of the first were heard, it dies, and its repetitions are still in a slow socket
// when the second path goes on.
TEST_CASE("xfer/rdma_notify: repetitions that SENDs of another path overtook are dropped, however old they are") {
  NotifyReceiver receiver;
  for (uint64_t i = 0; i < 3 * kAhead; ++i) {
    CHECK(receiver.from_path(i, word(i)));
    CHECK(all(receiver) == std::vector<uint64_t>{i});
  }
  for (uint64_t i = 0; i < kAhead; ++i) CHECK(receiver.from_socket(i, word(i)));
  CHECK(all(receiver).empty());
  CHECK(receiver.from_path(3 * kAhead, word(7)));
  CHECK(all(receiver) == std::vector<uint64_t>{7});
}

TEST_CASE("xfer/rdma_notify: while paused a receiver grants no credit, and afterwards all of it") {
  NotifyReceiver receiver;
  for (uint64_t i = 0; i < kAhead; ++i) REQUIRE(receiver.from_path(i, word(i)));
  CHECK(all(receiver).size() == kAhead);
  CHECK(receiver.heard(true) == 0);
  CHECK(receiver.owes());
  CHECK(receiver.heard(false) == kAhead);
  receiver.told(kAhead);
  CHECK(!receiver.owes());
  CHECK(receiver.heard(true) == kAhead);
}

namespace {

/// One direction of a connection: paths that come, go and lose what they carry, a socket that does not.
class World {
 public:
  explicit World(uint64_t seed) : rng_(seed) {}

  void run(uint64_t count) {
    while (delivered_ < count) {
      if (said_ < count && rng_.chance(0.5)) say();
      if (rng_.chance(0.02)) path_up_ ? cut() : void(path_up_ = true);
      if (!path_.empty() && rng_.chance(0.4)) arrive(path_);
      if (!stale_.empty() && rng_.chance(0.2)) arrive(stale_);
      if (!socket_.empty() && rng_.chance(0.3)) arrive_by_socket();
      if (!back_.empty() && rng_.chance(0.3)) hear();
      if (rng_.chance(0.02)) paused_ = !paused_;
      if (!paused_ && receiver_.owes()) tell();
      deliver();
    }
  }

 private:
  struct Message {
    uint64_t sequence = 0;
    std::vector<std::byte> bytes;
    uint64_t attempt = 0;
  };

  void say() {
    switch (sender_.way(path_up_)) {
      case Way::wait: return;
      case Way::path:
        path_.push_back({sender_.next(), word(said_), attempt_});
        ++receives_used_;
        CHECK(receives_used_ <= kAhead);  // else the peer would have no receive for it
        sender_.sent_on_path(word(said_++));
        return;
      case Way::socket: socket_.push_back({sender_.next(), word(said_++)}); sender_.sent_on_socket();
    }
  }
  /// Some of what was under way is lost; the rest is found late, while the next path is up already.
  void cut() {
    path_up_ = false;
    ++attempt_;
    const size_t arrived = rng_.below(path_.size() + 1);
    path_.resize(arrived);
    stale_.insert(stale_.end(), path_.begin(), path_.end());
    path_.clear();
    receives_used_ = 0;
    for (auto& kept : sender_.path_lost()) socket_.push_back({kept.sequence, kept.bytes});
  }
  void arrive(std::deque<Message>& from) {
    CHECK(receiver_.from_path(from.front().sequence, from.front().bytes));
    if (from.front().attempt == attempt_) --receives_used_;
    from.pop_front();
  }
  void arrive_by_socket() {
    CHECK(receiver_.from_socket(socket_.front().sequence, socket_.front().bytes));
    socket_.pop_front();
  }
  void deliver() {
    for (const uint64_t got : all(receiver_)) CHECK(got == delivered_++);
    if (rng_.chance(0.1)) tell();
  }
  void tell() {
    const uint64_t heard = receiver_.heard(paused_);
    receiver_.told(heard);
    back_.push_back(heard);
  }
  void hear() {  // two carriers: in any order
    const size_t which = rng_.below(std::min<size_t>(back_.size(), 2));
    CHECK(sender_.heard(back_[which]));
    back_.erase(back_.begin() + static_cast<long>(which));
  }

  Rng rng_;
  NotifySender sender_;
  NotifyReceiver receiver_;
  bool path_up_ = false, paused_ = false;
  uint64_t said_ = 0, delivered_ = 0, attempt_ = 0, receives_used_ = 0;
  std::deque<Message> path_, stale_, socket_;
  std::deque<uint64_t> back_;
};

}  // namespace

TEST_CASE("xfer/rdma_notify: whatever paths lose or bring late, everything said is delivered once and in order") {
  for (uint64_t i = 0; i < 50; ++i) {
    INFO("seed ", mc::test::seed() + i);
    World(mc::test::seed() + i).run(500);
  }
}

}  // namespace rdma_notify_test
