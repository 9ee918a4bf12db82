#include "node/stage.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"

namespace mc::node {
namespace {

constexpr const char* kNotListed = " is not the process that the conductor listed here";
constexpr size_t kChecksMax = 1024;
constexpr uint32_t kStagesMax = 999;

}  // namespace

std::string stage_name(const std::string& leader, uint32_t stage) {
  return leader + "." + std::to_string(stage);
}

std::optional<StageName> parse_stage_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  const auto stage = parse_u64(std::string_view(name).substr(dot + 1), 1, kStagesMax);
  if (!stage) return std::nullopt;
  StageName out{name.substr(0, dot), static_cast<uint32_t>(*stage)};
  if (stage_name(out.leader, out.stage) != name) return std::nullopt;
  return out;
}

bool is_stage_of(const std::string& name, const std::string& leader) {
  const auto parsed = parse_stage_name(name);
  return parsed && parsed->leader == leader;
}

Stage::Stage(WorkerOptions worker, StageOptions options)
    : Worker(std::move(worker)),
      stage_(std::move(options)),
      layers_(stage_layers(options_.layout.layers, stage_.stage, stage_.stages)),
      run_pages_(options_.page_count),
      in_used_(ActivationSlots::kEach),
      out_used_(ActivationSlots::kEach),
      block_reads_(numbers_, options_.layout, options_.page_count) {
  MC_ASSERT(stage_.stage > 0 && layers_.first < layers_.end);
}

uint64_t Stage::local_offset(uint32_t pool, kv::PageIndex page) const {
  return pool == kSlotPool ? stage_.slots.offset(page) : Worker::local_offset(pool, page);
}

Stage::Run* Stage::by_op(uint64_t op) {
  const auto it = std::find_if(runs_.begin(), runs_.end(), [&](const Run& r) { return op != 0 && r.op == op; });
  return it == runs_.end() ? nullptr : &*it;
}

void Stage::on_message(const Received& event, TimePoint now, Actions& out) {
  if (const auto* run = std::get_if<wire::StageRun>(&event.message)) {
    on_run(event, *run, now, out);
  } else if (const auto* taken = std::get_if<wire::StageTaken>(&event.message)) {
    const auto it = handed_on_.find(taken->run);
    if (it == handed_on_.end() || it->second.reader != event.instance) return;
    free_handed(it);
  } else if (const auto* announced = std::get_if<wire::StageAnnounce>(&event.message)) {
    if (event.from == stage_.leader) announce(event, *announced, out);
  } else if (const auto* read = std::get_if<wire::StageRead>(&event.message)) {
    if (event.from == stage_.leader) on_block_read(event, *read, out);
  } else if (const auto* unwanted = std::get_if<wire::StageReadCancel>(&event.message)) {
    if (event.from == stage_.leader) block_reads_.cancel(event.instance, unwanted->read, out);
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&event.message)) {
    for (Run& run : runs_)
      if (run.asked.leader_instance == event.instance && run.asked.req == cancel->req &&
          run.asked.attempt <= cancel->attempt)
        drop(run, out);
  }
  pump(now, out);
}

std::string Stage::objection(const std::vector<uint32_t>& pages) const {
  for (const uint32_t page : pages)
    if (page >= options_.page_count)
      return "page " + std::to_string(page) + " of " + std::to_string(options_.page_count) +
             "; give the stages the same --kv-mem";
  return "";
}

std::string Stage::objection(const wire::StageRun& run) const {
  const uint32_t bt = options_.layout.block_tokens;
  const uint64_t end = uint64_t{run.start} + run.tokens.size();
  if (run.stages != stage_.stages)
    return "the leader has " + std::to_string(run.stages) + " stages, this process " + std::to_string(stage_.stages) +
           "; give all of them the same --pipeline count";
  if (run.tokens.empty() || run.tokens.size() > stage_.chunk_tokens)
    return "a chunk of " + std::to_string(run.tokens.size()) + " tokens; --chunk-tokens here is " +
           std::to_string(stage_.chunk_tokens);
  if (run.start % bt != 0 || end > options_.context_tokens || run.pages.size() != kv::blocks_for(end, bt))
    return "positions " + std::to_string(run.start) + ".." + std::to_string(end) + " over " +
           std::to_string(run.pages.size()) + " pages";
  if (std::string why = objection(run.pages); !why.empty()) return why;
  if (runs_.size() >= stage_.queue_max) return std::to_string(runs_.size()) + " chunks wait on this stage, its limit";
  return "";
}

