#include "sim/tag_device.h"

#include <algorithm>

#include "base/assert.h"
#include "sched/pipeline.h"

namespace mc::sim {
namespace {

Duration step_time(const sched::Profile* p, const node::RunStep& run) {
  const auto& rows = run.rows->in;
  if (p == nullptr) return kStepBase + kRowCost * static_cast<int64_t>(rows.size());
  double kv_tokens = 0, joining = 0;
  for (const auto& row : rows) kv_tokens += row.position + 1, joining += row.joined;
  return from_seconds(p->step_s(static_cast<double>(rows.size()), kv_tokens) + joining * p->join_s);
}

}  // namespace

// ---- pages being written ---------------------------------------------------------------------

void TagDevice::claim(Process& process, uint64_t offset, uint64_t op) {
  const auto [it, fresh] = process.claims.emplace(offset, op);
  if (!fresh && it->second != op)
    findings_.add(agenda_.now(), process.name + ": offset " + std::to_string(offset) + " is in two hands");
}

void TagDevice::check_owned(const Process& process, uint32_t pool, kv::PageIndex page, const char* what) {
  if (!process.is_stage() && (*process.worker->shelves()[pool]).pool.state(page) != kv::PageState::owned)
    findings_.add(agenda_.now(), process.name + ": page " + std::to_string(page) + what);
}

void TagDevice::claim_page(Process& process, uint64_t op, uint32_t page, uint32_t layer) {
  check_owned(process, 0, page, " is written while it is not owned");
  claim(process, process.worker->local_offset(0, page) + (*process.worker->shelves()[0]).layout.layer_offset(layer),
        op);
}

void TagDevice::release_claims(Process& process, uint64_t op) {
  std::erase_if(process.claims, [&](const auto& c) { return c.second == op; });
}

// ---- reads -----------------------------------------------------------------------------------

// With a profile a link carries one read at a time, the reader's and the source's, each for the whole of its modelled
// time: a read that is cancelled or times out gives nothing back. Costed workers (costed/modelled_link.h) have the
// reader's link alone, and give the rest back.
Duration TagDevice::read_time(Process& process, const node::Read& read, uint64_t bytes) {
  const sched::Profile* p = options_.profile;
  const auto slow = options_.faults.slow.find({process.name, read.peer});
  const double factor = slow == options_.faults.slow.end() ? 1 : slow->second;
  if (p == nullptr) return from_seconds(factor * static_cast<double>(bytes) / kReadBytesPerSecond);
  Process& source = *processes_.at(read.peer);
  const TimePoint start = std::max({agenda_.now(), process.receives_until, source.sends_until});
  const bool activations = process.is_stage() && read.pool == node::Stage::kSlotPool;
  const double modelled =
      static_cast<double>(bytes) * (activations ? activation_scale(*p, activation_slots(options_))
                                                : byte_scale(*p, (*process.worker->shelves()[read.pool]).layout));
  source.sends_until = process.receives_until = start + from_seconds(factor * modelled / p->paths.net.bytes_per_s);
  return process.receives_until - agenda_.now() + from_seconds(p->paths.net.latency_s);
}

void TagDevice::perform_read(Process& process, const node::Read& read) {
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
  agenda_.at(agenda_.now() + took, [this, name = process.name, instance = process.instance, read, fate] {
    finish_read(name, instance, read, fate);
  });
}

// The bytes that are at the source now. A page or a slot that was reused meanwhile has other bytes, which the checksum
// shows.
Code TagDevice::take_slice(Process& process, const Process& source, const node::Read& read,
                           const node::ReadSlice& slice, bool flipped) {
  const uint64_t to = process.worker->local_offset(read.pool, slice.page) + slice.page_offset;
  uint32_t crc = 0;
  if (process.is_stage() && read.pool == node::Stage::kSlotPool) {
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

void TagDevice::finish_read(const std::string& name, const InstanceId& instance, const node::Read& read, Code fate) {
  const auto it = processes_.find(name);
  if (!it->second->runs(instance)) return;
  Process& process = *it->second;
  const auto source = processes_.find(read.peer);
  const bool gone = source == processes_.end() || !source->second->runs(read.instance);
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
  deliver_(name, instance, node::ReadDone{read.read, fate, "simulated"});
}

// ---- pages of a device ------------------------------------------------------------------------

void TagDevice::use(Process& process, const std::vector<uint32_t>& device_pages) {
  for (const uint32_t page : device_pages) ++process.device.users[page];
}

void TagDevice::let_go(Process& process, const std::vector<uint32_t>& device_pages) {
  for (const uint32_t page : device_pages)
    if (--process.device.users.at(page) == 0) process.device.users.erase(page);
}

uint64_t& TagDevice::extent(Process& process, const std::vector<uint32_t>& pages,
                            const std::vector<uint32_t>& device_pages, uint32_t block, uint32_t layer) const {
  if (!device_pages.empty()) return process.device.tags[{device_pages.at(block), layer}];
  return process.memory[process.worker->local_offset(0, pages.at(block)) +
                        (*process.worker->shelves()[0]).layout.layer_offset(layer)];
}

void TagDevice::store(Process& process, uint32_t page, uint32_t layer, uint64_t tag) const {
  process.memory[process.worker->local_offset(0, page) + (*process.worker->shelves()[0]).layout.layer_offset(layer)] =
      tag;
}

std::set<uint64_t> TagDevice::loads_of(const Process& process, const node::RunChunk& run) const {
  std::set<uint64_t> out;
  for (const auto& [number, at] : process.device.loads)
    for (const uint32_t page : at.load.device_pages)
      if (std::ranges::find(run.device_pages, page) != run.device_pages.end()) out.insert(number);
  return out;
}

// The copies of one node go one after the other, each layer by layer.
void TagDevice::perform_load(Process& process, const node::LoadPages& load) {
  const ExtentLayout& layout = (*process.worker->shelves()[0]).layout;
  MC_ASSERT(!load.pages.empty() && load.pages.size() == load.device_pages.size());
  MC_ASSERT_EQ(load.crcs.size(), load.pages.size() * layout.layers);
  for (const uint32_t page : load.device_pages) {
    bool is_taken = process.device.users.contains(page);
    for (const auto& [number, other] : process.device.loads)
      is_taken |= std::ranges::find(other.load.device_pages, page) != other.load.device_pages.end();
    if (is_taken)
      findings_.add(agenda_.now(), process.name + ": page " + std::to_string(page) + " of the device is in two hands");
  }
  const sched::Profile* p = options_.profile;
  const double bytes = static_cast<double>(load.pages.size() * layout.layers * layout.layer_bytes());
  const double seconds =
      p == nullptr ? bytes / kLoadBytesPerSecond : p->paths.load.seconds(bytes * byte_scale(*p, layout));
  DeviceLoad at{.load = load, .began = std::max(agenda_.now(), process.device.busy_until)};
  at.layer_time = from_seconds(seconds / layout.layers);
  at.fails = rng_.chance(options_.faults.fail_load);
  process.device.busy_until = at.began + at.layer_time * layout.layers;
  const TimePoint first = at.began + at.layer_time;
  process.device.loads.emplace(load.load, std::move(at));
  agenda_.at(first, [this, name = process.name, instance = process.instance, number = load.load] {
    next_load_layer(name, instance, number);
  });
}

/// Copies one layer. False: an extent does not match its checksum.
bool TagDevice::load_layer(Process& process, const DeviceLoad& at) const {
  const uint32_t layers = (*process.worker->shelves()[0]).layout.layers;
  bool sound = true;
  for (size_t i = 0; i < at.load.pages.size(); ++i) {
    const uint64_t tag = extent(process, {at.load.pages[i]}, {}, 0, at.layers);
    process.device.tags[{at.load.device_pages[i], at.layers}] = tag;
    sound &= static_cast<uint32_t>(tag) == at.load.crcs[i * layers + at.layers];
  }
  return sound || !options_.verify_checksums;
}

void TagDevice::next_load_layer(const std::string& name, const InstanceId& instance, uint64_t load) {
  Process& process = *processes_.at(name);
  if (!process.runs(instance)) return;
  DeviceLoad& at = process.device.loads.at(load);
  const bool sound = load_layer(process, at);
  ++at.layers;
  const bool is_last = at.layers == (*process.worker->shelves()[0]).layout.layers;
  if (is_last || !sound) {
    at.fails |= !sound;
    const DeviceLoad ended = std::move(at);
    process.device.loads.erase(load);
    return end_load(process, ended);
  }
  for (auto& [run, waiting] : process.arriving) {
    if (!waiting.loads.contains(load)) continue;
    uint32_t here = UINT32_MAX;
    for (const uint64_t other : waiting.loads) here = std::min(here, process.device.loads.at(other).layers);
    prefix_here(process, {run, here});
  }
  agenda_.at(agenda_.now() + at.layer_time, [this, name, instance, load] { next_load_layer(name, instance, load); });
}

void TagDevice::end_load(Process& process, const DeviceLoad& ended) {
  node::PagesLoaded done{.load = ended.load.load, .busy = agenda_.now() - ended.began};
  if (ended.fails) {
    const uint32_t layers = (*process.worker->shelves()[0]).layout.layers;
    for (uint32_t i = 0; options_.verify_checksums && i < ended.load.pages.size(); ++i)
      for (uint32_t layer = 0; layer < layers; ++layer)
        if (static_cast<uint32_t>(extent(process, ended.load.pages, {}, i, layer)) !=
            ended.load.crcs[i * layers + layer]) {
          done.rotten.push_back(i);
          break;
        }
    done.code = done.rotten.empty() ? Code::io : Code::corrupt;
    done.what = "simulated";
    for (const uint32_t page : ended.load.device_pages)  // no run may read what is there now
      for (uint32_t layer = 0; layer < layers; ++layer) process.device.tags[{page, layer}] = ~uint64_t{0};
  }
  deliver_(process.name, process.instance, done);
  const auto runs = process.arriving;
  for (const auto& [run, waiting] : runs) {
    if (!waiting.loads.contains(ended.load.load)) continue;
    const auto found = process.arriving.find(run);
    if (found == process.arriving.end()) continue;
    found->second.loads.erase(ended.load.load);
    if (ended.fails)
      cancel_run(process, run);
    else if (found->second.loads.empty())
      prefix_here(process, {run, UINT32_MAX});
  }
}

// ---- runs ------------------------------------------------------------------------------------

// Layer by layer, so that a pipeline's stages do it one after the other.
uint64_t TagDevice::fold_pages(Process& process, const std::vector<uint32_t>& pages,
                               const std::vector<uint32_t>& device_pages, LayerRange layers, uint64_t sum) const {
  for (uint32_t l = layers.first; l < layers.end; ++l)
    for (uint32_t block = 0; block < pages.size(); ++block)
      sum = tag_fold(sum, extent(process, pages, device_pages, block, l));
  return sum;
}

// A bit flips in a cached block that nobody uses now: one that is in use was checked before.
void TagDevice::rot(Process& process) {
  if (process.is_stage() || !rng_.chance(options_.faults.rot)) return;
  const kv::Pool& pool = (*process.worker->shelves()[0]).pool;
  std::vector<kv::PageIndex> pages;
  for (kv::PageIndex page = 0; page < pool.counts().total; ++page)
    if (pool.state(page) == kv::PageState::cached && pool.pins(page) == 0) pages.push_back(page);
  if (pages.empty()) return;
  const kv::PageIndex page = pages[rng_.below(pages.size())];
  // The member of a pipeline does not matter: each has layers of the block.
  const auto member = static_cast<uint32_t>(
      rng_.below(process.place.kind == Place::Kind::prefill ? stages_of(options_, process.place.index) : 1));
  const auto found = processes_.find(Place{process.place.kind, process.place.index, member}.name());
  if (found == processes_.end() || !found->second->machine) return;
  Process& rots = *found->second;
  const ExtentLayout& layout = (*rots.worker->shelves()[0]).layout;
  const auto at = rots.memory.find(rots.worker->local_offset(0, page) + layout.layer_offset(layout.stage.first));
  if (at != rots.memory.end()) at->second ^= 1;
}

std::vector<uint32_t> TagDevice::rotten(const Process& process, const std::vector<uint32_t>& pages,
                                        const std::vector<uint32_t>& crcs, LayerRange layers) const {
  std::vector<uint32_t> out;
  const uint32_t each = layers.end - layers.first;
  for (uint32_t i = 0; options_.verify_checksums && i < crcs.size(); ++i) {
    const uint64_t offset = process.worker->local_offset(0, pages[i / each]) +
                            (*process.worker->shelves()[0]).layout.layer_offset(layers.first + i % each);
    const auto at = process.memory.find(offset);
    const bool good = at != process.memory.end() && static_cast<uint32_t>(at->second) == crcs[i];
    if (!good && (out.empty() || out.back() != i / each)) out.push_back(i / each);
  }
  return out;
}

Duration TagDevice::chunk_time(const Place& place, const node::RunChunk& run, LayerRange layers) const {
  const sched::Profile* p = options_.profile;
  if (p == nullptr)
    return (kChunkBase + kTokenCost * static_cast<int64_t>(run.tokens.size())) * layers.count() / options_.layers;
  const double begin = run.start, end = begin + static_cast<double>(run.tokens.size());
  double seconds = p->chunk_s + p->chunk_compute_s(begin, end);
  if (run.start == run.reused) seconds += p->fixed_s();
  // The copies of a prefix to the device, which the tier there does for itself.
  if (run.start == run.reused && run.device_pages.empty()) seconds += p->reused_s_per_token * run.reused;
  const uint32_t stages = place.kind == Place::Kind::prefill ? stages_of(options_, place.index) : 1;
  return from_seconds(seconds * sched::stage_share(p->layers, place.stage, stages));
}

void TagDevice::perform_chunk(Process& process, const node::RunChunk& run) {
  const ExtentLayout layout = (*process.worker->shelves()[0]).layout;
  const uint32_t bt = layout.block_tokens, first = run.start / bt;
  const LayerRange layers{run.first_layer, run.end_layer == 0 ? layout.layers : run.end_layer};
  MC_ASSERT_EQ(run.start % bt, 0u);
  MC_ASSERT(run.tokens.empty() || run.pages.size() == (run.start + run.tokens.size() + bt - 1) / bt);
  rot(process);
  node::ChunkDone checked{.run = run.run, .rotten = rotten(process, run.pages, run.prefix_crcs, layers)};
  if (run.tokens.empty() || !checked.rotten.empty()) {
    if (!checked.rotten.empty()) checked.code = Code::corrupt;
    agenda_.at(agenda_.now() + kChunkBase,
               [this, name = process.name, instance = process.instance, done = std::move(checked)] {
                 const auto it = processes_.find(name);
                 if (it->second->runs(instance)) it->second->cancelled.erase(done.run);
                 deliver_(name, instance, done);
               });
    return;
  }
  for (uint32_t b = first; b < run.pages.size(); ++b)
    for (uint32_t l = layers.first; l < layers.end; ++l) claim_page(process, run.run, run.pages[b], l);
  // The prefix of a run may be under the copies of other runs, never the pages that it writes.
  for (uint32_t b = first; !run.device_pages.empty() && b < run.pages.size(); ++b)
    if (process.device.users.contains(run.device_pages.at(b)))
      findings_.add(agenda_.now(), process.name + ": a run writes a page of the device that another one reads");
  use(process, run.device_pages);
  auto activations = std::make_shared<Activations>();
  if (layers.first > 0)
    *activations = process.slots[activation_slots(options_).offset(run.slots.in)];
  else
    activations->rows.assign(run.tokens.begin(), run.tokens.end());
  activations->rows.resize(run.tokens.size());  // without checksums a slot may hold those of another chunk
  if (layers.end < layout.layers) claim(process, activation_slots(options_).offset(run.slots.out), run.run);
  const uint32_t count = layers.end - layers.first;
  const Duration total = chunk_time(process.place, run, layers);
  const auto live = [this, name = process.name, instance = process.instance]() -> Process* {
    Process* p = processes_.at(name).get();
    return p->runs(instance) ? p : nullptr;
  };
  const std::set<uint64_t> loads = loads_of(process, run);
  if (run.layers_here < layout.layers || !loads.empty()) {
    uint32_t here = run.layers_here;
    for (const uint64_t load : loads) here = std::min(here, process.device.loads.at(load).layers);
    const Duration each = total / (count + (options_.profile ? 0 : 1));
    process.arriving[run.run] = {here, loads, {}};
    next_layer(
        std::make_shared<LayeredRun>(LayeredRun{process.name, process.instance, run, layers, std::move(*activations),
                                                each, total - each * count, agenda_.now(), layers.first}));
    return;
  }
  for (uint32_t l = layers.first; l < layers.end; ++l)
    agenda_.at(agenda_.now() + total * (l - layers.first + 1) / (count + (options_.profile ? 0 : 1)),
               [this, live, run, activations, l] {
                 Process* p = live();
                 if (p && !p->cancelled.contains(run.run)) compute_layer(*p, run, l, *activations);
               });
  agenda_.at(agenda_.now() + total, [this, live, run, layers, activations, total] {
    if (Process* p = live()) end_chunk(*p, run, layers, std::move(*activations), total);
  });
}

void TagDevice::next_layer(const std::shared_ptr<LayeredRun>& layered) {
  LayeredRun& at = *layered;
  Process* process = processes_.at(at.name).get();
  if (!process->runs(at.instance)) return;
  ArrivingRun& arriving = process->arriving.at(at.run.run);
  arriving.go_on = nullptr;
  const bool is_over = at.next == at.layers.end || process->cancelled.contains(at.run.run);
  if (!is_over && arriving.layers_here <= at.next) {
    arriving.go_on = [this, layered] { next_layer(layered); };
    return;
  }
  agenda_.at(agenda_.now() + (is_over ? at.tail_time : at.layer_time), [this, layered, is_over] {
    LayeredRun& then = *layered;
    Process* p = processes_.at(then.name).get();
    if (!p->runs(then.instance)) return;
    if (is_over) {
      p->arriving.erase(then.run.run);
      return end_chunk(*p, then.run, then.layers, std::move(then.activations), agenda_.now() - then.began);
    }
    if (!p->cancelled.contains(then.run.run)) compute_layer(*p, then.run, then.next, then.activations);
    ++then.next;
    next_layer(layered);
  });
}

void TagDevice::prefix_here(Process& process, const node::PrefixLayers& here) {
  const auto found = process.arriving.find(here.run);
  if (found == process.arriving.end()) return;
  if (here.layers < found->second.layers_here) findings_.add(agenda_.now(), process.name + ": layers of a prefix went");
  found->second.layers_here = here.layers;
  if (const auto go_on = found->second.go_on) go_on();
}

void TagDevice::cancel_run(Process& process, uint64_t run) {
  process.cancelled.insert(run);
  const auto found = process.arriving.find(run);
  if (found == process.arriving.end()) return;
  if (const auto go_on = found->second.go_on) go_on();
}

void TagDevice::compute_layer(Process& process, const node::RunChunk& run, uint32_t layer, Activations& activations) {
  const ExtentLayout& layout = (*process.worker->shelves()[0]).layout;
  const uint32_t bt = layout.block_tokens, first = run.start / bt;
  const auto tag_of = [&](uint32_t block) -> uint64_t& {
    return extent(process, run.pages, run.device_pages, block, layer);
  };
  node::LayerDone done{run.run, layer, first, {}};
  for (uint32_t b = first; b < run.pages.size(); ++b) {
    uint64_t tag = tag_begin(b == 0 ? 0 : tag_of(b - 1), layer);
    const size_t end = std::min<size_t>(run.tokens.size(), (b - first + 1) * size_t{bt});
    for (size_t t = (b - first) * size_t{bt}; t < end; ++t) {
      uint64_t& row = activations.rows[t];
      tag = tag_extend(tag, row), row = next_row(row, tag);
    }
    tag_of(b) = tag;
    store(process, run.pages[b], layer, tag);
    done.crcs.push_back(static_cast<uint32_t>(tag));
  }
  deliver_(process.name, process.instance, std::move(done));
}

void TagDevice::end_chunk(Process& process, const node::RunChunk& run, LayerRange layers, Activations activations,
                          Duration took) {
  release_claims(process, run.run);
  let_go(process, run.device_pages);
  node::ChunkDone done;
  done.run = run.run;
  done.elapsed = took;
  if (process.cancelled.erase(run.run) > 0) {
    done.code = Code::cancelled;
  } else {
    activations.pages = fold_pages(process, run.pages, run.device_pages, layers, activations.pages);
    if (run.sample) done.sampled.token = tag_token(activations.pages);
    if (layers.end < (*process.worker->shelves()[0]).layout.layers) {
      done.activations_crc = activations.crc();
      process.slots[activation_slots(options_).offset(run.slots.out)] = std::move(activations);
    }
  }
  deliver_(process.name, process.instance, std::move(done));
}

// Steps are computed one after the other. A step begins before the machine gets the event of the former step's end.
void TagDevice::perform_step(Process& process, const node::RunStep& run) {
  process.steps.push_back(run);
  if (process.steps.size() == 1) begin_step(process);
}

void TagDevice::leave(Process& process, uint64_t sequence) {
  for (const node::RunStep& step : process.steps)
    for (const node::RunRow& row : step.rows->in)
      if (row.sequence == sequence)
        findings_.add(agenda_.now(), process.name + ": a sequence left with a row under way");
  process.drawn.erase(sequence);
  if (const auto found = process.batch.find(sequence); found != process.batch.end())
    let_go(process, found->second.device_pages);
  if (process.batch.erase(sequence) == 0)
    findings_.add(agenda_.now(), process.name + ": a sequence left that had not joined");
}

void TagDevice::begin_step(Process& process) {
  const node::RunStep& run = process.steps.front();
  const ExtentLayout layout = (*process.worker->shelves()[0]).layout;
  rot(process);
  for (const auto& row : run.rows->in) {
    auto& sequence = process.batch.at(row.sequence);
    if (const auto drawn = process.drawn.find(row.sequence); drawn != process.drawn.end() && !drawn->second) continue;
    if (row.page != node::RunRow::kNoPage) sequence.pages.push_back(row.page);
    if (row.device_page != node::RunRow::kNoPage) {
      if (process.device.users.contains(row.device_page))
        findings_.add(agenda_.now(), process.name + ": a step writes a page of the device that another run reads");
      sequence.device_pages.push_back(row.device_page);
      use(process, {row.device_page});
    }
    MC_ASSERT(sequence.device_pages.empty() || sequence.device_pages.size() == sequence.pages.size());
    MC_ASSERT_EQ(row.position, sequence.position);
    MC_ASSERT_EQ(sequence.pages.size(), row.position / layout.block_tokens + 1);
    for (uint32_t l = 0; l < layout.layers; ++l) claim_page(process, run.run, sequence.pages.back(), l);
  }
  const Duration took = step_time(options_.profile, run);
  agenda_.at(agenda_.now() + took, [this, name = process.name, instance = process.instance, run, took] {
    Process* p = processes_.at(name).get();
    if (!p->runs(instance)) return;
    release_claims(*p, run.run);
    run.rows->out.clear();
    for (const auto& row : run.rows->in) run.rows->out.push_back(compute_row(*p, row));
    p->steps.pop_front();
    if (!p->steps.empty()) begin_step(*p);
    deliver_(name, instance, node::StepDone{run.run, Code::ok, "", run.rows, took});
  });
}

/// The result of a row that is not computed: its blocks are rotten, or the row before it had no token.
std::optional<node::StepRow> TagDevice::checked_row(Process& process, const node::RunRow& row) {
  const auto drawn = process.drawn.find(row.sequence);
  if (drawn != process.drawn.end() && !drawn->second) return node::StepRow{};
  if (!row.joined) return std::nullopt;
  const node::JoinBatch& sequence = process.batch.at(row.sequence);
  const ExtentLayout& layout = (*process.worker->shelves()[0]).layout;
  node::StepRow out;
  out.rotten = rotten(process, sequence.pages, sequence.prefix_crcs, {0, layout.layers});
  if (out.rotten.empty()) return std::nullopt;
  process.drawn[row.sequence] = std::nullopt;
  return out;
}

node::StepRow TagDevice::compute_row(Process& process, const node::RunRow& row) {
  const ExtentLayout& layout = (*process.worker->shelves()[0]).layout;
  const uint32_t bt = layout.block_tokens;
  node::JoinBatch& sequence = process.batch.at(row.sequence);
  if (auto unsound = checked_row(process, row)) return *std::move(unsound);
  node::StepRow out;
  check_owned(process, 0, sequence.pages.back(), " was given away under a step");
  const auto tag_of = [&](size_t block, uint32_t layer) -> uint64_t& {
    return extent(process, sequence.pages, sequence.device_pages, static_cast<uint32_t>(block), layer);
  };
  const size_t count = sequence.pages.size();
  uint64_t token_row = row.token == node::RunRow::kFed ? *process.drawn.at(row.sequence) : row.token;
  for (uint32_t l = 0; l < layout.layers; ++l) {
    uint64_t& tag = tag_of(count - 1, l);
    if (row.position % bt == 0) tag = tag_begin(count == 1 ? 0 : tag_of(count - 2, l), l);
    tag = tag_extend(tag, token_row), token_row = next_row(token_row, tag);
    store(process, sequence.pages.back(), l, tag);
    if ((row.position + 1) % bt == 0) out.sealed_crcs.push_back(static_cast<uint32_t>(tag));
  }
  ++sequence.position;
  out.sampled.token = tag_token(fold_pages(process, sequence.pages, sequence.device_pages, {0, layout.layers}, 0));
  process.drawn[row.sequence] = out.sampled.token;
  return out;
}

}  // namespace mc::sim
