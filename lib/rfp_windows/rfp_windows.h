// Remote fetching over the transfer engine. A Window writes and reads memory of a peer, one-sided, and the table below
// has one for each transport; a ClientEnd and a ServerEnd join a window, the protocol's state (lib/rfp) and registered
// memory into one channel.
//
//   shm    writes are copies into the mapped arena, and reads are loads from it: where both ends poll, no call enters
//          the kernel
//   rdma   writes and reads are RDMA operations of the engine's queue pairs; the server posts none while the client
//          fetches
//   tcp    there is no one-sided read worth its name, so the server pushes every response
//
// Both ends run on the thread that calls them, which also hands them the engine's events. An end whose peer sleeps
// wakes it: each write then carries an immediate (xfer::Event::Kind::immediate).
// A client's buffer may be written by the server alone, and a server's request buffer by that client alone. Response
// buffers are of the class `blocks`: every peer of the engine may read them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "mem/mem.h"
#include "rfp/client.h"
#include "rfp/server.h"
#include "wire/rfp_slot.h"
#include "xfer/xfer.h"

namespace mc::rfp {

struct WindowPlaces {
  xfer::Engine* engine = nullptr;  // outlives the window
  xfer::PeerId peer{};
  uint32_t written = 0;  // buffer of the peer that write() changes
  uint32_t read = 0;     // buffer of the peer that read() reads; 0 = none
  bool wakes = false;    // each write carries the immediate kWakes, so that the peer may sleep
  Duration timeout = 5s;
};

/// Immediate of a write that wakes the peer. The event says no more than that some slot may have changed.
inline constexpr uint32_t kWakes = 0x4D435257;

struct WindowDone {
  uint64_t cookie = 0;
  Code code = Code::ok;
};

class Window {
 public:
  virtual ~Window() = default;
  /// Starts a transfer; a WindowDone follows. `local` is in a registered buffer and stays as it is until then.
  virtual void write(uint64_t offset, std::span<std::byte> local, uint64_t cookie) = 0;
  virtual void read(uint64_t offset, std::span<std::byte> local, uint64_t cookie) = 0;
  /// Takes an event of the engine, which may be for somebody else.
  virtual void on(const xfer::Event& event) = 0;
  /// Appends the transfers that have ended.
  virtual void ended(std::vector<WindowDone>& out) = 0;
  /// Whether no transfer is under way: the destructor has nothing to wait for.
  virtual bool idle() const = 0;
};

struct WindowEntry {
  const char* scheme;  // of the transport
  bool fetches;        // false: the server pushes every response
  Result<std::unique_ptr<Window>> (*open)(const WindowPlaces& places);
};
std::span<const WindowEntry* const> windows();
/// The entry of the transport in use to that peer; null when it has none.
const WindowEntry* window_to(const xfer::Engine& engine, xfer::PeerId peer);

struct EndFigures {
  uint64_t writes = 0, reads = 0;  // transfers that this end has started
};

/// Longest wait of an end's destructor while its peer is writing into its memory.
inline constexpr Duration kReleaseMax = 15s;

class ClientEnd {
 public:
  /// Waits until no transport uses the memory: as long as the timeout of a transfer, or kReleaseMax while the peer is
  /// writing into it. The engine outlives this end.
  ~ClientEnd();
  /// Registers memory and asks the peer, which is up, for a channel. `number` names the channel among this engine's.
  /// `wakes`: the server's process sleeps between requests (WindowPlaces).
  static Result<std::unique_ptr<ClientEnd>> open(xfer::Engine& engine, xfer::PeerId peer, uint32_t number,
                                                 const ClientOptions& options, bool wakes = false);
  /// Takes an event of the engine.
  void on(const xfer::Event& event);
  /// Opens the window when the server's answer is there, starts the transfers that are due, and ends others.
  void run(TimePoint now);
  bool ready() const { return window_ != nullptr; }
  /// Why there will be no channel. Code::ok: nothing speaks against it.
  Code refused() const { return refused_; }
  /// Ends the channel, which only gets events from here on. True: nothing uses its memory, and the destructor returns
  /// at once. False: a transfer of this end or of the peer is under way, call again. It does not wait.
  bool close();
  /// The destructor waits for the peer until then at most. Several ends that were closed share one deadline this way.
  void release_by(TimePoint deadline) { release_by_ = deadline; }

  /// The calls; after ready(). See Client.
  Client& client() { return *client_; }
  ClientMemory memory() { return {local_.bytes(), pushed_.bytes()}; }
  const EndFigures& figures() const { return figures_; }
  /// The server's buffers; after ready().
  const wire::RfpOpened& opened() const { return *opened_; }

 private:
  ClientEnd(xfer::Engine& engine, xfer::PeerId peer, const ClientOptions& options, bool wakes)
      : engine_(engine), peer_(peer), options_(options), wakes_(wakes) {}
  void open_window();

  xfer::Engine& engine_;
  xfer::PeerId peer_;
  ClientOptions options_;
  bool wakes_;
  mem::SharedBuffer local_, pushed_;
  std::vector<xfer::BufferId> buffers_;
  std::optional<wire::RfpOpened> opened_;
  Code refused_ = Code::ok;
  std::optional<Client> client_;
  std::unique_ptr<Window> window_;
  std::vector<Transfer> transfers_;  // by cookie: the slot, or the number of slots for the mode
  std::vector<WindowDone> ended_;
  EndFigures figures_;
  TimePoint release_by_ = kNever;
};

class ServerEnd {
 public:
  ~ServerEnd();  // as ~ClientEnd
  /// Registers memory for the channel that `peer` asked for, and answers it. `instance` names this end. The caller
  /// bounds the channels of a peer: each takes two of the engine's buffers and up to 8 MiB. `wakes`: the client's
  /// process sleeps until it is pushed to (WindowPlaces).
  static Result<std::unique_ptr<ServerEnd>> open(xfer::Engine& engine, xfer::PeerId peer, const wire::RfpOpen& asked,
                                                 uint64_t instance, bool wakes = false);
  void on(const xfer::Event& event);
  /// Starts pushes that are due, and ends others.
  void run();
  bool ready() const { return window_ != nullptr; }
  /// See ClientEnd::close() and release_by().
  bool close();
  void release_by(TimePoint deadline) { release_by_ = deadline; }

  std::optional<Server::Request> poll(TimePoint now);
  /// The payload of the request that poll() returned, until the next poll().
  std::span<const std::byte> payload(const Server::Request& request) const;
  void publish(uint64_t sequence, uint16_t status, std::span<const std::byte> payload, TimePoint now);
  const EndFigures& figures() const { return figures_; }

 private:
  ServerEnd(xfer::Engine& engine, xfer::PeerId peer, const wire::RfpOpen& asked, bool wakes)
      : engine_(engine), peer_(peer), asked_(asked), wakes_(wakes) {}
  ServerMemory memory() { return {requests_.bytes(), responses_.bytes()}; }
  void open_window();

  xfer::Engine& engine_;
  xfer::PeerId peer_;
  wire::RfpOpen asked_;
  bool wakes_;
  uint64_t instance_ = 0;
  mem::SharedBuffer requests_, responses_;
  std::vector<xfer::BufferId> buffers_;
  std::optional<Server> server_;
  std::unique_ptr<Window> window_;
  std::vector<uint64_t> payload_;
  std::vector<WindowDone> ended_;
  EndFigures figures_;
  TimePoint release_by_ = kNever;
};

}  // namespace mc::rfp
