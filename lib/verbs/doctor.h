// `mc-bench doctor`: what this machine and its peers can carry, what cannot be used and why, and what to
// do about it. Facts are read in one place and judged in another, so that every judgement has a test
// on any machine. Looking changes nothing here; a peer sees a connection come and go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "gpu/devices.h"
#include "xfer/xfer.h"
#include "xfer_rdma/device.h"
#include "xfer_tcp/io.h"

namespace mc::verbs {

/// good: as it should be. unused: rightly left aside. note: slower or less than it could be, but what was
/// asked for works. fix: something asked for does not work before this is changed.
enum class Verdict : uint8_t { good, unused, note, fix };
std::string_view to_string(Verdict verdict);  // "ok", "unused", "note", "fix"

enum class Area : uint8_t { rdma, limits, memory, gpu, transport, peer };
std::string_view to_string(Area area);  // the enumerator's name

struct Finding {
  Area area = Area::rdma;
  std::string name;  // "rxe0:1 gid 1"
  Verdict verdict = Verdict::good;
  std::string what;
  std::string next{};  // what to do; empty when there is nothing
};

/// Limits and devices, as the operating system reports them. Sizes in bytes; nullopt = not known here.
struct HostFacts {
  std::string kernel;
  std::optional<uint64_t> memlock;  // UINT64_MAX = unlimited
  bool lock_capable = false;        // CAP_IPC_LOCK: the limit does not apply
  std::optional<uint64_t> open_files;
  std::optional<uint64_t> map_count_max;  // vm.max_map_count
  std::optional<uint64_t> memory_available;
  uint64_t huge_page_bytes = 0;
  uint64_t huge_pages = 0, huge_pages_free = 0;
  std::string transparent_pages;  // "always", "madvise", "never"; empty = unknown
  std::string shared_pages;       // the same for shared memory: "never", "advise", "within_size", "always"
  unsigned numa_nodes = 0;
  std::string netdev;           // an interface that is up and could carry soft-RoCE; empty = none
  std::string products;         // of a GPU: the version of cuBLASLt; empty: it cannot be used
  std::string products_reason;  // why not
  std::string sums;             // of several GPUs: the version of NCCL; empty: it cannot be used
  std::string sums_reason;      // why not
  bool verbs_loaded = false;    // the kernel has the verbs interface
  unsigned verbs_devices = 0;   // device files of it
  unsigned verbs_readable = 0;  // of those, what this user may open
};

/// `root` replaces "/" in front of proc, sys and dev; limits of the process are its own.
HostFacts read_host(const std::string& root = "/");

struct DoctorPlan {
  xfer::Options options;                      // transport: "auto", or what must work here and towards every peer
  uint64_t memory_bytes = 0;                  // to be registered; 0 = what is available
  std::vector<gpu::DeviceChoice> devices;     // whose copies are measured
  std::vector<std::string> peers;             // URIs, or host[:port]
  uint16_t port = 7790;                       // of a peer given as a host
  Duration timeout = 5s;                      // of one connection
  bool wants(std::string_view scheme) const;  // named by options.transport
};

struct TransportCheck {
  std::string transport;
  bool usable = false;
  std::string reason;  // why not, or what is left out of it; empty: usable without a limit
};

/// Why a peer is not reached, as far as it decides the next step.
enum class PeerTrouble : uint8_t { none, no_listener, no_secret, other };

struct PeerCheck {
  std::string peer;  // as given
  std::string uri;   // what was dialled
  std::string transport;
  bool usable = false;
  bool alternative = false;  // the peer also offers it; nobody asked for it
  std::string reason;        // how it was reached, or why not
  PeerTrouble trouble = PeerTrouble::other;
  double connect_ms = 0;
};

/// The speed at which KV can leave a GPU for the host's memory and come from there.
struct CopyRates {
  std::string device;
  bool emulated = false;
  double out_bytes_per_s = 0, in_bytes_per_s = 0;
  std::optional<Error> trouble{};  // set: nothing was measured
};

struct Diagnosis {
  HostFacts host;
  xfer::RdmaReport rdma;
  std::vector<TransportCheck> transports;
  std::vector<xfer::TcpIoReport> tcp_ios;
  std::vector<CopyRates> copies;
  std::vector<PeerCheck> peers;
  std::vector<Finding> findings;
};

/// Looks at everything, then judges. Blocks at most about `timeout` for each path of each peer.
Diagnosis diagnose(const DoctorPlan& plan);

// The judgements: pure.
std::vector<Finding> judge_rdma(const xfer::RdmaReport& rdma, const HostFacts& host, const DoctorPlan& plan);
std::vector<Finding> judge_host(const HostFacts& host, const xfer::RdmaReport& rdma, const DoctorPlan& plan);
std::vector<Finding> judge_transports(const std::vector<TransportCheck>& transports, const DoctorPlan& plan);
std::vector<Finding> judge_tcp_io(const std::vector<xfer::TcpIoReport>& ways);
std::vector<Finding> judge_copies(const std::vector<CopyRates>& copies, const xfer::RdmaReport& rdma);
std::vector<Finding> judge_peers(const std::vector<PeerCheck>& peers, const DoctorPlan& plan);

/// Copies to and from a device that is not the CPU, for a moment.
CopyRates measure_copies(const gpu::DeviceChoice& choice);
/// Connects to one peer, then over every other transport that it offers and that reaches it.
std::vector<PeerCheck> check_peer(const std::string& peer, const DoctorPlan& plan);

/// Lines for people, one a finding, what to do below it.
std::string findings_text(const std::vector<Finding>& findings);
Json to_json(const Finding& finding);
/// "Ethernet" or "InfiniBand"; empty = unknown.
std::string_view link_name(const xfer::RdmaPortReport& port);
/// Members of the summary: "transports", "rdma", "limits", "copies", "peers", "findings", counts.
void describe(const Diagnosis& diagnosis, Json& result);

}  // namespace mc::verbs
