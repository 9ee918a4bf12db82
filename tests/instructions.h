// Counts the instructions that the calling thread executes in user space, one by one: the processor traps after each
// (the trap flag of x86), and the handler notes its address. A system call counts as one instruction, and a repeated
// string instruction too. No hardware counter is needed, so the count works in an emulated machine. The count does not
// depend on the load of the host, but a thread that counts is a thousand times slower, so other threads do more
// meanwhile.
#pragma once

#include <link.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "test.h"

namespace mc::test {

/// Why this build cannot count; empty = it can.
inline std::string why_no_instruction_count() {
#if !defined(__x86_64__)
  return "the trap flag is one of x86-64";
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  return "the instructions are those of a sanitizer, or of a build without optimization";
#else
  return {};
#endif
}

/// Instructions by the file that contains them.
struct InstructionCount {
  uint64_t own = 0;     // this program
  uint64_t verbs = 0;   // libibverbs and its driver
  uint64_t others = 0;  // the C library, the C++ library and the kernel's clock functions
  uint64_t total() const { return own + verbs + others; }
  InstructionCount& operator+=(const InstructionCount& other) {
    own += other.own;
    verbs += other.verbs;
    others += other.others;
    return *this;
  }
};

/// One object at a time counts, on one thread. With MC_INSTRUCTIONS=1 profile() prints where they are.
class InstructionCounter {
 public:
  InstructionCounter() : addresses_(kMost) {
    ::dl_iterate_phdr(&InstructionCounter::note_file, &files_);
    struct sigaction action {};
    action.sa_sigaction = &InstructionCounter::trapped;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    REQUIRE(::sigaction(SIGTRAP, &action, &before_) == 0);
    into_ = addresses_.data();
    instrument_ = raw([] {}).own;
  }
  ~InstructionCounter() { (void)::sigaction(SIGTRAP, &before_, nullptr); }
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  /// Counts the instructions of `body` on the calling thread.
  template <class Body>
  InstructionCount count(const Body& body) {
    InstructionCount count = raw(body);
    count.own -= std::min(count.own, instrument_);
    return count;
  }
  /// Prints a line for each address of the latest count: name, file, address in the file, number of times.
  void profile(const char* name) const {
    if (std::getenv("MC_INSTRUCTIONS") == nullptr) return;
    std::map<uint64_t, size_t> places;
    for (size_t i = 0; i < count_; ++i) ++places[addresses_[i]];
    for (const auto& [address, times] : places)
      if (const File* file = file_of(address))
        std::printf("PROFILE %s %s %lx %zu\n", name, file->name.empty() ? "self" : file->name.c_str(),
                    address - file->base, times);
  }

 private:
  static constexpr size_t kMost = size_t{1} << 18;
  struct File {
    std::string name;  // empty: this program
    uint64_t begin = 0, end = 0, base = 0;
  };

  template <class Body>
  InstructionCount raw(const Body& body) {
    count_ = 0;
    set_trap_flag();
    body();
    clear_trap_flag();
    REQUIRE(count_ <= kMost);
    InstructionCount result;
    for (size_t i = 0; i < count_; ++i) {
      const File* file = file_of(addresses_[i]);
      if (file != nullptr && file->name.empty())
        ++result.own;
      else if (file != nullptr &&
               (file->name.find("verbs") != file->name.npos || file->name.find("rxe") != file->name.npos))
        ++result.verbs;
      else
        ++result.others;
    }
    return result;
  }
  static int note_file(dl_phdr_info* info, size_t, void* into) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& part = info->dlpi_phdr[i];
      if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
      const uint64_t begin = info->dlpi_addr + part.p_vaddr;
      static_cast<std::vector<File>*>(into)->push_back({info->dlpi_name, begin, begin + part.p_memsz, info->dlpi_addr});
    }
    return 0;
  }
  const File* file_of(uint64_t address) const {
    for (const File& file : files_)
      if (file.begin <= address && address < file.end) return &file;
    return nullptr;
  }
  static void trapped(int, siginfo_t*, void* context) {
#if defined(__x86_64__)
    const auto at = static_cast<uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    if (at == last_) return;  // a repeated string instruction
    last_ = at;
    if (count_ < kMost) into_[count_] = at;
    ++count_;
#endif
  }
  static void set_trap_flag() {
#if defined(__x86_64__)
    asm volatile("sub $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
#endif
  }
  static void clear_trap_flag() {
#if defined(__x86_64__)
    asm volatile("sub $128, %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
#endif
  }

  // what the handler uses
  static inline size_t count_ = 0;
  static inline uint64_t last_ = 0;
  static inline uint64_t* into_ = nullptr;
  std::vector<uint64_t> addresses_;
  std::vector<File> files_;
  struct sigaction before_ {};
  uint64_t instrument_ = 0;  // instructions that a count of nothing has
};

}  // namespace mc::test
