// The handler of SIGBUS finds the mapping of the address in a table. It runs between any two instructions of a thread
// that reads weights, so it takes no lock and allocates nothing: the texts of its errors are made when a file is
// mapped.
#include "base/mapped_file.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <mutex>
#include <utility>

#include "base/assert.h"
#include "base/cli.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/model_file.h"

namespace mc {
namespace {

/// The facts about a mapped file that the handler reads.
struct Words {
  int file;
  uint64_t bytes;
  std::string cut_off, unreadable;  // the errors as they are printed
};

/// A row of the table. `end` is written last when a row is taken and first when it becomes free. The other stores
/// release it, so that a reader who sees one of them sees that `end` has changed.
struct Row {
  std::atomic<const std::byte*> begin{nullptr}, end{nullptr};
  std::atomic<const Words*> words{nullptr};
};

/// More files than the table has rows are mapped too, but a SIGBUS in them ends the process without an error.
constexpr size_t kRows = 1024;
constinit std::array<Row, kRows> g_rows;
constinit std::mutex g_rows_mutex;  // of the threads that map and unmap, not of the handler
struct sigaction g_action_before;

static_assert(std::atomic<const Words*>::is_always_lock_free);

const Words* words_of(const std::byte* address) {
  for (const Row& row : g_rows) {
    const std::byte* end = row.end.load(std::memory_order_acquire);
    if (end == nullptr || end <= address) continue;
    const bool is_inside = row.begin.load(std::memory_order_acquire) <= address;
    const Words* words = row.words.load(std::memory_order_acquire);
    const bool was_there = row.end.load(std::memory_order_relaxed) == end;  // else another thread has freed the row
    if (was_there && is_inside) return words;
  }
  return nullptr;
}

[[noreturn]] void end_process(const Words& words) {
  constinit static std::atomic<bool> is_ending{false};
  constexpr int kPrintMs = 1000;
  if (is_ending.exchange(true))
    for (;;) ::pause();  // another thread prints the error and ends the process
  struct stat now {};
  const bool is_cut = ::fstat(words.file, &now) == 0 && static_cast<uint64_t>(now.st_size) < words.bytes;
  const std::string& text = is_cut ? words.cut_off : words.unreadable;
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&room, 1, kPrintMs) == 1) (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(kExitFailed);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const bool has_address = info->si_code > 0;  // the kernel raised the signal, not another process
  const Words* words = has_address ? words_of(static_cast<const std::byte*>(info->si_addr)) : nullptr;
  if (words != nullptr) end_process(*words);
  if ((g_action_before.sa_flags & SA_SIGINFO) != 0) return g_action_before.sa_sigaction(signal, info, context);
  if (g_action_before.sa_handler == SIG_IGN && !has_address) return;
  if (g_action_before.sa_handler != SIG_DFL && g_action_before.sa_handler != SIG_IGN)
    return g_action_before.sa_handler(signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // takes effect when this function returns
}

void install_handler() {
  static const bool is_installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, nullptr, &g_action_before) == 0 && ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  MC_ASSERT(is_installed);
}

void watch(std::span<const std::byte> bytes, const Words& words) {
  install_handler();
  const std::lock_guard lock(g_rows_mutex);
  for (Row& row : g_rows) {
    if (row.words.load(std::memory_order_relaxed) != nullptr) continue;
    row.words.store(&words, std::memory_order_release);
    row.begin.store(bytes.data(), std::memory_order_release);
    row.end.store(bytes.data() + bytes.size(), std::memory_order_release);
    return;
  }
}

void forget(const Words& words) {
  const std::lock_guard lock(g_rows_mutex);
  for (Row& row : g_rows) {
    if (row.words.load(std::memory_order_relaxed) != &words) continue;
    row.end.store(nullptr, std::memory_order_relaxed);
    row.begin.store(nullptr, std::memory_order_release);
    row.words.store(nullptr, std::memory_order_release);
  }
}

/// The end of a long path, for errors of at most PIPE_BUF bytes: a pipe that poll() calls writable takes so many at
/// once, and a longer error could stop the handler until another program reads the pipe.
std::string short_path(const std::string& path) {
  constexpr size_t kShown = 512;  // bytes; each is shown as up to 4
  return path.size() <= kShown ? path : "..." + path.substr(path.size() - kShown);
}

Words words_for(const std::string& full_path, const ModelFile& file) {
  const std::string path = short_path(full_path);
  const std::string& program = cli::build_info().program;
  const std::string name = program.empty() ? "mc" : program;
  const Error cut_off = user_error(
      err::kModelCorrupt,
      path + ": was cut off while " + name + " used it; it had " + std::to_string(file.bytes) + " bytes", {},
      "copy the file again and start " + name + " again; replace a model file with mv: programs then keep the old one");
  const Error unreadable =
      user_error(err::kFileAccess, path + ": its disk or file system failed while " + name + " used it", {},
                 "read the kernel's log for errors of the disk; copy the file to another one");
  Words words{file.fd.get(), file.bytes, format_error(name, cut_off), format_error(name, unreadable)};
  MC_ASSERT_LE(words.cut_off.size(), size_t{PIPE_BUF});
  MC_ASSERT_LE(words.unreadable.size(), size_t{PIPE_BUF});
  return words;
}

}  // namespace

struct MappedFile::Mapping {
  Fd fd;
  std::span<const std::byte> bytes;
  Words words;

  Mapping(ModelFile file, const void* address, Words texts)
      : fd(std::move(file.fd)), bytes(static_cast<const std::byte*>(address), file.bytes), words(std::move(texts)) {
    if (!bytes.empty()) watch(bytes, words);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (bytes.empty()) return;
    forget(words);
    ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }
};

MappedFile::MappedFile(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
MappedFile::MappedFile(MappedFile&& other) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept = default;
MappedFile::~MappedFile() = default;

Result<MappedFile> MappedFile::open(const std::string& path) {
  MC_TRY(file, open_model_file(path));
  void* address = nullptr;
  if (file.bytes > 0) {
    address = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    if (address == MAP_FAILED) return as_user_error(err::kFileAccess, errno_error("mmap " + path));
  }
  Words words = words_for(path, file);
  return MappedFile(std::make_unique<Mapping>(std::move(file), address, std::move(words)));
}

std::span<const std::byte> MappedFile::bytes() const {
  MC_ASSERT(mapping_ != nullptr);
  return mapping_->bytes;
}

}  // namespace mc
