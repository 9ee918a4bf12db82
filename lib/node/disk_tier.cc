#include "node/disk_tier.h"

#include <algorithm>

#include "base/assert.h"
#include "node/disk_block.h"

namespace mc::node {
namespace {
constexpr size_t kLoadBlocksMax = 4096;
constexpr size_t kJobsMax = 1024;
constexpr Duration kStallAfter = 5s;        // a disk whose oldest load is older gets no new ones
constexpr uint32_t kFailuresMax = 8;        // in a row; then the disk is given up
constexpr Duration kFailuresApart = 100ms;  // writes that fail together, for they share one flush, count once
constexpr double kMeasureWeight = 1.0 / 16;
constexpr double kBytesPerSecondGuess = 1e9;  // of a disk that has not been read yet
}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options, kv::EventLog& log, Numbers& numbers)
    : options_(options),
      numbers_(numbers),
      state_(options.capacity_bytes > 0 ? State::on : State::none),
      blocks_(log),
      writes_(options, blocks_, numbers) {
  MC_ASSERT(options_.writes_max > 0 && options_.loads_max > 0);
}

bool DiskTier::on_event(const Event& event, const Usable& usable, TimePoint now, Actions& out) {
  if (const auto* loaded = std::get_if<DiskLoaded>(&event))
    on_loaded(*loaded, now, out);
  else if (const auto* written = std::get_if<DiskWritten>(&event))
    on_written(*written, now, out);
  else if (const auto* found = std::get_if<DiskFound>(&event))
    on_found(*found, usable, now);
  else if (const auto* evicted = std::get_if<DiskEvicted>(&event))
    on_evicted(*evicted);
  else if (const auto* failed = std::get_if<DiskUpkeepFailed>(&event))
    on_upkeep_failed(*failed);
  else
    return false;
  return true;
}

// ---- the blocks on disk ----------------------------------------------------------------------

uint32_t DiskTier::match(const kv::Pool& pool, std::span<const BlockHash> hashes) const {
  uint32_t length = 0;
  while (length < hashes.size() && (pool.find(hashes[length]) != kv::kNoPage || has(hashes[length]))) ++length;
  return length;
}

void DiskTier::on_found(const DiskFound& found, const Usable& usable, TimePoint now) {
  for (const DiskBlock& block : found.blocks) {
    if (state_ != State::on) return;
    const bool ours = fits_disk(block.layout) && usable(block);
    ++(ours ? stats_.found_blocks : stats_.foreign_blocks);
    if (!ours) continue;
    const auto bytes = static_cast<uint32_t>(disk_value_bytes(block.layout));
    blocks_.add(block.hash, {block.name_space, block.parent, block.first_position, bytes, 0, now});
  }
}

bool DiskTier::evict(const BlockHash& hash, Actions& out) {
  if (!has(hash) || loading_.contains(hash) || writes_.has(hash)) return false;
  forget(hash);
  out.push_back(DiskDrop{{hash}});
  return true;
}

void DiskTier::forget(const BlockHash& hash) {
  ++stats_.evicted_blocks;
  blocks_.erase(hash, kv::Removal::evicted);
  writes_.removed_by_disk(hash);
}

void DiskTier::on_evicted(const DiskEvicted& evicted) {
  for (const BlockHash& hash : evicted.hashes)
    if (has(hash)) forget(hash);
}

void DiskTier::on_upkeep_failed(const DiskUpkeepFailed& failed) {
  ++(failed.work == DiskUpkeepFailed::Work::drop ? stats_.drop_failures : stats_.maintain_failures);
  if (state_ == State::on) trouble_ = "disk: " + failed.what;
}

// A disk that fails again and again would cost every request its time-out.
void DiskTier::count_failure(const std::string& what) {
  if (state_ != State::on) return;  // the end of an operation that began before
  trouble_ = "disk: " + what;
  if (++failures_in_row_ < kFailuresMax) return;
  state_ = State::lost;
  writes_.stop();
  trouble_ = "the tier on disk is given up after " + std::to_string(failures_in_row_) +
             " failures in a row, and the node goes on without it: " + what;
  for (const kv::ResidentBlock& block : blocks_.snapshot()) blocks_.erase(block.hash, kv::Removal::unreadable);
  MC_ASSERT(blocks_.empty() && blocks_.bytes() == 0);
}

