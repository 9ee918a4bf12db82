#include "base/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/errors.h"
#include "base/fd.h"
#include "test.h"

using namespace mc;

namespace {

struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / ("mct-secret-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const char* name) const { return path / name; }
  std::filesystem::path path;
};

unsigned mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

}  // namespace

TEST_CASE("base/secret_file: what was made is private, comes back, and is never overwritten") {
  const Folder folder;
  const std::string path = folder / "key";
  const mode_t before = ::umask(0);
  REQUIRE_OK(create_secret_file(path, "secret\n", "-o"));
  ::umask(before);
  CHECK(mode_of(path) == 0600);
  CHECK(*read_secret_file(path, 100, "--auth") == "secret\n");
  for (const std::string& taken : {path, folder / "link", folder / "folder"}) {
    if (taken.ends_with("link")) REQUIRE(::symlink((folder / "elsewhere").c_str(), taken.c_str()) == 0);
    if (taken.ends_with("folder")) std::filesystem::create_directory(taken);
    const auto refused = create_secret_file(taken, "other", "-o");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == err::kKeyFile);
    CHECK(refused.error().what.find(taken) != std::string::npos);
  }
  CHECK(*read_secret_file(path, 100, "--auth") == "secret\n");
  CHECK_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

TEST_CASE("base/secret_file: a descriptor becomes private before the secret is in it") {
  const Folder folder;
  const std::string path = folder / "key";
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  REQUIRE_OK(write_secret(fd.get(), "secret"));
  CHECK(mode_of(path) == 0600);
  CHECK(*read_secret_file(path, 100, "--auth") == "secret");
}

TEST_CASE("base/secret_file: files that others may touch, and what is no file, are refused by name and flag") {
  const Folder folder;
  const std::string path = folder / "key";
  REQUIRE_OK(create_secret_file(path, "secret", "-o"));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0601}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const auto refused = read_secret_file(path, 100, "--api-keys");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == err::kKeyFile);
    CHECK(refused.error().where.find("--api-keys") != std::string::npos);
    CHECK(refused.error().what.find("mode 06") != std::string::npos);
    CHECK(refused.error().next.find("chmod 600") != std::string::npos);
  }
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK_FALSE(read_secret_file(path, 3, "--auth"));  // larger than such a file is
  if (::geteuid() == 0) {
    REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
    CHECK(read_secret_file(path, 100, "--auth").error().what.find("belongs to user 65534") != std::string::npos);
  }
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(read_secret_file(fifo, 100, "--auth").error().what.find("not a regular file") != std::string::npos);
  CHECK(read_secret_file("/dev/null", 100, "--auth").error().mc == err::kKeyFile);
  CHECK(read_secret_file(folder / "nothing", 100, "--auth").error().mc == err::kKeyFile);
}
