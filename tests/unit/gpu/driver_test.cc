// The emulated host refuses what CUDA refuses, with its status; and the runtime of lib/gpu asks for none of it.
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace {

constexpr size_t kRange = 256;

/// An emulated host whose context is current on this thread.
struct Host {
  EmulatedDriver driver;
  Host() { REQUIRE(driver.retain(0) == Status::ok); }
  Handle stream() {
    Handle out = nullptr;
    REQUIRE(driver.stream_create(&out) == Status::ok);
    return out;
  }
  Handle event() {
    Handle out = nullptr;
    REQUIRE(driver.event_create(&out) == Status::ok);
    return out;
  }
  uint64_t memory() {
    uint64_t out = 0;
    REQUIRE(driver.allocate(&out, kRange, "x") == Status::ok);
    return out;
  }
};

std::unique_ptr<Device> device_of(const std::shared_ptr<EmulatedDriver>& driver) {
  auto device = Device::open(driver, 0);
  REQUIRE_OK(device);
  return std::move(*device);
}

size_t free_of(Device& device) {
  auto memory = device.memory();
  REQUIRE_OK(memory);
  return memory->free;
}

}  // namespace

// ---- contexts ----

TEST_CASE("gpu/driver: a thread where another context or none is current is refused") {
  Host one;
  const Handle stream = one.stream(), event = one.event();
  const uint64_t x = one.memory();
  Host two;  // its context is current now
  uint64_t address = 0;
  void* at = nullptr;
  Handle made = nullptr;
  size_t free = 0, total = 0;
  for (const bool none : {false, true}) {
    if (none) EmulatedContext::leave();
    CHECK(one.driver.allocate(&address, kRange, "y") == Status::invalid_context);
    CHECK(one.driver.host_allocate(&at, kRange) == Status::invalid_context);
    CHECK(one.driver.memory(&free, &total) == Status::invalid_context);
    CHECK(one.driver.stream_create(&made) == Status::invalid_context);
    CHECK(one.driver.event_create(&made) == Status::invalid_context);
    CHECK(one.driver.fill(x, 0, kRange, stream) == Status::invalid_context);
    CHECK(one.driver.event_record(event, stream) == Status::invalid_context);
    CHECK(one.driver.stream_wait(stream, event) == Status::invalid_context);
    CHECK(one.driver.event_finish(event) == Status::invalid_context);
    CHECK(one.driver.stream_finish(stream) == Status::invalid_context);
    CHECK(one.driver.capture_begin(stream) == Status::invalid_context);
  }
  CHECK(one.driver.enter() == Status::ok);
  CHECK(one.driver.fill(x, 0, kRange, stream) == Status::ok);
  one.driver.release(0);
  CHECK(one.driver.fill(x, 0, kRange, stream) == Status::invalid_context);
  CHECK(one.driver.enter() == Status::invalid_context);
}

TEST_CASE("gpu/device: each call works whatever context other code left current on the thread") {
  const auto one = device_of(std::make_shared<EmulatedDriver>()), two = device_of(std::make_shared<EmulatedDriver>());
  const std::vector<std::byte> in(kRange, std::byte{7});
  for (int turn = 0; turn < 3; ++turn) {
    for (Device* device : {one.get(), two.get()}) {
      auto x = DeviceBuffer::make(*device, kRange, "x");
      REQUIRE_OK(x);
      REQUIRE_OK(device->write(x->address(), in));
      EmulatedContext::leave();
      std::vector<std::byte> out(kRange);
      REQUIRE_OK(device->read(x->address(), out));
      CHECK(out == in);
    }
  }
}

TEST_CASE("gpu/device: threads that follow one another use the device, also under one thread number") {
  const auto device = device_of(std::make_shared<EmulatedDriver>());
  for (int i = 0; i < 4; ++i) {
    bool allocated = false;
    std::thread([&] { allocated = DeviceBuffer::make(*device, kRange, "x").has_value(); }).join();
    CHECK(allocated);
  }
}

TEST_CASE("gpu/device: a context that is gone fails the device with the status of CUDA") {
  const auto driver = std::make_shared<EmulatedDriver>();
  auto device = device_of(driver);
  driver->release(0);
  auto x = DeviceBuffer::make(*device, kRange, "x");
  REQUIRE_FALSE(x.has_value());
  CHECK(x.error().mc == err::kDeviceFailed);
  CHECK(x.error().what.find("invalid device context (CUDA error 201)") != std::string::npos);
  CHECK(device->failure().has_value());
  REQUIRE(driver->retain(0) == Status::ok);  // for the device's own release
}

// ---- handles ----

