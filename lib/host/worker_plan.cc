#include "host/worker_plan.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <system_error>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/units.h"
#include "costed/standin.h"
#include "host/calibrate.h"
#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "host/disk_flags.h"
#include "host/model_compute.h"
#include "host/profile.h"
#include "host/store_flags.h"
#include "kv/eviction.h"
#include "model/device_forms.h"
#include "model/find.h"
#include "model/tensor_part.h"
#include "node/disk_block.h"
#include "product/flags.h"
#include "sched/pipeline.h"

namespace mc::host {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{8} << 20;
// A driver hands out memory by 2 MiB, and the parts of the weights are aligned to 256 bytes.
constexpr uint64_t kDeviceRounding = uint64_t{8} << 20;
constexpr uint64_t kSlowLoadBytes = uint64_t{256} << 20;  // loading takes seconds

InstanceId random_instance() {
  std::random_device device;
  Id128 id;
  for (auto& byte : id.bytes) byte = static_cast<uint8_t>(device());
  return InstanceId{id};
}

uint64_t wanted_bytes(const ByteSize& size) {
  return size.of(mem::available_bytes());
}

/// A costed node has a tier on its device when it is asked for one. Its pages stand for blocks of the profile's size.
Result<void> plan_costed_device(const ByteSize& asked, const sched::Profile& profile, node::WorkerOptions& options) {
  if (options.stages > 1 || (asked.percent == 0 && asked.bytes == 0)) return {};
  const uint64_t block_bytes = profile.kv_bytes_per_token * options.layout.block_tokens;
  const uint64_t batch = profile.capacity.kv_tokens / options.layout.block_tokens;
  const uint64_t pages = asked.percent > 0 ? asked.of(batch) : asked.bytes / block_bytes;
  if (pages < kPagesMin)
    return user_error(err::kDeviceMemory,
                      "--device-mem holds " + std::to_string(pages) + " blocks of " + format_bytes(block_bytes) +
                          "; a node needs " + std::to_string(kPagesMin),
                      "--device-mem", "give --device-mem at least " + format_bytes(kPagesMin * block_bytes));
  options.device_pages = static_cast<uint32_t>(std::min<uint64_t>(pages, options.page_count));
  options.context_tokens = std::min(options.context_tokens, (options.device_pages - 1) * options.layout.block_tokens);
  return {};
}

/// The default is not a choice, also where --print-config wrote it into a file.
bool chose_value_disk(const cli::Args& args) {
  return args.given(flags::kValuesDisk) && args.text(flags::kValuesDisk) != flags::kValuesDisk.fallback;
}

bool asks_to_load_by_layer(const cli::Args& args) {
  return args.has(flags::kLoadByLayer) && args.present(flags::kLoadByLayer);
}

/// Some nodes load a prefix as a whole, so the flag would have no effect there.
Result<void> check_load_by_layer(const cli::Args& args, uint32_t stages, bool on_device) {
  if (!asks_to_load_by_layer(args) || (stages == 1 && !on_device)) return {};
  const std::string node = stages > 1 ? "a stage of a pipeline" : "a node whose KV goes to a device";
  return user_error(err::kBadValue,
                    "--load-by-layer " + args.text(flags::kLoadByLayer) + ": " + node + " loads a prefix as a whole",
                    "--load-by-layer", "leave it out, or say off, on this node");
}

bool asks_for_tier(const cli::Args& args) {
  const ByteSize asked = args.size(flags::kDeviceMem);
  return asked.percent > 0 || asked.bytes > 0;
}

/// MC7002: what several devices do not compute together.
Result<void> check_several(const gpu::DeviceGroup& devices, const model::ModelConfig& config, const cli::Args& args) {
  if (devices.size() == 1) return {};
  MC_CHECK(model::check_split(config, static_cast<uint32_t>(devices.size()), devices.name()));
  if (!args.given(flags::kDeviceMem) || !asks_for_tier(args)) return {};
  return user_error(err::kDeviceUnusable,
                    "--device-mem " + args.text(flags::kDeviceMem) + ": " + devices.name() +
                        " are several devices, which have no tier of KV blocks yet",
                    "--device-mem", "give --device-mem 0, or name one device");
}

void log_forms(const model::DeviceForms& forms, const std::string& device) {
  if (const std::string text = forms.coded_text(); !text.empty()) log_info(text, {{"device", device}});
  const std::string text = forms.widened_text();
  if (text.empty()) return;
  if (forms.why.empty())
    log_info(text, {{"device", device}});
  else
    log_info(text, {{"device", device}, {"why", forms.why}});
}

/// The plan of the device that has room for the fewest pages.
Result<DevicePlan> plan_devices(gpu::DeviceGroup& devices, const model::ModelPlan& plan, const ExtentLayout& layout,
                                const model::RunnerOptions& runner, std::span<const attn::Plan> plans) {
  const auto count = static_cast<uint32_t>(devices.size());
  std::optional<DevicePlan> out;
  std::vector<model::DeviceForms> forms;
  for (uint32_t rank = 0; rank < count; ++rank) {
    MC_TRY(memory, devices.device(rank).memory());
    const model::TensorPart part{rank, count};
    const ExtentLayout own = model::KvPart::of(layout, part).device;
    const model::ModelConfig config = model::config_of(plan.config, part);
    const auto scratch = model::Runner::device_scratch(config, own, runner, plans, memory.total);
    MC_TRY(own_forms, model::device_forms(plan, devices.device(rank), part));
    forms.push_back(own_forms);
    const size_t fp8 = own_forms.coded > 0 ? model::Runner::device_fp8_bytes(config, runner) : 0;
    const DevicePlan made{.device = std::string(devices.device(rank).name()),
                          .weight_bytes = model::part_weight_bytes(plan.config, own_forms.bytes, part),
                          .scratch_bytes = scratch.fixed + fp8 + kDeviceRounding,
                          .page_bytes = own.page_bytes(),
                          .free_bytes = memory.free,
                          .total_bytes = memory.total,
                          .beside_page_bytes = scratch.page};
    if (!out || made.pages() < out->pages() ||
        (made.pages() == out->pages() && made.free_bytes < out->free_bytes))  // none has room: name the smaller one
      out = made;
  }
  const bool are_equal = std::ranges::all_of(forms, [&](const model::DeviceForms& one) { return one == forms[0]; });
  if (are_equal) log_forms(forms[0], devices.name());
  for (uint32_t rank = 0; rank < count && !are_equal; ++rank)
    log_forms(forms[rank], std::string(devices.device(rank).name()));
  return *out;
}

}  // namespace