void Stage::on_run(const Received& event, const wire::StageRun& asked, TimePoint now, Actions& out) {
  const std::string before = stage_.stage == 1 ? stage_.leader : stage_name(stage_.leader, stage_.stage - 1);
  if (event.from != before || asked.leader != stage_.leader) return;
  Run run;
  run.asked = asked;
  run.from = event.from, run.from_instance = event.instance;
  run.deadline = after(now, std::chrono::milliseconds(asked.budget_ms));
  run.crcs.resize(layers_.end - layers_.first);
  // An answer is due: the sender's slot and request depend on it.
  const auto refuse = [&](Code cause, const std::string& why) {
    send(run.from, run.from_instance, wire::StageTaken{asked.run}, out);
    report(run, cause, "stage " + name() + ": " + why, nullptr, out);
  };
  if (!peers().has(event.from, event.instance))  // the sender's join has not reached this node yet
    return refuse(Code::peer_lost, event.from + kNotListed);
  // A stage learns of a lost leader from the member list, but receives the leader's chunks through the stage before. A
  // chunk of the lost leader would overwrite pages that have a new owner.
  if (!peers().has(asked.leader, asked.leader_instance)) return refuse(Code::peer_lost, asked.leader + kNotListed);
  if (const std::string why = objection(asked); !why.empty()) return refuse(Code::unsupported, why);
  // A leader numbers its chunks upwards. When a chunk arrives late, the chunks after it were computed without its KV,
  // so the whole request is unusable.
  follow(asked.leader_instance, out);
  if (asked.run <= newest_run_)
    return refuse(Code::io, "chunk " + std::to_string(asked.run) + " came after chunk " + std::to_string(newest_run_));
  if (block_reads_.is_younger(asked.run, asked.pages))
    return refuse(Code::io, "chunk " + std::to_string(asked.run) + " came after a read of its pages");
  newest_run_ = asked.run;
  run_pages_.add(asked.pages);
  runs_.push_back(std::move(run));
}

/// Chunks and reads of this leader follow, whose numbers begin anew when it is another one than before.
void Stage::follow(const InstanceId& leader, Actions& out) {
  if (leader == newest_leader_) return;
  newest_leader_ = leader, newest_run_ = 0;
  block_reads_.forget_leader(out);
}

void Stage::on_block_read(const Received& event, const wire::StageRead& asked, Actions& out) {
  const auto refuse = [&](Error why) {
    last_error_.note("a read of blocks was refused: " + why.what);
    StageReads::refuse(event, asked, std::move(why), out);
  };
  if (!peers().has(event.from, event.instance)) return refuse({Code::peer_lost, event.from + kNotListed});
  if (!peers().has(asked.node, asked.instance)) return refuse({Code::peer_lost, asked.node + kNotListed});
  follow(event.instance, out);
  if (auto sound = block_reads_.may_start(asked, newest_run_); !sound) return refuse(std::move(sound).error());
  if (run_pages_.any_used(asked.pages))
    return refuse({Code::busy, "a chunk that the leader has given up still uses the pages"});
  block_reads_.start(event, asked, out);
}

void Stage::free_handed(std::map<uint64_t, Handed>::iterator handed) {
  out_used_[handed->second.slot - ActivationSlots::kEach] = false;
  handed_on_.erase(handed);
}

std::string Stage::objection(const wire::StageAnnounce& m) const {
  if (m.first_layer != layers_.first || m.crcs.size() != layers_.end - layers_.first)
    return "asked for layers " + std::to_string(m.first_layer) + ".." + std::to_string(m.first_layer + m.crcs.size()) +
           ", it has " + std::to_string(layers_.first) + ".." + std::to_string(layers_.end) +
           "; give all stages the same --pipeline count";
  for (const auto& crcs : m.crcs)
    if (crcs.size() != m.pages.size())
      return std::to_string(crcs.size()) + " checksums of " + std::to_string(m.pages.size()) + " pages";
  if (m.first_block > m.pages.size())
    return "announce from block " + std::to_string(m.first_block) + " of " + std::to_string(m.pages.size());
  return objection(m.pages);
}