TEST_CASE("gpu/driver: a stream, an event and a graph that were destroyed are refused") {
  Host host;
  const uint64_t x = host.memory();
  const Handle gone = host.stream(), stream = host.stream(), event = host.event(), gone_event = host.event();
  host.driver.stream_destroy(gone);
  CHECK(host.stream() != gone);  // no handle is given twice
  CHECK(host.driver.fill(x, 0, kRange, gone) == Status::invalid_handle);
  CHECK(host.driver.stream_finish(gone) == Status::invalid_handle);
  CHECK(host.driver.event_record(event, gone) == Status::invalid_handle);
  CHECK(host.driver.stream_wait(gone, event) == Status::invalid_handle);
  CHECK(host.driver.capture_begin(gone) == Status::invalid_handle);

  host.driver.event_destroy(gone_event);
  CHECK(host.driver.event_record(gone_event, stream) == Status::invalid_handle);
  CHECK(host.driver.event_finish(gone_event) == Status::invalid_handle);
  CHECK(host.driver.stream_wait(stream, gone_event) == Status::invalid_handle);

  Handle graph = nullptr;
  REQUIRE(host.driver.capture_begin(stream) == Status::ok);
  REQUIRE(host.driver.fill(x, 1, kRange, stream) == Status::ok);
  REQUIRE(host.driver.capture_end(stream, &graph) == Status::ok);
  CHECK(host.driver.graph_launch(graph, gone) == Status::invalid_handle);
  CHECK(host.driver.graph_launch(graph, stream) == Status::ok);
  host.driver.graph_destroy(graph);
  CHECK(host.driver.graph_launch(graph, stream) == Status::invalid_value);
}

TEST_CASE("gpu/driver: a handle of another kind is refused") {
  Host host;
  const Handle stream = host.stream(), event = host.event();
  CHECK(host.driver.stream_finish(event) == Status::invalid_handle);
  CHECK(host.driver.event_finish(stream) == Status::invalid_handle);
  CHECK(host.driver.launch(stream, {}, {}, stream) == Status::invalid_handle);
  CHECK(host.driver.graph_launch(stream, stream) == Status::invalid_value);
}

// ---- launches ----

TEST_CASE("gpu/driver: a launch beyond the limits of a chip is refused") {
  Host host;
  const Handle stream = host.stream();
  const uint64_t x = host.memory();
  Handle add = nullptr;
  REQUIRE(host.driver.find(&add, "add_to_rows") == Status::ok);
  const AddArgs args{
      .x = reinterpret_cast<const float*>(x), .y = reinterpret_cast<float*>(x), .columns = kRange / sizeof(float)};
  DeviceFacts facts;
  REQUIRE(host.driver.describe(0, &facts) == Status::ok);
  const LaunchShape wrong[] = {
      {.threads = 0},          {.threads = 1056},
      {.grid = {0, 1, 1}},     {.grid = {1, 65536, 1}},
      {.grid = {1, 1, 65536}}, {.dynamic_shared = static_cast<uint32_t>(facts.shared_max) + 1}};
  for (const LaunchShape& shape : wrong)
    CHECK(host.driver.launch(add, shape, bytes_of(args), stream) == Status::invalid_value);
  CHECK(host.driver.stream_finish(stream) == Status::ok);
}

TEST_CASE("gpu/driver: clusters run at once where the multiprocessors of a partition have room for all their CTAs") {
  const LaunchShape large{.dynamic_shared = 123072}, small{.dynamic_shared = 82752};  // 1 and 2 CTAs a multiprocessor
  const auto count = [](int partition, const LaunchShape& shape) {
    const auto device = device_of(std::make_shared<EmulatedDriver>(EmulatedHost{.partition = partition}));
    const auto found = device->clusters_at_once("attention_cluster_d64", shape);
    REQUIRE_OK(found);
    return *found;
  };
  CHECK(count(16, large) == 16);  // of 8 CTAs
  CHECK(count(16, small) == 33);
  CHECK(count(18, large) == 14);
  CHECK(count(15, large) == 9);  // 8 partitions of 15 multiprocessors, and one of 12
  CHECK(count(7, large) == 0);
  CHECK(count(16, {.dynamic_shared = 1u << 20}) == 0);
  const auto device = device_of(std::make_shared<EmulatedDriver>());
  CHECK(device->clusters_at_once("attention_cluster_d32", small).error().code == Code::unsupported);
  CHECK(Host().driver.clusters_at_once(nullptr, nullptr, small) == Status::invalid_handle);
}

