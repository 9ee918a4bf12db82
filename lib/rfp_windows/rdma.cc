// rdma: RDMA WRITEs and READs on the engine's queue pairs. The engine's path for one small request alone is used while
// its queue is empty.
#include "rfp_windows/engine_window.h"
#include "rfp_windows/table.h"

namespace mc::rfp {

const WindowEntry kWindowRdma{
    .scheme = "rdma",
    .fetches = true,
    .open = [](const WindowPlaces& places) -> Result<std::unique_ptr<Window>> {
      return std::unique_ptr<Window>(std::make_unique<EngineWindow>(places));
    },
};

}  // namespace mc::rfp