// Announces the whole chunk or nothing, because the decode node would wait for the missing extents.
void Stage::announce(const Received& event, const wire::StageAnnounce& m, Actions& out) {
  const bool listed = peers().has(event.from, event.instance);
  if (const std::string why = listed ? objection(m) : event.from + kNotListed; !why.empty()) {
    std::string message = "stage " + name() + ": " + why;
    last_error_.note(message);
    ++stats_.failed;
    const Failure failure{RequestStage::prefill, listed ? Reason::internal : Reason::peer_lost, !listed};
    return send(event.from, event.instance, report_of(m.req, m.attempt, failure, std::move(message)), out);
  }
  for (uint32_t layer = layers_.first; layer < layers_.end; ++layer) {
    const auto& crcs = m.crcs[layer - layers_.first];
    std::vector<wire::ReadyExtent> extents;
    for (size_t i = m.first_block; i < m.pages.size(); ++i)
      extents.push_back({shelf_->page_offset(m.pages[i]) + options_.layout.layer_offset(layer), crcs[i]});
    if (!extents.empty())
      out.push_back(
          SendNotify{m.decode, m.decode_instance, {m.req, m.attempt, layer, m.first_block, std::move(extents)}});
  }
  start_check(event, m, out);
}

// Checks the cached blocks even if the decode node ends the request first, because the leader must drop a corrupt
// block.
void Stage::start_check(const Received& event, const wire::StageAnnounce& m, Actions& out) {
  RunChunk check;
  check.run = numbers_.next();
  check.pages = m.pages;
  check.first_layer = layers_.first, check.end_layer = layers_.end;
  for (size_t i = 0; i < m.pages.size(); ++i)
    for (const auto& crcs : m.crcs) check.prefix_crcs.push_back(crcs[i]);
  if (checks_.size() >= kChecksMax) checks_.erase(checks_.begin());
  checks_[check.run] = {event.from, event.instance, m.req, m.attempt, m.pages};
  out.push_back(std::move(check));
}

void Stage::on_check(Check& check, const ChunkDone& done, Actions& out) {
  check.running = false;
  check.good = done.code == Code::ok;
  wire::StageRotten found;
  for (const uint32_t i : done.rotten) found.pages.push_back(check.pages.at(i));
  check.pages.clear();
  if (!found.pages.empty()) send(check.leader, check.instance, std::move(found), out);
}

std::map<uint64_t, Stage::Check>::iterator Stage::check_of(const Run& run) {
  return std::find_if(checks_.begin(), checks_.end(), [&](const auto& entry) {
    const Check& check = entry.second;
    return check.req == run.asked.req && check.attempt == run.asked.attempt &&
           check.instance == run.asked.leader_instance;
  });
}

bool Stage::role_idle() const {
  return runs_.empty() && block_reads_.idle() &&
         std::none_of(checks_.begin(), checks_.end(), [](const auto& c) { return c.second.running; });
}

// Reads run ahead of compute by the number of slots. Compute is first in, first out.
void Stage::pump(TimePoint now, Actions& out) {
  for (Run& run : runs_)
    if (run.phase == Phase::waiting && !run.dropped) start_read(run, now, out);
  erase_dropped();
  for (Run& run : runs_) {
    if (run.phase == Phase::computing) return;
    if (run.dropped) continue;
    // The first run of the queue is not ready.
    if (run.phase != Phase::ready || waits_for_check(run) || block_reads_.writes(run.asked.pages)) return;
    return refuse_unchecked(run, out) ? pump(now, out) : start_compute(run, out);
  }
}

bool Stage::waits_for_check(const Run& run) {
  const auto check = run.asked.reused > 0 && !run.checked ? check_of(run) : checks_.end();
  return check != checks_.end() && check->second.running;
}

// Refuses to compute a request whose cached prefix is unchecked or corrupt.
bool Stage::refuse_unchecked(Run& run, Actions& out) {
  if (run.asked.reused == 0 || run.checked) return false;
  const auto check = check_of(run);
  const bool good = check != checks_.end() && check->second.good;
  if (check != checks_.end()) checks_.erase(check);
  run.checked = true;  // the run may still wait for a slot
  if (good) return false;
  report(run, Code::corrupt, "stage " + name() + ": cached blocks changed in memory, or were not checked", nullptr,
         out);
  in_used_[run.slot_in] = false;
  return run.dropped = true;
}

void Stage::start_read(Run& run, TimePoint now, Actions& out) {
  const auto free = std::find(in_used_.begin(), in_used_.end(), false);
  if (free == in_used_.end()) return;
  *free = true;
  run.slot_in = static_cast<uint32_t>(free - in_used_.begin());
  run.phase = Phase::reading;
  Read read;
  read.read = run.op = numbers_.next();
  read.peer = run.from, read.instance = run.from_instance;
  read.pool = kSlotPool;
  read.urgent = true;  // all later stages wait for it
  const uint64_t bytes = run.asked.tokens.size() * stage_.slots.row_bytes;
  read.slices.push_back(
      {run.slot_in, 0, run.asked.activations_offset, static_cast<uint32_t>(bytes), run.asked.activations_crc});
  read.budget = std::max<Duration>(run.deadline - now, 1ms);
  out.push_back(std::move(read));
}

