#include "text/detokenizer.h"

#include "text/utf8.h"

namespace mc::text {

std::string Detokenizer::push(uint32_t id) {
  return push(std::span(&id, 1));
}

std::string Detokenizer::push(std::span<const uint32_t> ids) {
  for (uint32_t id : ids)
    if (!skip_special_ || !tokenizer_->is_special(id)) pending_ += tokenizer_->token_bytes(id);
  std::string out;
  pending_.erase(0, append_lossy_utf8(out, pending_, false));
  return out;
}

std::string Detokenizer::flush() {
  std::string out;
  append_lossy_utf8(out, pending_, true);
  pending_.clear();
  return out;
}

}  // namespace mc::text
