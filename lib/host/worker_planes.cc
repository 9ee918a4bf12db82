#include "host/worker_planes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "host/choice_flags.h"
#include "host/daemon.h"
#include "host/daemon_flags.h"
#include "host/transfer_flags.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {
namespace {

constexpr int kTcpStreamsMost = 4;  // that xfer chooses by itself

}  // namespace

Result<void> WorkerPlanes::open(const cli::Args& args, const DescriptorPlan& descriptors, uint64_t arena_bytes,
                                const std::string& title, node::WorkerOptions& options) {
  mem::SharedOptions shared;
  shared.name = "mct-kv";
  shared.huge_pages = true;  // where the kernel gives them to shared memory (shmem_enabled; mc-bench doctor says)
  MC_TRY(arena, mem::SharedBuffer::create(arena_bytes, shared));
  arena_ = std::move(arena);
  MC_TRY(run_dir, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  ctl::sweep_run_dir(run_dir);
  MC_TRY(keys, KeyFile::of(args, run_dir));
  keys_ = std::move(keys);
  const std::string bind = args.text(flags::kBind);
  const Uri bound{"tcp", bind, uint16_t{0}, ""};
  for (const Door door : {Door::data, Door::control}) {
    MC_CHECK(ctl::check_exposure(door, bound, keys_.lock(door), insecure(args, door)));
    if (!is_local(bound) && keys_.lock(door) != ctl::Keys::cluster) warn_no_lock(door, bind);
  }
  // The node tells its peers this address.
  if (bind == "0.0.0.0" || bind == "::")
    return user_error(err::kBadValue, bind + " stands for every address of this host, and peers need one to reach",
                      "--bind", "give the address at which the other nodes reach this host (ip addr)");
  MC_TRY(ports, fixed_ports(args));
  ports_ = ports;
  MC_CHECK(open_data(args, descriptors, title, run_dir, options));
  return open_control(args, descriptors, run_dir, options);
}

Result<void> WorkerPlanes::open_data(const cli::Args& args, const DescriptorPlan& descriptors, const std::string& title,
                                     const std::string& run_dir, node::WorkerOptions& options) {
  xfer::Options data;
  data.name = title;
  data.instance = options.instance;
  data.transport = args.text(flags::kTransport);
  data.rdma_devices = args.text(flags::kRdmaDevices);
  apply_transfer_flags(args, data);
  if (args.present(flags::kTransferFaults)) {
    MC_TRY(faults, parse_faults(args.text(flags::kTransferFaults)));
    data.faults = faults;
    data.faults.seed = options.seed;
    log_warn("transfer faults are injected", {{"faults", args.text(flags::kTransferFaults)}});
  }
  data.tcp_bind = HostPort{args.text(flags::kBind), ports_.tcp}.text();
  data.rdma_bind = HostPort{args.text(flags::kBind), ports_.rdma}.text();
  data.shm_folder = run_dir;
  keys_.apply(data);
  data.tcp_seal = args.text(flags::kTcpSeal);
  // Two connections of a peer may be open at a time, each of a control and some data streams.
  const size_t streams = static_cast<size_t>(data.tcp_streams > 0 ? data.tcp_streams : kTcpStreamsMost);
  MC_ASSERT(data.peers_max > 0);
  data.peers_max = std::clamp<size_t>(descriptors.data / (2 * (streams + 1)), 1, data.peers_max);
  MC_TRY(plane, DataPlane::open(data, arena_));
  data_ = std::move(plane);
  options.data = data_->describe();
  options.keys = [this, node = options.instance] { return keys_.mark(node); };
  return {};
}

Result<void> WorkerPlanes::open_control(const cli::Args& args, const DescriptorPlan& descriptors,
                                        const std::string& run_dir, node::WorkerOptions& options) {
  const std::string bind = args.text(flags::kBind);
  const Uri bound{"tcp", bind, uint16_t{0}, ""};
  MC_TRY(conductor, ctl::resolve_endpoint(args.text(flags::kConductor),
                                          [](const char* name) -> const char* { return std::getenv(name); }));
  conductor_uri_ = conductor.text();
  // Without this check the dealer socket would retry for ever: retries do not change a socket's mode.
  if (conductor.scheme == "ipc" && ::access(conductor.path.c_str(), W_OK) != 0 && errno == EACCES)
    return user_error(err::kPeerUnreachable, "no permission to use " + conductor_uri_, "--conductor",
                      "run as the user of the conductor, or give it --listen tcp://ADDR:7700 and --auth");
  MC_CHECK(ctl::check_exposure(Door::control, conductor, keys_.lock(Door::control), insecure(args, Door::control),
                               Side::dials));
  if (!is_local(conductor) && is_local(bound))
    log_warn("nodes of other hosts cannot reach this one",
             {{"conductor", conductor_uri_}, {"bind", bind}, {"next", "give --bind an address of this host"}});
  ctl::HubOptions hub;
  hub.name = options.name;
  hub.instance = options.instance;
  hub.epoch = static_cast<uint64_t>(SystemClock::instance().unix_ms());
  hub.keys = keys_.keys(Door::control);
  hub.local_keys = keys_.lock(Door::control) == ctl::Keys::machine;
  hub.insecure = insecure(args, Door::control);
  hub.connections_max = descriptors.control;
  hub.seed = args.count(flags::kSeed) ^ static_cast<uint64_t>(::getpid());
  control_socket_ = run_dir + "/node-" + options.instance.short_hex(12);
  Uri listen{"ipc", "", std::nullopt, control_socket_};
  if (!is_loopback(bind) || conductor.scheme == "tcp") listen = Uri{"tcp", bind, ports_.control, ""};
  hub.listen = {listen};
  MC_TRY(links, Links::open(std::move(hub), conductor));
  links_ = std::move(links);
  if (options.role == wire::Role::cache) links_->carry(replicas_);
  leases_ = std::make_unique<LeaseChannels>(*data_, lease_by_of(args.text(flags::kLeaseBy)),
                                            [links = links_.get()](const node::Send& send) { links->send(send); });
  MC_ASSERT(!links_->bound().empty());
  options.control_uri = links_->bound().front().text();
  return {};
}

Result<void> WorkerPlanes::publish_blocks(uint64_t blocks_max) {
  MC_ASSERT(leases_ && !blocks_);
  MC_TRY(memory, mem::SharedBuffer::create(kv::BlockTable::bytes_for(blocks_max), {.name = "mct-blocks"}));
  table_ = std::move(memory);
  blocks_ = std::make_unique<kv::BlockTable>(table_.bytes(), kv::table_epoch(data_->engine().instance()));
  MC_CHECK(data_->engine().register_buffer(
      table_, {.name = std::string(kBlockTableBuffer), .access = xfer::AccessClass::blocks}));
  leases_->carrier().answer_from(*blocks_);
  return {};
}

Result<void> WorkerPlanes::pace(const costed::PacedPlane::Pace& pace) {
  MC_ASSERT(data_ && !paced_);
  MC_TRY(paced, costed::PacedPlane::open(*data_, pace));
  paced_ = std::move(paced);
  return {};
}

Result<void> WorkerPlanes::change_keys(const ctl::KeySet& keys) {
  MC_ASSERT(links_ && data_);
  if (keys_.lock(Door::control) != ctl::Keys::none) MC_CHECK(links_->set_keys(keys));
  if (keys_.lock(Door::data) == ctl::Keys::none) return {};
  return data_->set_secret(KeyFile::data_secret(keys));
}

}  // namespace mc::host