Result<void> WorkerPlan::make() {
  MC_ASSERT(role_ != wire::Role::stage);  // plan_pipeline() makes a stage of a prefill node
  options.role = role_;
  options.instance = random_instance();
  options.seed = args_.count(flags::kSeed);
  options.version = cli::build_info().version;
  options.lease_ttl_max = args_.duration(flags::kLeaseTime);
  if (args_.has(flags::kFetchTimeout))
    prefill_.fetch_timeout = decode_.fetch_timeout = args_.duration(flags::kFetchTimeout);
  if (args_.present(flags::kName)) options.name = args_.text(flags::kName);
  if (args_.has(flags::kPipeline) && args_.present(flags::kPipeline)) MC_CHECK(plan_pipeline());
  for (const auto& label : args_.list(flags::kLabel)) {
    const size_t equals = label.find('=');
    MC_ASSERT(equals != std::string::npos);  // the check of the flag
    options.labels.emplace_back(label.substr(0, equals), label.substr(equals + 1));
  }
  options.eviction = kv::find_eviction(args_.text(flags::kEviction));
  return role_ == wire::Role::cache ? plan_cache() : plan_model();
}

uint64_t WorkerPlan::disk_files() const {
  if (!args_.present(flags::kSsd)) return 0;
  const auto place = parse_ssd(args_.text(flags::kSsd));
  if (!place) return 0;  // open_disk() reports the error
  const auto values = value_disk_bytes(place->bytes);
  return block_disk_files(place->directory, place->bytes) + (values ? value_disk_files(*values) : 0);
}

Result<uint64_t> WorkerPlan::value_disk_bytes(uint64_t ssd_bytes) const {
  if (role_ != wire::Role::cache) return uint64_t{0};
  const uint64_t bytes = args_.size(flags::kValuesDisk).of(ssd_bytes);
  if (bytes >= kValueDiskLeast && bytes < ssd_bytes) return bytes;
  if (bytes == 0 || (bytes < kValueDiskLeast && !chose_value_disk(args_))) return uint64_t{0};
  return user_error(err::kBadValue,
                    "durable values need " + format_bytes(kValueDiskLeast) + " or more, and less than all of --ssd; " +
                        format_bytes(bytes) + " of " + format_bytes(ssd_bytes) + " were given",
                    "--values-disk", "give a larger part, or 0B for no durable values");
}

/// A part of no disk would be without effect.
Result<void> WorkerPlan::check_value_disk() const {
  constexpr uint64_t kAny = uint64_t{1} << 40;
  if (args_.present(flags::kSsd) || !chose_value_disk(args_) || args_.size(flags::kValuesDisk).of(kAny) == 0) return {};
  return user_error(err::kBadValue, "durable values need a disk, and --ssd is not given", "--values-disk",
                    "give --ssd DIR:SIZE too, or leave --values-disk out");
}

