#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/fd.h"
#include "test.h"

using namespace mc;

namespace {

namespace fs = std::filesystem;

constexpr size_t kBytes = 5 << 16;  // several pages of any size that Linux has

struct ModelFileOnDisk {
  std::string path = (fs::path(test::binary_dir()) / "tests" / ("mapped-" + std::to_string(::getpid()))).string();
  ModelFileOnDisk() { std::ofstream(path, std::ios::binary) << std::string(kBytes, 'w'); }
  ~ModelFileOnDisk() { fs::remove(path); }
};

int byte_at(const std::byte* bytes, size_t index) {
  return static_cast<int>(*static_cast<const volatile std::byte*>(bytes + index));
}

struct Ended {
  int status = 0;
  std::string printed;  // to stderr
};

/// Runs `body` in a child, which exits with 42 behind it.
template <class Body>
Ended run_child(const Body& body) {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(pipe->write_end.get(), STDERR_FILENO);
    body();
    ::_exit(42);
  }
  pipe->write_end.reset();
  Ended ended;
  auto printed = read_to_end(pipe->read_end.get(), 1 << 20);
  REQUIRE_OK(printed);
  ended.printed = *printed;
  REQUIRE(::waitpid(child, &ended.status, 0) == child);
  return ended;
}

}  // namespace

TEST_CASE("base/mapped_file: a file has its bytes also after it was moved, removed and replaced") {
  const ModelFileOnDisk file;
  auto opened = MappedFile::open(file.path);
  REQUIRE_OK(opened);
  MappedFile mapped = std::move(*opened);
  fs::remove(file.path);
  std::ofstream(file.path) << "another";
  REQUIRE(mapped.bytes().size() == kBytes);
  CHECK(byte_at(mapped.bytes().data(), 0) == 'w');
  CHECK(byte_at(mapped.bytes().data(), kBytes - 1) == 'w');
}

TEST_CASE("base/mapped_file: an empty file has no bytes, and an absent one or a folder is refused") {
  const ModelFileOnDisk file;
  fs::resize_file(file.path, 0);
  const auto empty = MappedFile::open(file.path);
  REQUIRE_OK(empty);
  CHECK(empty->bytes().empty());
  CHECK(MappedFile::open(file.path + ".absent").error().mc == err::kModelIncomplete);
  CHECK(MappedFile::open(test::binary_dir()).error().mc == err::kModelCorrupt);
}

TEST_CASE("base/mapped_file: reading bytes that were cut off ends the process with an error that names the file") {
  const ModelFileOnDisk file;
  const Ended ended = run_child([&] {
    const auto other = MappedFile::open(file.path), mapped = MappedFile::open(file.path);
    fs::resize_file(file.path, 1 << 16);
    if (byte_at(mapped->bytes().data(), 0) == 'w') byte_at(mapped->bytes().data(), kBytes - 1);
  });
  REQUIRE(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 1);
  INFO(ended.printed);
  CHECK(ended.printed.find("error MC3002 model-corrupt: " + file.path + ": was cut off") != std::string::npos);
  CHECK(ended.printed.find("it had " + std::to_string(kBytes) + " bytes\n") != std::string::npos);
}

TEST_CASE("base/mapped_file: the error of a file with a long path fits into a pipe at once") {
  const ModelFileOnDisk file;
  const std::string folder = file.path + ".d";
  std::string path = folder;
  for (int depth = 0; depth < 12; ++depth) path += "/" + std::string(240, depth % 2 == 0 ? '\1' : 'n');
  fs::create_directories(path);
  path += "/weights.gguf";
  fs::copy_file(file.path, path);
  const Ended ended = run_child([&] {
    const auto mapped = MappedFile::open(path);
    fs::resize_file(path, 0);
    byte_at(mapped->bytes().data(), 0);
  });
  fs::remove_all(folder);
  REQUIRE(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 1);
  CHECK(ended.printed.size() <= PIPE_BUF);
  CHECK(ended.printed.find("/weights.gguf: was cut off") != std::string::npos);
}

TEST_CASE("base/mapped_file: two threads that read lost bytes print one error") {
  const ModelFileOnDisk file;
  const Ended ended = run_child([&] {
    const auto mapped = MappedFile::open(file.path);
    fs::resize_file(file.path, 0);
    std::thread other([&] { byte_at(mapped->bytes().data(), 0); });
    byte_at(mapped->bytes().data(), kBytes - 1);
    other.join();
  });
  REQUIRE(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 1);
  const size_t first = ended.printed.find("was cut off");
  REQUIRE(first != std::string::npos);
  CHECK(ended.printed.find("was cut off", first + 1) == std::string::npos);
}

TEST_CASE("base/mapped_file: a bus error outside of mapped files, or in one that was closed, is no error of a file") {
  const ModelFileOnDisk file;
  const Ended ended = run_child([&] {
    const auto mapped = MappedFile::open(file.path);
    const Fd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    std::byte* gone = nullptr;
    {
      auto closed = MappedFile::open(file.path);
      gone = const_cast<std::byte*>(closed->bytes().data());
    }
    void* at = ::mmap(gone, kBytes, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd.get(), 0);
    fs::resize_file(file.path, 0);
    if (at == gone) byte_at(gone, 0);
  });
  CHECK_FALSE((WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 42));
  CHECK(ended.printed.find("was cut off") == std::string::npos);
}
