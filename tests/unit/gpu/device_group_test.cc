// Several emulated devices that sum their numbers: the demands of NCCL with a mutant for each, what a failed device
// does to the others, lists of devices in --device, and the part of the host's library that needs no GPU.
#include "gpu/device_group.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "base/errors.h"
#include "gpu/devices.h"
#include "gpu/emulated_nccl.h"
#include "gpu/libnccl.h"
#include "gpu/optional_library.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace device_group_test {
namespace {

constexpr size_t kCount = 40;

/// Emulated devices with a buffer of numbers each.
struct Ranks {
  std::vector<std::shared_ptr<EmulatedDriver>> drivers;
  EmulatedNccl* nccl = nullptr;
  std::unique_ptr<DeviceGroup> group;
  std::vector<DeviceBuffer> buffers;

  /// Rank `faulty` fails at its first operation.
  explicit Ranks(size_t count, emu::Policy policy = emu::Policy::random, uint64_t seed = 1, size_t faulty = SIZE_MAX) {
    std::vector<std::unique_ptr<Device>> devices;
    for (size_t rank = 0; rank < count; ++rank) {
      EmulatedHost host{.devices = static_cast<int>(count)};
      if (rank == faulty) host.fault = Status::ecc_uncorrectable;
      host.name = "emu[" + std::to_string(rank) + "]";
      drivers.push_back(std::make_shared<EmulatedDriver>(host));
      drivers.back()->gpu().set_options({.seed = seed + rank, .policy = policy});
      auto device = Device::open(drivers.back(), static_cast<int>(rank));
      REQUIRE_OK(device);
      devices.push_back(std::move(*device));
    }
    auto library = std::make_unique<EmulatedNccl>(drivers);
    nccl = library.get();
    auto opened = DeviceGroup::open("emu", std::move(devices), std::move(library));
    REQUIRE_OK(opened);
    group = std::move(*opened);
    for (size_t rank = 0; rank < count; ++rank) {
      auto buffer = DeviceBuffer::make(group->device(rank), kCount * 4, "numbers");
      REQUIRE_OK(buffer);
      buffers.push_back(std::move(*buffer));
    }
  }
  ~Ranks() { buffers.clear(); }
  std::vector<uint64_t> addresses() const {
    std::vector<uint64_t> out;
    for (const DeviceBuffer& buffer : buffers) out.push_back(buffer.address());
    return out;
  }
  /// Queues numbers on each device without a wait.
  void post() {
    for (size_t rank = 0; rank < buffers.size(); ++rank) {
      const std::vector<float> mine = numbers(rank);
      CHECK(group->device(rank).post(buffers[rank].address(), std::as_bytes(std::span(mine))));
    }
  }
  static std::vector<float> numbers(size_t rank) {
    std::vector<float> out(kCount);
    for (size_t i = 0; i < kCount; ++i)
      out[i] = (rank % 2 == 0 ? 1e8f : -1e8f) + static_cast<float>(rank * 7 + i) * 0.37f;
    return out;
  }
  std::vector<float> read(size_t rank) {
    std::vector<float> out(kCount);
    CHECK(group->device(rank).read(buffers[rank].address(), std::as_writable_bytes(std::span(out))));
    return out;
  }
  /// The sums of the numbers `times` times, in the order of the ranks.
  std::vector<float> want(int times = 1) const {
    std::vector<std::vector<float>> all;
    for (size_t rank = 0; rank < buffers.size(); ++rank) all.push_back(numbers(rank));
    for (int turn = 0; turn < times; ++turn) {
      std::vector<float> sum = all[0];
      for (size_t rank = 1; rank < all.size(); ++rank)
        for (size_t i = 0; i < kCount; ++i) sum[i] += all[rank][i];
      for (auto& one : all) one = sum;
    }
    return all[0];
  }
};

/// The error of one sum whose calls are edited first.
Error edited(const std::function<void(std::vector<NcclCall>&)>& edit) {
  Ranks ranks(2);
  ranks.post();
  CHECK(ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, MLP"));
  ranks.nccl->set_edit(edit);
  const auto done = ranks.group->all_reduce(ranks.addresses(), kCount, "layer 1, attention");
  REQUIRE_FALSE(done.has_value());
  return done.error();
}

}  // namespace

TEST_CASE("gpu/group: sums have the order of the ranks, on every device and under every schedule") {
  for (const size_t count : {2u, 3u, 4u})
    for (int policy = 0; policy < emu::kPolicies; ++policy)
      for (const uint64_t seed : {1u, 2u, 3u}) {
        Ranks ranks(count, static_cast<emu::Policy>(policy), seed);
        ranks.post();
        for (const char* what : {"layer 0, attention", "layer 0, MLP"})
          REQUIRE_OK(ranks.group->all_reduce(ranks.addresses(), kCount, what));
        const std::vector<float> want = ranks.want(2);
        for (size_t rank = count; rank-- > 0;) CHECK(ranks.read(rank) == want);
        CHECK(ranks.nccl->sums() == 2);
      }
}

TEST_CASE("gpu/group: a device that the host never waits for does its part of a sum") {
  Ranks ranks(3, emu::Policy::sticky);
  ranks.post();
  REQUIRE_OK(ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, attention"));
  CHECK(ranks.read(0) == ranks.want());
}

TEST_CASE("gpu/group: each demand on the calls of a group that is not met is named with both places") {
  static const std::string kOther = "layer 1, MLP";
  const struct {
    const char* says;
    std::function<void(std::vector<NcclCall>&)> edit;
  } cases[] = {
      {"nccl: deadlock: a group ends with rank 0 at call 2 (layer 1, attention, a sum of 40 numbers) and rank 1 behind "
       "call 1 (layer 0, MLP)",
       [](std::vector<NcclCall>& calls) { calls.pop_back(); }},
      {"nccl: deadlock: a group ends with rank 0 behind call 1 (layer 0, MLP) and rank 1 at call 2 (layer 1, attention",
       [](std::vector<NcclCall>& calls) { calls.erase(calls.begin()); }},
      {"nccl: the order of calls differs: rank 0 at call 2 (layer 1, attention, a sum of 40 numbers) and rank 1 at "
       "call 2 "
       "(layer 1, MLP, a sum of 40 numbers)",
       [](std::vector<NcclCall>& calls) { calls[1].what = kOther; }},
      {"nccl: the sizes differ: rank 0 at call 2 (layer 1, attention, a sum of 40 numbers) and rank 1 at call 2 (layer "
       "1, "
       "attention, a sum of 39 numbers)",
       [](std::vector<NcclCall>& calls) { calls[1].count = kCount - 1; }},
      {"nccl: a sum of no numbers", [](std::vector<NcclCall>& calls) { calls[0].count = calls[1].count = 0; }},
      {"nccl: the numbers and the sums overlap and are not equal: rank 1 at call 2",
       [](std::vector<NcclCall>& calls) { calls[1].to += 4; }},
      {"nccl: the range is not f32 in one allocation: rank 0 at call 2",
       [](std::vector<NcclCall>& calls) { calls[0].from = calls[0].to = calls[0].to + 4; }},
  };
  for (const auto& one : cases) {
    const Error error = edited(one.edit);
    CHECK_MESSAGE(error.what.find(one.says) != std::string::npos, error.what);
  }
}

TEST_CASE("gpu/group: numbers that another stream writes without an event stop the run") {
  Ranks ranks(2);
  ranks.post();
  Device& device = ranks.group->device(1);
  REQUIRE_OK(device.finish());
  auto stream = Stream::make(device);
  REQUIRE_OK(stream);
  REQUIRE_OK(stream->fill(ranks.buffers[1].address(), 0, kCount * 4));
  (void)ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, attention");
  const auto finished = device.finish();
  REQUIRE_FALSE(finished.has_value());
  CHECK_MESSAGE(finished.error().what.find("stream order") != std::string::npos, finished.error().what);
}

TEST_CASE("gpu/group: a device that has failed is the error of the sum, and no later sum is queued") {
  for (const size_t failed : {0u, 1u}) {
    std::vector<DeviceChoice> choices(2, {.kind = DeviceKind::emu});
    choices[failed].fault_at = 1;
    auto group = open_devices(choices);
    REQUIRE_OK(group);
    std::vector<DeviceBuffer> buffers;
    std::vector<uint64_t> addresses;
    for (size_t rank = 0; rank < 2; ++rank) {
      auto buffer = DeviceBuffer::make((*group)->device(rank), kCount * 4, "numbers");
      REQUIRE_OK(buffer);
      addresses.push_back(buffer->address());
      buffers.push_back(std::move(*buffer));
    }
    CHECK_FALSE((*group)->failure().has_value());
    CHECK((*group)->device(1 - failed).fill(addresses[1 - failed], 0, kCount * 4));
    (void)(*group)->device(failed).fill(addresses[failed], 0, kCount * 4);
    (void)(*group)->device(failed).finish();
    for (int turn = 0; turn < 2; ++turn) {
      const auto done = (*group)->all_reduce(addresses, kCount, "layer 0, attention");
      REQUIRE_FALSE(done.has_value());
      CHECK(done.error().mc == err::kDeviceFailed);
      const std::string name = "emu[" + std::to_string(failed) + "]";
      CHECK_MESSAGE(done.error().what.find(name) != std::string::npos, done.error().what);
      CHECK_MESSAGE(done.error().what.find("ECC") != std::string::npos, done.error().what);
    }
    CHECK((*group)->failure().has_value());
    CHECK((*group)->device(1 - failed).finish());  // it waits for nobody
  }
}

TEST_CASE(
    "gpu/group: a look at the devices finds one that failed while the host used another, and gives up their sums") {
  Ranks ranks(2, emu::Policy::sticky, 1, 1);
  ranks.post();
  REQUIRE_OK(ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, attention"));
  ranks.group->look({});
  CHECK_FALSE(ranks.group->failure().has_value());
  (void)ranks.read(0);  // until then the other one has not begun
  CHECK_FALSE(ranks.group->failure().has_value());
  ranks.group->look({});
  REQUIRE(ranks.group->failure().has_value());
  CHECK(ranks.group->failure()->mc == err::kDeviceFailed);
  CHECK(ranks.group->failure()->what == "emu[1]: uncorrectable ECC error encountered (CUDA error 214)");
  const auto later = ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, MLP");
  REQUIRE_FALSE(later.has_value());
  CHECK(later.error().what == ranks.group->failure()->what);
}

/// A library whose sums could hang, so that a thread looks at the devices.
class HangingNccl final : public Nccl {
 public:
  explicit HangingNccl(std::promise<void>& aborted) : aborted_(aborted) {}
  Result<void> load() override { return {}; }
  size_t version() const override { return kNcclVersionMin; }
  std::string file() const override { return ""; }
  NcclStatus create(std::span<const int>) override { return NcclStatus::ok; }
  void destroy() override {}
  void abort() override { aborted_.set_value(); }
  NcclStatus group_start() override { return NcclStatus::ok; }
  NcclStatus all_reduce(const NcclCall&) override { return NcclStatus::ok; }
  NcclStatus group_end() override { return NcclStatus::ok; }
  std::string error_text(NcclStatus) override { return ""; }

 private:
  std::promise<void>& aborted_;
};

TEST_CASE(
    "gpu/group: the thread of the group finds a failure that no call of the host has met, and ends with the group") {
  for (const bool fails : {false, true}) {
    std::vector<std::unique_ptr<Device>> devices;
    for (int rank = 0; rank < 2; ++rank) {
      EmulatedHost host{.devices = 2, .fault = fails && rank == 1 ? Status::ecc_uncorrectable : Status::ok};
      const auto driver = std::make_shared<EmulatedDriver>(host);
      devices.push_back(std::move(*Device::open(driver, rank)));
      Handle stream = nullptr;
      uint64_t address = 0;
      REQUIRE(driver->stream_create(&stream) == Status::ok);
      REQUIRE(driver->allocate(&address, 4, "number") == Status::ok);
      (void)driver->fill(address, 0, 4, stream);
      REQUIRE(driver->stream_finish(stream) == host.fault);
    }
    std::promise<void> aborted;
    auto future = aborted.get_future();
    auto group = DeviceGroup::open("emu", std::move(devices), std::make_unique<HangingNccl>(aborted));
    REQUIRE_OK(group);
    if (!fails) continue;
    REQUIRE(future.wait_for(60s) == std::future_status::ready);
    REQUIRE((*group)->failure().has_value());
    CHECK((*group)->failure()->what == "emu: uncorrectable ECC error encountered (CUDA error 214)");
  }
}

TEST_CASE("gpu/group: a wait that lasts too long fails the group, and a wait that has ended does not") {
  Ranks ranks(2);
  ranks.post();
  const TimePoint begun{1s};
  { const DeviceGroup::Wait ended(*ranks.group, begun); }
  ranks.group->look(begun + 1000s);
  CHECK_FALSE(ranks.group->failure().has_value());
  const DeviceGroup::Wait wait(*ranks.group, begun);
  ranks.group->look(begun + DeviceGroup::kWaitMost);
  CHECK_FALSE(ranks.group->failure().has_value());
  REQUIRE_OK(ranks.group->all_reduce(ranks.addresses(), kCount, "layer 0, MLP"));
  ranks.group->look(begun + DeviceGroup::kWaitMost + 1ns);
  REQUIRE(ranks.group->failure().has_value());
  CHECK(ranks.group->failure()->what == "emu: the devices have not answered for 120 s, in their sums or before them");
  const auto later = ranks.group->all_reduce(ranks.addresses(), kCount, "layer 1, attention");
  REQUIRE_FALSE(later.has_value());
  CHECK(later.error().mc == err::kDeviceFailed);
  CHECK(ranks.nccl->sums() == 1);
}

/// A library whose calls wait for a rank that never comes, until the communicator is aborted.
class StuckNccl final : public Nccl {
 public:
  StuckNccl(std::promise<void>& entered, std::shared_future<void> aborted)
      : entered_(entered), aborted_(std::move(aborted)) {}
  Result<void> load() override { return {}; }
  size_t version() const override { return kNcclVersionMin; }
  std::string file() const override { return ""; }
  bool can_hang() const override { return false; }  // the test looks at the devices itself
  NcclStatus create(std::span<const int>) override { return NcclStatus::ok; }
  void destroy() override {}
  void abort() override { abort_.set_value(); }
  NcclStatus group_start() override { return NcclStatus::ok; }
  NcclStatus all_reduce(const NcclCall&) override { return NcclStatus::ok; }
  NcclStatus group_end() override {
    entered_.set_value();
    return aborted_.wait_for(20s) == std::future_status::ready ? NcclStatus::internal_error : NcclStatus::ok;
  }
  std::string error_text(NcclStatus) override { return "aborted"; }
  std::promise<void> abort_;

 private:
  std::promise<void>& entered_;
  std::shared_future<void> aborted_;
};

TEST_CASE("gpu/group: a call of NCCL that waits for ever ends with an error after a look at a late time") {
  std::vector<std::unique_ptr<Device>> devices;
  for (int rank = 0; rank < 2; ++rank)
    devices.push_back(std::move(*Device::open(std::make_shared<EmulatedDriver>(EmulatedHost{.devices = 2}), rank)));
  std::promise<void> entered, aborted;
  auto library = std::make_unique<StuckNccl>(entered, aborted.get_future().share());
  library->abort_ = std::move(aborted);
  auto group = DeviceGroup::open("emu", std::move(devices), std::move(library));
  REQUIRE_OK(group);
  const TimePoint begun = SystemClock::instance().now();
  const uint64_t nowhere[] = {0, 0};
  auto sum =
      std::async(std::launch::async, [&] { return (*group)->all_reduce(nowhere, kCount, "layer 0, attention"); });
  REQUIRE(entered.get_future().wait_for(20s) == std::future_status::ready);
  (*group)->look(begun + DeviceGroup::kWaitMost - 1s);
  CHECK_FALSE((*group)->failure().has_value());
  (*group)->look(SystemClock::instance().now() + DeviceGroup::kWaitMost + 1s);
  const auto done = sum.get();
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().what == "emu: the devices have not answered for 120 s, in their sums or before them");
  CHECK((*group)->failure()->what == done.error().what);
}

TEST_CASE("gpu/group: a warm-up runs a small and a large sum, gives its memory back, and fits into little memory") {
  Ranks ranks(2);
  const auto free_of = [](DeviceGroup& group, size_t rank) {
    const auto memory = group.device(rank).memory();
    REQUIRE_OK(memory);
    return memory->free;
  };
  const size_t free = free_of(*ranks.group, 0);
  REQUIRE_OK(ranks.group->warm_up());
  CHECK(ranks.nccl->sums() == 2);
  CHECK(free_of(*ranks.group, 0) == free);
  const DeviceChoice small[] = {{.kind = DeviceKind::emu}, {.kind = DeviceKind::emu, .memory_mib = 1}};
  const auto group = open_devices(small);
  REQUIRE_OK(group);
  CHECK((*group)->warm_up());
  const auto alone = open_devices(std::span(small).first(1));
  REQUIRE_OK(alone);
  CHECK((*alone)->warm_up());
}

TEST_CASE("gpu/group: devices of a host without NCCL are refused with the next step, and one device needs none") {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::shared_ptr<EmulatedDriver>> drivers;
  for (int rank = 0; rank < 2; ++rank) {
    drivers.push_back(std::make_shared<EmulatedDriver>(EmulatedHost{.devices = 2, .has_nccl = false}));
    devices.push_back(std::move(*Device::open(drivers.back(), rank)));
  }
  auto library = std::make_unique<EmulatedNccl>(drivers);
  const auto refused = DeviceGroup::open("emu,emu", std::move(devices), std::move(library));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kDeviceUnusable);
  CHECK(refused.error().what == "emu,emu needs NCCL: no NCCL was found: the emulated host has none");
  std::vector<std::unique_ptr<Device>> one;
  one.push_back(std::move(*Device::open(drivers[0], 0)));
  const auto alone = DeviceGroup::open("emu", std::move(one), nullptr);
  REQUIRE_OK(alone);
  const uint64_t nowhere = 0;
  CHECK((*alone)->all_reduce({&nowhere, 1}, kCount, "layer 0, MLP"));
}

TEST_CASE("gpu/group: GPUs of two kinds are refused with what differs and the next step") {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::shared_ptr<EmulatedDriver>> drivers;
  for (const int capability : {90, 80}) {
    const std::string name = "emu[" + std::to_string(drivers.size()) + "]";
    drivers.push_back(
        std::make_shared<EmulatedDriver>(EmulatedHost{.devices = 2, .capability = capability, .name = name}));
    devices.push_back(std::move(*Device::open(drivers.back(), static_cast<int>(devices.size()))));
  }
  const auto refused = DeviceGroup::open("emu,emu", std::move(devices), std::make_unique<EmulatedNccl>(drivers));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kDeviceUnusable);
  CHECK(refused.error().what ==
        "emu,emu: emu[0] has compute capability 9.0, 132 multiprocessors and 227 KiB of shared memory, and emu[1] has "
        "compute capability 8.0, 132 multiprocessors and 227 KiB of shared memory; GPUs that compute one model must be "
        "alike");
  CHECK(refused.error().next == "name GPUs of one kind, or one GPU; nvidia-smi -L lists the kinds");
}