Result<std::unique_ptr<BlockValueDisk>> WorkerPlan::open_value_disk() const {
  if (!args_.present(flags::kSsd)) return std::unique_ptr<BlockValueDisk>();
  MC_TRY(place, parse_ssd(args_.text(flags::kSsd)));
  MC_TRY(bytes, value_disk_bytes(place.bytes));
  const std::string directory = place.directory + "/" + std::string(kValuesFolder);
  if (bytes == 0 || value_bytes_ == 0) {
    if (std::error_code error; std::filesystem::exists(directory + "/super.a", error))
      log_warn("durable values are not served: this node has no --values or no --values-disk",
               {{"directory", directory}});
    if (bytes == 0 && value_bytes_ > 0 && !chose_value_disk(args_))
      log_info("no durable values: the usual part of --ssd is below the least size; --values-disk sets the part",
               {{"least", kValueDiskLeast}, {"ssd", place.bytes}});
    return std::unique_ptr<BlockValueDisk>();
  }
  if (args_.on(flags::kCheck)) {
    MC_CHECK(BlockValueDisk::check({.directory = directory, .capacity_bytes = bytes}));
    return std::unique_ptr<BlockValueDisk>();
  }
  MC_TRY(disk, BlockValueDisk::open({.directory = directory, .capacity_bytes = bytes}));
  const store::Restart& restart = disk->restart();
  for (const std::string& loss : restart.damaged)
    log_warn("values on disk were lost", {{"directory", directory}, {"what", loss}});
  log_info("disk of values opened",
           {{"directory", directory}, {"bytes", bytes}, {"blocks", restart.blocks}, {"epoch", restart.epoch}});
  return disk;
}

/// A block of the model must fit in a segment of the disk.
Result<void> WorkerPlan::check_block(const std::string& directory, uint64_t value_bytes_max) const {
  const uint64_t value_bytes = options.layout.layers > 0 ? node::disk_value_bytes(options.layout) : 0;
  if (value_bytes <= value_bytes_max) return {};
  return user_error(err::kBadValue,
                    "a block of " + format_bytes(value_bytes) + " does not fit in the segments of " + directory +
                        ", which hold " + format_bytes(value_bytes_max),
                    "--ssd", "give an empty directory and a larger SIZE");
}

Result<std::unique_ptr<BlockDisk>> WorkerPlan::open_disk() {
  for (const Flag* flag : {&flags::kSsdWriteBudget, &flags::kSsdMinUses})
    if (!args_.present(flags::kSsd) && args_.given(*flag) && args_.text(*flag) != flag->fallback)
      return user_error(err::kBadValue,
                        "the node has no disk, and --" + std::string(flag->name) + " is about its writes",
                        "--" + std::string(flag->name), "give --ssd DIR:SIZE as well, or leave it out");
  if (!args_.present(flags::kSsd)) return std::unique_ptr<BlockDisk>();
  if (options.stages > 1)
    return user_error(err::kBadValue, "--ssd keeps whole blocks, and a member of a pipeline has some of their layers",
                      "--ssd", "leave it out on the members of a pipeline; mc-cache --ssd serves the other nodes");
  MC_TRY(place, parse_ssd(args_.text(flags::kSsd)));
  MC_TRY(values, value_disk_bytes(place.bytes));
  if (const uint64_t room = block_disk_room(place.directory); place.bytes > room)
    log_warn("--ssd asks for more than its file system has free",
             {{"directory", place.directory}, {"asked", human_bytes(place.bytes)}, {"free", human_bytes(room)}});
  place.bytes -= value_bytes_ > 0 ? values : 0;
  if (args_.on(flags::kCheck)) {
    MC_TRY(most, BlockDisk::check({.directory = place.directory, .capacity_bytes = place.bytes}));
    MC_CHECK(check_block(place.directory, most));
    return std::unique_ptr<BlockDisk>();
  }
  MC_TRY(disk, BlockDisk::open({.directory = place.directory, .capacity_bytes = place.bytes}));
  MC_CHECK(check_block(place.directory, disk->value_bytes_max()));
  options.disk.capacity_bytes = place.bytes;
  options.disk.value_bytes_max = disk->value_bytes_max();
  if (args_.present(flags::kSsdWriteBudget)) {
    MC_TRY(rate, parse_byte_rate(args_.text(flags::kSsdWriteBudget)));
    options.disk.write_bytes_per_s = static_cast<double>(rate);
  }
  options.disk.uses_min = static_cast<uint32_t>(args_.count(flags::kSsdMinUses));
  const store::Restart& restart = disk->restart();
  for (const std::string& loss : restart.damaged)
    log_warn("blocks on disk were lost", {{"directory", place.directory}, {"what", loss}});
  log_info("disk opened", {{"directory", place.directory},
                           {"io", disk->kind()},
                           {"bytes", place.bytes},
                           {"blocks", restart.blocks},
                           {"epoch", restart.epoch}});
  return disk;
}

