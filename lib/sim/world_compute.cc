// The stand-in for model and transfer: runs and reads take time, move tags between pages, and are
// watched for pages that two hands write or that are written although others may read them.

#include <algorithm>

#include "base/assert.h"
#include "node/cache.h"
#include "sim/process.h"

namespace mc::sim {
namespace {

constexpr Duration kChunkBase = 300us, kTokenCost = 20us;  // 64 tokens: 1.6 ms
constexpr Duration kStepBase = 500us, kRowCost = 50us;
constexpr double kReadBytesPerSecond = 2e9;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

ExtentLayout layout_of(const WorldOptions& o) {
  ExtentLayout layout;
  layout.layers = o.layers, layout.kv_heads = 1, layout.head_dim = 16, layout.block_tokens = o.block_tokens;
  layout.dtype = Dtype::f32;
  return layout;
}

// A page stands for so many times the bytes it has.
double byte_scale(const sched::Profile& profile, const ExtentLayout& layout) {
  return static_cast<double>(profile.kv_bytes_per_token * layout.block_tokens) /
         static_cast<double>(layout.layers * layout.layer_bytes());
}

Duration step_time(const sched::Profile* p, const node::RunStep& run) {
  const auto& rows = run.rows->in;
  if (p == nullptr) return kStepBase + kRowCost * static_cast<int64_t>(rows.size());
  double kv_tokens = 0, joining = 0;
  for (const auto& row : rows) kv_tokens += row.position + 1, joining += row.joined;
  return from_seconds(p->step_s(static_cast<double>(rows.size()), kv_tokens) + joining * p->join_s);
}

}  // namespace

uint64_t tag_begin(uint64_t previous, uint32_t layer) {
  return mix(previous + 0x9e3779b97f4a7c15ull * (layer + 1));
}
uint64_t tag_extend(uint64_t tag, uint64_t row) {
  return mix(tag + 0x2545f4914f6cdd1dull * (row + 1));
}
uint64_t next_row(uint64_t row, uint64_t tag) {
  return mix(row * 31 + tag);
}
uint64_t tag_fold(uint64_t sum, uint64_t tag) {
  return mix(sum * 31 + tag);
}
uint32_t tag_token(uint64_t sum) {
  return static_cast<uint32_t>(mix(sum) % kVocab);
}

uint32_t Activations::crc() const {
  uint64_t sum = pages;
  for (const uint64_t row : rows) sum = tag_fold(sum, row);
  return static_cast<uint32_t>(sum);
}

std::string describe(const node::Worker& worker) {
  const auto load = worker.load();
  return std::to_string(load.running) + " running, " + std::to_string(load.waiting) + " waiting, " +
         std::to_string(load.pages_private) + " private pages, " + std::to_string(load.pages_pinned) + " pinned, " +
         std::to_string(load.leases) + " leases";
}

std::vector<uint32_t> World::oracle(const std::vector<uint32_t>& ids, uint32_t count) const {
  std::vector<std::vector<uint64_t>> blocks;  // [block][layer]
  uint32_t tokens = 0;
  const auto feed = [&](uint32_t token) {
    if (tokens % options_.block_tokens == 0) {
      blocks.emplace_back(options_.layers);
      for (uint32_t l = 0; l < options_.layers; ++l)
        blocks.back()[l] = tag_begin(blocks.size() > 1 ? blocks[blocks.size() - 2][l] : 0, l);
    }
    uint64_t row = token;
    for (uint64_t& tag : blocks.back()) tag = tag_extend(tag, row), row = next_row(row, tag);
    ++tokens;
  };
  for (uint32_t id : ids) feed(id);
  std::vector<uint32_t> answer;
  const bool stops = options_.profile == nullptr;
  while (answer.size() < count && tokens + 1 <= options_.context_tokens) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < options_.layers; ++l)
      for (const auto& block : blocks) sum = tag_fold(sum, block[l]);
    answer.push_back(tag_token(sum));
    if ((stops && answer.back() == kStopToken) || tokens + 1 >= options_.context_tokens) break;
    feed(answer.back());
  }
  return answer;
}

uint32_t World::stages_of(const std::string& leader) const {
  const size_t i = std::stoul(leader.substr(1));
  return i < options_.stages.size() ? options_.stages[i] : 1;
}

node::ActivationSlots World::activation_slots() const {
  node::ActivationSlots slots;
  slots.base = uint64_t{options_.page_count} * layout_of(options_).page_bytes();
  slots.row_bytes = sizeof(uint64_t);
  slots.slot_bytes = options_.chunk_tokens * slots.row_bytes;
  return slots;
}

