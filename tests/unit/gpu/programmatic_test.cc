// Programmatic launches (PTX ISA 9.0, section 9.7.13.13): a grid may start before the grids before it have ended, and
// until griddepcontrol.wait it touches nothing that they write, and writes nothing that they read.
#include <functional>
#include <initializer_list>

#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"
#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using tested::tid;

namespace {

constexpr uint32_t kWords = 128;

/// One kernel of a chain, of 32 threads.
struct Link {
  std::function<void(uint32_t* out)> body;
  bool programmatic = false;
};

/// The rule that the chain breaks and the number of the kernel that breaks it: "dependency in 2"; "": none.
std::string rule_of_chain(std::initializer_list<Link> links, std::vector<uint32_t>* result = nullptr) {
  emu::DeviceMemory memory;
  const uint64_t address = memory.allocate(kWords * 4, "out");
  memory.write(address, std::vector<std::byte>(kWords * 4));
  int number = 0;
  for (const Link& link : links) {
    ++number;
    const emu::Kernel kernel{"k", 1024, 0, 31,
                             [&](const std::byte*) { link.body(reinterpret_cast<uint32_t*>(address)); }};
    const emu::Report report =
        emu::run(kernel, memory, {.block = 32, .programmatic = link.programmatic}, {.seed = test::seed()});
    if (report.failure) return std::string(to_string(report.failure->rule)) + " in " + std::to_string(number);
  }
  if (result != nullptr) {
    result->resize(kWords);
    memory.read(address, std::as_writable_bytes(std::span(*result)));
  }
  return "";
}

/// Words 0 to 31 become thread + 5; the next grid may start.
void write_words(uint32_t* out) {
  ptx::launch_dependents();
  ptx::store(out + tid(), tid() + 5);
}
void read_words(uint32_t* out) {
  ptx::launch_dependents();
  ptx::store(out + 64 + tid(), ptx::load(out + tid()));
}

}  // namespace

TEST_CASE("gpu/programmatic: what earlier grids wrote is read behind griddepcontrol.wait (9.7.13.13)") {
  const auto reader = [](bool waits) {
    return [waits](uint32_t* out) {
      if (waits) ptx::wait_for_grids();
      ptx::store(out + 64 + tid(), ptx::load(out + (tid() ^ 1)));
    };
  };
  std::vector<uint32_t> out;
  CHECK(rule_of_chain({{write_words}, {reader(true), true}}, &out) == "");
  CHECK(out[64 + 6] == 12);
  CHECK(rule_of_chain({{write_words}, {reader(false), true}}) == "dependency in 2");
  CHECK(rule_of_chain({{write_words}, {reader(false), false}}) == "");  // the launch waits for the grid before it
}

TEST_CASE("gpu/programmatic: the wait of one lane does not stand for another that has not met it (9.7.13.13)") {
  const auto one_waits = [](bool met) {
    return [met](uint32_t* out) {
      if (tid() == 0) ptx::wait_for_grids();
      if (met) ptx::warp_sync();
      ptx::store(out + 64 + tid(), ptx::load(out + tid()));
    };
  };
  CHECK(rule_of_chain({{write_words}, {one_waits(true), true}}) == "");
  CHECK(rule_of_chain({{write_words}, {one_waits(false), true}}) == "dependency in 2");
}

TEST_CASE("gpu/programmatic: a grid may run beside all before it that no wait has seen ended (9.7.13.13)") {
  enum class Second { waits_not, waits_first, launches_first, some_launch_first, launches_not };
  const auto second = [](Second kind) {
    return [kind](uint32_t* out) {
      const bool is_early = kind == Second::launches_first || (kind == Second::some_launch_first && tid() == 9);
      if (is_early || kind == Second::waits_not) ptx::launch_dependents();
      if (kind != Second::waits_not) ptx::wait_for_grids();
      if (kind == Second::waits_first || kind == Second::some_launch_first) ptx::launch_dependents();
      ptx::store(out + 96 + tid(), 1u);
    };
  };
  const auto third = [](bool waits) {
    return [waits](uint32_t* out) {
      if (waits) ptx::wait_for_grids();
      ptx::store(out + 64 + tid(), ptx::load(out + tid()));
    };
  };
  for (const Second kind : {Second::waits_not, Second::launches_first, Second::some_launch_first}) {
    INFO(static_cast<int>(kind));
    CHECK(rule_of_chain({{write_words}, {second(kind), true}, {third(false), true}}) == "dependency in 3");
    CHECK(rule_of_chain({{write_words}, {second(kind), true}, {third(true), true}}) == "");
  }
  // The third grid starts when the second lets it, or at the second one's end: behind the wait, and so behind the
  // first.
  for (const Second kind : {Second::waits_first, Second::launches_not})
    CHECK(rule_of_chain({{write_words}, {second(kind), true}, {third(false), true}}) == "");
}

TEST_CASE("gpu/programmatic: what earlier grids read is written behind griddepcontrol.wait (9.7.13.13)") {
  const auto writer = [](bool waits, bool reads) {
    return [=](uint32_t* out) {
      if (reads) ptx::load(out + tid());
      if (waits) ptx::wait_for_grids();
      ptx::store(out + tid(), 9u);
    };
  };
  for (const bool reads : {false, true}) {
    CHECK(rule_of_chain({{read_words}, {writer(true, reads), true}}) == "");
    CHECK(rule_of_chain({{read_words}, {writer(false, reads), true}}) == "dependency in 2");
    CHECK(rule_of_chain({{read_words}, {writer(false, reads), false}}) == "");
  }
}

TEST_CASE("gpu/programmatic: a launch of a device is programmatic, also one that is noted or in a graph") {
  enum class Way { queued, noted, graph };
  // add_to_rows has no griddepcontrol.wait, so the second launch may run beside the first.
  const auto run_twice = [](LaunchOrder order, Way way) -> Result<void> {
    MC_TRY(device, Device::open(std::make_shared<EmulatedDriver>(), 0));
    MC_TRY(x, DeviceBuffer::make(*device, kWords * 4, "x"));
    MC_TRY(y, DeviceBuffer::make(*device, kWords * 4, "y"));
    for (const DeviceBuffer* buffer : {&x, &y})
      MC_CHECK(device->write(buffer->address(), std::vector<std::byte>(kWords * 4)));
    const AddArgs args{
        .x = device_pointer<float>(x.address()), .y = device_pointer<float>(y.address()), .columns = kWords};
    Device::Launches notes;
    if (way != Way::queued) device->note_launches(&notes);
    MC_CHECK(device->launch("add_to_rows", {}, bytes_of(args)));
    MC_CHECK(device->launch("add_to_rows", {.order = order}, bytes_of(args)));
    device->note_launches(nullptr);
    if (way == Way::noted) MC_CHECK(device->launch_noted(notes));
    if (way == Way::graph) {
      MC_TRY(graph, device->capture(notes));
      MC_CHECK(device->replay(graph));
      return device->finish();
    }
    return device->finish();
  };
  for (const Way way : {Way::queued, Way::noted, Way::graph}) {
    INFO(static_cast<int>(way));
    REQUIRE_OK(run_twice(LaunchOrder::serial, way));
    const auto broken = run_twice(LaunchOrder::programmatic, way);
    REQUIRE_FALSE(broken.has_value());
    CHECK(broken.error().what.find("dependency: ") != std::string::npos);
  }
}
