// KV pages on an emulated device, driven by random decode steps over host pages that are reused: a page that a pass
// reads has the host's bytes on the device, whatever came before.
#include "model/device_pages.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "base/rng.h"
#include "count.h"
#include "gpu/emulated.h"
#include "test.h"

namespace device_pages_test {

using namespace mc;
using namespace mc::model;

namespace {

constexpr size_t kPageBytes = 64;
constexpr size_t kRows = 4;  // of a page, 16 bytes each

/// Pages of a host and of its device.
struct Pool {
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::Device> device;
  std::vector<std::array<std::byte, kPageBytes>> host;
  std::unique_ptr<DevicePages> pages;

  explicit Pool(size_t count, size_t device_bytes = 1 << 20)
      : driver(std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{.memory_bytes = device_bytes})), host(count) {
    device = std::move(*gpu::Device::open(driver, 0));
    pages = std::make_unique<DevicePages>(*device, kPageBytes);
  }
  const std::byte* at(size_t page) const { return host[page].data(); }
  /// Whether the first rows of a page are on the device as on the host.
  bool is_equal(int32_t number, size_t page, size_t rows) const {
    std::vector<std::byte> there(kPageBytes);
    REQUIRE_OK(device->read(pages->address(number), there));
    return std::equal(there.begin(), there.begin() + static_cast<ptrdiff_t>(rows * 16), host[page].begin());
  }
  /// Makes room and copies in what is missing.
  Result<void> load() {
    MC_CHECK(pages->make_room());
    for (const DevicePages::Missing& page : pages->missing())
      MC_CHECK(device->write(pages->address(page.number), {page.host, kPageBytes}));
    pages->note_filled();
    return {};
  }
  uint64_t copies() const { return driver->gpu().operations(); }
};

void scribble(Rng& rng, std::span<std::byte> bytes) {
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.below(256));
}

struct Sequence {
  std::vector<size_t> pages;  // of the host
  size_t rows = 0;
};

}  // namespace

TEST_CASE("model/device_pages: a step copies in only the pages that the device lacks") {
  Pool pool(4);
  DevicePages& pages = *pool.pages;
  const auto step = [&](uint64_t sequence, std::initializer_list<std::pair<size_t, PageUse>> uses) {
    const uint64_t before = pool.copies();
    pages.begin();
    size_t index = 0;
    for (const auto& [page, use] : uses) pages.keep(sequence, index++, pool.at(page), use);
    REQUIRE_OK(pool.load());
    return pool.copies() - before;
  };
  CHECK(step(1, {{0, PageUse::read}, {1, PageUse::append}}) == 2);
  CHECK(step(1, {{0, PageUse::read}, {1, PageUse::append}}) == 0);
  CHECK(step(2, {{0, PageUse::read}, {2, PageUse::fresh}}) ==
        1);  // a third page needs more room: page 0 is copied anew
  CHECK(pages.kept() == 3);
  pages.forget(1);
  CHECK(pages.kept() == 2);
  CHECK(step(2, {{0, PageUse::read}, {2, PageUse::append}}) == 0);
  const uint64_t before = pool.copies();
  pages.begin();
  const int32_t kept = pages.keep(2, 0, pool.at(0), PageUse::read);
  CHECK(pages.take(pool.at(0), PageUse::read) == kept);  // a pass that keeps no sequence reads what one has kept
  REQUIRE_OK(pool.load());
  CHECK(pool.copies() == before);
  pages.begin();
  CHECK(pages.kept() == 2);
  pages.forget(2);
  pages.forget(7);  // which was never kept
  CHECK(pages.kept() == 0);
  CHECK(step(3, {{0, PageUse::read}}) == 1);
}