std::unique_ptr<node::Worker> World::make_prefill(const std::string& name, node::WorkerOptions o) {
  const size_t dot = name.find('.');
  const std::string leader = name.substr(0, dot);
  const uint32_t stage = dot == std::string::npos ? 0 : static_cast<uint32_t>(std::stoul(name.substr(dot + 1)));
  o.stages = stages_of(leader);
  if (o.stages > 1) o.layout.stage = stage_layers(o.layout.layers, stage, o.stages);
  // A full pipeline finishes a prompt in little more than one stage's time.
  for (double* part : {&o.cost.prefill_s, &o.cost.prefill_s_per_token}) *part /= o.stages;
  if (stage == 0) {
    o.role = wire::Role::prefill;
    return std::make_unique<node::Prefill>(
        o,
        node::PrefillOptions{.chunk_tokens = options_.chunk_tokens, .stages = o.stages, .slots = activation_slots()});
  }
  o.role = wire::Role::stage;
  return std::make_unique<node::Stage>(o, node::StageOptions{.leader = leader,
                                                             .stage = stage,
                                                             .stages = o.stages,
                                                             .chunk_tokens = options_.chunk_tokens,
                                                             .slots = activation_slots()});
}

std::unique_ptr<node::Worker> World::make_worker(const std::string& name, const InstanceId& instance) {
  node::WorkerOptions o;
  o.name = name;
  o.instance = instance;
  o.control_uri = "sim:" + name;
  o.layout = layout_of(options_);
  o.page_count = options_.page_count;
  o.context_tokens = options_.context_tokens;
  o.model = "sim";
  o.kv.weights = "sim", o.kv.config = "sim", o.kv.dtype = "f32", o.kv.weight_dtype = "f32", o.kv.kv_dtype = "f32";
  o.kv.rope = "none", o.kv.attention = "full";
  o.kv.layers = options_.layers, o.kv.kv_heads = 1, o.kv.head_dim = 16, o.kv.block_tokens = options_.block_tokens;
  o.kv.layout = ExtentLayout::kVersion;
  o.cost.prefill_s = to_seconds(kChunkBase), o.cost.prefill_s_per_token = to_seconds(kTokenCost);
  o.cost.decode_s = to_seconds(kStepBase), o.cost.decode_s_per_row = to_seconds(kRowCost);
  o.cost.read_bytes_per_s = kReadBytesPerSecond;
  if (const sched::Profile* p = options_.profile) {
    o.cost = p->cost;
    o.cost.read_bytes_per_s /= byte_scale(*p, o.layout);
    if (name[0] == 'd' && options_.decode_pages > 0) o.page_count = options_.decode_pages;
  }
  o.seed = rng_.next();
  if (name[0] == 'p') return make_prefill(name, std::move(o));
  if (name[0] == 'd') {
    o.role = wire::Role::decode;
    return std::make_unique<node::Decode>(o, node::DecodeOptions{.batch_max = options_.batch_max});
  }
  o.role = wire::Role::cache;
  o.page_count = 0;
  o.kv = {};
  o.model.clear();
  node::CacheOptions cache;
  cache.segment_bytes = 4ull * options_.page_count * o.layout.page_bytes();
  cache.slab_bytes = 4 * o.layout.page_bytes();
  return std::make_unique<node::Cache>(o, cache);
}

// ---- pages being written ---------------------------------------------------------------------

void World::claim(Process& process, uint64_t offset, uint64_t op) {
  const auto [it, fresh] = process.claims.emplace(offset, op);
  if (!fresh && it->second != op) violate(process.name + ": offset " + std::to_string(offset) + " is in two hands");
}

void World::check_owned(const Process& process, uint32_t pool, kv::PageIndex page, const char* what) {
  if (!process.is_stage() && process.worker->local_shelf(pool).pool.state(page) != kv::PageState::owned)
    violate(process.name + ": page " + std::to_string(page) + what);
}

void World::claim_page(Process& process, uint64_t op, uint32_t page, uint32_t layer) {
  check_owned(process, 0, page, " is written while it is not owned");
  claim(process, process.worker->local_offset(0, page) + process.worker->local_shelf(0).layout.layer_offset(layer), op);
}

void World::release_claims(Process& process, uint64_t op) {
  std::erase_if(process.claims, [&](const auto& c) { return c.second == op; });
}

// ---- reads -----------------------------------------------------------------------------------