// ---- loads -----------------------------------------------------------------------------------

bool DiskTier::stalled(TimePoint now) const {
  return !loads_.empty() && now - loads_.begin()->second.began > kStallAfter;
}

/// A block on disk has one namespace, and its bytes mean nothing under another one that a peer may ask for.
bool DiskTier::has_other(const NamespaceId& ns, const BlockHash& hash) const {
  const DiskBlocks::Entry* entry = blocks_.find(hash);
  return entry && entry->name_space != ns;
}

DiskTier::LoadId DiskTier::load(Shelf& shelf, const NamespaceId& ns, std::span<const BlockHash> hashes, TimePoint now,
                                Actions& out) {
  if (state_ != State::on || jobs_.size() >= kJobsMax || stalled(now)) return 0;
  const uint32_t here = shelf.pool.match(hashes);
  uint32_t all = match(shelf.pool, hashes.first(std::min(hashes.size(), kLoadBlocksMax)));
  for (uint32_t i = here; i < all; ++i)
    if (shelf.pool.find(hashes[i]) == kv::kNoPage && has_other(ns, hashes[i])) all = i;
  if (all <= here || !has(hashes[here])) return 0;
  const LoadId id = numbers_.next();
  Job job;
  job.shelf = &shelf, job.name_space = ns;
  job.hashes.assign(hashes.begin(), hashes.begin() + all);
  job.pages.assign(all, kv::kNoPage);
  job.end = all;
  uint32_t missing = 0;
  for (uint32_t i = 0; i < all; ++i) {  // all that is here, before a load takes a page from one of them
    job.pages[i] = shelf.pool.find(hashes[i]);
    if (job.pages[i] != kv::kNoPage)
      shelf.pool.pin(job.pages[i]);
    else
      ++missing;
  }
  if (shelf.make_room) shelf.make_room(std::min(missing, options_.loads_max));
  Job& added = jobs_.emplace(id, std::move(job)).first->second;
  advance(id, added, now, out);
  return id;
}

/// Looks for the blocks of a job in their order: in memory, under way, or on disk while loads are free.
void DiskTier::advance(LoadId id, Job& job, TimePoint now, Actions& out) {
  kv::Pool& pool = job.shelf->pool;
  for (; job.next < job.end; ++job.next) {
    const BlockHash& hash = job.hashes[job.next];
    if (job.pages[job.next] != kv::kNoPage) continue;
    if (const kv::PageIndex page = pool.find(hash); page != kv::kNoPage) {
      pool.pin(page);
      job.pages[job.next] = page;
      continue;
    }
    if (const auto under_way = loading_.find(hash); under_way != loading_.end()) {
      Load& load = loads_.at(under_way->second);
      if (load.shelf != job.shelf || load.name_space != job.name_space) {
        job.end = job.next;  // the page that it fills is none of this job's
        break;
      }
      load.waiting.emplace_back(id, job.next);
      continue;
    }
    if (loads_.size() >= options_.loads_max && state_ == State::on) break;
    const DiskBlocks::Entry* entry = blocks_.find(hash);
    kv::PageIndex page = kv::kNoPage;
    const bool gone = !entry || entry->name_space != job.name_space;
    if (gone || !pool.allocate(std::span(&page, 1))) {
      job.end = job.next;  // the disk gave the block up, or memory has no page for it
      break;
    }
    Load load;
    load.hash = hash, load.parent = entry->parent, load.first_position = entry->first_position;
    load.name_space = job.name_space;
    load.shelf = job.shelf, load.page = page;
    load.began = now;
    load.waiting.emplace_back(id, job.next);
    const uint64_t op = numbers_.next();
    out.push_back(DiskLoad{op, job.shelf->number, load.page, hash, job.name_space, job.shelf->layout});
    loading_.emplace(hash, op);
    loads_.emplace(op, std::move(load));
  }
  settle(job);
}

