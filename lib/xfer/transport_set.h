// The transports that run in one engine, in order of preference. The set is fixed once it is open. After that, any
// thread may attach and detach buffers and read the list. Only the thread that has the loop's turn calls the other
// methods.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xfer/transport.h"

namespace mc::xfer {

class TransportSet {
 public:
  /// Opens the transports of the table that Options::transport names, and completes services.uris. Code::invalid names
  /// the wrong option. "auto" leaves out transports that this machine cannot run.
  Result<void> open(Services& services, std::span<const TransportEntry* const> table);

  size_t size() const { return active_.size(); }
  Transport& operator[](size_t route) { return *active_[route].transport; }
  const TransportEntry& entry(size_t route) const { return *active_[route].entry; }
  /// The table row that flows are counted for.
  size_t row(size_t route) const { return active_[route].row; }
  size_t route_of_row(size_t row) const;
  /// The transport that dials that URI; null = none.
  const TransportEntry* speaker_of(std::string_view uri) const;
  /// One line for each requested transport of the table; Engine::transports().
  const std::vector<std::string>& texts() const { return texts_; }

  /// Makes a buffer usable on every transport, or on none.
  Result<void> attach(BufferId buffer, std::span<std::byte> memory, AccessClass access);
  void detach(BufferId buffer);

  void publish(Reports& out);
  void pause_notifies(bool pause);
  void ready(uint64_t token, uint32_t events, Reports& out);
  /// Runs the timers of all transports. Returns the time of the next call.
  TimePoint tick(TimePoint now, Reports& out);
  void doze(Reports& out);
  void shutdown();

 private:
  struct Active {
    const TransportEntry* entry = nullptr;
    size_t row = 0;
    std::unique_ptr<Transport> transport;
  };
  std::vector<Active> active_;
  std::vector<std::string> texts_;
};

}  // namespace mc::xfer
