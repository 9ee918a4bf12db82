#include "node/block_orders.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::node {
namespace {

Error late() {
  return user_error(err::kDeadlineExceeded, "the order was not done in time", "the blocks of the node",
                    "raise the time, or look whether the node's disk is slow");
}

/// "model qwen3-8b"
std::string model_text(const std::string& name) {
  return name.empty() ? "a model without a name" : "model " + name;
}

/// Tenants differ in their salts and requests in their attention, so neither is compared.
Result<void> check_identity(const kv::Namespace& ours, const std::string& our_model, const WriteBlocks& order) {
  if (ours.layers == 0) return {};
  kv::Namespace theirs = order.kv;
  theirs.attention = ours.attention;
  const auto differences = kv::differences(ours, theirs);
  if (differences.empty()) return {};
  const kv::FieldDifference& first = differences.front();
  return user_error(err::kKvFileForeign,
                    "the stream is of " + model_text(order.model) + ", and this node serves " + model_text(our_model) +
                        ": " + first.name + " of the stream is " + first.theirs + ", and of this node " + first.ours,
                    "field " + first.name);
}

Error full(size_t orders) {
  return user_error(err::kQueueFull, std::to_string(orders) + " orders about blocks wait already");
}

}  // namespace

void BlockOrders::answer(uint64_t id, decltype(OrderAnswer::what) what, Actions& out) {
  out.push_back(OrderAnswer{id, std::move(what)});
}

void BlockOrders::on_order(const BlockOrder& order, TimePoint now, Actions& out) {
  if (const auto* evict = std::get_if<EvictBlocks>(&order.what)) {
    if (evictions_.size() >= kWaitingMax) return answer(order.id, full(evictions_.size()), out);
    evictions_.push_back(
        {order.id, order.deadline, std::make_unique<Evicting>(*evict, book_.names(), book_.uses(), pins_)});
  } else if (const auto* pin = std::get_if<PinBlocks>(&order.what)) {
    begin(order, pin->prefix, now, out);
  } else if (const auto* unpin = std::get_if<UnpinBlocks>(&order.what)) {
    const auto blocks = pins_.unpin(unpin->prefix);
    if (blocks) return answer(order.id, UnpinReport{*blocks}, out);
    answer(order.id,
           user_error(err::kNotFound, "no pin ends with the block " + unpin->prefix.hex(), "prefix",
                      "mc-cache ls shows the pinned blocks; name the one that was pinned"),
           out);
  } else if (const auto* read = std::get_if<ReadBlocks>(&order.what)) {
    begin(order, read->prefix, now, out);
  } else if (const auto* blocks = std::get_if<WriteBlocks>(&order.what)) {
    auto pages = write(order.id, *blocks);
    if (!pages) return answer(order.id, pages.error(), out);
    answer(order.id, std::move(*pages), out);
  } else {
    if (const auto* end = std::get_if<EndOrder>(&order.what))
      if (const auto read = reads_.find(order.id); read != reads_.end()) end_read(read->second, end->rotten);
    end(order.id, std::holds_alternative<CancelOrder>(order.what), out);
  }
}

void BlockOrders::on_tick(TimePoint now, Actions& out) {
  if (!evictions_.empty()) {
    Eviction& eviction = evictions_.front();
    const bool over = eviction.work->step({shelves_, disk_}, now, out);
    if (over) answer(eviction.id, eviction.work->report(), out);
    if (!over && now >= eviction.deadline) answer(eviction.id, late(), out);
    if (over || now >= eviction.deadline) evictions_.pop_front();
  }
  std::erase_if(evictions_, [&](const Eviction& waiting) {
    const bool is_late = now >= waiting.deadline;
    if (is_late) answer(waiting.id, late(), out);
    return is_late;
  });
  for (size_t i = 0; i < waiting_.size();) {
    const bool done = disk_.done(waiting_[i].load);
    if (!done && now < waiting_[i].order.deadline) {
      ++i;
      continue;
    }
    const Waiting served = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (done)
      finish(served, now, out);
    else
      answer(served.order.id, late(), out);
    disk_.end(served.load);  // the lease holds the blocks from here on
  }
  std::erase_if(saving_, [&](Saving& saving) { return save(saving, now, out); });
}

void BlockOrders::expired(const Shelf& shelf, kv::LeaseId lease) {
  pins_.expired(shelf, lease);
  std::erase_if(reads_, [&](const auto& read) { return read.second.shelf == &shelf && read.second.lease == lease; });
}

TimePoint BlockOrders::next_wakeup() const {
  if (!evictions_.empty()) return TimePoint{};
  TimePoint at = kNever;
  for (const Waiting& waiting : waiting_)
    at = std::min(at, disk_.done(waiting.load) ? TimePoint{} : waiting.order.deadline);
  for (const Saving& saving : saving_) {
    const bool waits = saving.next < saving.missing.size() && disk_.writes().is_to_come(saving.missing[saving.next]);
    at = std::min(at, waits ? saving.deadline : TimePoint{});
  }
  return at;
}

