#include "run/worker_process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <random>

#include "base/errors.h"
#include "base/log.h"
#include "base/units.h"
#include "model/find.h"
#include "model/runner.h"
#include "node/cache.h"
#include "node/decode.h"
#include "node/prefill.h"
#include "node/stage.h"
#include "product/doors.h"
#include "product/flags.h"
#include "product/metric_names.h"
#include "run/calibrate.h"
#include "run/choice_flags.h"
#include "run/costed.h"
#include "run/daemon.h"
#include "run/engine.h"
#include "run/key_file.h"
#include "run/loop.h"
#include "run/memory_plan.h"
#include "run/paced_plane.h"
#include "run/profile.h"
#include "run/run_flags.h"
#include "run/transfer_flags.h"
#include "run/worker_metrics.h"
#include "wire/codec.h"

namespace mc::run {
namespace {

InstanceId random_instance() {
  std::random_device device;
  Id128 id;
  for (auto& byte : id.bytes) byte = static_cast<uint8_t>(device());
  return InstanceId{id};
}

uint64_t wanted_bytes(const ByteSize& size) {
  return size.of(mem::available_bytes());
}

// Everything a worker process owns, in the order it is built; destroyed in reverse.
class WorkerProcess {
 public:
  WorkerProcess(wire::Role role, const cli::Args& args) : role_(role), args_(args) {}

  Result<int> serve() {
    MC_TRY(signals, Signals::open());
    signals_ = std::make_unique<Signals>(std::move(signals));
    MC_TRY(descriptors, prepare_process(true));
    descriptors_ = descriptors;
    if (args_.on(flags::kDieWithParent)) die_with_parent();
    options_.role = role_;
    options_.instance = random_instance();
    options_.seed = args_.count(flags::kSeed);
    options_.version = cli::build_info().version;
    options_.lease_ttl_max = args_.duration(flags::kLeaseTime);
    if (args_.present(flags::kName)) options_.name = args_.text(flags::kName);
    if (args_.has(flags::kPipeline) && args_.present(flags::kPipeline)) MC_CHECK(plan_pipeline());
    for (const auto& label : args_.list(flags::kLabel)) {
      const size_t equals = label.find('=');
      options_.labels.emplace_back(label.substr(0, equals), label.substr(equals + 1));
    }
    if (role_ == wire::Role::cache) {
      MC_CHECK(plan_cache());
    } else {
      MC_CHECK(plan_model());
    }
    MC_CHECK(open_planes());
    MC_CHECK(open_machine());
    MC_CHECK(open_pages());
    if (args_.on(flags::kCheck)) {
      log_info("check passed", {{"kv_bytes", arena_bytes_}, {"http", options_.http}});
      return 0;
    }
    return run();
  }

 private:
  // The leader bears the pipeline's name, the others extend it.
  Result<void> plan_pipeline() {
    MC_TRY(part, pipeline_part(args_));
    if (options_.name.empty())
      return user_error(err::kBadValue, "--pipeline needs --name: its stages find each other by it", "--pipeline");
    if (args_.text(flags::kRunner) != "model")
      return user_error(err::kBadValue, "--pipeline computes a model; --runner costed has no stages", "--pipeline");
    stage_.leader = options_.name;
    stage_.stage = part.stage;
    stage_.stages = part.stages;
    options_.stages = stage_.stages;
    if (part.stage == 0) {
      prefill_.stages = stage_.stages;
    } else {
      options_.name = node::stage_name(options_.name, stage_.stage);
      options_.role = role_ = wire::Role::stage;
    }
    return {};
  }

  // Slots for activations lie behind the pages, in the same buffer that peers may read.
  Result<void> add_slots() {
    if (prefill_.stages <= 1 && role_ != wire::Role::stage) return {};
    const auto& config = engine_->model->config();
    node::ActivationSlots slots;
    slots.row_bytes = config.hidden * sizeof(float);
    slots.base = arena_bytes_;
    slots.slot_bytes = round_up(args_.count(flags::kChunkTokens) * slots.row_bytes, 4096);
    arena_bytes_ += slots.slot_bytes * node::ActivationSlots::count();
    prefill_.slots = stage_.slots = slots;
    return {};
  }

