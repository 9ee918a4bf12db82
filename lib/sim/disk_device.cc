#include "sim/disk_device.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/fd.h"
#include "node/disk_block.h"

namespace mc::sim {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{64} << 10;
constexpr size_t kFoundAtOnce = 16;
constexpr size_t kTagBytesMax = node::kDiskFrontBytes;  // one page of tags behind the front

struct alignas(4096) Value {
  std::array<std::byte, node::kDiskFrontBytes> front;
  std::array<std::byte, kTagBytesMax> tags;
  std::span<std::byte> bytes() { return {front.data(), sizeof *this}; }
};
static_assert(sizeof(Value) == node::kDiskFrontBytes + kTagBytesMax);

}  // namespace

/// The files of a node as its store sees them, with the faults.
class DiskDevice::Platter final : public store::Disk {
 public:
  Platter(store::Disk& files, const Faults& faults, Rng& rng) : files_(files), faults_(faults), rng_(rng) {}

  /// The faults begin: a start reads a sound disk, so that it must find every acknowledged block.
  void begin_faults() { faulty_ = true; }
  /// Only so many more pages reach the files, and then nothing does: the process dies.
  void die_after(uint64_t pages) { pages_left_ = pages; }

  Result<std::vector<std::string>> list() override { return files_.list(); }
  Result<store::FileId> open(const std::string& name) override { return files_.open(name); }
  Result<store::FileId> create(const std::string& name, uint64_t bytes) override {
    if (pages_left_ == 0) return errno_error(name, EIO);
    if (faulty_ && rng_.chance(faults_.disk_full)) return errno_error(name, ENOSPC);
    return files_.create(name, bytes);
  }
  Result<void> remove(const std::string& name, store::FileId file) override {
    if (pages_left_ == 0) return errno_error(name, EIO);
    return files_.remove(name, file);
  }
  uint64_t size(store::FileId file) const override { return files_.size(file); }

  void run(std::span<store::Io> ios, const std::function<void(store::Io&)>& ended) override {
    for (store::Io& io : ios) {
      if (io.op == store::Io::Op::write && pages_left_ != UINT64_MAX) {
        write_in_part(io);
      } else if (pages_left_ == 0 || (faulty_ && rng_.chance(faults_.disk_error))) {
        io.error = EIO;
      } else {
        files_.run({&io, 1}, [](store::Io&) {});
        if (io.op == store::Io::Op::read && io.error == 0 && faulty_ && rng_.chance(faults_.disk_rot)) flip(io);
      }
      ended(io);
    }
  }

 private:
  void write_in_part(store::Io& io) {
    const uint64_t pages = std::min(pages_left_, store::bytes_of(io.parts) / store::kPageBytes);
    const bool whole = pages * store::kPageBytes == store::bytes_of(io.parts);
    pages_left_ -= pages;
    uint64_t left = pages * store::kPageBytes;
    std::vector<iovec> parts;
    for (const iovec& part : io.parts) {
      if (left == 0) break;
      parts.push_back({part.iov_base, std::min<size_t>(part.iov_len, left)});
      left -= parts.back().iov_len;
    }
    store::Io part = io;
    part.parts = parts;
    if (!parts.empty()) files_.run({&part, 1}, [](store::Io&) {});
    io.error = whole ? part.error : EIO;
  }
  void flip(const store::Io& io) {
    const iovec& part = io.parts[rng_.below(io.parts.size())];
    static_cast<std::byte*>(part.iov_base)[rng_.below(part.iov_len)] ^= std::byte{1};
  }

  store::Disk& files_;
  const Faults& faults_;
  Rng& rng_;
  uint64_t pages_left_ = UINT64_MAX;
  bool faulty_ = false;
};

DiskDevice::~DiskDevice() = default;

// ---- time ------------------------------------------------------------------------------------