void Stage::start_compute(Run& run, Actions& out) {
  if (!is_last()) {
    const auto free = std::find(out_used_.begin(), out_used_.end(), false);
    if (free == out_used_.end()) return;
    *free = true;
    run.slot_out = ActivationSlots::kEach + static_cast<uint32_t>(free - out_used_.begin());
  }
  const wire::StageRun& asked = run.asked;
  RunChunk chunk;
  chunk.run = run.op = numbers_.next();
  chunk.start = asked.start, chunk.reused = asked.reused;
  chunk.tokens = asked.tokens;
  chunk.pages = asked.pages;
  chunk.attention = asked.attention;
  chunk.sample = is_last() && asked.sample;
  chunk.sampling = asked.sampling;
  chunk.history = asked.history;
  chunk.prompt_tokens = asked.prompt_tokens;
  chunk.banned = asked.banned;
  chunk.prompt_logprobs = asked.prompt_logprobs;
  if (is_last()) chunk.targets = asked.targets;
  chunk.first_layer = layers_.first, chunk.end_layer = layers_.end;
  chunk.slots = {run.slot_in, run.slot_out};
  run.phase = Phase::computing;
  out.push_back(std::move(chunk));
}

void Stage::on_event(const Event& event, TimePoint now, Actions& out) {
  if (const auto* read = std::get_if<ReadDone>(&event)) {
    if (block_reads_.on_read(*read, out)) return pump(now, out);
    if (Run* run = by_op(read->read)) {
      run->op = 0;
      send(run->from, run->from_instance, wire::StageTaken{run->asked.run}, out);
      stats_.activation_bytes += read->code == Code::ok ? run->asked.tokens.size() * stage_.slots.row_bytes : 0;
      if (read->code == Code::ok && !run->dropped) {
        run->phase = Phase::ready;
      } else {
        in_used_[run->slot_in] = false;
        if (!run->dropped)
          report(*run, read->code, "reading activations from " + run->from + ": " + read->what, nullptr, out);
        run->dropped = true;
      }
    }
  } else if (const auto* layer = std::get_if<LayerDone>(&event)) {
    if (Run* run = by_op(layer->run)) on_layer(*run, *layer, out);
  } else if (const auto* chunk = std::get_if<ChunkDone>(&event)) {
    const auto check = checks_.find(chunk->run);
    if (check != checks_.end())
      on_check(check->second, *chunk, out);
    else if (Run* run = by_op(chunk->run))
      on_chunk(*run, *chunk, now, out);
  }
  pump(now, out);
}

void Stage::on_layer(Run& run, const LayerDone& done, Actions& out) {
  if (run.dropped || done.layer < layers_.first || done.layer >= layers_.end) return;
  run.crcs[done.layer - layers_.first] = done.crcs;
  std::vector<wire::ReadyExtent> extents;
  uint32_t first = done.first_block;
  for (size_t i = 0; i < done.crcs.size(); ++i) {
    const uint32_t block = done.first_block + static_cast<uint32_t>(i);
    if (block < run.asked.decode_has) {
      ++first;
      continue;
    }
    extents.push_back(
        {shelf_->page_offset(run.asked.pages[block]) + options_.layout.layer_offset(done.layer), done.crcs[i]});
  }
  if (!extents.empty())
    out.push_back(SendNotify{run.asked.decode,
                             run.asked.decode_instance,
                             {run.asked.req, run.asked.attempt, done.layer, first, std::move(extents)}});
}

void Stage::on_chunk(Run& run, const ChunkDone& done, TimePoint now, Actions& out) {
  run.op = 0;
  in_used_[run.slot_in] = false;
  const NodeId next = stage_name(stage_.leader, stage_.stage + 1);
  const wire::Peer* known = is_last() ? nullptr : peers().find(next);
  const bool hand_on = done.code == Code::ok && known && !run.dropped;
  if (!is_last() && !hand_on) out_used_[run.slot_out - ActivationSlots::kEach] = false;
  if (done.code == Code::ok) {
    ++stats_.runs, stats_.tokens += run.asked.tokens.size();
    last_error_.served();
  }
  if (!run.dropped && done.code == Code::ok && !is_last() && !known)  // the leader may still list this node
    report(run, Code::peer_lost, "stage " + name() + ": pipeline stage " + next + " is not in the cluster", nullptr,
           out);
  else if (!run.dropped)
    report(run, done.code, done.what, is_last() ? &done : nullptr, out);
  if (hand_on) {
    wire::StageRun message = std::move(run.asked);
    run.asked.pages = message.pages;  // for erase_dropped()
    message.activations_offset = stage_.slots.offset(run.slot_out);
    message.activations_crc = done.activations_crc;
    message.budget_ms = static_cast<uint32_t>(std::clamp<int64_t>((run.deadline - now) / 1ms, 1, 3'600'000));
    const auto former = handed_on_.find(message.run);  // a restarted leader numbers its runs from 1 again
    if (former != handed_on_.end()) free_handed(former);
    handed_on_[message.run] = {run.slot_out, known->instance, after(now, std::chrono::milliseconds(message.budget_ms))};
    send(next, known->instance, std::move(message), out);
  }
  run.dropped = true;  // pump() erases it
}