uint64_t BlockOrders::owned(const kv::Pool& pool) const {
  uint64_t pages = 0;
  for (const auto& [id, writing] : writes_) pages += &writing.shelf->pool == &pool ? writing.fill.pages.size() : 0;
  return pages;
}

// ---- chains ----------------------------------------------------------------------------------

Result<BlockOrders::Chain> BlockOrders::chain_to(const BlockHash& last) const {
  Chain chain;
  for (BlockHash at = last; !at.is_zero();) {
    const auto shelf =
        std::find_if(shelves_.begin(), shelves_.end(), [&](const Shelf* s) { return s->pool.find(at) != kv::kNoPage; });
    const DiskBlocks::Entry* entry = disk_.blocks().find(at);
    if (shelf == shelves_.end() && !entry)
      return user_error(err::kNotFound,
                        at == last ? "the node has no block " + at.hex()
                                   : "the chain is broken: the node has no block " + at.hex() + ", which comes " +
                                         std::to_string(chain.hashes.size()) + " blocks before " + last.hex(),
                        "prefix", "mc-cache ls shows the blocks of the node");
    if (chain.hashes.size() >= kChainBlocksMax)
      return user_error(err::kInvalidField, "the chain has more than " + std::to_string(kChainBlocksMax) + " blocks",
                        "prefix");
    chain.hashes.push_back(at);
    const kv::BlockMeta* meta = nullptr;
    if (shelf != shelves_.end()) meta = &(*shelf)->pool.meta((*shelf)->pool.find(at));
    chain.name_space = meta ? meta->name_space : entry->name_space;
    if (meta) chain.shelf = *shelf;
    at = meta ? meta->parent : entry->parent;
  }
  std::reverse(chain.hashes.begin(), chain.hashes.end());
  if (!chain.shelf) chain.shelf = source_.shelf_of(chain.name_space);
  if (!chain.shelf)
    return user_error(err::kNotFound, "the blocks are on disk alone, and the node no longer knows their layout",
                      "prefix", "send the prompt again, or restart the node, which reads layouts from its disk");
  return chain;
}

/// The part of the chain that the order is about.
std::span<const BlockHash> BlockOrders::wanted(const Waiting& waiting) const {
  const std::span<const BlockHash> all = waiting.chain.hashes;
  const auto* read = std::get_if<ReadBlocks>(&waiting.order.what);
  if (!read) return all;
  MC_ASSERT_LT(read->first, all.size());
  const uint64_t fit = std::max<uint64_t>(1, read->bytes_max / waiting.chain.shelf->layout.page_bytes());
  return all.subspan(read->first, std::min<uint64_t>(fit, all.size() - read->first));
}

void BlockOrders::begin(const BlockOrder& order, const BlockHash& last, TimePoint now, Actions& out) {
  const auto* pin = std::get_if<PinBlocks>(&order.what);
  if (pin && pin->durable && disk_.state() != DiskTier::State::on)
    return answer(order.id,
                  disk_.state() == DiskTier::State::none
                      ? user_error(err::kNotDurable, "the node has no disk, and keeps blocks at d0", "durability",
                                   "start the node with --ssd DIR:SIZE, or leave --durability out")
                      : user_error(err::kNotDurable, "the node has lost its disk", "durability",
                                   "look into the node's log for the cause, and restart the node"),
                  out);
  const size_t under_way = waiting_.size() + saving_.size();
  if (under_way + reads_.size() >= kWaitingMax) return answer(order.id, full(under_way), out);
  auto chain = chain_to(last);
  if (!chain) return answer(order.id, chain.error(), out);
  const auto* read = std::get_if<ReadBlocks>(&order.what);
  const Shelf* shelf = source_.shelf_of(chain->name_space);
  if (read && kv_.layers > 0 && (!shelf || shelf->layout.stage.count() > 0))  // a cache node leads none
    return answer(order.id,
                  user_error(err::kNotFound, "the node leads a pipeline, whose members hold the blocks in parts",
                             "prefix", "export from a node outside the pipeline"),
                  out);
  if (read && read->first >= chain->hashes.size())
    return answer(
        order.id,
        user_error(err::kInvalidField, "the chain has " + std::to_string(chain->hashes.size()) + " blocks", "first"),
        out);
  if (!read && chain->hashes.size() > kPinBlocksMax)
    return answer(
        order.id,
        user_error(err::kNotEnoughMemory, "the chain has " + std::to_string(chain->hashes.size()) +
                                              " blocks, and a pin has at most " + std::to_string(kPinBlocksMax)),
        out);
  Waiting waiting{order, std::move(*chain), 0, 0};
  const auto hashes = wanted(waiting);
  waiting.loaded = static_cast<uint64_t>(std::count_if(hashes.begin(), hashes.end(), [&](const BlockHash& hash) {
    return waiting.chain.shelf->pool.find(hash) == kv::kNoPage;
  }));
  waiting.load = disk_.load(*waiting.chain.shelf, waiting.chain.name_space, hashes, now, out);
  if (waiting.load == 0) return finish(waiting, now, out);
  waiting_.push_back(std::move(waiting));
}