  Result<void> plan_cache() {
    const uint64_t bytes = wanted_bytes(args_.size(flags::kDram));
    arena_bytes_ = round_up(bytes, kSlabBytes);
    cache_.segment_bytes = arena_bytes_;
    cache_.slab_bytes = kSlabBytes;
    return check_memory();
  }

  Result<void> check_memory() const {
    const uint64_t free = mem::available_bytes();
    if (arena_bytes_ <= free) return {};
    return user_error(err::kNotEnoughMemory,
                      "the KV pool needs " + format_bytes(arena_bytes_) + ", " + format_bytes(free) + " are free",
                      role_ == wire::Role::cache ? "--dram" : "--kv-mem",
                      "use at most " + format_bytes(free / 10 * 9) + ", or free memory");
  }

  /// Before anything is loaded. Returns the bytes of the weights.
  Result<uint64_t> check_model_fits() const {
    MC_TRY(directory, model::find_model(args_.text(flags::kModel)));
    MC_TRY(options, model_options(args_));
    MC_TRY(plan, model::plan_model(directory, options));
    model::RunnerOptions runner{.block_tokens = static_cast<uint32_t>(args_.count(flags::kBlockTokens))};
    if (args_.has(flags::kBatchMax)) runner.max_batch = static_cast<uint32_t>(args_.count(flags::kBatchMax));
    if (args_.has(flags::kChunkTokens))
      runner.max_chunk_tokens = static_cast<uint32_t>(args_.count(flags::kChunkTokens));
    const ByteSize kv = args_.size(flags::kKvMem);
    MemoryPlan memory;
    memory.weight_bytes = plan.weight_bytes;
    memory.scratch_bytes = model::Runner::workspace_bytes(plan.config, runner) +
                           sizeof(float) * uint64_t{runner.max_batch} * plan.config.vocab;
    memory.free_bytes = mem::available_bytes();
    memory.kv_bytes = kv.percent > 0 ? 0 : kv.of(memory.free_bytes);
    const ExtentLayout layout = model::kv_layout(plan.config, plan.dtype, runner.block_tokens, plan.layers);
    memory.page_bytes = layout.page_bytes();
    if (role_ == wire::Role::decode) {
      MC_TRY(attention, asked_plan(args_, flags::kDecodeAttention, plan.config));
      const CentroidBytes copies = centroid_bytes(attention, layout);
      memory.beside_page_bytes = copies.page_bytes;
      memory.scratch_bytes += copies.strip_bytes * runner.max_batch;
    }
    MC_CHECK(run::check_memory(memory));
    return memory.weight_bytes;
  }

  Result<void> plan_model() {
    MC_TRY(profile, runner_profile(args_));
    if (profile) return plan_costed(*std::move(profile));
    MC_TRY(weight_bytes, check_model_fits());
    if (weight_bytes >= kSlowLoadBytes) log_info("loading the model", {{"weight_bytes", weight_bytes}});
    MC_TRY(engine, open_engine(args_));
    engine_ = std::make_unique<Engine>(std::move(engine));
    const model::Model& model = *engine_->model;
    block_tokens_ = engine_->block_tokens;
    options_.model = engine_->served_name;
    options_.layout = model.kv_layout(engine_->block_tokens);
    options_.kv = model.kv_namespace(engine_->prefill_plan, engine_->block_tokens);
    options_.decode_attention = attn::to_string(engine_->decode_plan);
    const uint64_t page_bytes = options_.layout.page_bytes();
    // More than the batch can ever hold is waste: small models on big machines stay small.
    const uint64_t batch = args_.has(flags::kBatchMax) ? args_.count(flags::kBatchMax) : 16;
    const uint64_t useful = std::max<uint64_t>(batch, 4) * (model.config().max_positions / engine_->block_tokens + 1);
    // A pipeline's members count pages alike: by the one that holds most layers.
    ExtentLayout widest = options_.layout;
    if (!model.whole()) widest.stage = {0, (widest.layers + stage_.stages - 1) / stage_.stages};
    uint64_t pages = wanted_bytes(args_.size(flags::kKvMem)) / widest.page_bytes();
    if (args_.size(flags::kKvMem).percent > 0) pages = std::min({pages, useful, uint64_t{1} << 20});
    if (pages < kPagesMin)
      return user_error(err::kNotEnoughMemory,
                        "--kv-mem holds " + std::to_string(pages) + " pages of " + format_bytes(page_bytes) +
                            ", at least 4 are needed",
                        "--kv-mem");
    options_.page_count = static_cast<uint32_t>(std::min<uint64_t>(pages, 1u << 24));
    arena_bytes_ = options_.page_count * page_bytes;
    options_.context_tokens = std::min(model.config().max_positions, (options_.page_count - 1) * engine_->block_tokens);
    MC_CHECK(add_slots());
    return check_memory();
  }

