#include "xfer_ends.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/units.h"
#include "ctl/ctl.h"
#include "host/key_file.h"
#include "host/signals.h"
#include "host/transfer_flags.h"
#include "product/doors.h"
#include "product/flags.h"
#include "product/wrong_key.h"
#include "xfer_flags.h"
#include "xfer_points.h"

namespace mc::bench {
namespace {

constexpr uint64_t kContentSeed = 0x6d632d62656e6368;  // both ends make the same bytes from it

Parallel& toucher() {
  static Parallel pool(std::max(1, std::min(8, static_cast<int>(std::thread::hardware_concurrency()))));
  return pool;
}

/// Refuses addresses beyond loopback without a key, in the words of the flags. The transfer engine refuses them too,
/// but it has no flags to name.
Result<void> check_exposure(const cli::Args& args, const std::string& transports, uint64_t port, ctl::Keys lock) {
  if (transports == "shm") return {};
  const bool is_open = insecure(args, Door::data);
  const Uri bound{"tcp", args.text(flags::kBind), static_cast<uint16_t>(port), ""};
  MC_CHECK(ctl::check_exposure(Door::data, bound, lock, is_open));
  if (args.positional("PEER").empty() || is_open || lock == ctl::Keys::cluster || is_loopback(peer_host(args)))
    return {};
  MC_TRY(place, peer_address(args, transports));
  return no_lock(Door::data, place, mc::Side::dials);
}

}  // namespace

void fill_content(std::span<std::byte> bytes) {
  Rng rng(kContentSeed);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

std::vector<uint32_t> checksums(std::span<const std::byte> content, size_t piece_bytes) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at + piece_bytes <= content.size(); at += piece_bytes)
    out.push_back(crc32c(content.subspan(at, piece_bytes)));
  return out;
}

