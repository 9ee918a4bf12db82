// shm: reads are loads from the peer's mapped arena. Writes are requests, which the engine copies into the mapped arena
// before submit() returns. The write that wakes a sleeping peer goes through the engine.
#include "base/assert.h"
#include "base/shared_words.h"
#include "rfp_windows/engine_window.h"
#include "rfp_windows/table.h"

namespace mc::rfp {
namespace {

class ShmWindow final : public EngineWindow {
 public:
  ShmWindow(const WindowPlaces& places, xfer::View view) : EngineWindow(places), view_(std::move(view)) {}

  void read(uint64_t offset, std::span<std::byte> local, uint64_t cookie) override {
    const auto from = view_.bytes();
    if (lost() || local.size() > from.size() || offset > from.size() - local.size())
      return end_now(cookie, lost() ? Code::peer_lost : Code::invalid);
    load_words(local.data(), from.data() + offset, local.size());
    end_now(cookie, Code::ok);
  }

 private:
  xfer::View view_;  // of the buffer `read`
};

Result<std::unique_ptr<Window>> open_shm(const WindowPlaces& places) {
  if (places.read == 0) return std::unique_ptr<Window>(std::make_unique<EngineWindow>(places));
  const auto descriptor = places.engine->descriptor(places.peer);
  const xfer::BufferInfo* buffer = descriptor ? descriptor->find(places.read) : nullptr;
  if (buffer == nullptr) return Error{Code::not_found, "rfp: the peer has no buffer " + std::to_string(places.read)};
  MC_TRY(view, places.engine->map(places.peer, places.read, 0, buffer->length));
  return std::unique_ptr<Window>(std::make_unique<ShmWindow>(places, std::move(view)));
}

}  // namespace

const WindowEntry kWindowShm{.scheme = "shm", .fetches = true, .open = open_shm};

}  // namespace mc::rfp