  // Room as the profile has it, in stand-in pages; memory is taken only as they are written.
  Result<void> plan_costed(sched::Profile profile) {
    MC_TRY(directory, model::find_model(args_.text(flags::kModel)));
    MC_TRY(config, model::read_config(directory));
    block_tokens_ = static_cast<uint32_t>(args_.count(flags::kBlockTokens));
    options_.model = served_name(directory);
    options_.layout = Standin::layout(profile.layers, block_tokens_);
    options_.kv.weights = "standin:" + profile.name;
    options_.kv.config = config.kv_digest();
    options_.kv.dtype = options_.kv.weight_dtype = options_.kv.kv_dtype = "standin";
    options_.kv.rope = "none";
    options_.kv.attention = options_.decode_attention = "full";
    options_.kv.layers = options_.layout.layers;
    options_.kv.kv_heads = options_.layout.kv_heads, options_.kv.head_dim = options_.layout.head_dim;
    options_.kv.block_tokens = block_tokens_;
    options_.kv.layout = ExtentLayout::kVersion;
    const uint64_t cached = profile.dram_bytes / profile.kv_bytes_per_token;
    const uint64_t tokens = role_ == wire::Role::decode ? profile.kv_capacity_tokens
                                                        : std::max(cached, profile.context_tokens + block_tokens_);
    options_.page_count = static_cast<uint32_t>(std::clamp<uint64_t>(tokens / block_tokens_, kPagesMin, 1u << 20));
    const uint64_t said = role_ == wire::Role::decode ? profile.kv_capacity_tokens : cached;
    const uint64_t here = uint64_t{options_.page_count} * block_tokens_;
    if (here > said || here + block_tokens_ <= said)
      log_warn("the room of the profile is not kept: it must hold a context, in at most a million pages",
               {{"profile_tokens", said}, {"tokens", here}});
    arena_bytes_ = uint64_t{options_.page_count} * options_.layout.page_bytes();
    options_.context_tokens = static_cast<uint32_t>(
        std::min<uint64_t>(profile.context_tokens, uint64_t{options_.page_count - 1} * block_tokens_));
    options_.cost = profile.cost;
    // A page stands for more bytes than it has; peers reckon with those it has.
    options_.cost.read_bytes_per_s *= static_cast<double>(options_.layout.page_bytes()) /
                                      static_cast<double>(profile.kv_bytes_per_token * block_tokens_);
    options_.labels.emplace_back("runner", "costed:" + profile.name);
    costed_.emplace();
    costed_->profile = std::move(profile);
    costed_->vocab = config.vocab;
    return check_memory();
  }

