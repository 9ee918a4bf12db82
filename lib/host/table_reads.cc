#include "host/table_reads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "kv/block_table.h"

namespace mc::host {
namespace {

using wire::BlockBucket;

constexpr Duration kLookupTime = 2s;    // of all rounds together, as much as a call over a channel has
constexpr Duration kReleaseTime = 15s;  // the engine ends a batch and its quarantine sooner
constexpr size_t kRoundBytes = TableReads::kBlocksMax * 2 * sizeof(BlockBucket);

}  // namespace

TableReads::~TableReads() {
  stop(std::min(release_by_, after(SystemClock::instance().now(), kReleaseTime)));
  const TimePoint deadline = release_by_;
  if (running_) (void)engine_.close(running_->batch, deadline);
  if (memory_.size() == 0 || engine_.unregister(buffer_, deadline)) return;
  log_warn("memory of lookups kept: a transport is still writing into it", {{"bytes", memory_.size()}});
  (void)std::make_unique<mem::SharedBuffer>(std::move(memory_)).release();
}

void TableReads::stop(TimePoint deadline) {
  release_by_ = deadline;
  if (running_) engine_.cancel(running_->batch);
}

bool TableReads::has_memory() {
  if (memory_.size() > 0) return true;
  auto made = mem::SharedBuffer::create(kRoundBytes, {.name = "mct-lookups"});
  if (!made) return false;
  auto id = engine_.register_buffer(*made, {.name = "lookups"});
  if (!id) return false;
  memory_ = std::move(*made);
  buffer_ = *id;
  return true;
}

bool TableReads::start(const node::Lookup& lookup, xfer::PeerId peer, const wire::BufferInfo& table, TimePoint now) {
  const auto buckets = kv::BlockTable::buckets_in(table.length);
  if (running_ || ended_ || lookup.hashes.size() > kBlocksMax || !buckets) return false;
  if (pauses_.has(lookup.instance, now) || !has_memory()) return false;
  running_.emplace(Running{.lookup = lookup,
                           .look = {lookup.hashes, *buckets, kv::table_epoch(lookup.instance)},
                           .peer = peer,
                           .buffer = table.id,
                           .deadline = after(now, kLookupTime)});
  if (read_round(now)) return true;
  running_.reset();
  return false;
}

/// False: the time of the lookup is over, or the engine takes no batch.
bool TableReads::read_round(TimePoint now) {
  if (now >= running_->deadline) return false;
  std::vector<xfer::Request> requests;
  const auto wanted = running_->look.wanted();
  MC_ASSERT(!wanted.empty() && wanted.size() * sizeof(BlockBucket) <= memory_.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    requests.push_back({.op = xfer::Op::read,
                        .peer = running_->peer,
                        .local = memory_.bytes().subspan(i * sizeof(BlockBucket), sizeof(BlockBucket)),
                        .buffer = running_->buffer,
                        .offset = wanted[i] * sizeof(BlockBucket)});
  const auto batch = engine_.submit(requests, running_->deadline);
  if (!batch) return false;
  running_->batch = *batch;
  return true;
}

void TableReads::end(std::optional<std::vector<wire::HeldIn>> held) {
  MC_ASSERT(running_ && !ended_);
  ended_.emplace(Ended{std::move(running_->lookup), std::move(held)});
  running_.reset();
}

/// The holder did not answer in time, or its answer was an error.
void TableReads::fail(TimePoint now) {
  pauses_.failed(running_->lookup.instance, now);
  end(std::nullopt);
}

bool TableReads::on(const xfer::Event& event, TimePoint now) {
  using Kind = xfer::Event::Kind;
  if (!running_ || event.batch != running_->batch) return false;
  if (event.kind != Kind::batch_done && event.kind != Kind::batch_released) return false;
  if (event.quarantined || !engine_.close(event.batch)) return true;  // batch_released follows
  if (event.kind == Kind::batch_released || event.code != Code::ok) {
    fail(now);
    return true;
  }
  pauses_.answered(running_->lookup.instance);
  kv::BlockLook& look = running_->look;
  std::vector<BlockBucket> copies(look.wanted().size());
  std::memcpy(reinterpret_cast<std::byte*>(copies.data()), memory_.bytes().data(), copies.size() * sizeof(BlockBucket));
  const bool was_torn = look.torn() > 0;
  look.take(copies);
  torn_ += !was_torn && look.torn() > 0;
  if (look.given_up())
    end(std::nullopt);
  else if (look.wanted().empty())
    end(look.held());
  else if (!read_round(now))
    fail(now);
  return true;
}

}  // namespace mc::host
