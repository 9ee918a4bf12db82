// The runtime of lib/gpu on the emulated driver: streams, events, graphs and memory, each error of a host and of a GPU,
// and the property that declared dependencies are enough and that a missing one is found.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/rng.h"
#include "gpu/arena.h"
#include "gpu/devices.h"
#include "gpu/emulated.h"
#include "gpu/failure.h"
#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace {

constexpr uint32_t kFloats = 64;  // of a buffer
constexpr size_t kBytes = kFloats * 4;

/// An emulated host with its device open.
struct Emulation {
  std::shared_ptr<EmulatedDriver> driver;
  std::unique_ptr<Device> device;

  explicit Emulation(const EmulatedHost& host = {}, const emu::Options& options = {})
      : driver(std::make_shared<EmulatedDriver>(host)) {
    driver->gpu().set_options(options);
    auto opened = Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
  }
};

Error error_of(const EmulatedHost& host, int index = 0) {
  auto opened = Device::open(std::make_shared<EmulatedDriver>(host), index);
  REQUIRE_FALSE(opened.has_value());
  return opened.error();
}

/// y += x on `stream`.
Result<void> add(Stream& stream, uint64_t x, uint64_t y) {
  const AddArgs args{.x = reinterpret_cast<const float*>(x), .y = reinterpret_cast<float*>(y), .columns = kFloats};
  return stream.launch("add_to_rows", {}, bytes_of(args));
}

void fill_with(const PinnedBuffer& buffer, float value) {
  auto view = buffer.view();
  REQUIRE_OK(view);
  for (size_t at = 0; at < view->size(); at += 4) std::memcpy(view->data() + at, &value, 4);
}

float first_of(const PinnedBuffer& buffer) {
  auto view = buffer.view();
  REQUIRE_OK(view);
  float out = 0;
  std::memcpy(&out, view->data(), 4);
  return out;
}

}  // namespace

// ---- the device ----

TEST_CASE("gpu/device: a host without a driver, a GPU or a new enough driver is named with the next step") {
  const Error driver = error_of({.has_driver = false});
  CHECK(driver.mc == err::kDeviceUnusable);
  CHECK(driver.what.find("no NVIDIA driver") != std::string::npos);
  CHECK(driver.next.find("nvidia-smi") != std::string::npos);

  const Error old = error_of({.version = 12040});
  CHECK(old.mc == err::kDriverTooOld);
  CHECK(old.what.find("supports CUDA 12.4") != std::string::npos);

  const Error index = error_of({.devices = 1}, 1);
  CHECK(index.mc == err::kDeviceUnusable);
  CHECK(index.what.find("no GPU 1: this host has 1") != std::string::npos);

  const Error none = error_of({.devices = 0});
  CHECK(none.mc == err::kDeviceUnusable);
  CHECK(none.next.find("--device cpu") != std::string::npos);

  const Error ancient = error_of({.capability = 75});
  CHECK(ancient.what.find("compute capability 7.5") != std::string::npos);
}

TEST_CASE("gpu/device: memory that does not fit is refused with what is needed, what is free and what fits") {
  Emulation e({.memory_bytes = size_t{64} << 20});
  auto half = DeviceBuffer::make(*e.device, size_t{40} << 20, "weights");
  REQUIRE_OK(half);
  const auto refused = DeviceBuffer::make(*e.device, size_t{30} << 20, "KV pool");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kDeviceMemory);
  CHECK(refused.error().code == Code::no_space);
  for (const char* part : {"KV pool needs 30.0 MiB", "free are 24.0 MiB of 64.0 MiB", "at most 24.0 MiB fit"})
    CHECK_MESSAGE(refused.error().what.find(part) != std::string::npos, refused.error().what);
  half = DeviceBuffer();
  CHECK(DeviceBuffer::make(*e.device, size_t{30} << 20, "KV pool").has_value());
}

TEST_CASE("gpu/device: page-locked memory that the host does not have is refused") {
  Emulation e({.host_bytes = 1 << 20});
  const auto refused = PinnedBuffer::make(*e.device, 2 << 20, "staging");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::no_space);
}

