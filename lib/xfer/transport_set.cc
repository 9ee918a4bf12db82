#include "xfer/transport_set.h"

#include <algorithm>

#include "base/assert.h"
#include "xfer/poller.h"

namespace mc::xfer {
namespace {

/// The table rows that Options::transport names, in its order.
Result<std::vector<size_t>> rows_of(std::string_view names, std::span<const TransportEntry* const> table) {
  std::vector<size_t> rows;
  std::string known = "auto";
  for (size_t row = 0; row < table.size(); ++row) {
    if (names == "auto") rows.push_back(row);
    known += std::string(", ") + table[row]->scheme;
  }
  if (names == "auto") return rows;
  while (!names.empty()) {
    const std::string_view scheme = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), scheme.size() + 1));
    const auto at =
        std::find_if(table.begin(), table.end(), [&](const auto* entry) { return scheme == entry->scheme; });
    const auto row = static_cast<size_t>(at - table.begin());
    if (at == table.end() || std::find(rows.begin(), rows.end(), row) != rows.end())
      return Error{Code::invalid,
                   "xfer: transport '" + std::string(scheme) + "' is unknown or named twice; there are: " + known};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

Result<void> TransportSet::open(Services& services, std::span<const TransportEntry* const> table) {
  MC_ASSERT(active_.empty());
  const Options& options = *services.options;
  MC_TRY(rows, rows_of(options.transport, table));
  int mc = 0;  // number of the first transport that is left out
  for (const size_t row : rows) {
    const TransportEntry& entry = *table[row];
    const Reach usable = entry.probe(options);
    Result<std::string> uri = Error{usable.code, usable.reason, usable.mc};
    std::unique_ptr<Transport> transport;
    if (usable.usable) {
      transport = entry.make(services, static_cast<uint8_t>(row + 1));
      if (options.faults.any()) transport = inject_faults(std::move(transport), options.faults);
      uri = transport->listen();
    }
    if (!uri) {
      // "auto" leaves out transports that this machine cannot run, but a wrong option is an error.
      if (options.transport != "auto" || uri.error().code == Code::invalid)
        return within("transport " + std::string(entry.scheme), uri.error());
      if (texts_.empty()) mc = uri.error().mc;
      texts_.push_back(std::string(entry.scheme) + ": left out: " + uri.error().what);
      continue;
    }
    const std::string remark = transport->remark();
    texts_.push_back(std::string(entry.scheme) + ": " + *uri + (remark.empty() ? "" : " (" + remark + ")"));
    services.uris.push_back(*uri);
    active_.push_back({&entry, row, std::move(transport)});
  }
  if (!active_.empty()) return {};
  return Error{Code::unsupported,
               "xfer: no transport can run here: " + (texts_.empty() ? "none named" : texts_.front()), mc};
}

size_t TransportSet::route_of_row(size_t row) const {
  const auto at = std::find_if(active_.begin(), active_.end(), [&](const Active& each) { return each.row == row; });
  MC_ASSERT(at != active_.end());
  return static_cast<size_t>(at - active_.begin());
}

const TransportEntry* TransportSet::speaker_of(std::string_view uri) const {
  for (const Active& each : active_)
    if (uri.starts_with(std::string(each.entry->scheme) + "://")) return each.entry;
  return nullptr;
}

Result<void> TransportSet::attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) {
  for (const Active& each : active_) {
    auto attached = each.transport->attach(buffer, memory, access);
    if (attached) continue;
    detach(buffer);
    return attached;
  }
  return {};
}

void TransportSet::detach(BufferId buffer) {
  for (const Active& each : active_) each.transport->detach(buffer);
}

void TransportSet::publish(Reports& out) {
  for (const Active& each : active_) each.transport->publish(out);
}

void TransportSet::pause_notifies(bool pause) {
  for (const Active& each : active_) each.transport->pause_notifies(pause);
}

void TransportSet::ready(uint64_t token, uint32_t events, Reports& out) {
  for (const Active& each : active_)
    if (each.row + 1 == Poller::owner(token)) each.transport->ready(token, events, out);
}

TimePoint TransportSet::tick(TimePoint now, Reports& out) {
  TimePoint next = kNever;
  for (const Active& each : active_) next = std::min(next, each.transport->tick(now, out));
  return next;
}

void TransportSet::doze(Reports& out) {
  for (const Active& each : active_) each.transport->doze(out);
}

void TransportSet::shutdown() {
  for (const Active& each : active_) each.transport->shutdown();
}

}  // namespace mc::xfer
