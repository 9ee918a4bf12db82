#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <set>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/fd.h"
#include "ctl/ctl.h"
#include "test.h"

using namespace mc;
using namespace mc::ctl;

namespace {

std::string temporary(std::string_view name) {
  return "/tmp/mct-keys-" + std::to_string(::getpid()) + "-" + std::string(name);
}

std::string g_run_dir, g_xdg;
const char* environment(const char* name) {
  if (std::string_view(name) == "MCT_RUN_DIR" && !g_run_dir.empty()) return g_run_dir.c_str();
  if (std::string_view(name) == "XDG_RUNTIME_DIR" && !g_xdg.empty()) return g_xdg.c_str();
  return nullptr;
}

}  // namespace

TEST_CASE("ctl/keys: a key set survives its text, and two are never alike") {
  auto keys = new_key_set();
  REQUIRE_OK(keys);
  auto back = parse_key_set(format_key_set(*keys));
  REQUIRE_OK(back);
  CHECK(*back == *keys);
  CHECK_FALSE(*new_key_set() == *keys);
  CHECK(keys->data_secret.size() == 40);
}

TEST_CASE("ctl/keys: a damaged key set is refused by line, and no message holds a key") {
  const KeySet keys = *new_key_set();
  const std::string good = format_key_set(keys);
  auto refuse = [&](const std::string& text, std::string_view why) {
    auto parsed = parse_key_set(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().mc == err::kKeyFile);
    INFO(parsed.error().what);
    CHECK(parsed.error().what.find(why) != std::string::npos);
    CHECK(parsed.error().what.find(keys.server_secret) == std::string::npos);
  };
  refuse("", "server-public is missing");
  refuse(good + "extra " + keys.data_secret + "\n", "line 7");
  refuse(good + "data-secret " + keys.data_secret + "\n", "repeats data-secret");
  refuse(good.substr(0, good.size() - 5), "line 6 (data-secret)");
  refuse(std::string(5000, '#'), "4096 bytes");
  std::string swapped = good;
  swapped.replace(swapped.find("server-public "), 14 + 40, "server-public " + keys.client_public);
  refuse(swapped, "do not belong together");
}

TEST_CASE("ctl/keys: a key file that others may read is refused, with the way out") {
  const std::string path = temporary("file");
  REQUIRE_OK(write_file_atomic(path, format_key_set(*new_key_set()), 0644));
  auto open_file = load_key_set(path);
  REQUIRE_FALSE(open_file);
  CHECK(open_file.error().mc == err::kKeyFile);
  CHECK(open_file.error().what.find("mode 0644") != std::string::npos);
  CHECK(open_file.error().next.find("chmod 600") != std::string::npos);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  REQUIRE_OK(load_key_set(path));
  {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));  // as a shell's > does
    REQUIRE(::fchmod(fd.get(), 0644) == 0);
    REQUIRE_OK(write_key_set(*new_key_set(), fd.get()));
  }
  REQUIRE_OK(load_key_set(path));
  ::unlink(path.c_str());
  CHECK(load_key_set(path).error().mc == err::kKeyFile);
  CHECK(load_key_set("/dev/null").error().what.find("not a regular file") != std::string::npos);
}