void DiskTier::settle(Job& job) {
  while (job.ready < job.end && job.pages[job.ready] != kv::kNoPage) ++job.ready;
  MC_ASSERT(job.ready <= job.end && job.end <= job.hashes.size());
}

void DiskTier::pump(TimePoint now, Actions& out) {
  for (auto& [id, job] : jobs_)
    if (job.next < job.end) advance(id, job, now, out);
}

bool DiskTier::done(LoadId id) const {
  const Job& job = jobs_.at(id);
  return job.ready == job.end;
}

void DiskTier::end(LoadId id) {
  const auto it = jobs_.find(id);
  MC_ASSERT(it != jobs_.end());
  for (const kv::PageIndex page : it->second.pages)
    if (page != kv::kNoPage) it->second.shelf->pool.unpin(page);
  jobs_.erase(it);
}

void DiskTier::hit(kv::Pool& pool, std::span<const BlockHash> hashes) {
  if (state_ == State::none) return;
  for (const BlockHash& hash : hashes) {
    const kv::PageIndex page = pool.find(hash);
    if (page == kv::kNoPage) return;
    writes_.hit(hash);
    if (!pool.on_trial(page)) continue;
    pool.set_trial(page, false);
    ++stats_.promoted_blocks;
  }
}

void DiskTier::left_memory(const BlockHash& hash, TimePoint now) {
  writes_.left_memory(hash);
  if (DiskBlocks::Entry* entry = blocks_.find(hash)) entry->used = now;
}

// Loads overlap, so a load costs the time since the one before it has ended.
void DiskTier::measure(const Load& load, TimePoint now) {
  const double seconds = to_seconds(now - std::max(load.began, std::min(measured_at_, now)));
  measured_at_ = now;
  block_s_ = block_s_ == 0 ? seconds : block_s_ + kMeasureWeight * (seconds - block_s_);
}

void DiskTier::on_loaded(const DiskLoaded& done, TimePoint now, Actions& out) {
  const auto it = loads_.find(done.op);
  if (it == loads_.end()) return;
  const Load load = std::move(it->second);
  loads_.erase(it);
  loading_.erase(load.hash);
  Code code = done.code;
  if (code == Code::ok && done.layer_crcs.size() != load.shelf->layout.layers) code = Code::corrupt;
  if (code == Code::ok) {
    failures_in_row_ = 0;
    ++stats_.loaded_blocks;
    stats_.loaded_bytes += load.shelf->layout.page_bytes();
    measure(load, now);
    arrived(load, done, now);
  } else {
    load.shelf->pool.release(load.page);
    ++stats_.load_failures;
    stats_.checksum_failures += code == Code::corrupt;
    blocks_.erase(load.hash, code == Code::corrupt     ? kv::Removal::corrupt
                             : code == Code::not_found ? kv::Removal::evicted
                                                       : kv::Removal::unreadable);
    if (code == Code::corrupt) trouble_ = "disk: block " + load.hash.short_hex() + " failed its checksum";
    if (code != Code::corrupt && code != Code::not_found) count_failure(done.what);
    for (const auto& [id, index] : load.waiting)
      if (const auto job = jobs_.find(id); job != jobs_.end()) {
        job->second.end = std::min(job->second.end, index);
        settle(job->second);
      }
  }
  pump(now, out);
}

void DiskTier::arrived(const Load& load, const DiskLoaded& done, TimePoint now) {
  kv::Pool& pool = load.shelf->pool;
  DiskBlocks::Entry* entry = blocks_.find(load.hash);
  const bool first = entry && entry->loads++ == 0;
  if (entry) entry->used = now;
  const auto published = pool.publish(
      load.page, {load.hash, load.parent, load.name_space, load.first_position, done.layer_crcs, done.tokens});
  if (!published.duplicate && first) pool.set_trial(published.page, true);
  if (!published.duplicate && !first) ++stats_.promoted_blocks;
  for (const auto& [id, index] : load.waiting) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    MC_ASSERT_EQ(job->second.pages.at(index), kv::kNoPage);
    pool.pin(published.page);
    job->second.pages[index] = published.page;
    settle(job->second);
  }
  pool.unpin(published.page);
}