TEST_CASE("gpu/group: a communicator takes each device once") {
  EmulatedNccl nccl({std::make_shared<EmulatedDriver>(), std::make_shared<EmulatedDriver>()});
  const int twice[] = {1, 1}, beyond[] = {0, 2};
  CHECK(name_of(nccl.create(twice)) == "ncclInvalidUsage");
  CHECK(name_of(nccl.create(beyond)) == "ncclInvalidUsage");
}

// ---- --device ----

TEST_CASE("gpu/devices: a list of GPUs is read item by item and written back") {
  const struct {
    const char *text, *written;
    size_t count;
  } cases[] = {{"cpu", "cpu", 1},
               {"auto", "cpu", 1},
               {"cuda:3", "cuda:3", 1},
               {"cuda:0,cuda:1", "cuda:0-1", 2},
               {"cuda:0-3", "cuda:0-3", 4},
               {"cuda:4-5,cuda:0", "cuda:4-5,cuda:0", 3},
               {"cuda:1,cuda:0", "cuda:1,cuda:0", 2},
               {"emu,emu", "emu,emu", 2},
               {"emu,emu:fault=9", "emu,emu:fault=9", 2}};
  for (const auto& one : cases) {
    const auto parsed = parse_devices(one.text);
    REQUIRE_OK(parsed);
    CHECK(parsed->size() == one.count);
    CHECK(to_string(*parsed) == one.written);
    CHECK(*parse_devices(to_string(*parsed)) == *parsed);
  }
}

