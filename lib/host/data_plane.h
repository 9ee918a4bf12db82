// The data plane as the machines see it: reads of KV extents into this node's pages, and the small
// notifies that announce them. Wraps xfer::Engine. A ReadDone is given only when no transport can
// touch the pages any more: a read past its deadline is reported after its quarantine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mem/mem.h"
#include "node/services.h"
#include "xfer/xfer.h"

namespace mc::host {

class DataPlane final : public node::KvPlane {
 public:
  /// Registers `pool` as the buffer "kv" that peers may read. The pool outlives the plane.
  static Result<std::unique_ptr<DataPlane>> open(const xfer::Options& options, mem::SharedBuffer& pool);

  wire::Bytes describe() const;
  std::vector<std::string> transports() const { return engine_->transports(); }
  int event_fd() const override { return engine_->event_fd(); }
  std::optional<node::Event> next() override;
  void set_peers(const std::vector<wire::Peer>& peers) override;
  void notify(const node::SendNotify& notify) override;
  void read(const node::Read& read, const node::PagePlace& place) override;
  void cancel(uint64_t read) override;
  /// A read that arrived whole.
  struct Transfer {
    std::string transport;
    uint64_t bytes = 0;
    double seconds = 0;
  };
  /// Those since the last call; at most kTransfersKept, the rest are only in the counters.
  std::vector<Transfer> take_transfers() { return std::exchange(transfers_, {}); }
  /// Bytes of all reads that arrived whole, by transport and by the role of the node that was read.
  const std::map<std::pair<std::string, wire::Role>, uint64_t>& read_bytes() const { return read_bytes_; }
  Result<void> set_secret(const std::string& secret) { return engine_->set_secret(secret); }
  /// Transport in use to the instance, e.g. "shm"; "" = not connected.
  std::string transport(const InstanceId& instance) const;
  /// How many of the peers that set_peers named are connected, by transport.
  std::map<std::string, size_t> peers_by_transport() const;
  xfer::Counters counters() const { return engine_->counters(); }

  // ---- for channels beside the reads (host/lease_channels.h) ----
  xfer::Engine& engine() { return *engine_; }
  /// `watch` sees each event of the engine before the plane. True: the event was for `watch` alone. Empty: none.
  void watch(std::function<bool(const xfer::Event&)> watch) { watch_ = std::move(watch); }
  /// The connection to a peer of set_peers(); none: it is no such peer.
  xfer::PeerId peer_of(const InstanceId& instance) const;
  /// Name of a peer of set_peers(), or "?".
  std::string name_of(const InstanceId& instance) const;
  /// The peer of set_peers() at the other end of a connection; null for others, and for a stranger that only claims to
  /// be one.
  std::optional<InstanceId> listed(xfer::PeerId peer) const;

 private:
  struct Waiting {  // a read for a peer whose connection is not up yet
    node::Read read;
    node::PagePlace place;
    TimePoint until{};
  };
  struct Link {
    std::string name;
    wire::Role role = wire::Role::prefill;
    xfer::PeerId id = xfer::PeerId::none;
    std::vector<std::vector<std::byte>> notifies;  // in order, until the connection is up; bounded
    std::vector<Waiting> reads;
    std::string refusal;         // why no connection can be; "" = none is known
    TimePoint tell_at = kNever;  // when the machine gets the refusal
  };
  struct Outstanding {
    uint64_t read = 0;
    Code code = Code::ok;
    std::string what;
    xfer::PeerId peer = xfer::PeerId::none;
    wire::Role role = wire::Role::prefill;
    uint64_t bytes = 0;
    TimePoint began{};
  };

  DataPlane(std::unique_ptr<xfer::Engine> engine, mem::SharedBuffer& pool) : engine_(std::move(engine)), pool_(pool) {}
  std::optional<node::Event> convert(xfer::Event event);
  std::optional<node::Event> finish(xfer::BatchId batch);
  void arrived(const Outstanding& read);
  void answer(uint64_t read, Code code, std::string what);
  bool start(Link& link, const node::Read& read, const node::PagePlace& place);
  void on_up(const InstanceId& instance, Link& link);
  void give_up_late_reads();
  void refuse_link(const InstanceId& instance, Link& link, const xfer::Event& event);
  void tell_refusals();

  std::unique_ptr<xfer::Engine> engine_;
  mem::SharedBuffer& pool_;
  std::map<InstanceId, Link> links_;
  std::map<xfer::PeerId, InstanceId> instances_;
  std::map<xfer::BatchId, Outstanding> batches_;
  std::map<uint64_t, xfer::BatchId> reads_;
  std::vector<xfer::Event> arrived_;  // taken from the engine, not yet converted (newest last)
  std::vector<node::Event> ready_;    // answers made without the engine
  std::vector<Transfer> transfers_;
  std::map<std::pair<std::string, wire::Role>, uint64_t> read_bytes_;
  std::function<bool(const xfer::Event&)> watch_;
};

}  // namespace mc::host
