#include "host/page_loads.h"

#include <utility>

#include "base/assert.h"

namespace mc::host {

void PageLoads::begin(const node::LoadPages& load) {
  MC_ASSERT(loads_ != nullptr);
  model::PageLoad copies;
  copies.load = load.load;
  for (const uint32_t index : load.pages) copies.from.push_back(page_(index));
  copies.to.assign(load.device_pages.begin(), load.device_pages.end());
  copies.crcs = load.crcs;
  loads_->add(std::move(copies));
}

void PageLoads::copy_until_work(ComputeQueue& queue) {
  while (loads_ != nullptr && !loads_->idle() && queue.is_empty())
    if (!loads_->advance()) report(queue);
}

void PageLoads::report(ComputeQueue& queue) {
  if (loads_ == nullptr) return;
  loads_->settle();
  while (auto end = loads_->take_ended()) {
    node::PagesLoaded done;
    done.load = end->load;
    if (end->error) done.code = end->error->code, done.what = end->error->what;
    done.rotten = std::move(end->rotten);
    done.busy = end->busy;
    queue.post(std::move(done));
  }
}

Result<void> PageLoads::finish(std::span<const int32_t> device_pages) {
  return loads_ == nullptr ? Result<void>{} : loads_->finish(device_pages);
}

}  // namespace mc::host