TEST_CASE("gpu/devices: a list that cannot compute a model together is refused with the reason") {
  const struct {
    const char *text, *says;
  } cases[] = {{"cuda:0,cuda:1,cuda:0", "lists cuda:0 twice"},
               {"cuda:0-2,cuda:1", "lists cuda:1 twice"},
               {"cpu,emu", "lists the CPU beside other devices"},
               {"emu,auto", "lists the CPU beside other devices"},
               {"cuda:0,emu", "lists GPUs of the host and of the emulator"},
               {"cuda:0-16", "lists 17 GPUs"},
               {"cuda:0,", "'' is no device"},
               {",emu", "'' is no device"},
               {"", "'' is no device"},
               {"cuda:3-1", "'cuda:3-1' is no device"},
               {"cuda:1-1", "'cuda:1-1' is no device"},
               {"cuda:0-", "'cuda:0-' is no device"},
               {"emu;emu", "'emu;emu' is no device"}};
  for (const auto& one : cases) {
    const auto parsed = parse_devices(one.text);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().mc == err::kBadValue);
    CHECK_MESSAGE(parsed.error().what.find(one.says) != std::string::npos, parsed.error().what);
  }
}

// ---- the host's library ----

TEST_CASE("gpu/nccl: a library that is missing, or is another one, is refused with its name") {
  const auto missing = host_nccl({"libnccl.so.0-none", "libnccl.so.0-other"})->load();
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().code == Code::unsupported);
  CHECK(missing.error().what == "no NCCL was found: libnccl.so.0-none, libnccl.so.0-other");
  const auto other = host_nccl({"libc.so.6"})->load();
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().what == "libc.so.6 has no function ncclGetVersion");
}