Result<xfer::Options> end_options(const cli::Args& args, const std::string& transports, uint64_t port, Side side) {
  xfer::Options options{.name = "bench", .transport = transports};
  options.tcp_bind = args.text(flags::kBind) + ":" + std::to_string(port);
  options.rdma_bind = args.text(flags::kBind) + ":" + std::to_string(port == 0 ? 0 : port + 1);
  const std::string& devices = args.text(kXferDevices);
  const size_t cut = devices.find('/');
  options.rdma_devices =
      side == Side::client || cut == std::string::npos ? devices.substr(0, cut) : devices.substr(cut + 1);
  host::apply_transfer_flags(args, options);
  MC_TRY(run_dir, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  MC_TRY(keys, host::KeyFile::of(args, run_dir));
  MC_CHECK(check_exposure(args, transports, port, keys.lock(Door::data)));
  keys.apply(options);
  options.shm_folder = run_dir;
  if (args.on(kServer)) options.tcp_seal = args.list(kXferSeal).front();  // a client's is its point's
  return options;
}

Result<std::unique_ptr<ServingEnd>> open_serving_end(const cli::Args& args, const std::string& transports, size_t bytes,
                                                     bool fixed_place) {
  const uint64_t port = fixed_place ? args.count(kXferPort) : 0;
  // a server of its own has the flag to itself: what stands before a slash is its peer's only when both ends are here
  MC_TRY(options, end_options(args, transports, port, fixed_place ? Side::client : Side::server));
  options.name = "bench-server";
  if (port != 0) options.shm_path = shm_address(options.shm_folder, port);
  ctl::sweep_run_dir(options.shm_folder);
  auto end = std::make_unique<ServingEnd>();
  MC_TRY(content, mem::SharedBuffer::create(bytes, {.name = "bench", .prefault = &toucher()}));
  MC_TRY(landing, mem::SharedBuffer::create(bytes, {.name = "landing", .peers_write = true, .prefault = &toucher()}));
  end->content = std::move(content);
  end->landing = std::move(landing);
  fill_content(end->content.bytes());
  auto engine = host::open_transfers(options);
  if (!engine && port != 0 && engine.error().mc == err::kPortInUse)
    return user_error(
        err::kPortInUse,
        "port " + std::to_string(port) + " or the shm place named after it is in use: " + engine.error().what, "--port",
        "choose another --port, or 0 for a free one");
  if (!engine) return std::move(engine.error());
  end->engine = std::move(*engine);
  MC_CHECK(end->engine->register_buffer(end->content,
                                        {.name = std::string(kReadBuffer), .access = xfer::AccessClass::blocks}));
  MC_CHECK(end->engine->register_buffer(end->landing,
                                        {.name = std::string(kWriteBuffer), .access = xfer::AccessClass::landing}));
  return end;
}

std::jthread listen_to_events(xfer::Engine& engine) {
  return std::jthread([&engine](const std::stop_token& stop) {
    std::vector<xfer::Event> events;
    while (!stop.stop_requested()) {
      events.clear();
      (void)engine.poll(events, SystemClock::instance().now() + 50ms, 1024);
    }
  });
}

Result<int> serve_until_stopped(const cli::Args& args, const std::string& transports, size_t bytes) {
  MC_TRY(signals, host::Signals::open());
  MC_TRY(end, open_serving_end(args, transports, bytes, true));
  Json ready = Json::object({{"type", "ready"}, {"program", "mc-bench"}});
  Json uris = Json::array();
  for (const std::string& uri : end->engine->uris()) uris.push(uri);
  ready.set("uri", end->engine->uris().back()).set("uris", std::move(uris)).set("pid", ::getpid());
  MC_CHECK(write_all(1, ready.dump() + "\n"));
  std::vector<xfer::Event> events;
  for (;;) {
    std::array<pollfd, 2> wanted{{{signals.fd(), POLLIN, 0}, {end->engine->event_fd(), POLLIN, 0}}};
    (void)::poll(wanted.data(), wanted.size(), 200);
    if (wanted[0].revents != 0 && signals.next()) return 0;
    events.clear();
    (void)end->engine->poll(events, SystemClock::instance().now(), 1024);
  }
}

Result<xfer::BufferInfo> ClientEnd::find(std::string_view name, const std::string& uri) const {
  const auto descriptor = engine->descriptor(peer);
  const xfer::BufferInfo* found = descriptor ? descriptor->find(name) : nullptr;
  if (found == nullptr)
    return user_error(err::kPeerGarbage, uri + " has no buffer named " + std::string(name), uri,
                      "start mc-bench xfer --server of this release at that address");
  return *found;
}

namespace {

/// The error of a server that was not reached, with advice on the setting that the two sides do not share.
Error unreached(const std::string& uri, const std::string& what, wire::Mismatch mismatch = wire::Mismatch::none) {
  switch (mismatch) {
    case wire::Mismatch::seal:
      return user_error(err::kTransportUnusable, uri + ": " + what, "--tcp-seal",
                        "give both sides the same --tcp-seal");
    case wire::Mismatch::secret: return wrong_key(uri + ": " + what, "--auth", "the server", "this side");
    case wire::Mismatch::version:
      return user_error(err::kProtocolVersion, uri + ": " + what, uri, "run the same release on both sides");
    case wire::Mismatch::none: break;
  }
  return user_error(err::kPeerUnreachable, uri + ": " + what, uri, "start one with: mc-bench xfer --server");
}

}  // namespace

Result<std::unique_ptr<ClientEnd>> open_client_end(const xfer::Options& options, size_t bytes, const std::string& uri) {
  auto end = std::make_unique<ClientEnd>();
  MC_TRY(memory, mem::SharedBuffer::create(bytes, {.name = "local", .prefault = &toucher()}));
  end->memory = std::move(memory);
  fill_content(end->memory.bytes());
  MC_TRY(engine, host::open_transfers(options));
  end->engine = std::move(engine);
  MC_CHECK(end->engine->register_buffer(end->memory, {.name = "local"}));
  const TimePoint deadline = SystemClock::instance().now() + options.connect_timeout;
  auto peer = end->engine->connect(uri, deadline);
  if (!peer) return unreached(uri, peer.error().what);
  end->peer = *peer;
  std::vector<xfer::Event> events;
  while (SystemClock::instance().now() < deadline + 1s) {
    events.clear();
    (void)end->engine->poll(events, deadline + 1s);
    for (const auto& event : events) {
      if (event.kind == xfer::Event::Kind::peer_up && event.peer == *peer) return end;
      if (event.kind == xfer::Event::Kind::peer_lost) return unreached(uri, event.text, event.mismatch);
    }
  }
  return unreached(uri, "not connected within " + human_duration(options.connect_timeout));
}

}  // namespace mc::bench
