// Spells of kernels that are queued as graphs, on the emulated device.
#include "gpu/launch_graphs.h"

#include <vector>

#include "gpu/emulated.h"
#include "gpu/kernels/layer.h"
#include "test.h"

namespace mc::gpu {
namespace {

constexpr uint32_t kFloats = 8;

/// y += x, and y += 2 x by two kernels.
struct Sums {
  std::shared_ptr<EmulatedDriver> driver = std::make_shared<EmulatedDriver>();
  std::unique_ptr<Device> device;
  DeviceBuffer x, y;

  explicit Sums(emu::Policy policy = emu::Policy::in_order) {
    driver->gpu().set_options({.seed = test::seed(), .policy = policy});
    device = *Device::open(driver, 0);
    x = *DeviceBuffer::make(*device, kFloats * 4, "x");
    y = *DeviceBuffer::make(*device, kFloats * 4, "y");
    set(x, 1), set(y, 0);
  }
  void set(const DeviceBuffer& buffer, float value) {
    const std::vector<float> values(kFloats, value);
    REQUIRE_OK(device->post(buffer.address(), std::as_bytes(std::span(values))));
  }
  void add(int columns = kFloats) {
    const AddArgs args{
        .x = device_pointer<const float>(x.address()), .y = device_pointer<float>(y.address()), .columns = columns};
    REQUIRE_OK(device->launch("add_to_rows", {}, bytes_of(args)));
  }
  float first() {
    std::vector<float> values(kFloats);
    REQUIRE_OK(device->read(y.address(), std::as_writable_bytes(std::span(values))));
    return values[0];
  }
};

}  // namespace

TEST_CASE("gpu/launch_graphs: a spell that comes again is captured once and replayed, and gives what its kernels do") {
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    Sums sums(static_cast<emu::Policy>(policy));
    LaunchGraphs graphs(*sums.device);
    for (int spell = 0; spell < 5; ++spell) {
      graphs.begin();
      sums.add();
      sums.set(sums.x, 10);  // is there before the kernels, which are queued at the end
      sums.add();
      REQUIRE_OK(graphs.end());
    }
    CHECK(sums.first() == 100);
    CHECK(graphs.counts().single == 1);
    CHECK(graphs.counts().captured == 1);
    CHECK(graphs.counts().replayed == 3);
  }
}

TEST_CASE("gpu/launch_graphs: a spell with another parameter, grid or kernel is another one") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  const auto spell = [&](int columns, int kernels) {
    graphs.begin();
    for (int i = 0; i < kernels; ++i) sums.add(columns);
    REQUIRE_OK(graphs.end());
  };
  for (int round = 0; round < 3; ++round) spell(8, 1), spell(7, 1), spell(8, 2);
  CHECK(sums.first() == 12);
  CHECK(graphs.counts().single == 3);
  CHECK(graphs.counts().captured == 3);
  CHECK(graphs.counts().replayed == 3);
}

TEST_CASE("gpu/launch_graphs: kernels of a spell that is dropped are not queued, and Unnoted ones are at once") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  REQUIRE_OK(graphs.end());  // nothing was begun
  graphs.begin();
  sums.add();
  {
    const Unnoted at_once(*sums.device);
    sums.add();
    CHECK(sums.first() == 1);
  }
  sums.add();
  graphs.drop();
  CHECK(sums.first() == 1);
  sums.add();
  CHECK(sums.first() == 2);
  CHECK(graphs.counts().single == 0);
}

TEST_CASE("gpu/launch_graphs: the spell that was used longest ago makes room for a new one") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  const auto spell = [&](size_t kernels) {
    graphs.begin();
    for (size_t i = 0; i < kernels; ++i) sums.add();
    REQUIRE_OK(graphs.end());
  };
  for (size_t i = 1; i <= LaunchGraphs::kGraphsMax; ++i) spell(i);
  spell(1);                             // is known, and used last now
  spell(LaunchGraphs::kGraphsMax + 1);  // in place of spell 2
  CHECK(graphs.counts().captured == 1);
  spell(1);
  CHECK(graphs.counts().replayed == 1);
  const uint64_t single = graphs.counts().single;
  spell(2);
  CHECK(graphs.counts().single == single + 1);
}

TEST_CASE("gpu/launch_graphs: a device that fails names the failure, and the spell can come again") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  graphs.begin();
  REQUIRE_OK(sums.device->launch("add_to_rows", {.threads = 2048}, bytes_of(AddArgs{})));  // more than a CTA has
  const auto refused = graphs.end();
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::invalid);
  graphs.begin();
  sums.add();
  REQUIRE_OK(graphs.end());
  CHECK(sums.first() == 1);
}

}  // namespace mc::gpu
