#include "xfer/listener.h"

#include <sys/epoll.h>

#include "base/assert.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"

namespace mc::xfer {

Result<void> Listener::open(Fd listening) {
  MC_ASSERT(!fd_ && listening);
  MC_TRY(token, services_.poller->add(owner_, listening.get(), EPOLLIN));
  fd_ = std::move(listening);
  token_ = token;
  return {};
}

TimePoint Listener::accept(const std::function<void(Fd)>& take) {
  MC_ASSERT(is_open());
  for (int i = 0; i < kAcceptMax; ++i) {
    auto [fd, exhausted] = accept_next(fd_.get());
    if (exhausted) {
      services_.tally->failure("accept: out of descriptors or memory");
      services_.poller->modify(token_, fd_.get(), 0);
      again_ = now() + kPause;
    }
    if (!fd) break;
    services_.tally->add(Count::accepts);
    take(std::move(fd));
  }
  return again_;
}

TimePoint Listener::tick(TimePoint at) {
  if (again_ > at) return again_;
  MC_ASSERT(is_open());
  services_.poller->modify(token_, fd_.get(), EPOLLIN);
  return again_ = kNever;
}

void Listener::close() {
  if (!fd_) return;
  services_.poller->remove(fd_.get());
  fd_.reset();
  again_ = kNever;
}

}  // namespace mc::xfer