uint64_t WorkerPlan::blocks_max() const {
  constexpr uint64_t kSmallPage = 32 << 10;
  const bool is_cache = options.page_count == 0;
  const uint64_t page = is_cache ? kSmallPage : std::max<uint64_t>(options.layout.page_bytes(), kSmallPage);
  return (is_cache ? arena_bytes_ / page : options.page_count) + options.disk.capacity_bytes / page;
}

// The leader bears the pipeline's name, the others extend it.
Result<void> WorkerPlan::plan_pipeline() {
  MC_TRY(part, pipeline_part(args_));
  if (options.name.empty())
    return user_error(err::kBadValue, "--pipeline needs --name: the stages of a pipeline find each other by that name",
                      "--pipeline", "give all its stages one name, as in --name p0 --pipeline 0/2");
  stage_.leader = options.name;
  stage_.stage = part.stage;
  stage_.stages = part.stages;
  options.stages = stage_.stages;
  if (part.stage == 0) {
    prefill_.stages = stage_.stages;
  } else {
    options.name = node::stage_name(options.name, stage_.stage);
    options.role = role_ = wire::Role::stage;
  }
  return {};
}

// The slots for activations follow the pages in the buffer that peers may read.
void WorkerPlan::add_slots(uint64_t row_bytes, uint64_t chunk_tokens) {
  node::ActivationSlots slots;
  slots.row_bytes = row_bytes;
  slots.base = arena_bytes_;
  MC_ASSERT_EQ(slots.base % alignof(uint64_t), 0u);
  slots.slot_bytes = round_up(chunk_tokens * row_bytes, 4096);
  arena_bytes_ += slots.slot_bytes * node::ActivationSlots::count();
  prefill_.slots = stage_.slots = slots;
}

Result<void> WorkerPlan::plan_cache() {
  MC_CHECK(check_value_disk());
  const uint64_t bytes = wanted_bytes(args_.size(flags::kDram));
  if (bytes < kSlabBytes)
    return user_error(
        err::kBadValue,
        "a cache of " + human_bytes(bytes) + " holds no slab of blocks, which has " + format_bytes(kSlabBytes),
        "--dram", "give a size such as 64MiB or 4GiB, or a share such as 25%");
  const uint64_t asked_values = args_.size(flags::kValues).of(bytes);
  value_bytes_ = std::min(asked_values, bytes - kSlabBytes);
  const bool chose_values = args_.given(flags::kValues) && args_.text(flags::kValues) != flags::kValues.fallback;
  if (value_bytes_ < asked_values && chose_values)
    return user_error(err::kBadValue,
                      "values of " + format_bytes(asked_values) + " leave no slab of " + format_bytes(kSlabBytes) +
                          " for KV blocks of --dram " + format_bytes(bytes),
                      "--values", "give a share such as 10%, or a larger --dram");
  arena_bytes_ = (bytes - value_bytes_) / kSlabBytes * kSlabBytes;
  MC_ASSERT_LE(arena_bytes_ + value_bytes_, bytes);
  if (arena_bytes_ + value_bytes_ != bytes || value_bytes_ != asked_values)
    log_info("memory of the cache", {{"asked_bytes", bytes},
                                     {"block_bytes", arena_bytes_},
                                     {"value_bytes", value_bytes_},
                                     {"why", "blocks take whole slabs of " + format_bytes(kSlabBytes)}});
  options.keeps_values = value_bytes_ > 0;
  cache_.segment_bytes = arena_bytes_;
  cache_.slab_bytes = kSlabBytes;
  return check_memory();
}

Result<void> WorkerPlan::check_memory() const {
  const uint64_t free = mem::available_bytes();
  if (arena_bytes_ + value_bytes_ <= free) return {};
  return user_error(err::kNotEnoughMemory,
                    "the KV pool needs " + format_bytes(arena_bytes_) +
                        (value_bytes_ > 0 ? " and the store of values " + format_bytes(value_bytes_) : "") + ", " +
                        format_bytes(free) + " are free",
                    role_ == wire::Role::cache ? "--dram" : "--kv-mem",
                    "use at most " + format_bytes(free / 10 * 9) + ", or free memory");
}

uint32_t WorkerPlan::inline_tokens() const {
  return args_.has(flags::kInlineTokens) ? static_cast<uint32_t>(args_.count(flags::kInlineTokens)) : 0;
}

