// The doctor's findings about copies between a GPU and the host. KV of a GPU leaves for other nodes through page-locked
// memory, and comes in the same way (model/device_copies.h), so the hand-over is no faster than these copies.
#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "base/units.h"
#include "model/device_copies.h"
#include "verbs/doctor.h"

namespace mc::verbs {
namespace {

using model::DeviceCopies;

/// The amount that is copied in each direction.
struct Amount {
  size_t bytes;    // of one copy, which stands for the KV of a layer
  uint32_t count;  // copies, of which two are under way at a time
};

Amount amount_for(gpu::DeviceKind kind) {
  return kind == gpu::DeviceKind::emu ? Amount{size_t{64} << 10, 4} : Amount{size_t{16} << 20, 32};
}

/// Runs `copy` for each number and `finish` one number later, so that two copies are under way. Returns bytes a second.
template <class Copy, class Finish>
Result<double> rate_of(const Amount& amount, const Copy& copy, const Finish& finish) {
  const TimePoint begin = SystemClock::instance().now();
  for (uint32_t i = 0; i < amount.count; ++i) {
    MC_CHECK(copy(i));
    if (i > 0) MC_CHECK(finish(i - 1));
  }
  MC_CHECK(finish(amount.count - 1));
  const double seconds = std::max(to_seconds(SystemClock::instance().now() - begin), 1e-9);
  return static_cast<double>(amount.bytes) * amount.count / seconds;
}

Result<CopyRates> measure(const gpu::DeviceChoice& choice) {
  CopyRates out{.device = gpu::to_string(choice), .emulated = choice.kind == gpu::DeviceKind::emu};
  const Amount amount = amount_for(choice.kind);
  MC_TRY(device, gpu::open_device(choice));
  MC_TRY(there, gpu::DeviceBuffer::make(*device, 2 * amount.bytes, "copies that doctor measures"));
  MC_CHECK(device->fill(there.address(), 0, there.bytes()));
  MC_CHECK(device->finish());
  std::vector<std::byte> here(2 * amount.bytes);
  DeviceCopies copies(*device);
  MC_CHECK(copies.prepare());
  MC_CHECK(copies.begin());
  const auto at = [&](uint32_t i) { return i % 2 * amount.bytes; };
  const auto store = [&](uint32_t i) -> Result<void> {
    return copies.store(i, {{there.address() + at(i), &here[at(i)], amount.bytes}});
  };
  const auto load = [&](uint32_t i) -> Result<void> {
    const DeviceCopies::Load piece{&here[at(i)], there.address() + at(i), amount.bytes};
    return copies.load(i, std::span(&piece, 1));
  };
  const auto finish_load = [&](uint32_t i) -> Result<void> {
    MC_CHECK(copies.await_load(i));
    return i + 1 == amount.count ? device->finish() : Result<void>{};
  };
  // The first copies allocate the page-locked memory.
  for (uint32_t i = 0; i < 2; ++i) {
    MC_CHECK(store(i));
    MC_CHECK(copies.finish_store(i));
    MC_CHECK(load(i));
  }
  MC_CHECK(copies.begin());
  MC_TRY(out_rate, rate_of(amount, store, [&](uint32_t i) { return copies.finish_store(i); }));
  MC_TRY(in_rate, rate_of(amount, load, finish_load));
  out.out_bytes_per_s = out_rate, out.in_bytes_per_s = in_rate;
  return out;
}

/// Bytes a second of the fastest usable port; 0 = there is none, or its speed is not known.
double fastest_port(const xfer::RdmaReport& rdma) {
  double gbits = 0;
  for (const auto& device : rdma.devices)
    for (const auto& port : device.ports)
      if (port.usable) gbits = std::max(gbits, port.gbits_per_s);
  return gbits * 1e9 / 8;
}

std::string speed_text(double bytes_per_s) {
  return human_bytes(static_cast<uint64_t>(bytes_per_s)) + "/s";
}

}  // namespace

CopyRates measure_copies(const gpu::DeviceChoice& choice) {
  auto rates = measure(choice);
  if (rates) return std::move(*rates);
  CopyRates out{.device = gpu::to_string(choice), .emulated = choice.kind == gpu::DeviceKind::emu};
  out.trouble = rates.error();
  return out;
}

std::vector<Finding> judge_copies(const std::vector<CopyRates>& copies, const xfer::RdmaReport& rdma) {
  std::vector<Finding> out;
  const double port = fastest_port(rdma);
  for (const CopyRates& rates : copies) {
    Finding finding{.area = Area::gpu, .name = "copies of " + rates.device};
    if (rates.trouble) {
      finding.verdict = Verdict::fix;
      finding.what = rates.trouble->what;
      finding.next = rates.trouble->next;
      out.push_back(std::move(finding));
      continue;
    }
    MC_ASSERT(rates.out_bytes_per_s > 0 && rates.in_bytes_per_s > 0);
    finding.what = speed_text(rates.out_bytes_per_s) + " to the host, " + speed_text(rates.in_bytes_per_s) +
                   " from it, through page-locked memory";
    const double least = std::min(rates.out_bytes_per_s, rates.in_bytes_per_s);
    if (rates.emulated) {
      finding.what += "; of the emulator, so they say nothing of a GPU";
    } else if (least < port) {
      finding.verdict = Verdict::note;
      finding.what += "; the fastest port carries " + speed_text(port) + ", so KV waits for the copies";
      finding.next = "put the GPU into a slot with more PCIe lanes, and run the node on the NUMA node of the GPU";
    }
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace mc::verbs