// With a profile a link carries one read at a time, the reader's and the source's, each for the whole of its modelled
// time: a read that is cancelled or times out gives nothing back. Costed workers (run/modelled_link.h) have the
// reader's link alone, and give the rest back.
Duration World::read_time(Process& process, const node::Read& read, uint64_t bytes) {
  const sched::Profile* p = options_.profile;
  if (p == nullptr) return from_seconds(static_cast<double>(bytes) / kReadBytesPerSecond);
  Process& source = *processes_.at(read.peer);
  const TimePoint start = std::max({now_, process.receives_until, source.sends_until});
  const double modelled = static_cast<double>(bytes) * byte_scale(*p, process.worker->local_shelf(read.pool).layout);
  source.sends_until = process.receives_until = start + from_seconds(modelled / p->net.bytes_per_s);
  return process.receives_until - now_ + from_seconds(p->net.latency_s);
}

void World::perform_read(Process& process, const node::Read& read) {
  uint64_t bytes = 0;
  for (const auto& slice : read.slices) {
    check_owned(process, read.pool, slice.page, " is read into while it is not owned");
    claim(process, process.worker->local_offset(read.pool, slice.page) + slice.page_offset, read.read);
    bytes += slice.bytes;
  }
  const Faults& f = options_.faults;
  Duration took = Duration(rng_.between(f.delay_min.count(), f.delay_max.count())) + read_time(process, read, bytes);
  Code fate = rng_.chance(f.fail_read) ? Code::peer_lost : Code::ok;
  if (f.cut.contains({process.name, read.peer})) fate = f.cut_code;
  if (took > read.budget) took = std::max(read.budget, Duration(0)), fate = Code::timeout;
  at(now_ + took,
     [this, name = process.name, instance = process.instance, read, fate] { finish_read(name, instance, read, fate); });
}

// What is at the source now: a page or a slot that was given away meanwhile has other bytes, which the checksum shows.
Code World::take_slice(Process& process, const Process& source, const node::Read& read, const node::ReadSlice& slice,
                       bool flipped) {
  const uint64_t to = process.worker->local_offset(read.pool, slice.page) + slice.page_offset;
  uint32_t crc = 0;
  if (process.is_stage()) {
    const auto found = source.slots.find(slice.remote_offset);
    Activations& rows = process.slots[to] = found == source.slots.end() ? Activations{} : found->second;
    if (flipped) rows.pages ^= 1;
    crc = rows.crc();
  } else {
    const auto found = source.memory.find(slice.remote_offset);
    const uint64_t tag = (found == source.memory.end() ? 0 : found->second) ^ (flipped ? 1 : 0);
    check_owned(process, read.pool, slice.page, " was given away under a read");
    process.memory[to] = tag;
    crc = static_cast<uint32_t>(tag);
  }
  return options_.verify_checksums && crc != slice.crc ? Code::corrupt : Code::ok;
}

void World::finish_read(const std::string& name, const InstanceId& instance, const node::Read& read, Code fate) {
  const auto it = processes_.find(name);
  if (!it->second->machine || it->second->instance != instance) return;
  Process& process = *it->second;
  const auto source = processes_.find(read.peer);
  const bool gone = source == processes_.end() || !source->second->machine || source->second->instance != read.instance;
  if (process.cancelled.erase(read.read) > 0)
    fate = Code::cancelled;
  else if (gone)
    fate = Code::peer_lost;
  if (fate == Code::ok) {
    const size_t flipped = rng_.chance(options_.faults.corrupt_read) ? rng_.below(read.slices.size()) : SIZE_MAX;
    for (size_t i = 0; i < read.slices.size(); ++i)
      if (take_slice(process, *source->second, read, read.slices[i], i == flipped) != Code::ok) fate = Code::corrupt;
  }
  release_claims(process, read.read);
  deliver(name, instance, node::ReadDone{read.read, fate, "simulated"});
}

// ---- runs ------------------------------------------------------------------------------------

// Layer by layer, so that a pipeline's stages do it one after the other.
uint64_t World::fold_pages(const Process& process, const std::vector<uint32_t>& pages, LayerRange layers,
                           uint64_t sum) const {
  const ExtentLayout& layout = process.worker->local_shelf(0).layout;
  for (uint32_t l = layers.first; l < layers.end; ++l)
    for (uint32_t page : pages) {
      const auto it = process.memory.find(process.worker->local_offset(0, page) + layout.layer_offset(l));
      sum = tag_fold(sum, it == process.memory.end() ? 0 : it->second);
    }
  return sum;
}

