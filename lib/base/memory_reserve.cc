#include "base/memory_reserve.h"

#include <openssl/crypto.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"

namespace mc {
namespace {

thread_local bool t_fails_alone = false;

std::atomic<size_t> g_reserve_bytes{0};
std::atomic<void*> g_reserve{nullptr};  // a mapping: given back, it is room for any arena of malloc
std::atomic<bool> g_is_short{false};

/// Pages are reserved, not touched: it is address space and commit charge that a limit counts.
void* map_reserve(size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

/// False: there is none left to give up.
bool give_up_reserve() {
  void* reserve = g_reserve.exchange(nullptr);
  if (reserve == nullptr) return false;
  g_is_short.store(true);
  ::munmap(reserve, g_reserve_bytes.load());
  return true;
}

/// operator new calls this and tries again when it returns.
void on_no_memory() {
  if (t_fails_alone || !give_up_reserve()) throw std::bad_alloc();
}

// OpenSSL takes its memory from malloc, which has no reserve, and an assertion says that its small contexts are made.
void* crypto_malloc(size_t bytes, const char*, int) {
  void* at = std::malloc(bytes);
  return at == nullptr && bytes > 0 && give_up_reserve() ? std::malloc(bytes) : at;
}
void* crypto_realloc(void* old, size_t bytes, const char*, int) {
  void* at = std::realloc(old, bytes);
  return at == nullptr && bytes > 0 && give_up_reserve() ? std::realloc(old, bytes) : at;
}
void crypto_free(void* at, const char*, int) {
  std::free(at);
}
// At the start of the program: OpenSSL takes them only before its first allocation.
const bool g_crypto_uses_reserve = CRYPTO_set_mem_functions(crypto_malloc, crypto_realloc, crypto_free) == 1;

}  // namespace

Result<void> keep_memory_reserve(size_t bytes) {
  MC_ASSERT(g_reserve_bytes.load() == 0);
  MC_ASSERT(g_crypto_uses_reserve);
  void* reserve = map_reserve(bytes);
  if (reserve == nullptr) return as_user_error(err::kNotEnoughMemory, errno_error("reserve of memory"));
  g_reserve_bytes.store(bytes);
  g_reserve.store(reserve);
  std::set_new_handler(on_no_memory);
  return {};
}

bool memory_is_short() {
  return g_is_short.load(std::memory_order_relaxed);  // a moment late does no harm
}

void refill_memory_reserve() {
  if (!memory_is_short()) return;
  void* reserve = map_reserve(g_reserve_bytes.load());
  if (reserve == nullptr) return;
  void* none = nullptr;
  if (g_reserve.compare_exchange_strong(none, reserve))
    g_is_short.store(false);
  else
    ::munmap(reserve, g_reserve_bytes.load());  // another thread filled it first
}

FailsAlone::FailsAlone(bool alone) : before_(t_fails_alone) {
  t_fails_alone = alone;
}

FailsAlone::~FailsAlone() {
  t_fails_alone = before_;
}

}  // namespace mc