void BlockOrders::finish(const Waiting& waiting, TimePoint now, Actions& out) {
  const auto reply = [&](auto result) {
    if (result)
      answer(waiting.order.id, std::move(*result), out);
    else
      answer(waiting.order.id, result.error(), out);
  };
  if (const auto* order = std::get_if<PinBlocks>(&waiting.order.what)) {
    auto pinned = pin(waiting, *order, now);
    if (pinned && order->durable) {
      pinned->durable = true;
      Saving saving{waiting.order.id, waiting.order.deadline, waiting.chain.shelf, waiting.chain.hashes, *pinned, {}};
      saving.missing = not_on_disk(saving);
      disk_.writes().ask(*saving.shelf, saving.missing);
      saving_.push_back(std::move(saving));
      return;
    }
    return reply(std::move(pinned));
  }
  const auto* order = std::get_if<ReadBlocks>(&waiting.order.what);
  MC_ASSERT(order != nullptr);
  reply(read(waiting, *order, now));
}

Result<PinReport> BlockOrders::pin(const Waiting& waiting, const PinBlocks& order, TimePoint now) {
  Shelf& shelf = *waiting.chain.shelf;
  std::vector<kv::PageIndex> pages;
  for (const BlockHash& hash : waiting.chain.hashes) {
    pages.push_back(shelf.pool.find(hash));
    if (pages.back() == kv::kNoPage)
      return user_error(err::kNotEnoughMemory,
                        "block " + std::to_string(pages.size()) + " of " + std::to_string(waiting.chain.hashes.size()) +
                            " could not be brought from disk to memory",
                        "prefix", "retry; the node's log says why, or requests use its memory");
  }
  MC_CHECK(pins_.pin(order.prefix, shelf, pages, after(now, order.time)));
  shelf.pool.touch(waiting.chain.hashes);
  disk_.hit(shelf.pool, waiting.chain.hashes);
  return PinReport{
      {pages.size(), pages.size() * shelf.layout.page_bytes()}, waiting.loaded, pins_.bytes(), pins_.bytes_max()};
}

std::vector<BlockHash> BlockOrders::not_on_disk(const Saving& saving) const {
  std::vector<BlockHash> out;
  for (const BlockHash& hash : saving.chain)
    if (!disk_.has(hash)) out.push_back(hash);
  return out;
}

/// Whether every write of the round has ended.
bool BlockOrders::has_written(Saving& saving) const {
  while (saving.next < saving.missing.size() && !disk_.writes().is_to_come(saving.missing[saving.next])) ++saving.next;
  return saving.next == saving.missing.size();
}

bool BlockOrders::save(Saving& saving, TimePoint now, Actions& out) {
  const bool written = has_written(saving), late = !written && now >= saving.deadline;
  if (!written && !late) return false;
  std::vector<BlockHash> left = not_on_disk(saving);
  disk_.writes().unask(saving.missing);
  if (left.empty()) {
    answer(saving.id, saving.report, out);
    return true;
  }
  if (!late && left.size() < saving.missing.size()) {  // the disk gave up blocks of the chain for others of it
    disk_.writes().ask(*saving.shelf, left);
    saving.missing = std::move(left), saving.next = 0;
    return false;
  }
  const std::string counts = std::to_string(saving.chain.size() - left.size()) + " of the chain's " +
                             std::to_string(saving.chain.size()) +
                             " blocks are on disk, and the chain is pinned in memory alone";
  answer(saving.id,
         late ? user_error(err::kDeadlineExceeded, "the time is over: " + counts, "durability",
                           "pin again, which goes on with the rest; --ssd-write-budget and the disk bound the speed")
              : user_error(err::kNotDurable, counts, "durability",
                           "look into the node's log, or give its --ssd more space"),
         out);
  return true;
}