// A bit flips in a cached block that nobody uses now: one that is in use was checked before.
void World::rot(Process& process) {
  if (process.is_stage() || !rng_.chance(options_.faults.rot)) return;
  const kv::Pool& pool = process.worker->local_shelf(0).pool;
  std::vector<kv::PageIndex> pages;
  for (kv::PageIndex page = 0; page < pool.counts().total; ++page)
    if (pool.state(page) == kv::PageState::cached && pool.pins(page) == 0) pages.push_back(page);
  if (pages.empty()) return;
  const kv::PageIndex page = pages[rng_.below(pages.size())];
  // In any member of a pipeline: each has layers of the block.
  const auto member = static_cast<uint32_t>(rng_.below(process.name[0] == 'p' ? stages_of(process.name) : 1));
  const auto found = processes_.find(member == 0 ? process.name : node::stage_name(process.name, member));
  if (found == processes_.end() || !found->second->machine) return;
  Process& rots = *found->second;
  const ExtentLayout& layout = rots.worker->local_shelf(0).layout;
  const auto at = rots.memory.find(rots.worker->local_offset(0, page) + layout.layer_offset(layout.stage.first));
  if (at != rots.memory.end()) at->second ^= 1;
}

std::vector<uint32_t> World::rotten(const Process& process, const std::vector<uint32_t>& pages,
                                    const std::vector<uint32_t>& crcs, LayerRange layers) const {
  std::vector<uint32_t> out;
  const uint32_t each = layers.end - layers.first;
  for (uint32_t i = 0; options_.verify_checksums && i < crcs.size(); ++i) {
    const uint64_t offset = process.worker->local_offset(0, pages[i / each]) +
                            process.worker->local_shelf(0).layout.layer_offset(layers.first + i % each);
    const auto at = process.memory.find(offset);
    const bool good = at != process.memory.end() && static_cast<uint32_t>(at->second) == crcs[i];
    if (!good && (out.empty() || out.back() != i / each)) out.push_back(i / each);
  }
  return out;
}

Duration World::chunk_time(const node::RunChunk& run) const {
  const sched::Profile* p = options_.profile;
  if (p == nullptr) return kChunkBase + kTokenCost * static_cast<int64_t>(run.tokens.size());
  const double begin = run.start, end = begin + static_cast<double>(run.tokens.size());
  double seconds = p->chunk_s + p->chunk_compute_s(begin, end);
  if (run.start == run.reused) seconds += p->fixed_s() + p->reused_s_per_token * run.reused;
  return from_seconds(seconds);
}

void World::perform_chunk(Process& process, const node::RunChunk& run) {
  const ExtentLayout layout = process.worker->local_shelf(0).layout;
  const uint32_t bt = layout.block_tokens, first = run.start / bt;
  const LayerRange layers{run.first_layer, run.end_layer == 0 ? layout.layers : run.end_layer};
  MC_ASSERT_EQ(run.start % bt, 0u);
  MC_ASSERT(run.tokens.empty() || run.pages.size() == (run.start + run.tokens.size() + bt - 1) / bt);
  rot(process);
  node::ChunkDone checked{.run = run.run, .rotten = rotten(process, run.pages, run.prefix_crcs, layers)};
  if (run.tokens.empty() || !checked.rotten.empty()) {
    if (!checked.rotten.empty()) checked.code = Code::corrupt;
    at(now_ + kChunkBase, [this, name = process.name, instance = process.instance, done = std::move(checked)] {
      const auto it = processes_.find(name);
      if (it->second->machine && it->second->instance == instance) it->second->cancelled.erase(done.run);
      deliver(name, instance, done);
    });
    return;
  }
  for (uint32_t b = first; b < run.pages.size(); ++b)
    for (uint32_t l = layers.first; l < layers.end; ++l) claim_page(process, run.run, run.pages[b], l);
  auto activations = std::make_shared<Activations>();
  if (layers.first > 0)
    *activations = process.slots[activation_slots().offset(run.slot_in)];
  else
    activations->rows.assign(run.tokens.begin(), run.tokens.end());
  activations->rows.resize(run.tokens.size());  // without checksums a slot may hold those of another chunk
  if (layers.end < layout.layers) claim(process, activation_slots().offset(run.slot_out), run.run);
  const uint32_t count = layers.end - layers.first;
  const Duration total = chunk_time(run) * count / layout.layers;
  const auto live = [this, name = process.name, instance = process.instance]() -> Process* {
    Process* p = processes_.at(name).get();
    return p->machine && p->instance == instance ? p : nullptr;
  };
  for (uint32_t l = layers.first; l < layers.end; ++l)
    at(now_ + total * (l - layers.first + 1) / (count + (options_.profile ? 0 : 1)), [this, live, run, activations, l] {
      Process* p = live();
      if (p && !p->cancelled.contains(run.run)) compute_layer(*p, run, l, *activations);
    });
  at(now_ + total, [this, live, run, layers, activations, total] {
    if (Process* p = live()) end_chunk(*p, run, layers, std::move(*activations), total);
  });
}

