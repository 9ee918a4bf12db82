// tcp: requests are the engine's writes, and the server pushes every response by one.
#include "rfp_windows/engine_window.h"
#include "rfp_windows/table.h"

namespace mc::rfp {

const WindowEntry kWindowTcp{
    .scheme = "tcp",
    .fetches = false,
    .open = [](const WindowPlaces& places) -> Result<std::unique_ptr<Window>> {
      return std::unique_ptr<Window>(std::make_unique<EngineWindow>(places));
    },
};

}  // namespace mc::rfp
