#include "gpu/emu/fiber.h"

#include <sys/mman.h>

#include "base/assert.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(MC_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
void __asan_unpoison_memory_region(const volatile void* begin, size_t size);
}
#endif

#if defined(__x86_64__)
// switch_stack(save, to): pushes the registers that a call keeps, stores the stack pointer in *save, and pops those of
// `to` (System V ABI, AMD64 supplement, 3.2.1).
asm(R"(
.text
.p2align 4
.globl mc_gpu_switch_stack
.hidden mc_gpu_switch_stack
.type mc_gpu_switch_stack, @function
mc_gpu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mc_gpu_switch_stack, .-mc_gpu_switch_stack
)");
// The first switch to a fiber returns here: enter(argument) from the registers that it has popped.
asm(R"(
.text
.globl mc_gpu_enter_fiber
.hidden mc_gpu_enter_fiber
.type mc_gpu_enter_fiber, @function
mc_gpu_enter_fiber:
  movq %r14, %rdi
  callq *%r15
  ud2
.size mc_gpu_enter_fiber, .-mc_gpu_enter_fiber
)");
#endif

namespace mc::gpu::emu {
namespace {

#if defined(MC_ASAN)
constexpr size_t kStackBytes = 256 << 10;  // its frames are larger
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kGuardBytes = 4096;

}  // namespace

#if !defined(MC_PLAIN_FIBERS)
struct Fiber::State {
  void (*enter)(void*) = nullptr;
  void* argument = nullptr;
  const void* bottom = nullptr;  // of the stack
  size_t bytes = 0;
  void* fake_stack = nullptr;  // of AddressSanitizer
#if !defined(__x86_64__)
  ucontext_t context;
#endif
  static thread_local State* from;  // of the last switch, with AddressSanitizer

  static void arrived();
  static void body();
};
thread_local Fiber::State* Fiber::State::from = nullptr;
thread_local constinit Fiber* Fiber::running_ = nullptr;

/// The first thing that a fiber does after a switch to it.
void Fiber::State::arrived() {
#if defined(MC_ASAN)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(running_->state_->fake_stack, &bottom, &bytes);
  from->bottom = bottom;  // the thread's own stack is known from here alone
  from->bytes = bytes;
#endif
}

void Fiber::State::body() {
  arrived();
  const State& self = *running_->state_;
  self.enter(self.argument);
  MC_ASSERT(false);  // a fiber ends by a switch
}

Fiber::Fiber() : state_(std::make_unique<State>()) {}
Fiber::~Fiber() = default;
#endif

void Fiber::start(std::byte* stack, size_t bytes, uint32_t colour, void (*enter)(void*), void* argument) {
#if !defined(MC_PLAIN_FIBERS)
  State& s = *state_;
  s.enter = enter;
  s.argument = argument;
  s.bottom = stack;
  s.bytes = bytes;
  s.fake_stack = nullptr;
#endif
#if defined(MC_ASAN)
  __asan_unpoison_memory_region(stack, bytes);
#endif
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(stack + bytes - 64 - colour % 16 * 576);
#if defined(MC_PLAIN_FIBERS)
  *--top = reinterpret_cast<void*>(&mc_gpu_enter_fiber);
  for (int i = 0; i < 4; ++i) *--top = nullptr;
  *--top = argument;                         // r14
  *--top = reinterpret_cast<void*>(enter);  // r15
#else
  *--top = nullptr;  // a return address that nobody takes: it aligns the stack as behind a call
  *--top = reinterpret_cast<void*>(&State::body);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#endif
  top_ = top;
#else
  MC_ASSERT_EQ(getcontext(&s.context), 0);
  s.context.uc_stack.ss_sp = stack;
  s.context.uc_stack.ss_size = bytes;
  s.context.uc_link = nullptr;
  makecontext(&s.context, &State::body, 0);
#endif
}

#if !defined(MC_PLAIN_FIBERS)
void Fiber::swap_whole(Fiber& from, Fiber& to) {
  State::from = from.state_.get();
  running_ = &to;
#if defined(MC_ASAN)
  __sanitizer_start_switch_fiber(&from.state_->fake_stack, to.state_->bottom, to.state_->bytes);
#endif
#if defined(__x86_64__)
  mc_gpu_switch_stack(&from.top_, to.top_);
#else
  MC_ASSERT_EQ(swapcontext(&from.state_->context, &to.state_->context), 0);
#endif
  State::arrived();
}
#endif

Stacks::~Stacks() {
  for (std::byte* stack : mapped_) {
#if defined(MC_ASAN)
    // Frames that a stopped run left behind would stay marked in what is mapped here next, such as a model's file.
    __asan_unpoison_memory_region(stack, kStackBytes);
#endif
    munmap(stack - kGuardBytes, kStackBytes + kGuardBytes);
  }
}

std::byte* Stacks::take() {
  if (free_.empty()) {
    void* made = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MC_ASSERT(made != MAP_FAILED);
    MC_ASSERT_EQ(mprotect(made, kGuardBytes, PROT_NONE), 0);
    mapped_.push_back(static_cast<std::byte*>(made) + kGuardBytes);
    free_.push_back(mapped_.back());
  }
  std::byte* out = free_.back();
  free_.pop_back();
  return out;
}

size_t Stacks::bytes() {
  return kStackBytes;
}

Stacks& Stacks::of_thread() {
  static thread_local Stacks stacks;
  return stacks;
}

}  // namespace mc::gpu::emu