TEST_CASE("gpu/device: posted bytes arrive as they were when they were posted, also more than the ring holds") {
  constexpr size_t kPosts = 24, kPostBytes = size_t{100} << 10;  // a chunk of the ring has room for two
  Rng rng(test::seed());
  for (const auto policy : {emu::Policy::in_order, emu::Policy::random, emu::Policy::sticky}) {
    Emulation e({}, {.seed = test::seed(), .policy = policy});
    auto buffer = DeviceBuffer::make(*e.device, (kPosts + 3) * kPostBytes, "x");
    REQUIRE_OK(buffer);
    std::vector<std::byte> bytes(kPostBytes);
    const auto put = [&](size_t at, size_t count, size_t value) {
      bytes.assign(count, static_cast<std::byte>(value));
      REQUIRE_OK(e.device->post(buffer->address() + at, bytes));
      std::ranges::fill(bytes, std::byte{0xee});  // `bytes` is the caller's again
    };
    for (size_t i = 0; i < kPosts; ++i) put(i * kPostBytes, kPostBytes, i);
    put(kPosts * kPostBytes, 3 * kPostBytes, kPosts);  // larger than a chunk
    REQUIRE_OK(e.device->post(buffer->address(), {}));
    REQUIRE_OK(e.device->fill(buffer->address() + kPostBytes, 0x77, kPostBytes));
    std::vector<std::byte> got((kPosts + 3) * kPostBytes);
    REQUIRE_OK(e.device->read(buffer->address(), got));
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t post = std::min(i / kPostBytes, kPosts), want = post == 1 ? 0x77 : post;
      if (got[i] != static_cast<std::byte>(want)) FAIL("byte ", i, " of post ", post);
    }
  }
}

TEST_CASE("gpu/device: a GPU that dies in mid-use fails the call and every later one with its reason") {
  for (const auto& [fault, text] :
       {std::pair{Status::ecc_uncorrectable, "uncorrectable ECC error"}, std::pair{Status::unknown, "unknown error"},
        std::pair{Status::illegal_address, "illegal memory access"}}) {
    Emulation e({.fault = fault, .fault_seed = test::seed(), .fault_within = 5});
    auto buffer = DeviceBuffer::make(*e.device, kBytes, "x");
    REQUIRE_OK(buffer);
    const std::vector<std::byte> bytes(kBytes);
    std::optional<Error> first;
    int good = 0;
    for (int i = 0; i < 6 && !first; ++i) {
      const auto wrote = e.device->write(buffer->address(), bytes);
      if (!wrote) first = wrote.error();
      good += first ? 0 : 1;
    }
    INFO("seed ", test::seed());
    REQUIRE(first.has_value());
    CHECK(good < 5);
    CHECK(first->mc == err::kDeviceFailed);
    CHECK_MESSAGE(first->what.find(text) != std::string::npos, first->what);
    CHECK(first->where == "emu");
    REQUIRE(e.device->failure().has_value());
    CHECK(e.device->failure()->what == first->what);
    const auto later = DeviceBuffer::make(*e.device, kBytes, "y");
    REQUIRE_FALSE(later.has_value());
    CHECK(later.error().mc == err::kDeviceFailed);
    CHECK_FALSE(e.device->memory().has_value());
  }
}

TEST_CASE("gpu/device: the next step after an ECC error follows from the kind of the device and not from its name") {
  for (const char* name : {"emu", "cuda:0", "GPU 7"}) {
    Emulation e({.fault = Status::ecc_uncorrectable, .name = name});
    CHECK(e.device->kind() == DeviceKind::emu);
    const auto made = DeviceBuffer::make(*e.device, kBytes, "x");
    REQUIRE_OK(made);
    const std::vector<std::byte> bytes(kBytes);
    const auto wrote = e.device->write(made->address(), bytes);
    REQUIRE_FALSE(wrote.has_value());
    CHECK(wrote.error().where == name);
    CHECK(wrote.error().next == "this fault was asked for by --device emu:fault=N; leave it out");
  }
  CHECK(step_after_failure(DeviceKind::cuda, Status::ecc_uncorrectable).empty());  // the step of the table
  CHECK(step_after_failure(DeviceKind::emu, Status::illegal_address).empty());
}