Result<BlockRun> BlockOrders::read(const Waiting& waiting, const ReadBlocks& order, TimePoint now) {
  Shelf& shelf = *waiting.chain.shelf;
  const auto hashes = wanted(waiting);
  BlockRun run{.shelf = shelf.number, .layout = shelf.layout, .name_space = waiting.chain.name_space};
  run.first = order.first, run.chain_blocks = static_cast<uint32_t>(waiting.chain.hashes.size());
  for (const BlockHash& hash : hashes) {
    const kv::PageIndex page = shelf.pool.find(hash);
    if (page == kv::kNoPage) break;
    run.pages.push_back(page);
    run.blocks.push_back(shelf.pool.meta(page));
  }
  if (run.pages.empty())
    return user_error(err::kNotEnoughMemory, "block " + std::to_string(order.first) + " could not be brought to memory",
                      "prefix", "retry; the node's log says why, or requests use its memory");
  if (const NamespaceBook::Entry* entry = book_.names().find(run.name_space))
    run.kv_namespace = entry->kv_namespace, run.model = entry->model;
  MC_TRY(lease, shelf.leases.grant("export", run.pages, now + kLeaseTime));
  reads_.emplace(waiting.order.id,
                 Reading{&shelf, lease, run.pages, {hashes.begin(), hashes.begin() + run.pages.size()}});
  return run;
}

/// Damaged blocks leave memory. A copy on disk stays, and the next reader gets that.
void BlockOrders::end_read(const Reading& read, std::span<const uint32_t> rotten) {
  checksum_failures_ += rotten.size();
  book_.drop_rotten(read.shelf->pool, read.hashes, read.pages, rotten);
}

// ---- writes ----------------------------------------------------------------------------------

/// Takes pages for the blocks that the node lacks, those at the front of the run first.
Result<PagesToFill> BlockOrders::write(uint64_t id, const WriteBlocks& order) {
  MC_ASSERT(!order.blocks.empty());
  if (writes_.size() >= kWaitingMax) return full(writes_.size());
  const NamespaceBook::Entry* own = book_.names().find(kv_.id());
  MC_CHECK(check_identity(kv_, own ? own->model : "", order));
  MC_TRY(shelf, source_.open_shelf(order.kv, order.name_space, order.layout));
  book_.names().add(order.name_space, order.kv, order.model);
  Writing writing{order, shelf, {}, {}, {}};
  if (kv_.layers > 0 && kv_.attention != order.kv.attention)
    writing.report.attention = order.kv.attention, writing.report.node_attention = kv_.attention;
  kv::Pool& pool = shelf->pool;
  const auto hold = [&](const BlockHash& hash) {  // no page is taken from the chain itself
    const kv::PageIndex page = pool.find(hash);
    if (page != kv::kNoPage) pool.pin(page), writing.held.push_back(page);
    return page != kv::kNoPage || disk_.has(hash);
  };
  const BlockHash& before = order.blocks.front().parent;
  if (!before.is_zero() && !hold(before))
    return user_error(err::kNotFound, "the node has no block " + before.hex() + ", which comes before the first one",
                      "parent", "import the chain from its beginning");
  for (size_t i = 0; i < order.blocks.size(); ++i) {
    if (hold(order.blocks[i].hash))
      ++writing.report.known;
    else
      writing.fill.blocks.push_back(i);
  }
  const auto missing = static_cast<uint32_t>(writing.fill.blocks.size());
  if (shelf->make_room) shelf->make_room(missing);
  const uint32_t fit = std::min(missing, pool.available());
  writing.report.omitted = missing - fit;
  writing.fill.blocks.resize(fit);
  writing.fill.pages.resize(fit);
  writing.fill.shelf = shelf->number;
  const auto taken = pool.allocate(std::span(writing.fill.pages));
  MC_ASSERT(taken.has_value());
  PagesToFill fill = writing.fill;
  const bool fresh = writes_.emplace(id, std::move(writing)).second;
  MC_ASSERT(fresh);
  return fill;
}

void BlockOrders::end(uint64_t id, bool cancelled, Actions& out) {
  std::erase_if(evictions_, [&](const Eviction& eviction) { return eviction.id == id; });
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.order.id != id) return false;
    disk_.end(waiting.load);
    return true;
  });
  std::erase_if(saving_, [&](const Saving& saving) {
    if (saving.id != id) return false;
    disk_.writes().unask(saving.missing);
    return true;
  });
  if (const auto read = reads_.find(id); read != reads_.end()) {
    (void)read->second.shelf->leases.release(read->second.lease);
    reads_.erase(read);
  }
  const auto it = writes_.find(id);
  if (it == writes_.end()) return;
  const Writing writing = std::move(it->second);
  writes_.erase(it);
  kv::Pool& pool = writing.shelf->pool;
  if (cancelled) {
    pool.release(writing.fill.pages);
  } else {
    for (size_t i = 0; i < writing.fill.pages.size(); ++i)
      pool.unpin(pool.publish(writing.fill.pages[i], writing.order.blocks[writing.fill.blocks[i]]).page);
    WriteReport report = writing.report;
    report.stored = writing.fill.pages.size();
    answer(id, report, out);
  }
  pool.unpin(writing.held);
}

}  // namespace mc::node