  Result<void> open_planes() {
    mem::SharedOptions shared;
    shared.name = "mct-kv";
    shared.huge_pages = true;  // where the kernel gives them to shared memory (shmem_enabled; mc-bench doctor says)
    MC_TRY(arena, mem::SharedBuffer::create(arena_bytes_, shared));
    arena_ = std::move(arena);
    MC_TRY(run_dir, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
    ctl::sweep_run_dir(run_dir);
    MC_TRY(keys, KeyFile::of(args_, run_dir));
    keys_ = std::move(keys);
    const std::string bind = args_.text(flags::kBind);
    const Uri bound{"tcp", bind, uint16_t{0}, ""};
    for (const Door door : {Door::data, Door::control}) {
      MC_CHECK(ctl::check_exposure(door, bound, keys_.lock(door), insecure(args_, door)));
      if (!is_local(bound) && keys_.lock(door) != ctl::Keys::cluster) warn_no_lock(door, bind);
    }
    xfer::Options data;
    data.name = options_.name.empty() ? std::string(wire::to_string(role_)) : options_.name;
    data.instance = options_.instance;
    data.transport = args_.text(flags::kTransport);
    data.rdma_devices = args_.text(flags::kRdmaDevices);
    apply_transfer_flags(args_, data);
    if (args_.present(flags::kTransferFaults)) {
      MC_TRY(faults, parse_faults(args_.text(flags::kTransferFaults)));
      data.faults = faults;
      data.faults.seed = options_.seed;
      log_warn("transfers are broken on purpose", {{"faults", args_.text(flags::kTransferFaults)}});
    }
    data.tcp_bind = HostPort{bind, 0}.text();
    data.shm_folder = run_dir;
    keys_.apply(data);
    data.tcp_seal = args_.text(flags::kTcpSeal);
    // Two connections of a peer may be open at a time, each of a control and some data streams.
    const size_t streams = static_cast<size_t>(data.tcp_streams > 0 ? data.tcp_streams : kTcpStreamsMost);
    data.peers_max = std::clamp<size_t>(descriptors_.data / (2 * (streams + 1)), 1, data.peers_max);
    MC_TRY(plane, DataPlane::open(data, arena_));
    data_ = std::move(plane);
    options_.data = data_->describe();
    MC_TRY(conductor, ctl::resolve_endpoint(args_.text(flags::kConductor),
                                            [](const char* name) -> const char* { return std::getenv(name); }));
    conductor_uri_ = conductor.text();
    // Without this check the dealer socket would retry for ever: retries do not change a socket's mode.
    if (conductor.scheme == "ipc" && ::access(conductor.path.c_str(), W_OK) != 0 && errno == EACCES)
      return user_error(err::kPeerUnreachable, "no permission to use " + conductor_uri_, "--conductor",
                        "run as the user of the conductor, or give it --listen tcp://ADDR:7700 and --auth");
    MC_CHECK(ctl::check_exposure(Door::control, conductor, keys_.lock(Door::control), insecure(args_, Door::control),
                                 Side::dials));
    if (!is_local(conductor) && is_local(bound))
      log_warn("nodes of other hosts cannot reach this one",
               {{"conductor", conductor_uri_}, {"bind", bind}, {"next", "give --bind an address of this host"}});
    ctl::HubOptions hub;
    hub.name = options_.name;
    hub.instance = options_.instance;
    hub.epoch = static_cast<uint64_t>(SystemClock::instance().unix_ms());
    hub.keys = keys_.keys(Door::control);
    hub.local_keys = keys_.lock(Door::control) == ctl::Keys::machine;
    hub.insecure = insecure(args_, Door::control);
    hub.connections_max = descriptors_.control;
    hub.seed = args_.count(flags::kSeed) ^ static_cast<uint64_t>(::getpid());
    control_socket_ = run_dir + "/node-" + options_.instance.short_hex(12);
    Uri listen{"ipc", "", std::nullopt, control_socket_};
    if (!is_loopback(bind) || conductor.scheme == "tcp") listen = Uri{"tcp", bind, uint16_t{0}, ""};
    hub.listen = {listen};
    MC_TRY(links, Links::open(std::move(hub), conductor));
    links_ = std::move(links);
    options_.control_uri = links_->bound().front().text();
    return {};
  }

  Result<void> check_chunk(uint32_t chunk_tokens) const {
    if (chunk_tokens != 0 && chunk_tokens % block_tokens_ == 0) return {};
    return user_error(err::kBadValue,
                      "--chunk-tokens " + std::to_string(chunk_tokens) + " is not a multiple of --block-tokens " +
                          std::to_string(block_tokens_),
                      "--chunk-tokens");
  }

  Result<void> open_costed() {
    uint32_t chunk_tokens = static_cast<uint32_t>(costed_->profile.chunk_tokens);
    if (args_.has(flags::kChunkTokens) && args_.given(flags::kChunkTokens))
      chunk_tokens = static_cast<uint32_t>(args_.count(flags::kChunkTokens));
    MC_CHECK(check_chunk(chunk_tokens));
    prefill_.chunk_tokens = chunk_tokens;
    if (args_.has(flags::kBatchMax)) decode_.batch_max = static_cast<uint32_t>(args_.count(flags::kBatchMax));
    costed_->layout = options_.layout;
    costed_->pool = arena_.data();
    costed_->page_count = options_.page_count;
    MC_TRY(opened, Costed::open(*costed_));
    compute_ = std::move(opened);
    // A token's bytes on the modelled network, for each byte of it that really moves.
    const double scale = static_cast<double>(costed_->profile.kv_bytes_per_token) * options_.layout.block_tokens /
                         static_cast<double>(options_.layout.layers * options_.layout.layer_bytes());
    MC_TRY(paced, PacedPlane::open(*data_, {scale / costed_->profile.net.bytes_per_s,
                                            from_seconds(costed_->profile.net.latency_s)}));
    paced_ = std::move(paced);
    return {};
  }

  Result<void> open_machine() {
    if (costed_) MC_CHECK(open_costed());
    if (engine_) {
      ComputeOptions compute;
      compute.block_tokens = block_tokens_;
      if (args_.has(flags::kChunkTokens))
        compute.chunk_tokens = static_cast<uint32_t>(args_.count(flags::kChunkTokens));
      MC_CHECK(check_chunk(compute.chunk_tokens));
      if (args_.has(flags::kBatchMax)) compute.batch_max = static_cast<uint32_t>(args_.count(flags::kBatchMax));
      compute.kernels = args_.text(flags::kKernels);
      compute.pool = arena_.data();
      compute.page_count = options_.page_count;
      compute.slots = prefill_.slots;
      if (args_.present(flags::kCost)) {
        MC_TRY(profile, open_profile(args_.text(flags::kCost)));
        options_.cost = profile.cost;
        // A full pipeline finishes a prompt in little more than one stage's time; reports correct the rest.
        for (double* part : {&options_.cost.prefill_s_per_token, &options_.cost.prefill_s_per_token2})
          *part /= prefill_.stages;
      } else {
        MC_TRY(runner, model::Runner::open(*engine_->model, *engine_->parallel,
                                           {.block_tokens = engine_->block_tokens,
                                            .max_chunk_tokens = 256,
                                            .max_batch = 1,
                                            .kernels = compute.kernels}));
        MC_TRY(cost, measure_cost(runner, 500ms));
        options_.cost = cost;
      }
      MC_TRY(opened, ModelCompute::open(*engine_->model, *engine_->parallel, compute));
      compute_ = std::move(opened);
      prefill_.chunk_tokens = stage_.chunk_tokens = compute.chunk_tokens;
      decode_.batch_max = compute.batch_max;
    }
    const std::string engine = options_.name.empty() ? std::string(wire::to_string(role_)) : options_.name;
    metrics_ = std::make_unique<Metrics>(Metrics::Labels{{"model_name", options_.model}, {"engine", engine}});
    return {};
  }

  Result<void> open_pages() {
    MC_TRY(lock, open_page_lock(args_));
    lock_ = std::move(lock);
    MC_TRY(pages, StatusPages::open(args_, control_socket_ + ".http", *lock_, *metrics_, heartbeat_, descriptors_));
    pages_ = std::move(pages);
    options_.http = pages_->address();
    switch (role_) {
      case wire::Role::prefill: worker_ = std::make_unique<node::Prefill>(options_, prefill_); break;
      case wire::Role::decode: worker_ = std::make_unique<node::Decode>(options_, decode_); break;
      case wire::Role::stage: worker_ = std::make_unique<node::Stage>(options_, stage_); break;
      default: worker_ = std::make_unique<node::Cache>(options_, cache_); break;
    }
    process_meter_ = std::make_unique<ProcessMeter>(*metrics_);
    meters_ = std::make_unique<WorkerMetrics>(*metrics_, *worker_, *data_);
    Loop::Parts parts;
    parts.machine = worker_.get();
    parts.links = links_.get();
    parts.data = paced_ ? static_cast<KvPlane*>(paced_.get()) : data_.get();
    parts.compute = compute_.get();
    parts.local_offset = [this](uint32_t pool, uint32_t page) { return worker_->local_offset(pool, page); };
    parts.on_compute = [this](size_t tokens) { meters_->computes(tokens); };
    parts.after_events = [this] { after_events(); };
    parts.signal_fd = signals_->fd();
    parts.on_signal = [this] { on_signal(); };
    parts.heartbeat = &heartbeat_;
    MC_TRY(loop, Loop::open(std::move(parts)));
    loop_ = std::move(loop);
    readiness_ = std::make_unique<Readiness>(std::string(cli::build_info().program), json(),
                                             args_.present(flags::kReadyFile) ? args_.text(flags::kReadyFile) : "");
    return {};
  }

  bool json() const { return args_.on(flags::kJson); }

  void log_start() const {
    std::string transports;
    for (const auto& line : data_->transports()) transports += (transports.empty() ? "" : "; ") + line;
    log_info("started", {{"version", options_.version},
                         {"commit", cli::build_info().commit},
                         {"model", options_.model.empty() ? "-" : options_.model},
                         {"weights_bytes", engine_ ? engine_->model->weight_bytes() : size_t{0}},
                         {"dtype", engine_ ? to_string(engine_->model->dtype()) : "-"},
                         {"kernels", compute_ ? compute_->kernels() : std::string("-")},
                         {"attention", options_.kv.attention},
                         {"block_tokens", options_.layout.block_tokens},
                         {"page_bytes", options_.layout.layers ? options_.layout.page_bytes() : size_t{0}},
                         {"kv_bytes", arena_bytes_},
                         {"kv_tokens", uint64_t{options_.page_count} * options_.layout.block_tokens},
                         {"transports", transports},
                         {"control", options_.control_uri},
                         {"http", options_.http}});
  }

  Result<int> run() {
    log_start();
    at_.say_waiting = SystemClock::instance().now() + 1s;
    loop_->run();
    notify_service_manager("STOPPING=1");
    if (failure_) return *failure_;
    log_info("stopped");
    return exit_code_;
  }

  void after_events() {
    const TimePoint now = SystemClock::instance().now();
    keys_.offer([this](const ctl::KeySet& keys) { return change_keys(keys); });
    if (worker_->registered() && named_ != worker_->name()) {
      named_ = worker_->name();
      links_->set_name(named_);
      log_set_node(named_);
      metrics_->set_label("engine", named_);
      log_info("registered", {{"name", named_}});
      readiness_->announce(named_, options_.http, options_.control_uri);
    }
    if (named_.empty() && now >= at_.say_waiting) {
      at_.say_waiting = kNever;
      log_info("waiting for the conductor", {{"conductor", conductor_uri_}});
    }
    if (links_->fatal() && named_.empty()) return give_up(links_->failure());
    if (const auto* refused = worker_->refused(); refused && !worker_->registered()) {
      // A taken name may come free: a process killed a moment ago still counts as alive. The rest stays.
      if (at_.refused_since == kNever) at_.refused_since = now;
      if (refused->mc != err::kNameTaken || now - at_.refused_since > kNamePatience) return give_up(refusal(*refused));
    } else {
      at_.refused_since = kNever;
    }
    if (worker_->draining() && terminating_ && (worker_->idle() || now >= at_.drain_until)) {
      if (!left_) loop_->apply([this](TimePoint t, node::Actions& out) { worker_->leave(t, out); });
      left_ = true;
      loop_->stop();
    }
    // The pages that tell of tenants are locked before a request of one can come.
    if (now < at_.status && std::exchange(has_tenants_, worker_->has_tenants()) == worker_->has_tenants()) return;
    at_.status = now + 100ms;
    if (now >= at_.check && worker_->idle()) {  // promise 3: after quiesce nothing is leased, queued or leaked
      worker_->check();
      at_.check = now + 1s;
    }
    meters_->update();
    process_meter_->update(pages_->stats(), links_->stats());
    pages_->update(worker_->draining()      ? "draining"
                   : !worker_->registered() ? "no conductor"
                                            : "",
                   worker_->has_tenants());
  }

  static constexpr Duration kNamePatience = 5s;

  Error refusal(const wire::Refused& refused) const {
    if (refused.mc != err::kKvLayoutMismatch)
      return user_error(static_cast<err::Number>(refused.mc), refused.message,
                        "handshake with the conductor, field " + refused.field);
    std::string equal;
    for (const auto& field : refused.equal) equal += (equal.empty() ? "" : " ") + field;
    return user_error(err::kKvLayoutMismatch, refused.message,
                      "handshake with the conductor, field " + refused.field + "; also compared and equal: " + equal);
  }

  void give_up(Error error) {
    failure_ = std::move(error);
    loop_->stop();
  }

  void on_signal() {
    while (const auto signal = signals_->next()) {
      if (*signal == SIGHUP) {
        if (auto reopened = log_reopen(); !reopened) log_warn("log not reopened", {{"why", reopened.error().what}});
        keys_.reload();
        reload_page_lock(args_, *lock_);
      } else if (*signal == SIGUSR1) {
        dump();
      } else if (terminating_) {
        exit_code_ = *signal == SIGINT ? kExitInterrupted : 0;
        loop_->apply([this](TimePoint t, node::Actions& out) { worker_->leave(t, out); });
        loop_->stop();
      } else {
        terminating_ = true;
        if (*signal == SIGINT) exit_code_ = kExitInterrupted;
        worker_->start_draining();
        at_.drain_until = SystemClock::instance().now() + args_.duration(flags::kDrainTimeout);
        const size_t left = worker_->load().running + worker_->load().waiting;
        log_info("draining; another signal stops now",
                 {{"requests", left}, {"most_s", to_seconds(args_.duration(flags::kDrainTimeout))}});
      }
    }
  }

  // Whoever reloads first waits for the others: a registered worker does not give up over a refused key.
  Result<void> change_keys(const ctl::KeySet& keys) {
    if (keys_.lock(Door::control) != ctl::Keys::none) MC_CHECK(links_->set_keys(keys));
    if (keys_.lock(Door::data) == ctl::Keys::none) return {};
    return data_->set_secret(KeyFile::data_secret(keys));
  }

  /// Writes the state for SIGUSR1; the log level does not suppress it.
  void dump() const {
    const wire::Load load = worker_->load();
    std::string text = std::string(cli::build_info().program) + " " + named_ + ": state at SIGUSR1:";
    const auto put = [&](const char* key, const auto& value) {
      text += " " + std::string(key) + "=";
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>)
        text += "\"" + value + "\"";
      else
        text += Json(value).dump();
    };
    put("registered", worker_->registered());
    put("running", load.running), put("waiting", load.waiting), put("queue_s", load.queue_s);
    put("kv_tokens", load.kv_tokens), put("pages_free", load.pages_free), put("pages_private", load.pages_private);
    put("pages_cached", load.pages_cached), put("pages_pinned", load.pages_pinned), put("leases", load.leases);
    put("last_error", load.last_error);
    for (const auto& [name, peer] : worker_->peers().all())
      text += "\n  peer " + name + " control=" + peer.control_uri + " via=" + data_->transport(peer.instance);
    log_print(text + "\n");
  }

