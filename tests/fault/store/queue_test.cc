// The hand-over between the rounds of the commit queue, with a leader that is held up at its worst moment.

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "store/commit_queue.h"
#include "test.h"

namespace queue_test {

using namespace mc;
using namespace mc::store;

namespace {

std::atomic<bool> is_held{false};
int hold_fd = -1;

/// A signal handler in which a thread stays until a byte comes.
void hold(int) {
  is_held = true;
  char byte = 0;
  (void)!::read(hold_fd, &byte, 1);
}

TimePoint clock_now() {
  return SystemClock::instance().now();
}

bool wait_for(const std::function<bool()>& is, Duration most) {
  const TimePoint until = clock_now() + most;
  while (!is() && clock_now() < until) std::this_thread::yield();
  return is();
}

/// A thread whose sleep in the kernel can be seen.
class Actor {
 public:
  explicit Actor(std::function<void()> act) {
    thread_ = std::thread([this, act = std::move(act)] {
      tid_ = ::gettid();
      act();
      done_ = true;
    });
    REQUIRE(wait_for([&] { return tid_ != 0; }, 60s));
  }
  ~Actor() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  bool sleeps() const {
    std::ifstream stat("/proc/self/task/" + std::to_string(tid_) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t end = text.rfind(')');
    return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'S';
  }
  bool done() const { return done_; }
  void signal(int number) { REQUIRE(::pthread_kill(thread_.native_handle(), number) == 0); }

 private:
  std::atomic<pid_t> tid_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

void stay_on_one_processor() {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
}

/// One commit without content; `write` is its round.
void commit(
    CommitQueue& queue, const std::function<void()>& write = [] {}) {
  Commit mine;
  queue.run(mine, [&](std::span<Commit* const>) { write(); });
}

// The old leader ends a round and wakes the next leader, which has the processor from then on: the old leader goes on
// only when nothing else wants to run there. In the meantime eight rounds pass, of which the last uses the old round's
// word. A caller of that last round is held in a signal handler, and looks at the word when the old leader is done.
bool caller_returns() {
  int pipe_fds[2];
  REQUIRE(::pipe(pipe_fds) == 0);
  const Fd out(pipe_fds[0]), in(pipe_fds[1]);
  hold_fd = out.get();
  is_held = false;
  CommitQueue queue;
  std::atomic<bool> first_leads{false}, first_may_end{false}, old_may_end{false}, in_seventh{false},
      seventh_may_end{false}, all_passed{false};
  Actor first([&] {
    commit(queue, [&] {
      first_leads = true;
      wait_for([&] { return first_may_end.load(); }, 300s);
    });
  });
  REQUIRE(wait_for([&] { return first_leads.load(); }, 60s));  // else `old` might lead, and nothing would end its round
  Actor old([&] {
    stay_on_one_processor();
    commit(queue, [&] {
      while (!old_may_end) old_may_end.wait(false);
      const sched_param none{};
      REQUIRE(::sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    });
  });
  REQUIRE(wait_for([&] { return old.sleeps(); }, 60s));
  first_may_end = true;
  first.join();
  Actor next([&] {
    stay_on_one_processor();
    for (int round = 1; round < 7; ++round) commit(queue);
    commit(queue, [&] {
      in_seventh = true;
      while (!seventh_may_end) {
      }
    });
    while (!all_passed) {
    }
  });
  REQUIRE(wait_for([&] { return next.sleeps(); }, 60s));
  old_may_end = true;
  old_may_end.notify_all();
  REQUIRE(wait_for([&] { return in_seventh.load(); }, 300s));
  Actor leader([&] { commit(queue); });
  REQUIRE(wait_for([&] { return leader.sleeps(); }, 60s));
  Actor caller([&] { commit(queue); });
  REQUIRE(wait_for([&] { return caller.sleeps(); }, 60s));
  caller.signal(SIGUSR2);
  REQUIRE(wait_for([] { return is_held.load(); }, 60s));
  seventh_may_end = true;
  leader.join();
  all_passed = true;
  next.join();
  old.join();
  REQUIRE(::write(in.get(), "x", 1) == 1);
  const bool returned = wait_for([&] { return caller.done(); }, 60s);
  // A caller that sleeps on is woken by the next round of its word, which others use with it.
  while (!caller.done()) {
    std::atomic<bool> may_end{false};
    Actor busy([&] { commit(queue, [&] { wait_for([&] { return may_end.load(); }, 10s); }); });
    Actor one([&] { commit(queue); });
    Actor two([&] { commit(queue); });
    wait_for([&] { return one.sleeps() && two.sleeps(); }, 1s);
    may_end = true;
  }
  return returned;
}

}  // namespace

TEST_CASE("store: a leader that is held up after its round does not take back the end of a later round") {
  struct sigaction action {};
  action.sa_handler = hold;
  REQUIRE(::sigaction(SIGUSR2, &action, nullptr) == 0);
  for (int trial = 0; trial < 5; ++trial) {
    INFO("trial " << trial);
    REQUIRE(caller_returns());
  }
}

}  // namespace queue_test