model::RunnerOptions WorkerPlan::runner_options() const {
  const auto block_tokens = static_cast<uint32_t>(args_.count(flags::kBlockTokens));
  // A decode node has no flag for chunks. Those of --inline-tokens share a pass with the rows of a step.
  model::RunnerOptions out{
      .block_tokens = block_tokens, .max_chunk_tokens = block_tokens, .kernels = args_.text(flags::kKernels)};
  if (args_.has(flags::kBatchMax)) out.max_batch = static_cast<uint32_t>(args_.count(flags::kBatchMax));
  if (const uint32_t tokens = inline_tokens(); tokens > 0)
    out.max_chunk_tokens = (tokens + out.max_batch + block_tokens - 1) / block_tokens * block_tokens;
  if (args_.has(flags::kChunkTokens)) out.max_chunk_tokens = static_cast<uint32_t>(args_.count(flags::kChunkTokens));
  out.device_pages = options.device_pages;
  return out;
}

/// The attention of the rows that the node computes: of prompts, and of steps on a decode node.
Result<std::vector<attn::Plan>> WorkerPlan::row_plans(const model::ModelConfig& config) const {
  std::vector<attn::Plan> plans;
  const bool is_decode = role_ == wire::Role::decode;
  if (is_decode) {
    MC_TRY(decode, asked_plan(args_, flags::kDecodeAttention, config));
    plans.push_back(decode);
  }
  if (!is_decode || inline_tokens() > 0) {
    MC_TRY(prefill, asked_plan(args_, flags::kPrefillAttention, config));
    plans.push_back(prefill);
  }
  return plans;
}

/// Before anything is loaded. Returns the bytes of the weights.
Result<uint64_t> WorkerPlan::check_model_fits(gpu::DeviceGroup* devices) {
  MC_TRY(directory, model::find_model(args_.text(flags::kModel)));
  MC_TRY(options, model_options(args_));
  MC_TRY(plan, model::plan_model(directory, options));
  const model::RunnerOptions runner = runner_options();
  const ByteSize kv = args_.size(flags::kKvMem);
  MemoryPlan memory;
  memory.weight_bytes = plan.weight_bytes;
  memory.scratch_bytes = sizeof(float) * uint64_t{runner.max_batch} * plan.config.vocab;
  if (devices == nullptr) memory.scratch_bytes += model::Runner::workspace_bytes(plan.config, runner);
  memory.free_bytes = mem::available_bytes();
  memory.kv_bytes = kv.percent > 0 ? 0 : kv.of(memory.free_bytes);
  const ExtentLayout layout = model::kv_layout(plan.config, plan.kv_dtype, runner.block_tokens, plan.layers);
  memory.page_bytes = layout.page_bytes();
  if (devices != nullptr) {
    MC_CHECK(check_several(*devices, plan.config, args_));
    MC_TRY(plans, row_plans(plan.config));
    MC_TRY(tightest, plan_devices(*devices, plan, layout, runner, plans));
    device_ = tightest;
    MC_CHECK(check_device_memory(device_));
  }
  if (role_ == wire::Role::decode) {
    MC_TRY(attention, asked_plan(args_, flags::kDecodeAttention, plan.config));
    const CentroidBytes copies = centroid_bytes(attention, layout);
    memory.beside_page_bytes = copies.page_bytes;
    memory.scratch_bytes += copies.strip_bytes * runner.max_batch;
  }
  MC_CHECK(host::check_memory(memory));
  return memory.weight_bytes;
}

Result<void> WorkerPlan::plan_model() {
  MC_TRY(profile, runner_profile(args_));
  if (profile) return plan_costed(*std::move(profile));
  MC_TRY(devices, open_chosen_devices(args_));
  MC_CHECK(check_load_by_layer(args_, options.stages, devices != nullptr));
  MC_TRY(weight_bytes, check_model_fits(devices.get()));
  if (weight_bytes >= kSlowLoadBytes) log_info("loading the model", {{"weight_bytes", weight_bytes}});
  options.device = devices ? devices->name() : "cpu";
  MC_TRY(engine, open_engine(args_, std::move(devices)));
  engine_ = std::make_unique<Engine>(std::move(engine));
  const model::Model& model = *engine_->model;
  block_tokens_ = engine_->block_tokens;
  options.model = engine_->served_name;
  options.layout = model.kv_layout(engine_->block_tokens);
  options.kv = model.kv_namespace(engine_->prefill_plan, engine_->block_tokens);
  options.decode_attention = attn::to_string(engine_->decode_plan);
  const uint64_t page_bytes = options.layout.page_bytes();
  const ExtentLayout widest = widest_layout();
  const uint64_t pages = pages_wanted();
  if (pages < kPagesMin)
    return user_error(err::kNotEnoughMemory,
                      "--kv-mem holds " + std::to_string(pages) + " pages of " + format_bytes(page_bytes) +
                          "; a node needs " + std::to_string(kPagesMin),
                      "--kv-mem", "give --kv-mem at least " + format_bytes(kPagesMin * widest.page_bytes()));
  options.page_count = static_cast<uint32_t>(std::min<uint64_t>(pages, 1u << 24));
  arena_bytes_ = options.page_count * page_bytes;
  uint64_t context_pages = options.page_count - 1;
  if (has_device_tier()) {
    MC_CHECK(plan_device_pages(device_.pages()));
    context_pages = std::min<uint64_t>(context_pages, options.device_pages - 1);
  } else if (engine_->devices) {
    context_pages = std::min(context_pages, device_.pages());
  }
  options.context_tokens =
      static_cast<uint32_t>(std::min<uint64_t>(model.config().max_positions, context_pages * engine_->block_tokens));
  if (options.stages > 1) add_slots(model.config().hidden * sizeof(float), args_.count(flags::kChunkTokens));
  return check_memory();
}

