// Fibers: stacks that hand the processor to each other inside one thread. The switch is a dozen instructions on x86-64
// and aarch64's place is taken by ucontext, which is 40 times slower but everywhere. Neither saves the rounding mode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define MC_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MC_ASAN 1
#endif
#endif

#if defined(__x86_64__)
extern "C" void mc_gpu_switch_stack(void** save, void* to);
extern "C" void mc_gpu_enter_fiber();
#endif
#if defined(__x86_64__) && !defined(MC_ASAN)
#define MC_PLAIN_FIBERS 1  // a fiber is its stack
#endif

namespace mc::gpu::emu {

/// One stack with a suspended computation, or the thread's own. It must not move between threads, and nothing on its
/// stack is destroyed when it is dropped.
class Fiber {
 public:
#if defined(MC_PLAIN_FIBERS)
  Fiber() = default;
#else
  Fiber();
  ~Fiber();
#endif
  Fiber(const Fiber&) = delete;

  /// The first switch to it calls enter(argument), which never returns. `colour` moves the top of the stack, so that
  /// the stacks of many fibers lie in different cache sets.
  void start(std::byte* stack, size_t bytes, uint32_t colour, void (*enter)(void*), void* argument);
  /// Suspends `from`, which runs, and goes on in `to`.
  static void swap(Fiber& from, Fiber& to) {
#if defined(MC_PLAIN_FIBERS)
    mc_gpu_switch_stack(&from.top_, to.top_);
#else
    swap_whole(from, to);
#endif
  }

 private:
#if !defined(MC_PLAIN_FIBERS)
  struct State;
  static void swap_whole(Fiber& from, Fiber& to);

  static thread_local constinit Fiber* running_;  // the last one that was switched to
  std::unique_ptr<State> state_;
#endif
  void* top_ = nullptr;  // of the stack while it is suspended; x86-64
};

/// Stacks with an unmapped page below each, kept for the next run of this thread.
class Stacks {
 public:
  ~Stacks();
  std::byte* take();
  void give(std::byte* stack) { free_.push_back(stack); }
  /// The fiber on this stack switches away for good. Others may take the stack after the next call.
  void leave(std::byte* stack) {
    if (left_ != nullptr) free_.push_back(left_);
    left_ = stack;
  }
  static size_t bytes();
  static Stacks& of_thread();

 private:
  std::vector<std::byte*> mapped_, free_;
  std::byte* left_ = nullptr;
};

}  // namespace mc::gpu::emu