void Stage::report(const Run& run, Code code, std::string message, const ChunkDone* last, Actions& out) {
  wire::StageDone done;
  done.run = run.asked.run;
  done.first_layer = layers_.first;
  if (code == Code::ok) done.crcs = run.crcs;
  if (code != Code::ok) ++stats_.failed, last_error_.note(message);
  done.code = code, done.message = std::move(message);
  if (last) done.token = last->sampled.token, done.logprobs = last->sampled.logprobs;
  if (last) done.prompt_logprobs = last->prompt_logprobs, done.embedding = last->sampled.embedding;
  send(run.asked.leader, run.asked.leader_instance, std::move(done), out);
}

// Ends a run. The answer is sent when nothing uses its slots any more. A run that only waits ends at once.
void Stage::drop(Run& run, Actions& out) {
  if (run.dropped) return;
  run.dropped = true;
  report(run, Code::cancelled, "cancelled", nullptr, out);
  if (run.phase == Phase::reading) out.push_back(CancelRead{run.op});
  if (run.phase == Phase::computing) out.push_back(CancelRun{run.op});
  if (run.phase == Phase::waiting) send(run.from, run.from_instance, wire::StageTaken{run.asked.run}, out);
  if (run.phase == Phase::ready) in_used_[run.slot_in] = false;
}

void Stage::erase_dropped() {
  std::erase_if(runs_, [&](const Run& run) {
    if (!run.dropped || run.op != 0) return false;
    run_pages_.remove(run.asked.pages);
    return true;
  });
}

void Stage::on_tick(TimePoint now, Actions& out) {
  for (auto it = handed_on_.begin(); it != handed_on_.end();) {
    const auto handed = it++;
    if (now >= handed->second.deadline) free_handed(handed);
  }
  pump(now, out);
}

TimePoint Stage::role_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [run, handed] : handed_on_) at = std::min(at, handed.deadline);
  return at;
}

void Stage::drop_all(TimePoint, Actions& out) {
  block_reads_.cancel_all(out);
  for (Run& run : runs_) drop(run, out);
  erase_dropped();
}

// A new leader has no record of earlier runs. A next stage that was lost reads no more slots.
void Stage::on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) {
  if (peer.name == stage_.leader) {
    block_reads_.cancel_all(out);
    for (Run& run : runs_) drop(run, out);
  }
  if (peer.name == stage_name(stage_.leader, stage_.stage + 1)) {
    while (!handed_on_.empty()) free_handed(handed_on_.begin());
  }
  pump(now, out);
}

// Every used slot belongs to a run that reads, computes or was handed on. Pages are counted for the runs that are here.
void Stage::role_check() const {
  std::vector<bool> in(in_used_.size()), out(out_used_.size());
  const auto take = [](std::vector<bool>& slots, uint32_t slot) {
    MC_ASSERT(!slots[slot]);
    slots[slot] = true;
  };
  for (const Run& run : runs_) {
    const bool computing = run.phase == Phase::computing;
    if (run.op != 0 || (run.phase == Phase::ready && !run.dropped)) take(in, run.slot_in);
    if (computing && !is_last()) take(out, run.slot_out - ActivationSlots::kEach);
    MC_ASSERT_EQ(run.op != 0, computing || run.phase == Phase::reading);
  }
  for (const auto& [number, handed] : handed_on_) take(out, handed.slot - ActivationSlots::kEach);
  MC_ASSERT(in == in_used_ && out == out_used_);
  PageCounts pages(options_.page_count);
  for (const Run& run : runs_) pages.add(run.asked.pages);
  MC_ASSERT(pages == run_pages_);
  block_reads_.check();
}

void Stage::fill_load(wire::Load& load) const {
  load.running = std::any_of(runs_.begin(), runs_.end(), [](const Run& r) { return r.phase == Phase::computing; });
  load.waiting = static_cast<uint32_t>(runs_.size()) - load.running;
}

}  // namespace mc::node