TEST_CASE(
    "gpu/device: errors of a call leave the device alive, and the first operation that it dies at is the one named") {
  Emulation e({.memory_bytes = size_t{1} << 20, .fault = Status::ecc_uncorrectable, .fault_after = 3});
  auto buffer = DeviceBuffer::make(*e.device, kBytes, "x");
  REQUIRE_OK(buffer);
  CHECK_FALSE(DeviceBuffer::make(*e.device, size_t{2} << 20, "too large").has_value());
  CHECK_FALSE(e.device->launch("no_such_kernel", {}, {}).has_value());
  const std::vector<std::byte> bytes(kBytes);
  for (int i = 0; i < 3; ++i) REQUIRE_OK(e.device->write(buffer->address(), bytes));
  CHECK_FALSE(e.device->failure().has_value());
  CHECK_FALSE(e.device->write(buffer->address(), bytes).has_value());
  REQUIRE(e.device->failure().has_value());
  CHECK(e.device->failure()->mc == err::kDeviceFailed);
}

TEST_CASE("gpu/device: an unknown kernel, too much shared memory and a copy outside memory are refused") {
  Emulation e;
  auto stream = Stream::make(*e.device);
  REQUIRE_OK(stream);
  const auto unknown = stream->launch("no_such_kernel", {}, {});
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().what.find("no kernel 'no_such_kernel'") != std::string::npos);
  CHECK(stream->launch("add_to_rows", {.dynamic_shared = 1 << 20}, {}).error().code == Code::unsupported);
  std::vector<std::byte> bytes(8);
  CHECK(e.device->write(0x1234, bytes).error().code == Code::invalid);
  auto pinned = PinnedBuffer::make(*e.device, 64, "staging");
  REQUIRE_OK(pinned);
  CHECK(stream->copy_in(0x1234, *pinned, 0, 8).error().code == Code::invalid);
  auto buffer = DeviceBuffer::make(*e.device, 128, "x");
  REQUIRE_OK(buffer);
  CHECK(stream->copy_in(buffer->address(), *pinned, 60, 8).error().code == Code::invalid);
  CHECK(stream->copy_out(*pinned, SIZE_MAX, buffer->address(), 8).error().code == Code::invalid);
  CHECK(stream->finish().has_value());
}

TEST_CASE("gpu/devices: each row of the table is read back from its text, and other texts are refused") {
  for (const DeviceRow& row : device_rows()) {
    const bool numbered = row.number != DeviceNumber::none;
    CHECK(numbered == row.name.ends_with("N"));
    const std::string text =
        std::string(row.name.substr(0, row.name.size() - (numbered ? 1 : 0))) + (numbered ? "3" : "");
    const auto choice = parse_device(text);
    REQUIRE_OK(choice);
    CHECK(choice->kind == row.kind);
    CHECK(choice->index == (row.number == DeviceNumber::index ? 3 : 0));
    CHECK(choice->fault_at == (row.number == DeviceNumber::fault ? 3 : 0));
    CHECK(choice->memory_mib == (row.number == DeviceNumber::memory ? 3 : 0));
  }
  for (const char* text : {"cpu", "emu", "cuda:0", "cuda:7", "emu:fault=12", "emu:memory=64"}) {
    const auto choice = parse_device(text);
    REQUIRE_OK(choice);
    CHECK(to_string(*choice) == text);
  }
  CHECK(parse_device("auto")->kind == DeviceKind::cpu);
  for (const char* text : {"", "cuda", "cuda:", "cuda:N", "cuda:-1", "cuda:1024", "cuda:1x", "gpu", "emu:0",
                           "emu:fault=0", "emu:fault=", "emu:fault=N", "emu:memory=0", "emu ", "CPU"}) {
    const auto choice = parse_device(text);
    REQUIRE_FALSE(choice.has_value());
    CHECK(choice.error().mc == err::kBadValue);
    CHECK(choice.error().next.find("cuda:N") != std::string::npos);
  }
}