TEST_CASE("model/device_pages: what a pass reads is what the host has, through joins, ends and reuse of pages") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr size_t kPages = 24;
  Pool pool(kPages);
  std::map<uint64_t, Sequence> running;
  std::vector<uint32_t> holders(kPages);
  uint64_t next = 1;
  const auto free_page = [&] {
    const auto at = std::find(holders.begin(), holders.end(), 0u);
    return at == holders.end() ? kPages : static_cast<size_t>(at - holders.begin());
  };
  for (int round = 0; round < test::count(300, 5000); ++round) {
    if (running.size() < 4 && rng.below(3) == 0) {  // joins, with the whole pages of another one or with its own
      Sequence fresh;
      if (!running.empty() && rng.below(2) == 0) {
        const Sequence& other = std::next(running.begin(), static_cast<ptrdiff_t>(rng.below(running.size())))->second;
        fresh.pages.assign(other.pages.begin(), other.pages.begin() + static_cast<ptrdiff_t>(other.rows / kRows));
      }
      for (const size_t page : fresh.pages) ++holders[page];
      fresh.rows = fresh.pages.size() * kRows;
      if (const size_t page = free_page(); page < kPages && rng.below(2) == 0) {  // a tail from elsewhere
        ++holders[page];
        scribble(rng, pool.host[page]);
        fresh.pages.push_back(page);
        fresh.rows += 1 + rng.below(kRows - 1);
      }
      running.emplace(next++, std::move(fresh));
    }
    if (rng.below(8) == 0) {  // a pass of its own, as a chunk or a calibration
      pool.pages->begin();
      if (holders[0] == 0) {
        scribble(rng, pool.host[0]);
        const int32_t number = pool.pages->take(pool.at(0), PageUse::read);
        CHECK(pool.pages->take(pool.at(0), PageUse::read) == number);
        REQUIRE_OK(pool.load());
        CHECK(pool.is_equal(number, 0, kRows));
      }
    }
    pool.pages->begin();
    std::vector<std::tuple<int32_t, size_t, size_t>> numbers;  // with the page of the host and its rows so far
    std::vector<uint64_t> stepped;
    for (auto& [name, sequence] : running) {
      if (rng.below(4) == 0) continue;
      if (sequence.rows % kRows == 0) {
        const size_t page = free_page();
        if (page == kPages) continue;
        ++holders[page];
        sequence.pages.push_back(page);
      }
      for (size_t i = 0; i < sequence.pages.size(); ++i) {
        const size_t rows = std::min(kRows, sequence.rows - std::min(sequence.rows, i * kRows));
        const PageUse use = rows == kRows ? PageUse::read : rows > 0 ? PageUse::append : PageUse::fresh;
        numbers.emplace_back(pool.pages->keep(name, i, pool.at(sequence.pages[i]), use), sequence.pages[i], rows);
      }
      stepped.push_back(name);
    }
    REQUIRE_OK(pool.load());
    for (const auto& [number, page, rows] : numbers) CHECK(pool.is_equal(number, page, rows));
    for (const uint64_t name : stepped) {  // the step writes a row on both sides
      Sequence& sequence = running[name];
      const size_t row = sequence.rows % kRows, page = sequence.pages.back();
      scribble(rng, std::span(pool.host[page]).subspan(row * 16, 16));
      for (const auto& [number, host_page, rows] : numbers)
        if (host_page == page)
          REQUIRE_OK(pool.device->write(pool.pages->address(number) + row * 16,
                                        std::span(pool.host[page]).subspan(row * 16, 16)));
      ++sequence.rows;
    }
    if (!running.empty() && rng.below(4) == 0) {  // ends
      const auto gone = std::next(running.begin(), static_cast<ptrdiff_t>(rng.below(running.size())));
      pool.pages->forget(gone->first);
      for (const size_t page : gone->second.pages)
        if (--holders[page] == 0) scribble(rng, pool.host[page]);  // the host gives it to another block
      running.erase(gone);
    }
  }
  while (!running.empty()) {
    pool.pages->forget(running.begin()->first);
    running.erase(running.begin());
  }
  CHECK(pool.pages->kept() == 0);
}

TEST_CASE("model/device_pages: bytes that a pass did not copy in are missing for the next one") {
  Pool pool(2);
  const auto missing = [&] {
    pool.pages->begin();
    for (size_t i = 0; i < 2; ++i) pool.pages->keep(1, i, pool.at(i), i == 0 ? PageUse::read : PageUse::append);
    REQUIRE_OK(pool.pages->make_room());
    return pool.pages->missing().size();
  };
  CHECK(missing() == 2);
  CHECK(missing() == 2);  // the pass before stopped half-way
  pool.pages->note_filled();
  CHECK(missing() == 0);
}

TEST_CASE("model/device_pages: a device that is full refuses a page, and goes on when pages are free again") {
  Pool pool(4, 3 * kPageBytes);
  const auto step = [&](uint64_t sequence, size_t pages) {
    pool.pages->begin();
    for (size_t i = 0; i < pages; ++i) pool.pages->keep(sequence, i, pool.at(i), PageUse::read);
    return pool.load();
  };
  REQUIRE_OK(step(1, 2));
  const auto refused = step(1, 4);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kDeviceMemory);
  pool.pages->forget(1);
  CHECK(step(2, 3).has_value());
}

}  // namespace device_pages_test
