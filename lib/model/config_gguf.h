// The metadata of a GGUF file as a ModelConfig. Keys of one architecture start with its name: "llama.block_count".
#pragma once

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"

namespace mc::model {

/// Reads the architectures llama, qwen2, qwen3, qwen2moe and qwen3moe. Absent fields get a value only where the format
/// defines one. invalid (MC3006), unsupported (MC3003 architecture, MC3004 RoPE), each naming file, key and value.
Result<ModelConfig> read_gguf_config(const gguf::File& file);

}  // namespace mc::model