TEST_CASE("gpu/arena: parts do not overlap, are found by address, and a part that does not fit names itself") {
  Emulation e;
  auto arena = Arena::open(*e.device, Place::device, 4096, "scratch");
  REQUIRE_OK(arena);
  const auto a = arena->take(100, "queries");
  const auto b = arena->take(1000, "output");
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  CHECK(a->address % Arena::kAlignment == 0);
  CHECK(b->address >= a->address + 100);
  CHECK(arena->find(b->address + 999)->name == "output");
  CHECK(arena->find(b->address + 1000) == nullptr);
  CHECK(arena->find(a->address - 1) == nullptr);
  const auto refused = arena->take(4000, "logits");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kDeviceMemory);
  CHECK_MESSAGE(refused.error().what.find("logits needs") != std::string::npos, refused.error().what);
  arena->clear();
  CHECK(arena->take(4000, "logits").has_value());
  auto pinned = Arena::open(*e.device, Place::pinned, 256, "staging");
  REQUIRE_OK(pinned);
  CHECK(pinned->take(512, "tokens").error().mc == err::kNotEnoughMemory);
}

// ---- streams ----

TEST_CASE("gpu/stream: a copy in, a kernel and a copy out of one stream need no event") {
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    Emulation e({}, {.seed = test::seed(), .policy = static_cast<emu::Policy>(policy)});
    auto stream = Stream::make(*e.device);
    auto x = DeviceBuffer::make(*e.device, kBytes, "x");
    auto host = PinnedBuffer::make(*e.device, kBytes, "host");
    REQUIRE_OK(stream);
    REQUIRE_OK(x);
    REQUIRE_OK(host);
    fill_with(*host, 3);
    REQUIRE_OK(stream->copy_in(x->address(), *host, 0, kBytes));
    REQUIRE_OK(add(*stream, x->address(), x->address()));
    REQUIRE_OK(stream->copy_out(*host, 0, x->address(), kBytes));
    REQUIRE_OK(stream->finish());
    CHECK(first_of(*host) == 6);
  }
}

TEST_CASE("gpu/stream: the host may not touch page-locked bytes that an unfinished copy owns") {
  Emulation e({}, {.seed = 11, .policy = emu::Policy::sticky});
  auto stream = Stream::make(*e.device);
  auto x = DeviceBuffer::make(*e.device, kBytes, "x");
  auto host = PinnedBuffer::make(*e.device, kBytes, "host");
  REQUIRE_OK(stream);
  REQUIRE_OK(x);
  REQUIRE_OK(host);
  fill_with(*host, 1);
  REQUIRE_OK(stream->copy_in(x->address(), *host, 0, kBytes));
  const auto view = host->view();
  REQUIRE_FALSE(view.has_value());
  CHECK(e.driver->gpu().broken_rule() == emu::Rule::stream_order);
  CHECK_MESSAGE(view.error().what.find("copy to the device (operation 1 of stream 1)") != std::string::npos,
                view.error().what);
  CHECK(view.error().where.find("seed 11") != std::string::npos);
  CHECK_FALSE(stream->finish().has_value());  // the run has stopped
}

TEST_CASE("gpu/stream: a kernel that reads what another stream copies without an event stops with both and the seed") {
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    Emulation e({}, {.seed = 5, .policy = static_cast<emu::Policy>(policy)});
    auto load = Stream::make(*e.device), compute = Stream::make(*e.device);
    auto x = DeviceBuffer::make(*e.device, kBytes, "x"), y = DeviceBuffer::make(*e.device, kBytes, "y");
    auto host = PinnedBuffer::make(*e.device, kBytes, "host");
    REQUIRE_OK(host);
    fill_with(*host, 1);
    const std::vector<std::byte> zero(kBytes);
    REQUIRE_OK(e.device->write(x->address(), zero));
    REQUIRE_OK(e.device->write(y->address(), zero));
    const auto copied = load->copy_in(x->address(), *host, 0, kBytes);
    const auto added = add(*compute, x->address(), y->address());
    const auto ended = compute->finish(), loaded = load->finish();
    const bool stopped = !copied || !added || !ended || !loaded;
    CHECK(stopped);
    CHECK(e.driver->gpu().broken_rule() == emu::Rule::stream_order);
    const Error& error = !added ? added.error() : !ended ? ended.error() : loaded.error();
    for (const char* part : {"stream order", "at byte", "operation 1 of stream"})
      CHECK_MESSAGE(error.what.find(part) != std::string::npos, error.what);
    CHECK_MESSAGE(error.where.find("seed 5") != std::string::npos, error.where);
  }
}