// A pipeline's members count pages alike: by the one that holds most layers.
ExtentLayout WorkerPlan::widest_layout() const {
  ExtentLayout widest = options.layout;
  if (!engine_->model->whole()) widest.stage = {0, (widest.layers + stage_.stages - 1) / stage_.stages};
  return widest;
}

/// KV pages that fit into --kv-mem, and on a device what its passes can hold.
uint64_t WorkerPlan::pages_wanted() const {
  // More than the batch can ever hold is waste: small models on big machines stay small.
  const uint64_t batch = args_.has(flags::kBatchMax) ? args_.count(flags::kBatchMax) : 16;
  const uint64_t useful =
      std::max<uint64_t>(batch, 4) * (engine_->model->config().max_positions / engine_->block_tokens + 1);
  uint64_t pages = wanted_bytes(args_.size(flags::kKvMem)) / widest_layout().page_bytes();
  if (args_.size(flags::kKvMem).percent > 0) pages = std::min({pages, useful, uint64_t{1} << 20});
  // Without a tier on the device, all pages of a batch are there during a step, and during a chunk those of the prompts
  // that share its pass, which together have at most a context.
  if (engine_->devices && role_ == wire::Role::decode && !has_device_tier()) pages = std::min(pages, device_.pages());
  return pages;
}

/// Whether the machine says which blocks are on the device. The members of a pipeline copy the pages of each pass, and
/// so do several devices of a node.
bool WorkerPlan::has_device_tier() const {
  return engine_->devices && engine_->devices->size() == 1 && options.stages == 1 && asks_for_tier(args_);
}

/// Pages of the device: those that --device-mem asks for, of those that fit, and no more than the host has.
Result<void> WorkerPlan::plan_device_pages(uint64_t fit) {
  const uint64_t wanted = device_pages_asked(args_.size(flags::kDeviceMem), fit, options.layout.page_bytes(),
                                             engine_->devices->device(0).kind());
  const std::string least = format_bytes(kPagesMin * options.layout.page_bytes());
  if (wanted < kPagesMin)
    return user_error(err::kDeviceMemory,
                      "--device-mem holds " + std::to_string(wanted) + " pages of " +
                          format_bytes(options.layout.page_bytes()) + "; a node needs " + std::to_string(kPagesMin),
                      "--device-mem", "give --device-mem at least " + least);
  if (wanted > fit)
    return user_error(err::kDeviceMemory,
                      "--device-mem holds " + std::to_string(wanted) + " pages of KV, and " + std::to_string(fit) +
                          " fit beside the weights on " + options.device,
                      "--device-mem", "give --device-mem at most " + format_bytes(fit * options.layout.page_bytes()));
  options.device_pages = static_cast<uint32_t>(std::min<uint64_t>(wanted, options.page_count));
  return {};
}

