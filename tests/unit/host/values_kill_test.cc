// A process that is killed at each write and flush of a durable move on a real disk: the next process finds the value
// under one of its two keys.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fault/store/power_cut.h"
#include "unit/store/folder.h"
#include "values_node.h"

using namespace mc;
using namespace mc::node;

namespace values_kill_test {

using test::text;

/// A disk that kills its process before the write or flush of a number, the first of which is 1.
class KillingDisk final : public store::Disk {
 public:
  explicit KillingDisk(std::unique_ptr<store::Disk> disk) : disk_(std::move(disk)) {}
  void arm(int at) { left_ = at; }
  int left() const { return left_; }

  Result<std::vector<std::string>> list() override { return disk_->list(); }
  Result<store::FileId> open(const std::string& name) override { return disk_->open(name); }
  Result<store::FileId> create(const std::string& name, uint64_t bytes) override { return disk_->create(name, bytes); }
  Result<void> remove(const std::string& name, store::FileId file) override { return disk_->remove(name, file); }
  uint64_t size(store::FileId file) const override { return disk_->size(file); }
  void run(std::span<store::Io> ios, const std::function<void(store::Io&)>& ended) override {
    for (store::Io& io : ios) {
      if (io.op != store::Io::Op::read && left_ > 0 && --left_ == 0) ::raise(SIGKILL);
      disk_->run({&io, 1}, ended);
    }
  }

 private:
  const std::unique_ptr<store::Disk> disk_;
  int left_ = 0;
};

struct Opened {
  KillingDisk* disk = nullptr;
  std::unique_ptr<door::StoredValues> values;
};

Result<Opened> open_values(const std::string& folder) {
  MC_TRY(real, store::open_disk("threads", folder));
  auto killing = std::make_unique<KillingDisk>(std::move(real.disk));
  Opened out{.disk = killing.get(), .values = nullptr};
  MC_TRY(disk, host::BlockValueDisk::open(std::move(killing), test::kCapacity, SystemClock::instance().unix_ms()));
  out.values = std::make_unique<door::StoredValues>(ValueLimits{.memory_bytes = 1 << 20}, std::move(disk),
                                                    SystemClock::instance());
  return out;
}

Result<void> put(door::StoredValues& values, const std::string& key, const std::string& bytes) {
  const ValueTerms terms{.replaces = true, .durability = Durability::d2};
  MC_CHECK(values.put({"t", key}, std::make_shared<const ValueBytes>(bytes), terms));
  return {};
}

enum Exit : int { kMoved = 10, kFailed };

/// The process that is killed. It has no test library: what fails here ends it with kFailed.
[[noreturn]] void move_until_killed(const std::string& folder, int at, bool replaces) {
  auto opened = open_values(folder);
  bool is_well = opened.has_value();
  is_well = is_well && put(*opened->values, "d", "older") && put(*opened->values, "d", text(9000));
  if (replaces) is_well = is_well && put(*opened->values, "to", "old");
  if (is_well) opened->disk->arm(at);
  is_well = is_well && opened->values->move({"t", "d"}, {"t", "to"}, replaces);
  // The steps that are left belong to other calls.
  ::_exit(is_well ? kMoved : kFailed);
}

TEST_CASE("host/values: a process that is killed at any write or flush of a move leaves the value under one key") {
  int killed = 0;
  for (const bool replaces : {false, true})
    for (int at = 1, moved = 0; moved == 0; ++at) {
      CAPTURE(at);
      REQUIRE(at < 100);
      const store_test::Folder folder;
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) move_until_killed(folder.path, at, replaces);
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      moved = WIFEXITED(status);
      if (moved != 0) CHECK(WEXITSTATUS(status) == kMoved);
      killed += moved == 0 && WTERMSIG(status) == SIGKILL;
      auto opened = open_values(folder.path);
      REQUIRE_OK(opened);
      const auto bytes_of = [&](const char* key) {
        const auto found = opened->values->get({"t", key}, {});
        return found ? std::string(found->value->view()) : std::string();
      };
      const bool is_at_new = bytes_of("to") == text(9000);
      CHECK(bytes_of("d") == (is_at_new ? "" : text(9000)));
      if (!is_at_new) CHECK(bytes_of("to") == (replaces ? "old" : ""));
      if (moved != 0) CHECK(is_at_new);
    }
  CHECK(killed >= 8);
}

}  // namespace values_kill_test