TEST_CASE("gpu/graph: a captured list runs at each replay and not at its capture") {
  Emulation e({}, {.seed = test::seed(), .policy = emu::Policy::random});
  auto stream = Stream::make(*e.device);
  auto x = DeviceBuffer::make(*e.device, kBytes, "x"), y = DeviceBuffer::make(*e.device, kBytes, "y");
  auto host = PinnedBuffer::make(*e.device, kBytes, "host");
  auto event = Event::make(*e.device);
  REQUIRE_OK(host);
  fill_with(*host, 1);
  REQUIRE_OK(stream->fill(y->address(), 0, kBytes));
  REQUIRE_OK(stream->begin_capture());
  REQUIRE_OK(stream->copy_in(x->address(), *host, 0, kBytes));
  REQUIRE_OK(add(*stream, x->address(), y->address()));
  CHECK(stream->record(*event).error().code == Code::invalid);
  CHECK(stream->finish().error().code == Code::invalid);
  CHECK(stream->begin_capture().error().code == Code::invalid);
  auto graph = stream->end_capture();
  REQUIRE_OK(graph);
  CHECK(stream->end_capture().error().code == Code::invalid);
  for (int i = 0; i < 3; ++i) REQUIRE_OK(stream->replay(*graph));
  REQUIRE_OK(stream->copy_out(*host, 0, y->address(), kBytes));
  REQUIRE_OK(stream->finish());
  CHECK(first_of(*host) == 3);
}

TEST_CASE("gpu/event: the host waits for the recorded point, and an event that was never recorded holds nothing back") {
  Emulation e({}, {.seed = test::seed(), .policy = emu::Policy::sticky});
  auto stream = Stream::make(*e.device);
  auto never = Event::make(*e.device), event = Event::make(*e.device);
  auto x = DeviceBuffer::make(*e.device, kBytes, "x");
  auto host = PinnedBuffer::make(*e.device, kBytes, "host");
  REQUIRE_OK(stream->wait(*never));
  REQUIRE_OK(never->finish());
  REQUIRE_OK(stream->fill(x->address(), 0, kBytes));
  REQUIRE_OK(stream->copy_out(*host, 0, x->address(), kBytes));
  REQUIRE_OK(stream->record(*event));
  REQUIRE_OK(event->finish());
  CHECK(first_of(*host) == 0);
}

// ---- random programs ----

namespace {

enum class Kind : uint8_t { fill, copy, add, in, out };

struct Step {
  Kind kind = Kind::fill;
  uint32_t stream = 0, x = 0, y = 0;  // buffers; `x` of in and out: the page-locked buffer
  uint8_t value = 0;
  std::vector<size_t> waits;  // steps of other streams that come before it

  bool writes(bool pinned, uint32_t number) const {
    return pinned ? kind == Kind::out && x == number : kind != Kind::out && y == number;
  }
  bool touches(bool pinned, uint32_t number) const {
    if (pinned) return (kind == Kind::in || kind == Kind::out) && x == number;
    return y == number || ((kind == Kind::copy || kind == Kind::add) && x == number);
  }
};

struct Program {
  static constexpr uint32_t kStreams = 3, kBuffers = 4, kPinned = 2;
  std::vector<Step> steps;

  static bool conflict(const Step& a, const Step& b) {
    for (uint32_t n = 0; n < kBuffers; ++n)
      if (a.touches(false, n) && b.touches(false, n) && (a.writes(false, n) || b.writes(false, n))) return true;
    for (uint32_t n = 0; n < kPinned; ++n)
      if (a.touches(true, n) && b.touches(true, n) && (a.writes(true, n) || b.writes(true, n))) return true;
    return false;
  }

