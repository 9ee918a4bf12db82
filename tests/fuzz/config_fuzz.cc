// links: model
// config.json and generation_config.json (cut at the first NUL): an accepted config must be one that the
// forward pass can size its buffers from.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "fuzz_target.h"
#include "model/config.h"

namespace mc::config_fuzz {

FUZZ_TARGET(config) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t cut = text.find('\0');
  const std::string_view generation = cut == std::string_view::npos ? std::string_view{} : text.substr(cut + 1);
  const auto config = model::parse_config(text.substr(0, cut), generation, "fuzz");
  if (!config) {
    MC_ASSERT(!config.error().what.empty() && config.error().mc != 0);
    return 0;
  }
  MC_ASSERT(config->hidden > 0 && config->layers > 0 && config->layers <= 1024 && config->vocab > 0);
  MC_ASSERT(config->kv_heads > 0 && config->heads % config->kv_heads == 0);
  MC_ASSERT(config->head_dim > 0 && config->head_dim % 2 == 0 && config->head_dim <= 512);
  for (uint32_t id : config->special.eos) MC_ASSERT_LT(id, config->vocab);
  MC_ASSERT(!config->kv_digest().empty());
  return 0;
}

}  // namespace mc::config_fuzz
