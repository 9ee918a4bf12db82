// The channels that lease messages travel over (node/lease_carrier.h): remote-fetch channels between this node's
// transfer engine and those of other nodes (lib/rfp_windows). A reader opens a channel to a holder with its first
// lease request, which goes by control like all others until the channel is there. A channel that breaks, or whose
// call has no answer in time, is closed, and another one is opened after a pause.
//
// Only peers that the conductor lists, and that proved to belong to the cluster (xfer.h), get a channel: the proof is
// that of the data plane, and stands before any byte of a channel is looked at.
//
// A lookup needs no channel where the holder's memory is mapped: the table of its blocks is read in place, and the
// holder runs no code for it. Over a transport with one-sided reads of its own (rdma) buckets of the table are read
// (host/table_reads.h). A lookup goes over the channel when it is too large for that, the table was torn each time, or
// the holder did not answer the last reads.
//
// All calls are the loop's. Both processes of a channel sleep between calls, so each write wakes its peer.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "host/data_plane.h"
#include "host/pauses.h"
#include "host/table_reads.h"
#include "node/lease_carrier.h"
#include "rfp_windows/rfp_windows.h"

namespace mc::host {

/// The way of lease messages. automatic: a channel where the transport to the holder has one-sided reads.
enum class LeaseBy : uint8_t { automatic, channel, control };
/// The carrier that a value of --lease-by names.
LeaseBy lease_by_of(std::string_view name);

/// The name of the buffer of a node that has the table of its blocks (kv/block_table.h).
inline constexpr std::string_view kBlockTableBuffer = "blocks";

class LeaseChannels final : public node::LeaseLines {
 public:
  static constexpr size_t kChannelsMax = 32;  // to holders; as many from readers. Others' leases go by control

  /// `data` outlives it. `control` sends a message by control.
  LeaseChannels(DataPlane& data, LeaseBy by, std::function<void(const node::Send&)> control);
  ~LeaseChannels() override;
  LeaseChannels(const LeaseChannels&) = delete;
  LeaseChannels& operator=(const LeaseChannels&) = delete;

  /// True: a channel carries the message. False: the caller sends it by control.
  bool send(const node::Send& send);
  /// A node::LookedUp follows from next(). It comes at once from a table that is mapped, and as a failure without a
  /// channel that takes the call.
  void look_up(const node::Lookup& lookup);
  /// Without a channel that takes the call nothing happens.
  void touch(const node::Touch& touch);
  /// An event came by control.
  void heard(const node::Event& event);
  /// The data plane has a new list of peers.
  void on_peers();
  /// The next message for the machine.
  std::optional<node::Event> next();
  /// Time at which next() has work to do, although no event of the engine came.
  TimePoint due() const;

  /// Lookups that were answered from tables of holders: in place, or by reads of buckets.
  uint64_t tables_read() const { return tables_read_; }
  const TableReads& reads() const { return reads_; }
  node::LeaseCarrier& carrier() { return carrier_; }
  struct Channels {
    size_t to_holders = 0, from_readers = 0;  // that are ready
  };
  Channels channels() const;

  uint64_t call(const InstanceId& holder, wire::LeaseMethod method, std::span<const uint8_t> payload,
                TimePoint now) override;
  bool answer(const InstanceId& reader, uint64_t number, wire::LeaseStatus status, std::span<const uint8_t> payload,
              TimePoint now) override;

 private:
  struct ToHolder {
    std::unique_ptr<rfp::ClientEnd> end;
    TimePoint open_until{};
  };
  struct FromReader {
    std::unique_ptr<rfp::ServerEnd> end;
    xfer::PeerId peer{};
    TimePoint since{};
  };
  struct Mapped {
    xfer::View view;  // of the holder's table
    kv::BlockTableView table;
  };

  const kv::BlockTableView* table_of(const InstanceId& holder);
  bool read_table(const node::Lookup& lookup);
  void end_read();
  std::optional<node::Event> taken();
  bool on(const xfer::Event& event);
  void open(const InstanceId& holder, TimePoint now);
  void accept(xfer::PeerId peer, const wire::RfpOpen& asked, TimePoint now);
  Code why_refused(xfer::PeerId peer, const wire::RfpOpen& asked, TimePoint now) const;
  void run(TimePoint now);
  /// False: the channel is to be closed.
  bool run_client(const InstanceId& holder, ToHolder& channel, TimePoint now);
  void serve(const InstanceId& reader, FromReader& channel, TimePoint now);
  void close_client(const InstanceId& holder, TimePoint now);
  void close_server(const InstanceId& reader);
  /// Frees closed channels that nothing uses any more.
  void free_closed(TimePoint now);
  void flush();

  DataPlane& data_;
  LeaseBy by_;
  std::function<void(const node::Send&)> control_;
  node::LeaseCarrier carrier_{*this};
  std::map<InstanceId, ToHolder> clients_;
  std::map<InstanceId, FromReader> servers_;
  Pauses pauses_;  // of channels to holders
  std::map<InstanceId, Mapped> tables_;  // of holders
  TableReads reads_;
  std::deque<node::LookedUp> read_;  // answers from tables
  uint64_t tables_read_ = 0;
  // Closed channels, whose transfers may be under way: their destructors would wait.
  std::vector<std::unique_ptr<rfp::ClientEnd>> closed_clients_;
  std::vector<std::pair<InstanceId, std::unique_ptr<rfp::ServerEnd>>> closed_servers_;  // by reader
  TimePoint free_at_ = kNever;  // when free_closed() tries again
  uint32_t opened_ = 0;         // channels to holders, ever
  uint64_t accepted_ = 0;       // channels from readers, ever, above a number of this process
};

}  // namespace mc::host