TEST_CASE("gpu/driver: a tensor map that cuTensorMapEncodeTiled refuses is refused with the rule") {
  Host host;
  EncodedMap map;
  const TensorBox sound{.base = host.memory(),
                        .dims = {64, 2, 1, 1},
                        .strides = {2, 128, 256, 256},
                        .box = {64, 2, 1, 1},
                        .element = TensorElement::bf16};
  CHECK(host.driver.encode(&map, sound) == Status::ok);
  const auto refusal = [&](const std::function<void(TensorBox&)>& change) {
    TensorBox box = sound;
    change(box);
    const Status status = host.driver.encode(&map, box);
    return status == Status::ok ? "" : host.driver.error_text(status);
  };
  const auto to_f32 = [](TensorBox& box) {
    box.element = TensorElement::f32;
    box.box[0] = box.dims[0] = 32;
    box.strides[0] = 4;
  };
  CHECK(refusal(to_f32) == "");
  CHECK(refusal([](TensorBox& box) { box.element = TensorElement::f32; }) == "a row of the box is not 128 bytes");
  CHECK(refusal([](TensorBox& box) { box.box[0] = 32; }) == "a row of the box is not 128 bytes");
  CHECK(refusal([](TensorBox& box) { box.base += 8; }) == "the base is not aligned to 16 bytes");
  CHECK(refusal([](TensorBox& box) { box.dims[2] = 0; }) == "an extent is not 1 to 2^32");
  CHECK(refusal([](TensorBox& box) { box.box[1] = 257; }) == "an extent of the box is not 1 to 256");
  CHECK(refusal([](TensorBox& box) { box.strides[1] = 136; }) ==
        "a stride of 136 bytes is no multiple of 16 below 2^40");
}

// ---- captures ----

TEST_CASE("gpu/driver: a call that waits, allocates or frees invalidates a capture") {
  const char* names[] = {"finish", "allocate", "free", "host_allocate", "host_free"};
  for (int call = 0; call < 5; ++call) {
    INFO(names[call]);
    Host host;
    const Handle stream = host.stream();
    const uint64_t x = host.memory();
    uint64_t address = 0;
    void *pinned = nullptr, *at = nullptr;
    REQUIRE(host.driver.host_allocate(&pinned, kRange) == Status::ok);
    REQUIRE(host.driver.capture_begin(stream) == Status::ok);
    REQUIRE(host.driver.fill(x, 1, kRange, stream) == Status::ok);
    if (call == 0) CHECK(host.driver.stream_finish(stream) == Status::capture_unsupported);
    if (call == 1) CHECK(host.driver.allocate(&address, kRange, "y") == Status::capture_unsupported);
    if (call == 2) host.driver.free(x);
    if (call == 3) CHECK(host.driver.host_allocate(&at, kRange) == Status::capture_unsupported);
    if (call == 4) host.driver.host_free(pinned);
    CHECK(host.driver.fill(x, 2, kRange, stream) == Status::capture_invalidated);
    Handle graph = nullptr;
    CHECK(host.driver.capture_end(stream, &graph) == Status::capture_invalidated);
    CHECK(graph == nullptr);
    CHECK(host.driver.fill(x, 3, kRange, stream) == Status::ok);  // the stream works on, and x was not freed
    CHECK(host.driver.stream_finish(stream) == Status::ok);
  }
}

TEST_CASE("gpu/graph: memory that is freed while a stream captures is freed after it, and the graph is whole") {
  const auto device = device_of(std::make_shared<EmulatedDriver>());
  const size_t before = free_of(*device);
  for (const bool ends : {true, false}) {
    INFO(ends);
    auto stream = Stream::make(*device);
    auto x = DeviceBuffer::make(*device, kRange, "x");
    REQUIRE_OK(stream);
    REQUIRE_OK(x);
    REQUIRE_OK(stream->fill(x->address(), 0, kRange));
    {
      auto other = DeviceBuffer::make(*device, kRange, "other");
      auto host = PinnedBuffer::make(*device, kRange, "host");
      REQUIRE_OK(other);
      REQUIRE_OK(host);
      REQUIRE_OK(stream->begin_capture());
    }
    CHECK(before - free_of(*device) == 2 * kRange);
    REQUIRE_OK(stream->fill(x->address(), 5, kRange));
    CHECK(DeviceBuffer::make(*device, kRange, "y").error().code == Code::invalid);
    CHECK(PinnedBuffer::make(*device, kRange, "y").error().code == Code::invalid);
    if (ends) {
      auto graph = stream->end_capture();
      REQUIRE_OK(graph);
      REQUIRE_OK(stream->replay(*graph));
      REQUIRE_OK(stream->finish());
      std::vector<std::byte> out(kRange);
      REQUIRE_OK(device->read(x->address(), out));
      CHECK(out.back() == std::byte{5});
    } else {
      *stream = Stream();  // a capture that nobody ends goes with its stream
    }
    CHECK(before - free_of(*device) == kRange);
  }
  CHECK(free_of(*device) == before);
}
