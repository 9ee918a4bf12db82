#include "host/compute_queue.h"

#include <poll.h>

#include <thread>

#include "test.h"

namespace compute_queue_test {

using namespace mc;
using namespace mc::host;

namespace {

struct Bench {
  ComputeQueue queue{EventFd::open().value()};

  void submit(uint64_t run) {
    node::RunChunk chunk;
    chunk.run = run;
    queue.submit(std::move(chunk));
  }
  uint64_t take() {
    auto work = queue.take();
    REQUIRE(work);
    return std::get<node::RunChunk>(*work).run;
  }
  void finish(uint64_t run) {
    node::ChunkDone done;
    done.run = run;
    queue.finish(std::move(done));
  }
  /// Whether the event descriptor is readable now.
  bool readable() const { return wait_fd(queue.event_fd(), POLLIN, TimePoint{}).has_value(); }
};

}  // namespace

TEST_CASE(
    "host/compute_queue: work is taken in the order of its submission, and events arrive in that of their posts") {
  Bench b;
  b.submit(1);
  b.queue.submit(node::LeaveBatch{});
  b.submit(2);
  CHECK(b.take() == 1);
  b.queue.post(node::LayerDone{.run = 1});
  b.finish(1);
  auto leave = b.queue.take();
  REQUIRE(leave);
  CHECK(std::holds_alternative<node::LeaveBatch>(*leave));
  CHECK(b.take() == 2);
  CHECK(std::holds_alternative<node::LayerDone>(b.queue.next().value()));
  CHECK(std::get<node::ChunkDone>(b.queue.next().value()).run == 1);
  CHECK_FALSE(b.queue.next());
}

TEST_CASE("host/compute_queue: the descriptor is readable from a post until next() has found no event") {
  Bench b;
  CHECK_FALSE(b.readable());
  b.queue.post(node::LayerDone{});
  b.queue.post(node::LayerDone{});
  CHECK(b.readable());
  CHECK(b.queue.next());
  CHECK(b.queue.next());
  CHECK(b.readable());
  CHECK_FALSE(b.queue.next());
  CHECK_FALSE(b.readable());
}

TEST_CASE("host/compute_queue: a cancelled run keeps its mark until it is finished, and a run that is over gets none") {
  Bench b;
  b.submit(1), b.submit(2);
  CHECK(b.take() == 1);
  b.queue.cancel(1), b.queue.cancel(2), b.queue.cancel(3);
  CHECK(b.queue.is_cancelled(1));
  CHECK(b.queue.is_cancelled(2));
  CHECK_FALSE(b.queue.is_cancelled(3));
  b.finish(1);
  CHECK_FALSE(b.queue.is_cancelled(1));
  b.queue.cancel(1);
  CHECK_FALSE(b.queue.is_cancelled(1));
  CHECK(b.take() == 2);
  CHECK(b.queue.is_cancelled(2));
}

TEST_CASE("host/compute_queue: a stop wakes a thread that waits, and cancels the run under way") {
  Bench b;
  bool ended = false;
  std::thread waits([&] { ended = !b.queue.take(); });
  b.queue.stop();
  waits.join();
  CHECK(ended);

  Bench busy;
  busy.submit(1), busy.submit(2);
  CHECK(busy.take() == 1);
  busy.queue.stop();
  CHECK(busy.queue.is_cancelled(1));
  CHECK_FALSE(busy.queue.take());
}

TEST_CASE("host/compute_queue: a run waits for the layers of its prefix, and a cancelled one waits for none") {
  for (const bool cancelled : {false, true}) {
    CAPTURE(cancelled);
    Bench b;
    node::RunChunk chunk;
    chunk.run = 3, chunk.layers_here = 1;
    b.queue.submit(std::move(chunk));
    CHECK(b.take() == 3);
    CHECK(b.queue.await_prefix(3, 1));
    bool whole = !cancelled, first = false;
    std::thread compute([&] {
      first = b.queue.await_prefix(3, 2);
      whole = b.queue.await_prefix(3, 4);
    });
    b.queue.prefix_here(3, 2);
    if (cancelled)
      b.queue.cancel(3);
    else
      b.queue.prefix_here(3, 4);
    compute.join();
    CHECK((first || cancelled));
    CHECK(whole == !cancelled);
    b.finish(3);
    b.queue.prefix_here(3, 5);  // it is over
  }
}

TEST_CASE("host/compute_queue: a run whose prefix is here waits for nothing") {
  Bench b;
  b.submit(1);
  CHECK(b.take() == 1);
  CHECK(b.queue.await_prefix(1, 80));
}

}  // namespace compute_queue_test