Duration DiskDevice::time_of(const Process& process, bool is_write) {
  if (const sched::Profile* p = options_.profile) {
    const sched::Path& path = is_write ? p->paths.ssd_write : p->paths.ssd_read;
    const double bytes = static_cast<double>(p->kv_bytes_per_token) * options_.block_tokens;
    Node& node = nodes_.at(process.name);
    node.busy_until = std::max(node.busy_until, agenda_.now()) + from_seconds(bytes / path.bytes_per_s);
    return node.busy_until - agenda_.now() + from_seconds(path.latency_s);
  }
  if (rng_.chance(options_.faults.disk_slow)) return Duration(rng_.between(50'000'000, 7'000'000'000));
  return Duration(rng_.between(50'000, 400'000));
}

void DiskDevice::later(const Process& process, Duration delay, std::function<void(Process&, Node&)> then) {
  agenda_.at(agenda_.now() + delay, [this, name = process.name, instance = process.instance, then = std::move(then)] {
    const auto it = processes_.find(name);
    if (it->second->runs(instance)) then(*it->second, nodes_.at(name));
  });
}

// ---- coming and going ------------------------------------------------------------------------

void DiskDevice::start(const Process& process) {
  if (!process.worker || process.worker->disk().state() == node::DiskTier::State::none) return;
  Node& node = nodes_[process.name];
  if (!node.files) node.files = store::kDiskMemory.open("", store::Access::read_write).value();
  auto platter = std::make_unique<Platter>(*node.files, options_.faults, rng_);
  node.platter = platter.get();
  store::Options options;
  const uint64_t blocks_in_segment = (kSegmentBytes / store::kPageBytes - 3) / 2;
  options.capacity_bytes = (disk_blocks_of(options_, process.place) / blocks_in_segment + 1) * kSegmentBytes;
  options.segment_bytes = kSegmentBytes;
  options.id.bytes[0] = 1;
  options.report_evictions = true;
  auto store = store::Store::open(std::move(platter), options);
  if (!store) return findings_.add(agenda_.now(), process.name + ": the disk does not open: " + store.error().what);
  node.store = std::move(*store);
  node.platter->begin_faults();
  std::vector<Id128> ids;
  node.store->for_each([&](const Id128& id, uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  for (const BlockHash& hash : node.acknowledged)
    if (!std::binary_search(ids.begin(), ids.end(), static_cast<const Id128&>(hash)))
      findings_.add(agenda_.now(), process.name + ": the disk lost block " + hash.short_hex());
  find(process, std::move(ids), 0);
}

void DiskDevice::find(const Process& process, std::vector<Id128> ids, size_t begin) {
  later(process, time_of(process, false), [this, ids = std::move(ids), begin](Process& p, Node& node) {
    const size_t end = std::min(ids.size(), begin + kFoundAtOnce);
    auto fronts = std::make_unique<std::array<Value, kFoundAtOnce>>();
    std::vector<store::Get> gets;
    for (size_t i = begin; i < end; ++i) gets.push_back({.id = ids[i], .room = (*fronts)[i - begin].front});
    node.store->peek(gets);
    node::DiskFound found;
    for (const store::Get& get : gets) {
      auto block =
          get.code == Code::ok ? node::parse_disk_front(get.room) : Result<node::DiskBlock>(Error{get.code, ""});
      if (block && block->hash == get.id) found.blocks.push_back(std::move(*block));
    }
    found.last = end == ids.size();
    const bool last = found.last;
    const std::string name = p.name;
    const InstanceId instance = p.instance;
    deliver_(name, instance, std::move(found));
    const auto it = processes_.find(name);
    if (!last && it->second->runs(instance)) find(*it->second, ids, end);
  });
}

void DiskDevice::crash(const Process& process) {
  const auto it = nodes_.find(process.name);
  if (it == nodes_.end() || !it->second.store) return;
  Node& node = it->second;
  node.platter->die_after(rng_.below(8));
  for (const auto& [op, write] : node.writing)
    if (rng_.chance(0.5)) (void)put(process, node, write);
  node.platter->die_after(0);
  for (const Id128& id : node.store->take_evicted()) node.acknowledged.erase(BlockHash{id});
  node.writing.clear();
  node.store.reset();
  node.platter = nullptr;
  node.busy_until = {};
}

// ---- operations ------------------------------------------------------------------------------

void DiskDevice::tell_evicted(const Process& process, Node& node) {
  node::DiskEvicted evicted;
  for (const Id128& id : node.store->take_evicted()) {
    node.acknowledged.erase(BlockHash{id});
    evicted.hashes.push_back(BlockHash{id});
  }
  if (!evicted.hashes.empty()) deliver_(process.name, process.instance, std::move(evicted));
}

void DiskDevice::write(const Process& process, const node::DiskWrite& write) {
  nodes_.at(process.name).writing.emplace(write.op, write);
  later(process, time_of(process, true), [this, write](Process& p, Node& node) { finish_write(p, node, write); });
}

Code DiskDevice::put(const Process& process, Node& node, const node::DiskWrite& write) {
  const ExtentLayout& layout = write.block.layout;
  auto value = std::make_unique<Value>();
  value->tags.fill(std::byte{0});
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    const auto at =
        process.memory.find(process.worker->local_offset(write.pool, write.page) + layout.layer_offset(layer));
    const uint64_t tag = at == process.memory.end() ? 0 : at->second;
    if (options_.verify_checksums && static_cast<uint32_t>(tag) != write.block.layer_crcs[layer]) return Code::corrupt;
    std::memcpy(value->tags.data() + layer * sizeof tag, &tag, sizeof tag);
  }
  node::encode_disk_front(write.block, value->front);
  const store::Put put{.id = write.block.hash, .bytes = value->bytes()};
  const auto done = node.store->put({&put, 1}, store::Level::durable);
  return done ? Code::ok : done.error().code;
}

void DiskDevice::finish_write(Process& process, Node& node, const node::DiskWrite& write) {
  const Code code = put(process, node, write);
  node.writing.erase(write.op);
  if (code == Code::ok) node.acknowledged.insert(write.block.hash);
  const std::string name = process.name;
  const InstanceId instance = process.instance;
  tell_evicted(process, node);
  deliver_(name, instance, node::DiskWritten{write.op, code, "simulated"});
}

void DiskDevice::load(const Process& process, const node::DiskLoad& load) {
  later(process, time_of(process, false), [this, load](Process& p, Node& node) { finish_load(p, node, load); });
}

void DiskDevice::finish_load(Process& process, Node& node, const node::DiskLoad& load) {
  auto value = std::make_unique<Value>();
  store::Get get{.id = load.hash, .room = value->bytes()};
  node.store->get({&get, 1});
  node::DiskLoaded done{load.op, get.code, "simulated", {}, {}};
  if ((*process.worker->shelves()[load.pool]).pool.state(load.page) != kv::PageState::owned)
    findings_.add(agenda_.now(), process.name + ": a page was given away under a load");
  if (get.code == Code::ok) {
    auto block = node::parse_disk_front(value->front);
    MC_ASSERT(block.has_value() && block->layout == load.layout);
    // Without checksums a flipped bit gets through, and the oracle must see it.
    const bool flip = !options_.verify_checksums && rng_.chance(options_.faults.disk_rot);
    for (uint32_t layer = 0; layer < load.layout.layers; ++layer) {
      uint64_t tag = 0;
      std::memcpy(&tag, value->tags.data() + layer * sizeof tag, sizeof tag);
      process.memory[process.worker->local_offset(load.pool, load.page) + load.layout.layer_offset(layer)] =
          tag ^ (flip ? 1 : 0);
    }
    done.layer_crcs = std::move(block->layer_crcs);
    done.tokens = std::move(block->tokens);
  }
  if (get.code == Code::corrupt) node.acknowledged.erase(load.hash);
  const std::string name = process.name;
  const InstanceId instance = process.instance;
  tell_evicted(process, node);
  deliver_(name, instance, std::move(done));
}

void DiskDevice::drop(const Process& process, const node::DiskDrop& drop) {
  Node& node = nodes_.at(process.name);
  const std::vector<Id128> ids(drop.hashes.begin(), drop.hashes.end());
  (void)node.store->drop(ids, store::Level::written);  // a restart that finds the block again does no harm
  for (const BlockHash& hash : drop.hashes) node.acknowledged.erase(hash);
}

}  // namespace mc::sim
