// The KV buffer of a worker process, and its doors to others: the data plane that reads KV of peers, the control plane
// to the conductor and the peers, and their keys.
#pragma once

#include <memory>
#include <string>

#include "base/cli.h"
#include "costed/paced_plane.h"
#include "host/data_plane.h"
#include "host/fixed_ports.h"
#include "host/key_file.h"
#include "host/lease_channels.h"
#include "host/links.h"
#include "kv/block_table.h"
#include "mem/mem.h"
#include "node/worker.h"
#include "product/descriptors.h"

namespace mc::host {

class WorkerPlanes {
 public:
  /// Writes the addresses of this process into `options`. `title` names it in the transfer engine.
  Result<void> open(const cli::Args& args, const DescriptorPlan& descriptors, uint64_t arena_bytes,
                    const std::string& title, node::WorkerOptions& options);
  /// Reads take as long as a modelled network would.
  Result<void> pace(const costed::PacedPlane::Pace& pace);
  /// Takes changed keys of the key file. A registered worker does not give up over a key that others lack yet.
  void offer_keys() {
    keys_.offer([this](const ctl::KeySet& keys) { return change_keys(keys); });
  }
  void reload_keys() { keys_.reload(); }
  const std::string& key_path() const { return keys_.path(); }

  std::byte* pool() { return arena_.data(); }
  const DataPlane& data() const { return *data_; }
  DataPlane& data() { return *data_; }
  /// The plane that the loop uses.
  node::KvPlane& plane() { return paced_ ? static_cast<node::KvPlane&>(*paced_) : *data_; }
  Links& links() { return *links_; }
  LeaseChannels& leases() { return *leases_; }
  /// Calls of cache nodes about values.
  ReplicaLinks& replicas() { return replicas_; }
  /// Makes the table that says which blocks this node has, for about `blocks_max` blocks. Peers may read it, and their
  /// lookups are answered from it. Once, after open().
  Result<void> publish_blocks(uint64_t blocks_max);
  /// After publish_blocks().
  kv::BlockTable& blocks() { return *blocks_; }
  const std::string& conductor_uri() const { return conductor_uri_; }
  /// Path of the socket of this process in the run directory.
  const std::string& control_socket() const { return control_socket_; }

 private:
  Result<void> open_data(const cli::Args& args, const DescriptorPlan& descriptors, const std::string& title,
                         const std::string& run_dir, node::WorkerOptions& options);
  Result<void> open_control(const cli::Args& args, const DescriptorPlan& descriptors, const std::string& run_dir,
                            node::WorkerOptions& options);
  Result<void> change_keys(const ctl::KeySet& keys);

  mem::SharedBuffer arena_, table_;  // the KV buffer, and the memory of blocks_
  KeyFile keys_;
  FixedPorts ports_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<costed::PacedPlane> paced_;  // with --runner costed
  ReplicaLinks replicas_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<LeaseChannels> leases_;
  std::unique_ptr<kv::BlockTable> blocks_;
  std::string conductor_uri_, control_socket_;
};

}  // namespace mc::host