  /// Steps at random, each waiting for those of other streams that it conflicts with.
  static Program draw(Rng& rng) {
    Program out;
    for (size_t i = 0; i < 16; ++i) {
      Step step{.kind = static_cast<Kind>(rng.below(5)),
                .stream = static_cast<uint32_t>(rng.below(kStreams)),
                .x = static_cast<uint32_t>(rng.below(kPinned)),
                .y = static_cast<uint32_t>(rng.below(kBuffers))};
      if (step.kind == Kind::copy || step.kind == Kind::add)
        step.x = (step.y + 1 + static_cast<uint32_t>(rng.below(kBuffers - 1))) % kBuffers;
      for (size_t before = 0; before < i; ++before)
        if (out.steps[before].stream != step.stream && conflict(out.steps[before], step)) step.waits.push_back(before);
      out.steps.push_back(std::move(step));
    }
    return out;
  }

  /// Whether streams and waits order every conflict: paths in the graph of steps.
  bool ordered() const {
    std::vector<std::vector<bool>> before(steps.size(), std::vector<bool>(steps.size()));
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto follows = [&](size_t from) {
        before[i][from] = true;
        for (size_t k = 0; k < from; ++k) before[i][k] = before[i][k] || before[from][k];
      };
      for (size_t k = 0; k < i; ++k)
        if (steps[k].stream == steps[i].stream) follows(k);
      for (const size_t from : steps[i].waits) follows(from);
      for (size_t k = 0; k < i; ++k)
        if (conflict(steps[k], steps[i]) && !before[i][k]) return false;
    }
    return true;
  }

  using Floats = std::vector<float>;
  /// The contents of all buffers, then of the page-locked ones, after the steps one by one. Whole numbers: sums are
  /// exact.
  std::vector<Floats> reference() const {
    std::vector<Floats> at(kBuffers + kPinned, Floats(kFloats));
    for (uint32_t p = 0; p < kPinned; ++p) std::fill(at[kBuffers + p].begin(), at[kBuffers + p].end(), 1 + p);
    for (const Step& s : steps) {
      Floats& y = at[s.y];
      switch (s.kind) {
        case Kind::fill: std::fill(y.begin(), y.end(), 0.0f); break;
        case Kind::copy: y = at[s.x]; break;
        case Kind::add:
          for (uint32_t i = 0; i < kFloats; ++i) y[i] += at[s.x][i];
          break;
        case Kind::in: y = at[kBuffers + s.x]; break;
        case Kind::out: at[kBuffers + s.x] = y; break;
      }
    }
    return at;
  }
};

struct ProgramResult {
  std::string rule, text;
  std::vector<Program::Floats> at;
};

Result<void> submit(const Step& s, Stream& stream, std::vector<DeviceBuffer>& buffers,
                    std::vector<PinnedBuffer>& pinned) {
  const uint64_t y = buffers[s.y].address();
  switch (s.kind) {
    case Kind::fill: return stream.fill(y, 0, kBytes);
    case Kind::copy: return stream.copy_within(y, buffers[s.x].address(), kBytes);
    case Kind::add: return add(stream, buffers[s.x].address(), y);
    case Kind::in: return stream.copy_in(y, pinned[s.x], 0, kBytes);
    case Kind::out: break;
  }
  return stream.copy_out(pinned[s.x], 0, y, kBytes);
}

Result<void> run_steps(const Program& program, Device& device, std::vector<DeviceBuffer>& buffers,
                       std::vector<PinnedBuffer>& pinned) {
  std::vector<Stream> streams;
  std::vector<Event> events;
  for (uint32_t s = 0; s < Program::kStreams; ++s) {
    MC_TRY(stream, Stream::make(device));
    streams.push_back(std::move(stream));
  }
  for (const Step& step : program.steps) {
    Stream& stream = streams[step.stream];
    for (const size_t from : step.waits) MC_CHECK(stream.wait(events[from]));
    MC_CHECK(submit(step, stream, buffers, pinned));
    MC_TRY(event, Event::make(device));
    MC_CHECK(stream.record(event));
    events.push_back(std::move(event));
  }
  for (Stream& stream : streams) MC_CHECK(stream.finish());
  return {};
}

