// The points that `mc-bench xfer` measures, read from its flags: transports, targets, and every combination of sizes,
// batches, depths, streams, directions and classes. Nothing is opened here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/cli.h"
#include "xfer/xfer.h"

namespace mc::bench {

enum class XferOp : uint8_t { read, write, write_imm, map };
std::string_view to_string(XferOp op);
std::string_view to_string(xfer::TransferClass transfer_class);

struct Point {
  std::string transport;
  bool over_sockets = false;  // the kernels of both sides move the bytes; else hardware or a copy of memory does
  XferOp op = XferOp::read;
  xfer::TransferClass transfer_class = xfer::TransferClass::urgent;
  std::string seal = "auto";  // --tcp-seal
  uint64_t streams = 1, bytes = 0, batch = 1, depth = 1;

  bool writes() const { return op == XferOp::write || op == XferOp::write_imm; }
};

/// Whether `peer` says a port: a URI, HOST:PORT or [v6]:PORT.
bool has_port(const std::string& peer);
/// The transports to measure. Without --transport a PEER decides: a URI is its own, another host is reached over tcp;
/// and --op map alone means shm.
Result<std::vector<std::string>> transports_of(const cli::Args& args);
/// Every point, in the order of its flags. MC1002 names the flag that is out of range.
Result<std::vector<Point>> points_of(const cli::Args& args, const std::vector<std::string>& transports);
/// Bytes of each side's memory: --memory, which must hold the largest request; without it that much is taken.
Result<uint64_t> memory_of(const cli::Args& args, const std::vector<Point>& points);

/// Host of the PEER argument, whichever way it is written; empty for shm:// or without a PEER.
std::string peer_host(const cli::Args& args);
/// Where a transport of the PEER argument is dialled: a URI as it is, HOST or HOST:PORT (that of tcp) by the
/// server's fixed places.
Result<std::string> peer_address(const cli::Args& args, const std::string& transport);
/// The shm socket of a server whose tcp port is that.
std::string shm_address(const std::string& run_dir, uint64_t port);

}  // namespace mc::bench
