// The tensors of a GGUF file under the names and in the shapes of a Hugging Face checkpoint, so that one loader reads
// both. Three things differ: names; the experts of a layer, which are one tensor with three dimensions; and in the
// architecture llama the rows of q and k, which lie in the order of interleaved RoPE pairs.
#pragma once

#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace mc::model {

/// Ascending by name; they point into the file's mapping. unsupported (MC3003): a tensor that no architecture here has.
Result<std::vector<Tensor>> gguf_tensors(const gguf::File& file, const ModelConfig& config);

}  // namespace mc::model
