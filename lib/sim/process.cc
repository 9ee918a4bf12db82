// The workers of a simulated cluster and their Hello messages.

#include "sim/process.h"

#include "base/assert.h"
#include "node/cache.h"
#include "sched/pipeline.h"

namespace mc::sim {

std::string Place::name() const {
  switch (kind) {
    case Kind::conductor: return std::string(node::kConductor);
    case Kind::decode: return "d" + std::to_string(index);
    case Kind::cache: return "c" + std::to_string(index);
    case Kind::prefill: break;
  }
  const std::string leader = "p" + std::to_string(index);
  return stage == 0 ? leader : node::stage_name(leader, stage);
}

namespace {

ExtentLayout layout_of(const WorldOptions& o) {
  ExtentLayout layout;
  layout.layers = o.layers, layout.kv_heads = 1, layout.head_dim = 16, layout.block_tokens = o.block_tokens;
  layout.dtype = Dtype::f32;
  return layout;
}

}  // namespace

double byte_scale(const sched::Profile& profile, const ExtentLayout& layout) {
  return static_cast<double>(profile.kv_bytes_per_token * layout.block_tokens) /
         static_cast<double>(layout.layers * layout.layer_bytes());
}

double activation_scale(const sched::Profile& profile, const node::ActivationSlots& slots) {
  return static_cast<double>(profile.activation_bytes_per_token) / static_cast<double>(slots.row_bytes);
}

std::string describe(const node::Worker& worker) {
  const auto load = worker.load();
  return std::to_string(load.running) + " running, " + std::to_string(load.waiting) + " waiting, " +
         std::to_string(load.pages_private) + " private pages, " + std::to_string(load.pages_pinned) + " pinned, " +
         std::to_string(load.leases) + " leases";
}

uint64_t disk_blocks_of(const WorldOptions& options, const Place& place) {
  return place.kind == Place::Kind::cache ? options.cache_disk_blocks : options.disk_blocks;
}

uint32_t stages_of(const WorldOptions& options, uint32_t index) {
  return index < options.stages.size() ? options.stages[index] : 1;
}

node::ActivationSlots activation_slots(const WorldOptions& options) {
  node::ActivationSlots slots;
  slots.base = uint64_t{options.page_count} * layout_of(options).page_bytes();
  slots.row_bytes = sizeof(uint64_t);
  slots.slot_bytes = options.chunk_tokens * slots.row_bytes;
  return slots;
}

namespace {

std::unique_ptr<node::Worker> make_prefill(const WorldOptions& options, const Place& place, node::WorkerOptions o) {
  o.stages = stages_of(options, place.index);
  if (o.stages > 1) o.layout.stage = stage_layers(o.layout.layers, place.stage, o.stages);
  o.cost = sched::pipeline_cost(o.cost, o.stages);
  if (options.profile == nullptr) o.cost.prefill_s /= o.stages;  // then it is the cost of a chunk, not of a prompt
  if (place.index < options.announces.size())
    for (double* part : {&o.cost.prefill_s, &o.cost.prefill_s_per_token, &o.cost.prefill_s_per_token2})
      *part *= options.announces[place.index];
  if (place.stage == 0) {
    o.role = wire::Role::prefill;
    const bool scaled = options.profile != nullptr && options.by_layer_bytes != UINT64_MAX;
    const double scale = scaled ? byte_scale(*options.profile, o.layout) : 1;
    const auto by_layer_bytes = o.device_pages > 0 ? UINT64_MAX
                                : scaled ? static_cast<uint64_t>(static_cast<double>(options.by_layer_bytes) / scale)
                                         : options.by_layer_bytes;
    return std::make_unique<node::Prefill>(o, node::PrefillOptions{.chunk_tokens = options.chunk_tokens,
                                                                   .pass_tokens = options.pass_tokens,
                                                                   .by_layer_bytes = by_layer_bytes,
                                                                   .stages = o.stages,
                                                                   .slots = activation_slots(options)});
  }
  o.role = wire::Role::stage;
  return std::make_unique<node::Stage>(o, node::StageOptions{.leader = Place{place.kind, place.index}.name(),
                                                             .stage = place.stage,
                                                             .stages = o.stages,
                                                             .chunk_tokens = options.chunk_tokens,
                                                             .slots = activation_slots(options)});
}

}  // namespace

std::unique_ptr<node::Worker> make_worker(const WorldOptions& options, const Place& place, const InstanceId& instance,
                                          uint64_t seed) {
  node::WorkerOptions o;
  o.name = place.name();
  o.instance = instance;
  o.control_uri = "sim:" + o.name;
  o.layout = layout_of(options);
  o.page_count = options.page_count;
  o.context_tokens = options.context_tokens;
  o.model = "sim";
  o.kv.weights = "sim", o.kv.config = "sim", o.kv.dtype = "f32", o.kv.weight_dtype = "f32", o.kv.kv_dtype = "f32";
  o.kv.rope = "none", o.kv.attention = "full";
  o.kv.layers = options.layers, o.kv.kv_heads = 1, o.kv.head_dim = 16, o.kv.block_tokens = options.block_tokens;
  o.kv.layout = ExtentLayout::kVersion;
  o.cost.prefill_s = to_seconds(kChunkBase), o.cost.prefill_s_per_token = to_seconds(kTokenCost);
  o.cost.decode_s = to_seconds(kStepBase), o.cost.decode_s_per_row = to_seconds(kRowCost);
  o.cost.read_bytes_per_s = kReadBytesPerSecond;
  if (const sched::Profile* p = options.profile) {
    o.cost = p->cost;
    o.cost.read_bytes_per_s /= byte_scale(*p, o.layout);
    if (place.kind == Place::Kind::decode && options.decode_pages > 0) o.page_count = options.decode_pages;
  }
  o.seed = seed;
  o.eviction = options.eviction;
  o.lease_ttl_max = options.lease_time;
  // A member of a pipeline has no disk: its pages hold a part of the layers.
  const bool in_pipeline = place.kind == Place::Kind::prefill && stages_of(options, place.index) > 1;
  if (!in_pipeline) o.disk.capacity_bytes = disk_blocks_of(options, place) * o.layout.page_bytes();
  if (!in_pipeline && place.kind != Place::Kind::cache) o.device_pages = options.device_pages;
  if (place.kind == Place::Kind::prefill) return make_prefill(options, place, std::move(o));
  if (place.kind == Place::Kind::decode) {
    o.role = wire::Role::decode;
    return std::make_unique<node::Decode>(
        o, node::DecodeOptions{
               .batch_max = options.batch_max, .steps_max = options.steps_max, .inline_tokens = options.inline_tokens});
  }
  MC_ASSERT(place.kind == Place::Kind::cache);
  o.role = wire::Role::cache;
  o.page_count = 0;
  o.kv = {};
  o.model.clear();
  node::CacheOptions cache;
  cache.segment_bytes = 4ull * options.page_count * o.layout.page_bytes();
  cache.slab_bytes = 4 * o.layout.page_bytes();
  return std::make_unique<node::Cache>(o, cache);
}

}  // namespace mc::sim
