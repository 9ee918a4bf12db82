#include "host/engine.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "gpu/matmul.h"
#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "model/device_forms.h"
#include "model/find.h"
#include "product/flags.h"

namespace mc::host {

int thread_count(const cli::Args& args) {
  if (args.present(flags::kThreads)) return static_cast<int>(args.count(flags::kThreads));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::string served_name(const std::string& directory) {
  std::filesystem::path path(directory);
  if (path.filename().empty()) path = path.parent_path();
  return (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
}

Result<attn::Plan> asked_plan(const cli::Args& args, const Flag& flag, const model::ModelConfig& config) {
  const std::string both = args.has(flags::kAttention) ? args.text(flags::kAttention) : "auto";
  return model::resolve_plan(args.has(flag) && args.present(flag) ? args.text(flag) : both, config,
                             static_cast<uint32_t>(args.count(flags::kBlockTokens)));
}

Result<PipelinePart> pipeline_part(const cli::Args& args) {
  if (!args.has(flags::kPipeline) || !args.present(flags::kPipeline)) return PipelinePart{};
  const std::string text = args.text(flags::kPipeline);
  const size_t slash = text.find('/');
  const auto stage = parse_u64(text.substr(0, slash), 0, 63);
  const auto stages = slash == std::string::npos ? stage : parse_u64(text.substr(slash + 1), 1, 64);
  if (slash == std::string::npos || !stage || !stages || *stage >= *stages)
    return user_error(err::kBadValue, "--pipeline " + text + " is not STAGE/STAGES, for example 0/2 or 1/2",
                      "--pipeline");
  return PipelinePart{static_cast<uint32_t>(*stage), static_cast<uint32_t>(*stages)};
}

Result<model::ModelOptions> model_options(const cli::Args& args) {
  MC_TRY(part, pipeline_part(args));
  MC_ASSERT_LT(part.stage, part.stages);
  model::ModelOptions options{.dtype = args.text(flags::kDtype), .stage = part.stage, .stages = part.stages};
  if (args.has(flags::kWeightDtype)) options.weight_dtype = args.text(flags::kWeightDtype);
  if (args.has(flags::kKvDtype)) options.kv_dtype = args.text(flags::kKvDtype);
  return options;
}

Result<std::unique_ptr<gpu::DeviceGroup>> open_chosen_devices(const cli::Args& args) {
  MC_TRY(choices, gpu::parse_devices(args.has(flags::kDevice) ? args.text(flags::kDevice) : "auto"));
  if (choices.front().kind == gpu::DeviceKind::cpu) return std::unique_ptr<gpu::DeviceGroup>();
  MC_TRY(devices, gpu::open_devices(choices, args.count(flags::kSeed)));
  for (size_t rank = 0; rank < devices->size(); ++rank) {
    gpu::Device& device = devices->device(rank);
    MC_CHECK(device.load_kernels());
    MC_CHECK(device.choose_matmul(gpu::matmul_choice(args.text(flags::kKernels))));
    log_info("matrix products", {{"device", device.name()}, {"kernels", gpu::matmul_text(device)}});
  }
  MC_CHECK(devices->warm_up());  // before free memory is read
  if (devices->size() > 1)
    log_info("sums over devices", {{"devices", devices->name()}, {"library", devices->collective_text()}});
  return devices;
}

Result<Engine> open_engine(const cli::Args& args) {
  MC_TRY(devices, open_chosen_devices(args));
  return open_engine(args, std::move(devices));
}

Result<Engine> open_engine(const cli::Args& args, std::unique_ptr<gpu::DeviceGroup> devices) {
  Engine engine;
  engine.devices = std::move(devices);
  MC_TRY(directory, model::find_model(args.text(flags::kModel)));
  engine.directory = directory;
  engine.served_name = served_name(directory);
  engine.block_tokens = static_cast<uint32_t>(args.count(flags::kBlockTokens));
  MC_ASSERT(engine.block_tokens > 0);  // the check of the flag
  engine.parallel = std::make_unique<Parallel>(thread_count(args));
  MC_TRY(options, model_options(args));
  MC_TRY(loaded, model::Model::open(directory, options, *engine.parallel));
  engine.model = std::make_unique<model::Model>(std::move(loaded));
  if (engine.devices) {
    MC_TRY(rounded, model::rounded_text(*engine.model, *engine.devices));
    engine.model->round_inputs(rounded);
  }
  MC_TRY(prefill, asked_plan(args, flags::kPrefillAttention, engine.model->config()));
  MC_TRY(decode, asked_plan(args, flags::kDecodeAttention, engine.model->config()));
  engine.prefill_plan = prefill;
  engine.decode_plan = decode;
  return engine;
}

}  // namespace mc::host