  static constexpr int kTcpStreamsMost = 4;  // that xfer chooses by itself
  static constexpr uint64_t kSlabBytes = uint64_t{8} << 20;
  static constexpr uint64_t kSlowLoadBytes = uint64_t{256} << 20;  // loading takes seconds

  wire::Role role_;
  const cli::Args& args_;
  Heartbeat heartbeat_;
  DescriptorPlan descriptors_;
  std::unique_ptr<Signals> signals_;
  node::WorkerOptions options_;
  node::PrefillOptions prefill_;
  node::DecodeOptions decode_;
  node::StageOptions stage_;
  node::CacheOptions cache_;
  std::unique_ptr<Engine> engine_;       // null in a cache node and with --runner costed
  std::optional<CostedOptions> costed_;  // with --runner costed
  uint32_t block_tokens_ = 0;
  uint64_t arena_bytes_ = 0;
  mem::SharedBuffer arena_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<ProcessMeter> process_meter_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<PacedPlane> paced_;  // with --runner costed
  KeyFile keys_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<node::Worker> worker_;
  std::unique_ptr<WorkerMetrics> meters_;
  std::unique_ptr<PageLock> lock_;
  std::unique_ptr<StatusPages> pages_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Readiness> readiness_;
  std::string named_, conductor_uri_, control_socket_;
  std::optional<Error> failure_;
  bool terminating_ = false, left_ = false;
  int exit_code_ = 0;
  bool has_tenants_ = false;
  struct {
    TimePoint drain_until = kNever, refused_since = kNever, say_waiting = kNever, status{}, check{};
  } at_;
};

}  // namespace

Result<int> serve_worker(wire::Role role, const cli::Args& args) {
  return WorkerProcess(role, args).serve();
}

}  // namespace mc::run