// Room as the profile has it, in stand-in pages; memory is taken only as they are written.
Result<void> WorkerPlan::plan_costed(sched::Profile profile) {
  MC_TRY(directory, model::find_model(args_.text(flags::kModel)));
  MC_TRY(config, model::read_config(directory));
  block_tokens_ = static_cast<uint32_t>(args_.count(flags::kBlockTokens));
  options.model = served_name(directory);
  options.layout = costed::Standin::layout(profile.layers, block_tokens_);
  if (options.stages > options.layout.layers)
    return user_error(err::kBadValue,
                      "a pipeline of " + std::to_string(options.stages) + " stages; the stand-in KV of profile " +
                          profile.name + " has " + std::to_string(options.layout.layers) + " layers to divide",
                      "--pipeline", "give at most that many stages");
  if (options.stages > 1) options.layout.stage = stage_layers(options.layout.layers, stage_.stage, options.stages);
  options.kv.weights = "standin:" + profile.name;
  options.kv.config = config.kv_digest();
  options.kv.dtype = options.kv.weight_dtype = options.kv.kv_dtype = "standin";
  options.kv.rope = "none";
  options.kv.attention = options.decode_attention = "full";
  options.kv.layers = options.layout.layers;
  options.kv.kv_heads = options.layout.kv_heads, options.kv.head_dim = options.layout.head_dim;
  options.kv.block_tokens = block_tokens_;
  options.kv.layout = ExtentLayout::kVersion;
  // A member of a pipeline keeps a part of each block, so it has pages for more of them.
  const auto cached =
      static_cast<uint64_t>(static_cast<double>(profile.capacity.dram_bytes / profile.kv_bytes_per_token) /
                            sched::widest_stage_share(profile.layers, options.stages));
  const uint64_t tokens = role_ == wire::Role::decode ? profile.capacity.kv_tokens
                                                      : std::max(cached, profile.context_tokens + block_tokens_);
  options.page_count = static_cast<uint32_t>(std::clamp<uint64_t>(tokens / block_tokens_, kPagesMin, 1u << 20));
  const uint64_t said = role_ == wire::Role::decode ? profile.capacity.kv_tokens : cached;
  const uint64_t here = uint64_t{options.page_count} * block_tokens_;
  if (here > said || here + block_tokens_ <= said)
    log_warn("KV room differs from the profile: a node holds at least one context and at most 1048576 pages",
             {{"profile_tokens", said}, {"tokens", here}});
  arena_bytes_ = uint64_t{options.page_count} * options.layout.page_bytes();
  options.context_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(profile.context_tokens, uint64_t{options.page_count - 1} * block_tokens_));
  if (args_.given(flags::kDeviceMem)) MC_CHECK(plan_costed_device(args_.size(flags::kDeviceMem), profile, options));
  MC_CHECK(check_load_by_layer(args_, options.stages, options.device_pages > 0));
  options.cost = sched::pipeline_cost(profile.cost, options.stages);
  // A page stands for more bytes than it has; peers reckon with those it has.
  const double held = static_cast<double>(options.layout.held().count()) / options.layout.layers;
  options.cost.read_bytes_per_s *= static_cast<double>(options.layout.page_bytes()) /
                                   (held * static_cast<double>(profile.kv_bytes_per_token * block_tokens_));
  uint64_t chunk_tokens = profile.chunk_tokens;
  if (args_.has(flags::kChunkTokens) && args_.given(flags::kChunkTokens))
    chunk_tokens = args_.count(flags::kChunkTokens);
  MC_CHECK(check_chunk(static_cast<uint32_t>(chunk_tokens)));
  prefill_.chunk_tokens = stage_.chunk_tokens = static_cast<uint32_t>(chunk_tokens);
  if (options.stages > 1) add_slots(sizeof(uint64_t), chunk_tokens);
  options.labels.emplace_back("runner", "costed:" + profile.name);
  costed_.emplace();
  costed_->profile = std::move(profile);
  costed_->vocab = config.vocab;
  return check_memory();
}

Result<void> WorkerPlan::check_chunk(uint32_t chunk_tokens) const {
  if (chunk_tokens != 0 && chunk_tokens % block_tokens_ == 0) return {};
  return user_error(err::kBadValue,
                    "--chunk-tokens " + std::to_string(chunk_tokens) + " is not a multiple of --block-tokens " +
                        std::to_string(block_tokens_),
                    "--chunk-tokens", "give a multiple, for example " + std::to_string(8 * block_tokens_));
}

Result<std::unique_ptr<node::Compute>> WorkerPlan::open_compute(std::byte* pool) {
  if (costed_) return open_costed(pool);
  if (engine_) return open_model(pool);
  return std::unique_ptr<node::Compute>();
}

/// The bound of PrefillOptions, in bytes that really move.
uint64_t WorkerPlan::by_layer_bytes() const {
  if (!asks_to_load_by_layer(args_)) return UINT64_MAX;
  const uint64_t bytes = args_.bytes(flags::kLoadByLayer);
  return costed_ ? static_cast<uint64_t>(static_cast<double>(bytes) / page_scale()) : bytes;
}

Result<std::unique_ptr<node::Compute>> WorkerPlan::open_costed(std::byte* pool) {
  MC_ASSERT(pool != nullptr && options.page_count >= kPagesMin);
  prefill_.by_layer_bytes = by_layer_bytes();
  if (args_.has(flags::kBatchMax)) decode_.batch_max = static_cast<uint32_t>(args_.count(flags::kBatchMax));
  decode_.inline_tokens = inline_tokens();
  costed_->layout = options.layout;
  costed_->pool = pool;
  costed_->page_count = options.page_count;
  costed_->slots = prefill_.slots;
  if (options.stages > 1) costed_->share = sched::stage_share(costed_->profile.layers, stage_.stage, options.stages);
  MC_TRY(opened, costed::Costed::open(*costed_));
  return std::unique_ptr<node::Compute>(std::move(opened));
}