ProgramResult run_program(const Program& program, const emu::Options& options) {
  Emulation e({}, options);
  ProgramResult out;
  std::vector<DeviceBuffer> buffers;
  std::vector<PinnedBuffer> pinned;
  const std::vector<std::byte> zero(kBytes);
  for (uint32_t n = 0; n < Program::kBuffers; ++n) {
    auto buffer = DeviceBuffer::make(*e.device, kBytes, "buffer " + std::to_string(n));
    REQUIRE_OK(buffer);
    REQUIRE_OK(e.device->write(buffer->address(), zero));
    buffers.push_back(std::move(*buffer));
  }
  for (uint32_t n = 0; n < Program::kPinned; ++n) {
    auto buffer = PinnedBuffer::make(*e.device, kBytes, "host");
    REQUIRE_OK(buffer);
    fill_with(*buffer, static_cast<float>(1 + n));
    pinned.push_back(std::move(*buffer));
  }
  const auto ran = run_steps(program, *e.device, buffers, pinned);
  if (const auto rule = e.driver->gpu().broken_rule()) out.rule = to_string(*rule);
  if (!ran) out.text = ran.error().what;
  if (!ran) return out;
  const auto floats = [](std::span<const std::byte> bytes) {
    Program::Floats values(kFloats);
    std::memcpy(values.data(), bytes.data(), kBytes);
    return values;
  };
  for (const DeviceBuffer& buffer : buffers) {
    std::vector<std::byte> bytes(kBytes);
    REQUIRE_OK(e.device->read(buffer.address(), bytes));
    out.at.push_back(floats(bytes));
  }
  for (const PinnedBuffer& buffer : pinned) out.at.push_back(floats(*buffer.view()));
  return out;
}

}  // namespace

TEST_CASE("gpu/stream: random programs with declared dependencies give the sequential result under every schedule") {
  Rng rng(test::seed());
  for (int i = 0; i < 40; ++i) {
    const Program program = Program::draw(rng);
    REQUIRE(program.ordered());
    const uint64_t seed = rng.next();
    for (int policy = 0; policy < emu::kPolicies; ++policy) {
      const ProgramResult o = run_program(program, {.seed = seed, .policy = static_cast<emu::Policy>(policy)});
      CAPTURE(test::seed());
      CAPTURE(i);
      CAPTURE(policy);
      REQUIRE_MESSAGE(o.rule.empty(), o.text);
      CHECK(o.at == program.reference());
    }
  }
}

TEST_CASE("gpu/stream: a program that drops a needed event wait stops under every schedule, and no other one does") {
  Rng rng(test::seed());
  int needed = 0, spare = 0;
  for (int i = 0; i < 40; ++i) {
    Program program = Program::draw(rng);
    std::vector<std::pair<size_t, size_t>> waits;  // step, and which of its waits
    for (size_t s = 0; s < program.steps.size(); ++s)
      for (size_t w = 0; w < program.steps[s].waits.size(); ++w) waits.emplace_back(s, w);
    if (waits.empty()) continue;
    const auto [step, wait] = waits[rng.below(waits.size())];
    std::vector<size_t>& all = program.steps[step].waits;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(wait));
    const bool sound = program.ordered();
    ++(sound ? spare : needed);
    const uint64_t seed = rng.next();
    for (int policy = 0; policy < emu::kPolicies; ++policy) {
      const ProgramResult o = run_program(program, {.seed = seed, .policy = static_cast<emu::Policy>(policy)});
      CAPTURE(test::seed());
      CAPTURE(i);
      CAPTURE(policy);
      CHECK_MESSAGE(o.rule == (sound ? "" : "stream order"), o.text);
      if (sound) CHECK(o.at == program.reference());
    }
  }
  CHECK(needed > 5);
  CHECK(spare > 0);
}

TEST_CASE("gpu/stream: without the order rules a dropped wait shows as a wrong result under some schedules") {
  Rng rng(test::seed());
  int wrong = 0, same = 0;
  for (int i = 0; i < 60; ++i) {
    Program program = Program::draw(rng);
    for (Step& step : program.steps) step.waits.clear();
    const ProgramResult o = run_program(program, {.seed = rng.next(), .policy = emu::Policy::sticky, .checks = false});
    if (!o.rule.empty()) continue;  // page-locked bytes have no switch
    ++(o.at == program.reference() ? same : wrong);
  }
  CHECK(wrong > 0);
}