// ---- writes ----------------------------------------------------------------------------------

void DiskTier::tend(std::span<Shelf* const> shelves, TimePoint now, Actions& out) {
  if (state_ == State::on) writes_.tend(shelves, now, false, out);
}

void DiskTier::tend_asked(std::span<Shelf* const> shelves, TimePoint now, Actions& out) {
  if (state_ == State::on) writes_.tend(shelves, now, true, out);
}

void DiskTier::start_write_out() {
  if (state_ == State::on) writes_.start_write_out();
}

void DiskTier::on_written(const DiskWritten& done, TimePoint now, Actions& out) {
  const auto ended = writes_.end(done.op, done.code);
  if (!ended) return;
  const DiskWrites::Write& write = *ended;
  kv::Pool& pool = write.shelf->pool;
  const bool removed = pool.state(write.page) != kv::PageState::cached;  // its bytes may have been found wrong
  if (done.code == Code::corrupt) {
    ++stats_.checksum_failures;
    trouble_ = "disk: block " + write.block.hash.short_hex() + " changed in memory before it was written";
    if (!removed) pool.remove(write.block.hash, kv::Removal::corrupt);
  }
  pool.unpin(write.page);
  if (done.code != Code::ok) {
    ++stats_.write_failures;
    const bool counted = failures_in_row_ > 0 && now - write_failed_at_ < kFailuresApart;
    if (done.code == Code::corrupt || counted) return;
    write_failed_at_ = now;
    count_failure(done.what);
    return;
  }
  failures_in_row_ = 0;
  ++stats_.written_blocks;
  const auto bytes = static_cast<uint32_t>(disk_value_bytes(write.block.layout));
  stats_.written_bytes += bytes;
  if (state_ != State::on) return;
  if (removed)
    out.push_back(DiskDrop{{write.block.hash}});
  else
    blocks_.add(write.block.hash,
                {write.block.name_space, write.block.parent, write.block.first_position, bytes, 0, now});
}

// ---- looking ---------------------------------------------------------------------------------

void DiskTier::fill_load(wire::Load& load) const {
  load.disk_capacity_bytes = options_.capacity_bytes;
  load.disk_blocks = blocks_.size();
  load.disk_bytes = blocks_.bytes();
  load.disk_lost = state_ == State::lost;
  if (blocks_.empty()) return;
  const double block_bytes = static_cast<double>(blocks_.bytes()) / static_cast<double>(blocks_.size());
  load.disk_block_s = block_s_ > 0 ? block_s_ : block_bytes / kBytesPerSecondGuess;
}

uint64_t DiskTier::pins(const kv::Pool& pool) const {
  uint64_t pins = writes_.pins(pool);
  for (const auto& [id, job] : jobs_)
    if (&job.shelf->pool == &pool)
      pins += static_cast<uint64_t>(
          std::count_if(job.pages.begin(), job.pages.end(), [](kv::PageIndex page) { return page != kv::kNoPage; }));
  return pins;
}

uint64_t DiskTier::owned(const kv::Pool& pool) const {
  return static_cast<uint64_t>(
      std::count_if(loads_.begin(), loads_.end(), [&](const auto& load) { return &load.second.shelf->pool == &pool; }));
}

void DiskTier::check() const {
  MC_ASSERT_EQ(loads_.size(), loading_.size());
  MC_ASSERT_LE(loads_.size(), options_.loads_max);
  MC_ASSERT(state_ == State::on || (blocks_.empty() && blocks_.bytes() == 0));
  for (const auto& [op, load] : loads_) MC_ASSERT(load.shelf->pool.state(load.page) == kv::PageState::owned);
  writes_.check();
  for (const auto& [id, job] : jobs_) {
    MC_ASSERT_LE(job.ready, job.end);
    MC_ASSERT_LE(job.ready, job.next);
  }
}

}  // namespace mc::node
