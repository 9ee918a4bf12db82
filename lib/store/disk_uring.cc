// A disk through io_urings (the fence of liburing in this folder): many operations in flight from one thread. A single
// operation is a plain system call, which costs less than a ring. A ring belongs to one caller at a time.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "store/posix_files.h"

namespace mc::store {
namespace {

constexpr unsigned kRingDepth = 128;  // operations in flight in one ring

class DiskRing {
 public:
  ~DiskRing() {
    if (live_) ::io_uring_queue_exit(&ring_);
  }
  /// 0, or an errno.
  int open() {
    int error = ::io_uring_queue_init(kRingDepth, &ring_, IORING_SETUP_COOP_TASKRUN);
    if (error == -EINVAL) error = ::io_uring_queue_init(kRingDepth, &ring_, 0);  // before Linux 5.19
    live_ = error == 0;
    return -error;
  }
  bool knows_operations() {
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    bool all = probe != nullptr;
    for (const int op : {IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC})
      all = all && ::io_uring_opcode_supported(probe, op) != 0;
    ::io_uring_free_probe(probe);
    return all;
  }
  io_uring& ring() { return ring_; }

 private:
  io_uring ring_{};
  bool live_ = false;
};

class UringDisk final : public PosixFiles {
 public:
  static Result<std::unique_ptr<Disk>> make(const std::string& directory, Access access) {
    auto ring = std::make_unique<DiskRing>();
    if (const int error = ring->open(); error != 0)
      return Error{Code::unsupported, std::string("store: no io_uring: ") + std::strerror(error)};
    if (!ring->knows_operations())
      return Error{Code::unsupported, "store: this kernel's io_uring knows no vectored reads and writes"};
    auto disk = std::make_unique<UringDisk>();
    disk->idle_.push_back(std::move(ring));
    MC_CHECK(disk->enter(directory, access));
    return std::unique_ptr<Disk>(std::move(disk));
  }

  void run(std::span<Io> ios, const std::function<void(Io&)>& ended) override {
    std::unique_ptr<DiskRing> ring = ios.size() > 1 ? borrow() : nullptr;
    if (ring) {
      pump(ring->ring(), ios, ended);
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(ring));
      return;
    }
    for (Io& io : ios) {
      transfer(io);
      ended(io);
    }
  }

 private:
  std::unique_ptr<DiskRing> borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<DiskRing> ring = std::move(idle_.back());
        idle_.pop_back();
        return ring;
      }
    }
    auto ring = std::make_unique<DiskRing>();
    return ring->open() == 0 ? std::move(ring) : nullptr;  // out of locked memory: system calls
  }

  void prepare(io_uring_sqe* sqe, Io& io) const {
    const auto parts = static_cast<unsigned>(io.parts.size());
    const int to = fd(io.file);
    if (io.op == Io::Op::read) ::io_uring_prep_readv(sqe, to, io.parts.data(), parts, io.offset);
    if (io.op == Io::Op::write) ::io_uring_prep_writev(sqe, to, io.parts.data(), parts, io.offset);
    if (io.op == Io::Op::flush) ::io_uring_prep_fsync(sqe, to, IORING_FSYNC_DATASYNC);
    ::io_uring_sqe_set_data(sqe, &io);
  }

  void finish(Io& io, int result) const {
    const bool whole = io.op == Io::Op::flush ? result == 0 : result >= 0 && bytes_of(io.parts) == uint64_t(result);
    io.error = result < 0 ? -result : 0;
    // A short transfer, or one that may not wait: once more, in this thread, which says what is wrong.
    if (!whole && (result >= 0 || result == -EAGAIN || result == -EINTR)) transfer(io);
  }

  void pump(io_uring& ring, std::span<Io> ios, const std::function<void(Io&)>& ended) const {
    size_t next = 0, in_flight = 0;
    while (next < ios.size() || in_flight > 0) {
      while (next < ios.size() && in_flight < kRingDepth) {
        io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
        if (sqe == nullptr) break;
        prepare(sqe, ios[next++]);
        ++in_flight;
      }
      const int rc = ::io_uring_submit_and_wait(&ring, 1);
      // The kernel owns the memory of what is in flight, so nothing but an answer ends the wait.
      MC_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(&ring, &done) == 0) {
        Io& io = *static_cast<Io*>(::io_uring_cqe_get_data(done));
        const int result = done->res;
        ::io_uring_cqe_seen(&ring, done);
        --in_flight;
        finish(io, result);
        ended(io);
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<DiskRing>> idle_;
};

}  // namespace

const DiskEntry kDiskUring = {
    .name = "uring",
    .summary = "io_uring, many operations in flight from one thread",
    .open = UringDisk::make,
};

}  // namespace mc::store
