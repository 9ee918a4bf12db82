// The disk of a live node: the machine's DiskWrite, DiskLoad and DiskDrop over a block store (lib/store). One thread
// writes, so that all writes under way are made durable by one flush, and one thread reads, all loads under way at
// once. Both check the pages against the blocks' checksums, on the way out and on the way in. At its start the reader
// lists the blocks that an earlier process left, and serves loads between the parts of the list.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "node/services.h"
#include "store/store.h"

namespace mc::host {

struct BlockDiskOptions {
  std::string directory;
  uint64_t capacity_bytes = 0;
  std::string io = "auto";  // kind of the store's disk
};

/// Whether the directory has a superblock or a segment of a store.
bool has_store(const std::string& directory);
/// Bytes of the segments in the directory. With this capacity a store neither grows nor gives files back.
uint64_t present_bytes(const std::string& directory);
/// The disk of the store in the directory, read-only; null when a start would make a new store. Returns an error when
/// the start could not take the directory or make what the store lacks. Changes nothing.
Result<std::unique_ptr<store::Disk>> look_at_store(const std::string& directory, const std::string& io);
/// Bytes that a disk tier in this directory may take: those free on its file system, and those of its segments.
uint64_t block_disk_room(const std::string& directory);

/// Files that a block disk may have open: its segments, which stay open, and a few more. A directory that has segments
/// already keeps their size.
uint64_t block_disk_files(const std::string& directory, uint64_t capacity_bytes);

class BlockDisk final : public node::BlockDisk {
 public:
  /// Errors have a number and name the directory: it is in use, of another format, damaged, not writable, or full.
  static Result<std::unique_ptr<BlockDisk>> open(const BlockDiskOptions& options);
  /// Returns an error if open() would fail, else the bytes of the largest value. Changes nothing in the directory.
  static Result<uint64_t> check(const BlockDiskOptions& options);
  /// Ends the operations that have begun and makes everything durable. Writes that wait are left out.
  ~BlockDisk() override;

  void write(const node::DiskWrite& write, std::span<const std::byte> page) override;
  void load(const node::DiskLoad& load, std::span<std::byte> page) override;
  void drop(const node::DiskDrop& drop) override;
  int event_fd() const override { return ready_fd_.fd(); }
  std::optional<node::Event> next() override;

  /// Bytes of the largest value that fits.
  uint64_t value_bytes_max() const { return store_->value_bytes_max(); }
  const store::Restart& restart() const { return store_->restart(); }
  const std::string& kind() const { return kind_; }

 private:
  struct Write {
    node::DiskWrite action;
    std::span<const std::byte> page;
  };
  struct Load {
    node::DiskLoad action;
    std::span<std::byte> page;
  };

  BlockDisk(std::unique_ptr<store::Store> store, std::string kind, EventFd ready);
  /// MC5006 when the system starts no thread.
  Result<void> start();
  void write_all();
  bool is_stopping();
  /// Answers every operation of the part, with no_space where memory for the values is short.
  void write_part(std::span<const Write> part);
  std::vector<node::DiskWritten> write_batch(std::span<const Write> batch);
  void read_all();
  void load_part(std::span<const Load> part);
  std::vector<node::DiskLoaded> load_batch(std::span<const Load> batch);
  node::DiskFound find_some(std::span<const Id128> ids, bool last);
  void make_room();
  void report_upkeep(node::DiskUpkeepFailed::Work work, const Error& outcome);
  void report_evictions();
  void give(node::Event event);

  std::unique_ptr<store::Store> store_;
  std::string kind_;
  EventFd ready_fd_;
  std::mutex mutex_;  // of the queues and of stopping_
  std::condition_variable wake_writer_, wake_reader_;
  std::vector<Write> writes_;
  std::vector<BlockHash> drops_;
  std::vector<Load> loads_;
  std::vector<node::Event> ready_;  // oldest first, from ready_next_ on
  size_t ready_next_ = 0;
  bool stopping_ = false;
  std::mutex evictions_mutex_;  // held from the store's list of evicted blocks to the end of their report
  bool upkeep_fails_[2] = {};  // the writer's thread: maintain and drop failed when they were last tried
  std::thread writer_, reader_;
};

}  // namespace mc::host
