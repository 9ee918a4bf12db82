#include "host/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "test.h"

namespace key_file_test {

using namespace mc;
using namespace mc::host;

namespace {

struct File {
  File() : path(std::filesystem::temp_directory_path() / ("mct-keys-" + std::to_string(::getpid()))) {}
  ~File() { std::filesystem::remove(path); }
  void hold(const ctl::KeySet& keys) const {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    REQUIRE(fd);
    REQUIRE_OK(ctl::write_key_set(keys, fd.get()));
  }
  std::filesystem::path path;
};

ctl::KeySet fresh() {
  auto keys = ctl::new_key_set();
  REQUIRE_OK(keys);
  return *keys;
}

Result<void> must_not_be_asked(const ctl::KeySet&) {
  FAIL("keys offered that are in use");
  return {};
}

}  // namespace

TEST_CASE("host/key_file: the marks of two files are equal for equal keys and one node, and not else") {
  const File at;
  const ctl::KeySet keys = fresh();
  at.hold(keys);
  const auto first = KeyFile::open(at.path), again = KeyFile::open(at.path);
  REQUIRE_OK(first);
  REQUIRE_OK(again);
  at.hold(fresh());
  const auto other = KeyFile::open(at.path);
  REQUIRE_OK(other);
  InstanceId node, next;
  next.bytes[3] = 1;
  CHECK(first->mark(node).file == at.path);
  CHECK(first->mark(node).check.size() == 32);
  CHECK(first->mark(node).check == again->mark(node).check);
  CHECK(first->mark(node).check != other->mark(node).check);
  CHECK(first->mark(node).check != first->mark(next).check);
  CHECK(KeyFile().mark(node).check.empty());
}

TEST_CASE("host/key_file: a rotation that meets a busy control plane is offered until it is taken") {
  const File at;
  const ctl::KeySet before = fresh();
  const ctl::KeySet after = fresh();
  at.hold(before);
  auto file = KeyFile::open(at.path);
  REQUIRE_OK(file);
  at.hold(after);
  file->reload();
  for (int i = 0; i < 3; ++i) {
    file->offer([&](const ctl::KeySet& keys) -> Result<void> {
      CHECK(keys == after);
      return {Code::busy, "ring is full"};
    });
    CHECK(*file->keys(Door::control) == before);
  }
  int taken = 0;
  for (int i = 0; i < 2; ++i)
    file->offer([&](const ctl::KeySet& keys) -> Result<void> {
      CHECK(keys == after);
      ++taken;
      return {};
    });
  CHECK(taken == 1);
  CHECK(*file->keys(Door::control) == after);
  CHECK(file->data_secret() == KeyFile::data_secret(after));
  CHECK(file->data_secret() != KeyFile::data_secret(before));
}

TEST_CASE("host/key_file: keys that can never be used are dropped, and the same file read again offers nothing") {
  const File at;
  const ctl::KeySet before = fresh();
  at.hold(before);
  auto file = KeyFile::open(at.path);
  REQUIRE_OK(file);
  file->reload();
  file->offer(must_not_be_asked);
  at.hold(fresh());
  file->reload();
  file->offer([](const ctl::KeySet&) -> Result<void> { return {Code::invalid, "opened without keys"}; });
  file->offer(must_not_be_asked);
  CHECK(*file->keys(Door::control) == before);
}

TEST_CASE("host/key_file: a file that is rotated back before the keys were taken changes nothing") {
  const File at;
  const ctl::KeySet before = fresh();
  at.hold(before);
  auto file = KeyFile::open(at.path);
  REQUIRE_OK(file);
  at.hold(fresh());
  file->reload();
  at.hold(before);
  file->reload();
  file->offer(must_not_be_asked);
  std::ofstream(at.path, std::ios::trunc) << "no keys";
  file->reload();
  file->offer(must_not_be_asked);
  CHECK(*file->keys(Door::control) == before);
}

}  // namespace key_file_test
