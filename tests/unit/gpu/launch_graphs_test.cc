// Lists of kernels that are queued as graphs, on the emulated device.
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
  std::shared_ptr<EmulatedDriver> driver;
  std::unique_ptr<Device> device;
  DeviceBuffer x, y;

  explicit Sums(emu::Policy policy = emu::Policy::in_order, const EmulatedHost& host = {})
      : driver(std::make_shared<EmulatedDriver>(host)) {
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

TEST_CASE("gpu/launch_graphs: a list that comes again is captured once and replayed, and gives what its kernels do") {
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    Sums sums(static_cast<emu::Policy>(policy));
    LaunchGraphs graphs(*sums.device);
    for (int time = 0; time < 5; ++time) {
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

TEST_CASE("gpu/launch_graphs: a list with another parameter, grid or kernel is another one") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  const auto queue = [&](int columns, int kernels) {
    graphs.begin();
    for (int i = 0; i < kernels; ++i) sums.add(columns);
    REQUIRE_OK(graphs.end());
  };
  for (int round = 0; round < 3; ++round) queue(8, 1), queue(7, 1), queue(8, 2);
  CHECK(sums.first() == 12);
  CHECK(graphs.counts().single == 3);
  CHECK(graphs.counts().captured == 3);
  CHECK(graphs.counts().replayed == 3);
}

TEST_CASE("gpu/launch_graphs: kernels of a list that is dropped are not queued, and Unnoted ones are at once") {
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

TEST_CASE("gpu/launch_graphs: the list that was queued longest ago makes room for a new one") {
  Sums sums;
  LaunchGraphs graphs(*sums.device);
  const auto queue = [&](size_t kernels) {
    graphs.begin();
    for (size_t i = 0; i < kernels; ++i) sums.add();
    REQUIRE_OK(graphs.end());
  };
  for (size_t i = 1; i <= LaunchGraphs::kGraphsMax; ++i) queue(i);
  queue(1);                             // is known, and used last now
  queue(LaunchGraphs::kGraphsMax + 1);  // in place of the one of two kernels
  CHECK(graphs.counts().captured == 1);
  queue(1);
  CHECK(graphs.counts().replayed == 1);
  const uint64_t single = graphs.counts().single;
  queue(2);
  CHECK(graphs.counts().single == single + 1);
}

TEST_CASE("gpu/launch_graphs: a list for whose graph there is no memory is queued, and the graphs give theirs back") {
  Sums sums(emu::Policy::in_order, {.graphs_max = 2});
  LaunchGraphs graphs(*sums.device);
  float want = 0;
  const auto queue = [&](size_t kernels) {
    graphs.begin();
    for (size_t i = 0; i < kernels; ++i) sums.add();
    REQUIRE_OK(graphs.end());
    want += static_cast<float>(kernels);
    CHECK(sums.first() == want);
  };
  for (int time = 0; time < 2; ++time) queue(1), queue(2);
  CHECK(graphs.counts().captured == 2);
  queue(3);
  queue(3);  // has no memory for its graph
  CHECK(graphs.counts().captured == 2);
  CHECK(graphs.counts().single == 4);
  CHECK(graphs.counts().refused == 1);
  for (int time = 0; time < 3; ++time) queue(1), queue(3);
  CHECK(graphs.counts().captured == 4);
  CHECK(graphs.counts().replayed == 2);
  CHECK_FALSE(sums.device->failure().has_value());
}

TEST_CASE("gpu/launch_graphs: on a device without memory for any graph, all lists are queued one by one") {
  Sums sums(emu::Policy::in_order, {.graphs_max = 0});
  LaunchGraphs graphs(*sums.device);
  for (int time = 0; time < 4; ++time) {
    graphs.begin();
    sums.add();
    REQUIRE_OK(graphs.end());
  }
  CHECK(sums.first() == 4);
  CHECK(graphs.counts().single == 4);
  CHECK(graphs.counts().captured == 0);
  CHECK(graphs.counts().refused == 1);
}

TEST_CASE("gpu/launch_graphs: a device that fails names the failure, and the list can come again") {
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
