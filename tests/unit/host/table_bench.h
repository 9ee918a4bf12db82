// Two data planes of this process, one of which publishes a table of blocks that the other one reads by TableReads.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host/lease_channels.h"
#include "host/table_reads.h"
#include "instances.h"
#include "kv/block_table.h"
#include "test.h"

namespace mc::host::table_bench {

inline BlockHash block_of(uint64_t number) {
  BlockHash out;
  const std::array<uint64_t, 2> words{number * 0x9E3779B97F4A7C15 + 1, ~number};
  std::memcpy(out.bytes.data(), words.data(), sizeof words);
  return out;
}
inline std::vector<BlockHash> blocks_of(uint64_t first, uint64_t count) {
  std::vector<BlockHash> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(block_of(first + i));
  return out;
}
inline TimePoint clock_now() {
  return SystemClock::instance().now();
}

struct TableEnds {
  struct Side {
    mem::SharedBuffer pool;
    InstanceId instance;
    std::unique_ptr<DataPlane> plane;

    Side(uint8_t id, const std::string& transport, const std::string& devices, const xfer::FaultPlan& faults = {})
        : instance(test::instance_of_run(id)) {
      auto made = mem::SharedBuffer::create(1 << 16);
      REQUIRE_OK(made);
      pool = std::move(*made);
      xfer::Options options{.name = name(), .instance = instance, .transport = transport};
      options.secret.assign(32, 's');
      options.rdma_devices = devices;
      options.faults = faults;
      options.connect_timeout = 20s;  // the machine of the rdma tests is emulated
      auto opened = DataPlane::open(options, pool);
      REQUIRE_OK(opened);
      plane = std::move(*opened);
    }
    std::string name() const { return "n" + std::to_string(instance.bytes[0]); }
    void know(const Side& other) {
      wire::Peer peer;
      peer.name = other.name(), peer.instance = other.instance, peer.data = other.plane->describe();
      plane->set_peers({peer});
    }
  };
  Side holder, reader;
  mem::SharedBuffer memory;
  std::optional<kv::BlockTable> table;
  std::optional<TableReads> reads;

  /// `faults` are those of the reader's transfers.
  explicit TableEnds(const std::string& transport, uint64_t blocks = 100, const std::string& holder_devices = "",
                     const std::string& reader_devices = "", const xfer::FaultPlan& faults = {})
      : holder(1, transport, holder_devices), reader(2, transport, reader_devices, faults) {
    auto made = mem::SharedBuffer::create(kv::BlockTable::bytes_for(blocks));
    REQUIRE_OK(made);
    memory = std::move(*made);
    table.emplace(memory.bytes(), kv::table_epoch(holder.instance));
    REQUIRE_OK(holder.plane->engine().register_buffer(
        memory, {.name = std::string(kBlockTableBuffer), .access = xfer::AccessClass::blocks}));
    reads.emplace(reader.plane->engine());
    watch();
    holder.know(reader);
    reader.know(holder);
    turn_until([&] { return !reader.plane->transport(holder.instance).empty() && published().length > 0; });
  }
  ~TableEnds() {
    reader.plane->watch({});
    reads.reset();
    holder.plane.reset();
  }
  void watch() {
    reader.plane->watch([this](const xfer::Event& event) { return reads->on(event, clock_now()); });
  }
  xfer::PeerId peer() const { return reader.plane->peer_of(holder.instance); }
  wire::BufferInfo published() const {
    const auto descriptor = reader.plane->engine().descriptor(peer());
    const wire::BufferInfo* buffer = descriptor ? descriptor->find(kBlockTableBuffer) : nullptr;
    return buffer ? *buffer : wire::BufferInfo{};
  }
  node::Lookup lookup(std::vector<BlockHash> hashes) const {
    return {5, holder.name(), holder.instance, std::move(hashes)};
  }
  void turn() {
    while (holder.plane && holder.plane->next()) {
    }
    while (reader.plane->next()) {
    }
  }
  template <class Done>
  void turn_until(Done done) {
    const TimePoint end = clock_now() + 60s;
    for (turn(); !done(); turn()) {
      REQUIRE(clock_now() < end);
      pollfd fd = {reader.plane->event_fd(), POLLIN, 0};
      REQUIRE(::poll(&fd, 1, 20) >= 0);
    }
  }
  /// nullopt: the lookup has to go another way.
  std::optional<std::vector<wire::HeldIn>> look(std::vector<BlockHash> hashes) {
    REQUIRE(reads->start(lookup(std::move(hashes)), peer(), published(), clock_now()));
    std::optional<TableReads::Ended> ended;
    turn_until([&] { return (ended = reads->take()).has_value(); });
    CHECK(ended->lookup.lookup == 5);
    return std::move(ended->held);
  }
};

/// Lookups find what the table has.
inline void check_lookups(TableEnds& ends, int rounds) {
  for (uint64_t i = 0; i < 80; ++i)
    if (i % 3 != 0) ends.table->apply({.tier = i % 3 == 1 ? kv::Tier::host : kv::Tier::disk, .hash = block_of(i)});
  for (int round = 0; round < rounds; ++round) {
    const auto hashes = blocks_of(static_cast<uint64_t>(round) % 40, 1 + static_cast<uint64_t>(round) * 7 % 64);
    auto held = ends.look(hashes);
    for (int more = 0; more < 2 && !held; ++more) held = ends.look(hashes);  // on a busy machine a read may be late
    REQUIRE(held.has_value());
    CHECK(*held == ends.table->find(hashes));
  }
  CHECK(ends.reads->torn() == 0);
}

/// While a thread changes the table, no lookup finds a block where it never was. Returns the number of lookups that
/// were answered.
inline int check_changing_table(TableEnds& ends, int rounds) {
  for (uint64_t i = 0; i < 16; ++i) ends.table->apply({.tier = kv::Tier::host, .hash = block_of(i)});  // they stay
  std::atomic<int> turn{0};  // each lookup begins with some changes, and the table is at rest afterwards
  std::thread writer([&] {
    for (int seen = 0; seen < rounds; seen = turn) {
      turn.wait(seen);
      for (uint64_t i = 0; i < 512; ++i) {
        const auto kind = i % 2 == 0 ? kv::BlockEvent::Kind::stored : kv::BlockEvent::Kind::removed;
        ends.table->apply({.kind = kind, .tier = kv::Tier::disk, .hash = block_of(i / 2 % 32)});
      }
    }
  });
  int answered = 0;
  bool is_right = true;
  for (int round = 0; round < rounds; ++round) {
    turn = round + 1;
    turn.notify_one();
    const auto held = ends.look(blocks_of(0, 32));
    if (!held) continue;
    ++answered;
    for (size_t i = 0; i < held->size(); ++i) {
      const bool in_memory = (static_cast<uint8_t>((*held)[i]) & 1) != 0;
      is_right &= in_memory == (i < 16);
    }
  }
  writer.join();
  CHECK(is_right);
  return answered;
}

}  // namespace mc::host::table_bench