void World::compute_layer(Process& process, const node::RunChunk& run, uint32_t layer, Activations& activations) {
  const ExtentLayout& layout = process.worker->local_shelf(0).layout;
  const uint32_t bt = layout.block_tokens, first = run.start / bt;
  const auto offset = [&](uint32_t block) {
    return process.worker->local_offset(0, run.pages[block]) + layout.layer_offset(layer);
  };
  node::LayerDone done{run.run, layer, first, {}};
  for (uint32_t b = first; b < run.pages.size(); ++b) {
    uint64_t tag = tag_begin(b == 0 ? 0 : process.memory[offset(b - 1)], layer);
    const size_t end = std::min<size_t>(run.tokens.size(), (b - first + 1) * size_t{bt});
    for (size_t t = (b - first) * size_t{bt}; t < end; ++t) {
      uint64_t& row = activations.rows[t];
      tag = tag_extend(tag, row), row = next_row(row, tag);
    }
    process.memory[offset(b)] = tag;
    done.crcs.push_back(static_cast<uint32_t>(tag));
  }
  deliver(process.name, process.instance, std::move(done));
}

void World::end_chunk(Process& process, const node::RunChunk& run, LayerRange layers, Activations activations,
                      Duration took) {
  release_claims(process, run.run);
  node::ChunkDone done;
  done.run = run.run;
  done.elapsed = took;
  if (process.cancelled.erase(run.run) > 0) {
    done.code = Code::cancelled;
  } else {
    activations.pages = fold_pages(process, run.pages, layers, activations.pages);
    if (run.sample) done.sampled.token = tag_token(activations.pages);
    if (layers.end < process.worker->local_shelf(0).layout.layers) {
      done.activations_crc = activations.crc();
      process.slots[activation_slots().offset(run.slot_out)] = std::move(activations);
    }
  }
  deliver(process.name, process.instance, std::move(done));
}

void World::perform_step(Process& process, const node::RunStep& run) {
  const ExtentLayout layout = process.worker->local_shelf(0).layout;
  rot(process);
  for (const auto& row : run.rows->in) {
    auto& sequence = process.batch.at(row.sequence);
    if (row.page != node::RunRow::kNoPage) sequence.pages.push_back(row.page);
    MC_ASSERT_EQ(row.position, sequence.position);
    MC_ASSERT_EQ(sequence.pages.size(), row.position / layout.block_tokens + 1);
    for (uint32_t l = 0; l < layout.layers; ++l) claim_page(process, run.run, sequence.pages.back(), l);
  }
  const Duration took = step_time(options_.profile, run);
  at(now_ + took, [this, name = process.name, instance = process.instance, run, took] {
    Process* p = processes_.at(name).get();
    if (!p->machine || p->instance != instance) return;
    release_claims(*p, run.run);
    run.rows->out.clear();
    for (const auto& row : run.rows->in) run.rows->out.push_back(compute_row(*p, row));
    deliver(name, instance, node::StepDone{run.run, Code::ok, "", run.rows, took});
  });
}

node::StepRow World::compute_row(Process& process, const node::RunRow& row) {
  const ExtentLayout& layout = process.worker->local_shelf(0).layout;
  const uint32_t bt = layout.block_tokens;
  node::JoinBatch& sequence = process.batch.at(row.sequence);
  node::StepRow out;
  if (row.joined) out.rotten = rotten(process, sequence.pages, sequence.prefix_crcs, {0, layout.layers});
  if (!out.rotten.empty()) return out;
  const auto offset = [&](uint32_t page, uint32_t layer) {
    return process.worker->local_offset(0, page) + layout.layer_offset(layer);
  };
  uint64_t token_row = row.token;
  for (uint32_t l = 0; l < layout.layers; ++l) {
    uint64_t& tag = process.memory[offset(sequence.pages.back(), l)];
    if (row.position % bt == 0) {
      const size_t count = sequence.pages.size();
      tag = tag_begin(count == 1 ? 0 : process.memory[offset(sequence.pages[count - 2], l)], l);
    }
    tag = tag_extend(tag, token_row), token_row = next_row(token_row, tag);
    if ((row.position + 1) % bt == 0) out.sealed_crcs.push_back(static_cast<uint32_t>(tag));
  }
  ++sequence.position;
  out.sampled.token = tag_token(fold_pages(process, sequence.pages, {0, layout.layers}, 0));
  return out;
}

}  // namespace mc::sim
