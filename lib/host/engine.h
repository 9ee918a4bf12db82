// The model side of a prefill or decode process, also of the one-shot verbs: weights, threads, plans.
#pragma once

#include <memory>
#include <string>

#include "attn/attn.h"
#include "base/cli.h"
#include "base/parallel.h"
#include "gpu/devices.h"
#include "model/model.h"

namespace mc::host {

struct Engine {
  std::string directory, served_name;
  std::unique_ptr<Parallel> parallel;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<gpu::DeviceGroup> devices;  // of --device; null: the CPU
  attn::Plan prefill_plan, decode_plan;       // what the flags mean for this model
  uint32_t block_tokens = 64;
};

/// The part of a prefill pipeline that --pipeline 0/2 names; the whole model without it.
struct PipelinePart {
  uint32_t stage = 0, stages = 1;
};
Result<PipelinePart> pipeline_part(const cli::Args& args);
/// The options that --dtype, --weight-dtype and --pipeline ask for.
Result<model::ModelOptions> model_options(const cli::Args& args);
/// Opens the devices that --device names; null: the CPU. MC7002, MC7004: why one of them cannot be used.
Result<std::unique_ptr<gpu::DeviceGroup>> open_chosen_devices(const cli::Args& args);
/// Opens --device, and loads what -m, --dtype, --pipeline, --threads, --attention and --block-tokens ask for.
Result<Engine> open_engine(const cli::Args& args);
/// Likewise on devices that are open.
Result<Engine> open_engine(const cli::Args& args, std::unique_ptr<gpu::DeviceGroup> devices);
/// --threads: auto is one per core.
int thread_count(const cli::Args& args);
/// The name clients use: the last component of the path, without .gguf.
std::string served_name(const std::string& directory);
/// The plan that the flag (--prefill-attention or --decode-attention, else --attention) means for this model.
Result<attn::Plan> asked_plan(const cli::Args& args, const Flag& flag, const model::ModelConfig& config);

}  // namespace mc::host
