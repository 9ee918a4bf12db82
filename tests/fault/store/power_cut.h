// The states that a power cut may leave on a disk, rebuilt from what a store did to it. Writes since the last flush of
// their file survive whole, in part (any 512-byte sectors) or not at all, each on its own.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "store/disk_memory.h"

namespace store_test {

using namespace mc;
using namespace mc::store;

class Recorder final : public DiskWatcher {
 public:
  struct Event {
    enum class Kind : uint8_t { write, flush, create, remove } kind;
    std::string name;
    uint64_t offset = 0;
    std::vector<std::byte> bytes;  // of a write; a created file has as many zeros
  };

  int before(const Io& io, const std::string& name) override {
    if (io.op == Io::Op::read) return 0;
    Event event{io.op == Io::Op::write ? Event::Kind::write : Event::Kind::flush, name, io.offset, {}};
    for (const iovec& part : io.parts) {
      const auto* at = static_cast<const std::byte*>(part.iov_base);
      event.bytes.insert(event.bytes.end(), at, at + part.iov_len);
    }
    events.push_back(std::move(event));
    return 0;
  }
  int before_create(const std::string& name, uint64_t bytes) override {
    events.push_back({Event::Kind::create, name, 0, std::vector<std::byte>(bytes)});
    return 0;
  }
  void removed(const std::string& name) override { events.push_back({Event::Kind::remove, name, 0, {}}); }

  std::vector<Event> events;
};

/// Walks through the events of a recorder and builds images of the disk as a cut there may leave it.
class PowerCut {
 public:
  /// `honest` = false: a disk that ignores flushes.
  PowerCut(DiskImage before, const std::vector<Recorder::Event>& events, bool honest = true)
      : durable_(std::move(before)), events_(events), honest_(honest) {}

  /// The cut comes after so many events; never fewer than in the call before.
  void advance(size_t count) {
    for (; at_ < count; ++at_) {
      const Recorder::Event& event = events_[at_];
      switch (event.kind) {
        case Recorder::Event::Kind::create: durable_[event.name] = event.bytes; break;
        case Recorder::Event::Kind::remove:
          durable_.erase(event.name);
          forget(event.name);
          break;
        case Recorder::Event::Kind::write: pending_.push_back(at_); break;
        case Recorder::Event::Kind::flush:
          if (!honest_) break;
          for (const size_t write : pending_)
            if (events_[write].name == event.name) apply(durable_, events_[write], nullptr);
          forget(event.name);
          break;
      }
    }
  }

  DiskImage image(Rng& rng) const {
    DiskImage out = durable_;
    const uint64_t mood = rng.below(4);  // nothing, everything, or each write on its own
    for (const size_t write : pending_) {
      const uint64_t fate = mood == 0 ? 0 : mood == 1 ? 1 : rng.below(4);
      if (fate == 1) apply(out, events_[write], nullptr);
      if (fate >= 2) apply(out, events_[write], &rng);
    }
    return out;
  }

  /// The disk while the power stays on.
  static DiskImage all(DiskImage before, const std::vector<Recorder::Event>& events) {
    PowerCut cut(std::move(before), events);
    cut.advance(events.size());
    for (const size_t write : cut.pending_) apply(cut.durable_, events[write], nullptr);
    return std::move(cut.durable_);
  }

 private:
  void forget(const std::string& name) {
    std::erase_if(pending_, [&](size_t write) { return events_[write].name == name; });
  }
  static void apply(DiskImage& image, const Recorder::Event& event, Rng* torn) {
    constexpr size_t kSector = 512;
    std::vector<std::byte>& content = image.at(event.name);
    const size_t sectors = event.bytes.size() / kSector;
    // Torn: a prefix, a suffix, or any sectors.
    const uint64_t way = torn == nullptr ? 0 : 1 + torn->below(3);
    const size_t split = torn == nullptr ? 0 : torn->below(sectors + 1);
    for (size_t i = 0; i < sectors; ++i) {
      if ((way == 1 && i >= split) || (way == 2 && i < split) || (way == 3 && torn->chance(0.5))) continue;
      std::memcpy(content.data() + event.offset + i * kSector, event.bytes.data() + i * kSector, kSector);
    }
  }

  DiskImage durable_;
  const std::vector<Recorder::Event>& events_;
  std::vector<size_t> pending_;  // writes that are not flushed
  size_t at_ = 0;
  bool honest_;
};

}  // namespace store_test
