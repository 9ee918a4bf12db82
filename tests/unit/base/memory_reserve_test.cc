#include "base/memory_reserve.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/hash.h"
#include "test.h"

using namespace mc;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow memory exceeds any limit
namespace {

/// Exit status of `work` in a child process that may have 64 MiB more than it has now.
template <class Work>
int in_a_small_process(Work work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    unsigned long pages = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r"); file == nullptr || std::fscanf(file, "%lu", &pages) != 1)
      ::_exit(90);
    const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20);
    const rlimit limit{bytes, bytes};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(91);
    ::_exit(work());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void take_all_memory() {
  for (size_t bytes = size_t{8} << 20; bytes >= 16;) {
    volatile char* at = static_cast<char*>(std::malloc(bytes));
    if (at == nullptr)
      bytes /= 2;
    else
      at[0] = 1;
  }
}

}  // namespace

TEST_CASE("base/memory_reserve: a digest is made when malloc has nothing left, out of the reserve") {
  CHECK(in_a_small_process([] {
          if (!keep_memory_reserve(size_t{16} << 20)) return 1;
          take_all_memory();
          if (memory_is_short()) return 2;
          for (int i = 0; i < 100; ++i) Sha256().update("x").finish();
          return memory_is_short() ? 0 : 3;
        }) == 0);
}

TEST_CASE("base/memory_reserve: an allocation uses the reserve, and one that fails alone does not") {
  CHECK(in_a_small_process([] {
          if (!keep_memory_reserve(size_t{16} << 20)) return 1;
          take_all_memory();
          try {
            const FailsAlone alone;
            const std::string large(size_t{1} << 20, 'x');
            return 2;
          } catch (const std::bad_alloc&) {
          }
          if (memory_is_short()) return 3;
          const std::string large(size_t{1} << 20, 'x');
          return memory_is_short() ? 0 : 4;
        }) == 0);
}
#endif
