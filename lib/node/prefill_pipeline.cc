// The prefill node as the leader of a pipeline (Mooncake 6.1): chunks of a request, and of the requests
// behind it, are in flight in all stages at once.
//
//   stage 0 (here)   chunk 0 | chunk 1 | chunk 2 | ...        activations: the next stage READs a slot
//   stage 1                    chunk 0 | chunk 1 | chunk 2    StageDone to here: checksums, first token

#include <algorithm>

#include "base/assert.h"
#include "node/prefill.h"

namespace mc::node {

const wire::Peer* Prefill::stage_peer(uint32_t stage) const {
  const wire::Peer* member = peers().find(stage_name(name(), stage));
  return member && member->role == wire::Role::stage ? member : nullptr;
}

std::string Prefill::missing_stage() const {
  for (uint32_t stage = 1; stage < prefill_.stages; ++stage)
    if (!stage_peer(stage)) return stage_name(name(), stage);
  return "";
}

// We may know of a loss before the conductor does, and it would send the request here again at once: so a
// request waits until the conductor must know as well, or the member is back.
bool Prefill::stages_here(Request& r, TimePoint now, Actions& out) {
  const std::string missing = missing_stage();
  if (missing.empty()) return true;
  if (now >= after(r.arrived, 2 * prefill_.peer_wait))
    fail(r, "queue", "peer_lost", "pipeline stage " + missing + " is not in the cluster", true, now, out);
  return false;
}

bool Prefill::take_slot(RunChunk& run) {
  for (uint32_t i = 0; i < ActivationSlots::kEach; ++i) {
    if (slot_runs_[i] != 0) continue;
    slot_runs_[i] = run.run, slot_until_[i] = kNever;
    run.end_layer = own_layers().end;
    run.slot_out = ActivationSlots::kEach + i;
    return true;
  }
  return false;
}

void Prefill::free_slot(uint64_t run) {
  for (uint32_t i = 0; i < ActivationSlots::kEach; ++i)
    if (slot_runs_[i] == run) slot_runs_[i] = 0, slot_until_[i] = kNever;
}

void Prefill::free_late_slots(TimePoint now) {
  for (uint32_t i = 0; i < ActivationSlots::kEach; ++i)
    if (now >= slot_until_[i]) slot_runs_[i] = 0, slot_until_[i] = kNever;
}

// Our layers of a chunk are done: the next stage takes it, and we go on with the next chunk or request.
void Prefill::hand_on(Request& r, const ChunkDone& done, TimePoint now, Actions& out) {
  const uint32_t bt = options_.layout.block_tokens;
  const uint32_t tokens = static_cast<uint32_t>(r.spec.ids.size());
  const wire::Peer* member = stage_peer(1);
  uint32_t slot = 0;
  while (slot < ActivationSlots::kEach && slot_runs_[slot] != done.run) ++slot;
  if (!member) free_slot(done.run);
  if (!member || slot == ActivationSlots::kEach)  // lost meanwhile
    return fail(r, "prefill", "peer_lost", "pipeline stage " + missing_stage() + " was lost", true, now, out);
  wire::StageRun run;
  run.run = done.run;
  run.req = r.spec.req, run.attempt = r.spec.attempt;
  run.leader = name(), run.leader_instance = options_.instance, run.stages = prefill_.stages;
  run.decode = r.decode, run.decode_instance = r.decode_instance, run.decode_has = r.decode_has;
  run.start = r.next;
  run.reused = r.next == r.prefix_blocks * bt ? r.next : 0;
  run.tokens.assign(r.spec.ids.begin() + r.next, r.spec.ids.begin() + r.run_end);
  run.pages.assign(r.pages.begin(), r.pages.begin() + kv::blocks_for(r.run_end, bt));
  run.attention = r.spec.prefill_attention;
  run.sample = r.run_end == tokens;
  run.sampling = r.spec.sampling;
  run.prompt_tokens = tokens - r.spec.resumed;
  if (r.spec.sampling.has_penalties()) run.history = r.spec.ids;
  if (r.spec.resumed < r.spec.stopping.min_tokens) run.banned = r.spec.stopping.stop_ids;
  run.prompt_logprobs = r.spec.prompt_logprobs;
  run.targets = r.targets();
  run.activations_offset = prefill_.slots.offset(ActivationSlots::kEach + slot);
  run.activations_crc = done.activations_crc;
  run.budget_ms = static_cast<uint32_t>(std::clamp<int64_t>((r.deadline - now) / 1ms, 1, 3'600'000));
  slot_until_[slot] = after(now, std::chrono::milliseconds(run.budget_ms));
  r.flowing[done.run] = {r.next / bt, r.run_end / bt, 0, {}};
  for (uint32_t stage = 1; stage < prefill_.stages; ++stage) r.flowing[done.run].stages_left |= uint64_t{1} << stage;
  flowing_[done.run] = requests_.at(r.spec.req);
  send(member->name, member->instance, std::move(run), out);
  r.next = r.run_end;
  if (r.next < tokens) return run_chunk(r, out);
  computing_ = nullptr;  // the pipeline is ours to fill; this request flows through the rest of it
}

// A stage that counts otherwise than we do computed other layers: its checksums and token mean nothing here.
std::string Prefill::objection(const wire::StageDone& done, uint32_t stage, const Request::Flowing& flowing) const {
  const LayerRange layers = stage_layers(options_.layout.layers, stage, prefill_.stages);
  if (done.first_layer != layers.first || done.crcs.size() != layers.end - layers.first)
    return "computed layers " + std::to_string(done.first_layer) + ".." +
           std::to_string(done.first_layer + done.crcs.size()) + ", its part of " + std::to_string(prefill_.stages) +
           " stages is " + std::to_string(layers.first) + ".." + std::to_string(layers.end) +
           "; give all stages the same --pipeline count";
  for (const auto& crcs : done.crcs)
    if (crcs.size() < flowing.end_block - flowing.first_block)
      return "told " + std::to_string(crcs.size()) + " checksums of " +
             std::to_string(flowing.end_block - flowing.first_block) + " blocks";
  return "";
}

void Prefill::on_stage_done(const Received& event, const wire::StageDone& done, TimePoint now, Actions& out) {
  const auto it = flowing_.find(done.run);
  uint32_t stage = 1;
  while (stage < prefill_.stages && event.from != stage_name(name(), stage)) ++stage;
  if (it == flowing_.end() || stage == prefill_.stages || !peers().has(event.from, event.instance)) return;
  const RequestPtr r = it->second;
  Request::Flowing& flowing = r->flowing.at(done.run);
  if (done.code != "ok")
    return fail(*r, "prefill", done.code, done.message,
                done.code != to_string(Code::invalid) && done.code != "internal", now, out);
  if ((flowing.stages_left >> stage & 1) == 0) return;  // told already
  if (const std::string why = objection(done, stage, flowing); !why.empty())
    return fail(*r, "prefill", "internal", "stage " + event.from + " " + why, false, now, out);
  for (size_t layer = 0; layer < done.crcs.size(); ++layer)
    for (size_t i = 0; i < done.crcs[layer].size(); ++i)
      if (flowing.first_block + i < r->crcs.size())
        r->crcs[flowing.first_block + i][done.first_layer + layer] = done.crcs[layer][i];
  if (stage + 1 == prefill_.stages) {
    flowing.sampled = {done.token, done.logprobs};
    tell_prompt_logprobs(*r, flowing.first_block * options_.layout.block_tokens, done.prompt_logprobs, out);
  }
  flowing.stages_left &= ~(uint64_t{1} << stage);
  ChunkDone last;
  // In order: what a stage computed without the chunk before, which it was not given, has read KV that is not there.
  for (auto first = r->flowing.begin(); first != r->flowing.end() && first->second.stages_left == 0;
       first = r->flowing.erase(first)) {
    publish(*r, first->second.first_block, first->second.end_block);
    last.run = first->first, last.sampled = first->second.sampled;
    flowing_.erase(first->first);
  }
  if (last.run == 0 || !r->flowing.empty() || r->next < r->spec.ids.size() || r->run != 0) return;
  first_token(*r, last, now, out);
}

void Prefill::announce_stages(const Request& r, Actions& out) const {
  if (r.prefix_blocks == 0) return;
  for (uint32_t stage = 1; stage < prefill_.stages; ++stage) {
    const wire::Peer* member = stage_peer(stage);
    if (!member) continue;
    const LayerRange layers = stage_layers(options_.layout.layers, stage, prefill_.stages);
    wire::StageAnnounce message{
        r.spec.req, r.spec.attempt, r.decode, r.decode_instance, std::min(r.decode_has, r.prefix_blocks),
        {},         layers.first,   {}};
    message.crcs.resize(layers.end - layers.first);
    for (uint32_t block = 0; block < r.prefix_blocks; ++block) {
      const kv::BlockMeta& meta = shelf_->pool.meta(r.pages[block]);
      message.pages.push_back(r.pages[block]);
      for (uint32_t layer = layers.first; layer < layers.end; ++layer)
        message.crcs[layer - layers.first].push_back(meta.layer_crcs.empty() ? 0 : meta.layer_crcs[layer]);
    }
    send(member->name, member->instance, std::move(message), out);
  }
}

// Every request that reuses one of the pages has read what is not its prefix, or will.
void Prefill::on_stage_rotten(const wire::StageRotten& found, TimePoint now, Actions& out) {
  std::vector<BlockHash> hashes;
  std::vector<kv::PageIndex> pages;
  std::vector<uint32_t> rotten;
  for (const uint32_t page : found.pages) {
    if (page >= options_.page_count || shelf_->pool.state(page) != kv::PageState::cached) continue;
    rotten.push_back(static_cast<uint32_t>(pages.size()));
    hashes.push_back(shelf_->pool.meta(page).hash), pages.push_back(page);
  }
  blocks().drop_rotten(shelf_->pool, hashes, pages, rotten);
  stats_.checksum_failures += rotten.size();
  const auto all = requests_;
  for (const auto& [id, r] : all) {
    const auto reused = std::span(r->pages).first(std::min<size_t>(r->prefix_blocks, r->pages.size()));
    const bool reads = std::find_first_of(reused.begin(), reused.end(), pages.begin(), pages.end()) != reused.end();
    if (reads && r->phase == Phase::computing)
      fail(*r, "prefill", "corrupt", "cached blocks of a pipeline stage changed in memory; they were dropped", true,
           now, out);
  }
}

// Its layers of every block are gone, those of requests under way included; blocks still held drain.
void Prefill::on_stage_gone(const NodeId& node, TimePoint now, Actions& out) {
  const auto all = requests_;
  for (const auto& [id, r] : all)
    if (r->phase != Phase::ended)
      fail(*r, stage_of(*r), "peer_lost", "pipeline stage " + node + " was lost", true, now, out);
  flowing_.clear();
  std::fill(std::begin(slot_runs_), std::end(slot_runs_), 0);
  std::fill(std::begin(slot_until_), std::end(slot_until_), kNever);
  if (computing_ && computing_->run != 0) {  // our own compute still writes a slot: it is free when that ends
    slot_runs_[0] = slot_runs_[1] = computing_->run;
  }
  for (const auto& block : shelf_->pool.snapshot()) shelf_->pool.remove(block.hash, kv::Removal::dropped);
}

}  // namespace mc::node