TEST_CASE("gpu/nccl: a library that is there and cannot be loaded is named with the loader's reason") {
  const std::string path = std::filesystem::temp_directory_path() / ("mct-libnccl-" + std::to_string(getpid()));
  std::ofstream(path) << "no library";
  const auto refused = host_nccl({"libnccl.so.0-none", path, "/dev/null"})->load();
  std::filesystem::remove(path);
  REQUIRE_FALSE(refused.has_value());
  const std::string begin = "no NCCL was found: libnccl.so.0-none, " + path + ", /dev/null; " + path + ": ";
  CHECK_MESSAGE(refused.error().what.starts_with(begin), refused.error().what);
  CHECK_MESSAGE(refused.error().what.size() > begin.size(), refused.error().what);
}

TEST_CASE("gpu/nccl: the host's library says its version, where there is one, and makes no communicator here") {
  const auto library = host_nccl();
  if (const auto loaded = library->load(); !loaded) {
    MESSAGE("skipped: ", loaded.error().what);
    return;
  }
  CHECK(library->version() >= kNcclVersionMin);
  CHECK(library->file().find("libnccl.so") != std::string::npos);
  const int none[] = {1023, 1022};
  const NcclStatus status = library->create(none);
  CHECK(status != NcclStatus::ok);
  CHECK_FALSE(library->error_text(status).empty());
  CHECK(library->all_reduce({.count = 1}) == NcclStatus::invalid_usage);
}

TEST_CASE("gpu/nccl: a version is written as its three numbers") {
  CHECK(library_version_text(22803) == "2.28.3");
  CHECK(library_version_text(kNcclVersionMin) == "2.13.0");
}

}  // namespace device_group_test
