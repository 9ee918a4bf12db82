#include "disk_runs.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/assert.h"
#include "base/extent.h"
#include "base/hash.h"
#include "base/rng.h"
#include "mem/mem.h"
#include "print.h"
#include "store/disk.h"

namespace mc::bench {
namespace {

constexpr size_t kContentBytes = size_t{32} << 20;
std::mutex g_opening;  // held while a folder is made

Id128 id_of(uint64_t block) {
  Id128 id;
  // Spread like a hash, since real ids are; the number can be read back.
  const uint64_t spread = block * 0x9e3779b97f4a7c15 + 1;
  std::memcpy(id.bytes.data(), &spread, sizeof spread);
  std::memcpy(id.bytes.data() + sizeof spread, &block, sizeof block);
  return id;
}

/// Runs `job(number)` in so many threads until all return, and merges their figures. A job does something once even
/// when its thread gets a processor after its end, so there are figures.
DiskFigures run_jobs(const DiskPlan& plan, const std::function<void(uint64_t, TimePoint, DiskFigures&)>& job) {
  DiskFigures all;
  std::mutex mutex;
  const TimePoint began = steady_now();
  {
    std::vector<std::jthread> threads;
    for (uint64_t number = 0; number < plan.jobs; ++number)
      threads.emplace_back([&, number] {
        DiskFigures mine;
        job(number, began + plan.duration, mine);
        const std::lock_guard lock(mutex);
        all.blocks += mine.blocks;
        all.failed += mine.failed;
        all.latency_us.merge(mine.latency_us);
        if (all.first_failure.empty()) all.first_failure = mine.first_failure;
      });
  }
  all.elapsed = steady_now() - began;
  return all;
}

}  // namespace

struct DiskTarget::Memory {
  mem::HostBuffer content;
};

DiskTarget::~DiskTarget() = default;

Result<std::unique_ptr<DiskTarget>> DiskTarget::open(const DiskPlan& plan) {
  std::unique_ptr<DiskTarget> target(new DiskTarget());
  MC_TRY(content, mem::HostBuffer::allocate(kContentBytes + round_up(plan.block_bytes, store::kPageBytes),
                                            {.name = "bench content"}));
  Rng rng(plan.seed);
  for (size_t at = 0; at + 8 <= content.size(); at += 8) {
    const uint64_t word = rng.next();
    std::memcpy(content.data() + at, &word, sizeof word);
  }
  target->memory_ = std::make_unique<Memory>(Memory{std::move(content)});
  MC_CHECK(target->open_store(plan));
  return target;
}

Result<void> DiskTarget::open_store(const DiskPlan& plan) {
  store_.reset();
  std::unique_lock lock(g_opening);
  MC_TRY(disk, store::open_disk(plan.disk_io, plan.directory));
  lock.unlock();
  disk_io_ = disk.kind;
  MC_TRY(opened, store::Store::open(std::move(disk.disk), {.capacity_bytes = plan.capacity_bytes}));
  store_ = std::move(opened);
  return {};
}

void DiskTarget::open_no_more() {
  g_opening.lock();
}

std::span<const std::byte> DiskTarget::content(const DiskPlan& plan, uint64_t block) const {
  const uint64_t at = block * 13 % (kContentBytes / store::kPageBytes) * store::kPageBytes;
  return memory_->content.bytes().subspan(at, plan.block_bytes);
}

Result<void> DiskTarget::fill(const DiskPlan& plan) {
  const uint64_t step = round_up(plan.block_bytes, store::kPageBytes);
  const uint64_t wanted = std::max<uint64_t>(plan.capacity_bytes / 2 / step, 1);
  std::vector<store::Put> puts;
  for (uint64_t i = 0; i < wanted; ++i, ++next_block_) {
    puts.push_back({.id = id_of(next_block_), .bytes = content(plan, next_block_)});
    if (puts.size() < 64 && i + 1 < wanted) continue;
    MC_CHECK(store_->put(puts, store::Level::written));
    MC_CHECK(store_->maintain());
    puts.clear();
  }
  return store_->flush();
}

DiskFigures DiskTarget::put(const DiskPlan& plan) {
  // All segments are made before the clock runs: making one writes it once more.
  for (;;) {
    const auto made = store_->prepare();
    if (!made || !*made) break;
  }
  const store::Stats before = store_->stats();
  std::atomic<uint64_t> next{next_block_};
  DiskFigures all = run_jobs(plan, [&](uint64_t, TimePoint end, DiskFigures& mine) {
    std::vector<store::Put> puts(plan.depth);
    TimePoint now = steady_now();
    do {
      for (store::Put& put : puts) {
        const uint64_t block = next.fetch_add(1, std::memory_order_relaxed);
        put = {.id = id_of(block), .bytes = content(plan, block)};
      }
      const auto done = store_->put(puts, plan.durable ? store::Level::durable : store::Level::written);
      const TimePoint after = steady_now();
      mine.latency_us.record(to_seconds(after - now) * 1e6);
      now = after;
      (done ? mine.blocks : mine.failed) += puts.size();
      if (done) continue;
      mine.first_failure = done.error().what;
      return;
    } while (now < end);
  });
  next_block_ = next;
  const uint64_t groups = store_->stats().groups - before.groups;
  all.group_blocks = groups == 0 ? 0 : static_cast<double>(all.blocks) / static_cast<double>(groups);
  all.disk_io = disk_io_;
  return all;
}

DiskFigures DiskTarget::get(const DiskPlan& plan) {
  std::vector<Id128> there;
  store_->for_each([&](const Id128& id, uint32_t) { there.push_back(id); });
  DiskFigures all = run_jobs(plan, [&](uint64_t number, TimePoint end, DiskFigures& mine) {
    Rng rng(plan.seed * 1000 + number);
    const size_t step = round_up(plan.block_bytes, store::kPageBytes);
    auto room = mem::HostBuffer::allocate(step * plan.depth, {.name = "bench room"});
    if (!room || there.empty()) {
      mine.first_failure = room ? "the store is empty" : room.error().what;
      ++mine.failed;
      return;
    }
    std::vector<store::Get> gets(plan.depth);
    TimePoint now = steady_now();
    do {
      for (size_t i = 0; i < gets.size(); ++i)
        gets[i] = {.id = there[rng.below(there.size())], .room = room->bytes().subspan(i * step, step)};
      store_->get(gets);
      const TimePoint after = steady_now();
      mine.latency_us.record(to_seconds(after - now) * 1e6);
      now = after;
      for (const store::Get& get : gets) {
        uint64_t block = 0;
        std::memcpy(&block, get.id.bytes.data() + 8, sizeof block);
        const auto expected = content(plan, block);
        const bool right = get.code == Code::ok && get.bytes == expected.size() &&
                           std::memcmp(get.room.data(), expected.data(), std::min<size_t>(64, get.bytes)) == 0;
        ++(right ? mine.blocks : mine.failed);
        if (!right && mine.first_failure.empty())
          mine.first_failure = "block " + std::to_string(block) + ": " + std::string(to_string(get.code));
      }
    } while (now < end);
  });
  all.disk_io = disk_io_;
  return all;
}

Result<DiskTarget::RestartFigures> DiskTarget::restart(const DiskPlan& plan, uint64_t blocks) {
  RestartFigures out;
  const TimePoint began = steady_now();
  std::vector<store::Put> puts;
  for (uint64_t i = 0; i < blocks; ++i, ++next_block_) {
    const auto bytes = content(plan, next_block_);
    puts.push_back({.id = id_of(next_block_), .bytes = bytes});
    if (puts.size() < 120 && i + 1 < blocks) continue;
    MC_CHECK(store_->put(puts, store::Level::written));
    puts.clear();
  }
  MC_CHECK(store_->flush());
  const TimePoint filled = steady_now();
  out.fill_s = to_seconds(filled - began);
  store_.reset();
  const TimePoint closed = steady_now();
  MC_CHECK(open_store(plan));
  out.open_s = to_seconds(steady_now() - closed);
  MC_TRY(room, mem::HostBuffer::allocate(round_up(plan.block_bytes, store::kPageBytes), {.name = "bench room"}));
  store::Get get{.id = id_of(next_block_ - 1), .room = room.bytes()};
  store_->get({&get, 1});
  out.first_get_s = to_seconds(steady_now() - closed);
  out.restart = store_->restart();
  if (get.code != Code::ok)
    return Error{Code::corrupt, "after the restart a get says " + std::string(to_string(get.code))};
  return out;
}

}  // namespace mc::bench