/// Bytes that a byte of a costed node's page stands for.
double WorkerPlan::page_scale() const {
  MC_ASSERT(costed_ && options.layout.layer_bytes() > 0);
  return static_cast<double>(costed_->profile.kv_bytes_per_token) * options.layout.block_tokens /
         static_cast<double>(options.layout.layers * options.layout.layer_bytes());
}

std::optional<costed::PacedPlane::Pace> WorkerPlan::pace() const {
  if (!costed_) return std::nullopt;
  const sched::Path& net = costed_->profile.paths.net;
  costed::PacedPlane::Pace pace{.s_per_byte = page_scale() / net.bytes_per_s, .latency = from_seconds(net.latency_s)};
  if (options.stages > 1)
    pace.s_per_activation_byte = static_cast<double>(costed_->profile.activation_bytes_per_token) /
                                 static_cast<double>(prefill_.slots.row_bytes) / net.bytes_per_s;
  return pace;
}

Result<sched::Cost> WorkerPlan::cost_of_model(model::Runner& runner) const {
  if (!args_.present(flags::kCost)) {
    sched::Cost measured;
    const bool decodes = role_ == wire::Role::decode;
    if (decodes) MC_CHECK(measure_decode(runner, 500ms, measured));
    if (!decodes || inline_tokens() > 0) MC_CHECK(measure_prefill(runner, 500ms, measured));
    return measured;
  }
  MC_TRY(profile, open_profile(args_.text(flags::kCost)));
  MC_ASSERT(prefill_.stages > 0);
  return sched::pipeline_cost(profile.cost, prefill_.stages);
}

// A plan that the device cannot compute for a single token would fail every request that names none.
Result<void> WorkerPlan::check_plan(const model::Runner& runner, const Flag& flag, const attn::Plan& plan) const {
  const auto computed = runner.check_plan(plan, 1);
  if (computed) return {};
  const std::string name = "--" + std::string(flag.name);
  return user_error(
      err::kBadValue,
      name + " " + attn::to_string(plan) + ": " + options.device + " refuses it: " + computed.error().what, name,
      "give " + name + " a plan within the bounds of the device, or compute on --device cpu");
}

Result<std::unique_ptr<node::Compute>> WorkerPlan::open_model(std::byte* pool) {
  MC_ASSERT(pool != nullptr && options.page_count >= kPagesMin);
  const model::RunnerOptions asked = runner_options();
  MC_CHECK(check_chunk(asked.max_chunk_tokens));
  MC_TRY(runner, model::Runner::open(*engine_->model, *engine_->parallel, asked, engine_->devices.get()));
  MC_CHECK(check_plan(runner, flags::kPrefillAttention, engine_->prefill_plan));
  MC_CHECK(check_plan(runner, flags::kDecodeAttention, engine_->decode_plan));
  MC_TRY(cost, cost_of_model(runner));
  options.cost = cost;
  const ComputeOptions compute{
      .pool = pool, .page_count = options.page_count, .slots = prefill_.slots, .devices = engine_->devices.get()};
  MC_TRY(opened, ModelCompute::open(std::move(runner), *engine_->parallel, compute));
  prefill_.chunk_tokens = stage_.chunk_tokens = asked.max_chunk_tokens;
  prefill_.by_layer_bytes = by_layer_bytes();
  // The CPU computes prompts one after another, so a prompt gains nothing by the pass of another one.
  prefill_.pass_tokens = engine_->devices && prefill_.stages == 1 ? asked.max_chunk_tokens : 0;
  decode_.batch_max = asked.max_batch;
  decode_.inline_tokens = inline_tokens();
  // Several devices draw no tokens, so a step cannot follow one that is not collected.
  decode_.steps_max = engine_->devices && engine_->devices->size() == 1 ? model::Runner::kStepsQueued : 1;
  return std::unique_ptr<node::Compute>(std::move(opened));
}

std::unique_ptr<node::Worker> WorkerPlan::make_machine() const {
  switch (role_) {
    case wire::Role::prefill: return std::make_unique<node::Prefill>(options, prefill_);
    case wire::Role::decode: return std::make_unique<node::Decode>(options, decode_);
    case wire::Role::stage: return std::make_unique<node::Stage>(options, stage_);
    default: MC_ASSERT(role_ == wire::Role::cache); return std::make_unique<node::Cache>(options, cache_);
  }
}

}  // namespace mc::host
