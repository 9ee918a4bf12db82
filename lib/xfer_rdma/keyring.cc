#include "xfer_rdma/keyring.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

Code RdmaKeyring::take_nics(std::span<const std::byte> payload, std::vector<wire::RdmaNic>& before) {
  auto nics = wire::decode_rdma_nics(payload);
  if (!nics) return nics.error().code;
  if (!nics_.empty() && nics->nics.size() != nics_.size()) return Code::corrupt;
  before = std::exchange(nics_, std::move(nics->nics));
  MC_ASSERT(before.empty() || before.size() == nics_.size());
  return Code::ok;
}

Code RdmaKeyring::take_keys(std::span<const std::byte> payload, const char*& why) {
  auto keys = wire::decode_rdma_keys(payload);
  if (!keys || keys->nics != nics_.size()) {
    why = "malformed keys";
    return Code::corrupt;
  }
  if (keys_.size() >= wire::kXferBuffersMax && !keys_.contains(keys->buffer)) {
    why = "keys of more buffers than a process may have";
    return Code::corrupt;
  }
  const uint32_t buffer = keys->buffer;
  keys_.insert_or_assign(buffer, std::move(*keys));
  MC_ASSERT_LE(keys_.size(), wire::kXferBuffersMax);
  return Code::ok;
}

void RdmaKeyring::described(const Descriptor& descriptor) {
  version_ = descriptor.version;
  std::erase_if(keys_, [&](const auto& entry) { return descriptor.find(entry.first) == nullptr; });
}

const wire::RdmaKeys* RdmaKeyring::find(uint32_t buffer) const {
  const auto at = keys_.find(buffer);
  return at == keys_.end() ? nullptr : &at->second;
}

}  // namespace mc::xfer