TEST_CASE("ctl/run_dir: the directory is made private, and one that is not ours alone is refused") {
  g_run_dir = temporary("run");
  auto made = run_dir(environment);
  REQUIRE_OK(made);
  struct stat info {};
  REQUIRE(::stat(made->c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(resolve_endpoint("ipc://$MCT_RUN_DIR/conductor", environment)->path == *made + "/conductor");
  CHECK(resolve_endpoint("tcp://h:7700", environment)->host == "h");
  REQUIRE(::chmod(made->c_str(), 0755) == 0);
  CHECK(run_dir(environment).error().mc == err::kRunDir);
  REQUIRE(::rmdir(made->c_str()) == 0);
  REQUIRE(::symlink("/tmp", made->c_str()) == 0);
  CHECK(run_dir(environment).error().what.find("not a directory") != std::string::npos);
  ::unlink(made->c_str());
  g_run_dir = "relative";
  CHECK(run_dir(environment).error().mc == err::kRunDir);
  g_run_dir.clear();
  g_xdg = temporary("xdg");
  REQUIRE(::mkdir(g_xdg.c_str(), 0700) == 0);
  CHECK(*run_dir(environment) == g_xdg + "/mct");
  ::rmdir((g_xdg + "/mct").c_str());
  ::rmdir(g_xdg.c_str());
  g_xdg.clear();
  CHECK(run_dir(environment)->ends_with("/mct-" + std::to_string(::getuid())));
}

TEST_CASE("ctl/keys: the refusal says whether a program would listen or connect") {
  const Uri far = *parse_uri("tcp://10.0.0.1:7700");
  const auto text = [&](Side side) { return check_exposure(Door::control, far, Keys::none, false, side).error().what; };
  CHECK(text(Side::listens).starts_with("the control door would listen on tcp://10.0.0.1:7700"));
  CHECK(text(Side::dials).starts_with("the control connection to tcp://10.0.0.1:7700"));
}

TEST_CASE("ctl/keys: a door needs keys that count where it is, or consent") {
  auto allowed = [](const char* uri, Keys keys, bool insecure = false) {
    return check_exposure(Door::data, *parse_uri(uri), keys, insecure).has_value();
  };
  CHECK(allowed("ipc:///run/x", Keys::none));
  CHECK_FALSE(allowed("tcp://127.0.0.1:1", Keys::none));
  CHECK(allowed("tcp://127.0.0.1:1", Keys::none, true));
  CHECK(allowed("tcp://127.0.0.1:1", Keys::machine));
  for (const char* far : {"tcp://0.0.0.0:1", "tcp://*:1", "tcp://10.0.0.1:1"}) {
    CHECK_FALSE(allowed(far, Keys::none));
    CHECK_FALSE(allowed(far, Keys::machine));
    CHECK(allowed(far, Keys::cluster));
    CHECK(allowed(far, Keys::none, true));
  }
}

TEST_CASE("ctl/keys: programs that start together share one local key set") {
  const std::string folder = temporary("local");
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  std::vector<Result<KeySet>> got(8, Result<KeySet>(KeySet{}));
  std::vector<std::thread> programs;
  for (auto& keys : got) programs.emplace_back([&] { keys = local_key_set(folder); });
  for (auto& program : programs) program.join();
  const std::string path = folder + "/local.key";
  for (const auto& keys : got) {
    REQUIRE_OK(keys);
    CHECK(*keys == *got[0]);
  }
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  size_t files = 0;
  DIR* listing = ::opendir(folder.c_str());
  while (::readdir(listing) != nullptr) ++files;
  ::closedir(listing);
  CHECK(files == 3);  // ".", ".." and the key: nothing half-written stays
  const auto refused = [&] { return local_key_set(folder).error().mc; };
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  CHECK(refused() == err::kKeyFile);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  for (const char* damaged : {"nonsense\n", ""}) {
    REQUIRE_OK(write_file_atomic(path, damaged, 0600));
    CHECK(refused() == err::kKeyFile);
    CHECK(local_key_set(folder).error().next.starts_with("remove " + path));
  }
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
  CHECK(refused() == err::kRunDir);
}

TEST_CASE("ctl/keys: sweeping the run directory takes sockets of the dead and half-written keys, and nothing else") {
  const std::string folder = temporary("sweep");
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  std::vector<Fd> held;
  const auto socket_at = [&](const std::string& name, int type) {
    Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder + "/" + name;
    std::memcpy(address.sun_path, path.data(), path.size());
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return fd;
  };
  const auto aged = [&](const std::string& name, time_t seconds = 3600) {
    const timespec old[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    REQUIRE(::utimensat(AT_FDCWD, (folder + "/" + name).c_str(), old, AT_SYMLINK_NOFOLLOW) == 0);
  };
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const std::string suffix = std::to_string(type);
    held.push_back(socket_at("node-live" + suffix, type));  // bound, and not listening yet
    (void)socket_at("node-dead" + suffix, type);
    (void)socket_at("data-dead" + suffix, type);
    (void)socket_at("conductor" + suffix, type);
    (void)socket_at("node-young" + suffix, type);
    for (const char* name : {"node-live", "data-dead", "conductor"}) aged(name + suffix);
    aged("node-dead" + suffix, 10);  // its node was killed soon after its start
  }
  for (const char* name : {"local.key.tmp.abcdef", "local.key.tmp.fresh", "node-file", "local.key"}) {
    REQUIRE_OK(write_file_atomic(folder + "/" + name, "x"));
    aged(name);
  }
  aged("local.key.tmp.fresh", 10);
  sweep_run_dir(folder);
  std::set<std::string> left;
  DIR* listing = ::opendir(folder.c_str());
  while (const dirent* entry = ::readdir(listing))
    if (entry->d_name[0] != '.') left.insert(entry->d_name);
  ::closedir(listing);
  CHECK(left == std::set<std::string>{"node-live1", "node-live5", "conductor1", "conductor5", "node-young1",
                                      "node-young5", "node-file", "local.key", "local.key.tmp.fresh"});
  for (const auto& name : left) ::unlink((folder + "/" + name).c_str());
  ::rmdir(folder.c_str());
}
