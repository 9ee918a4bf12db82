// The emulator as a driver: a host with one GPU of compute capability 9.0 whose kernels run in lib/gpu/emu. Seeds draw
// the order of streams, kernels and copies. Faults of a host and of a GPU are options, so that every error of the
// runtime is seen without a GPU.
//
//   auto emulator = std::make_shared<EmulatedDriver>();
//   MC_TRY(device, Device::open(emulator, 0));
//   emulator->gpu().set_options({.seed = 7, .policy = emu::Policy::random});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/driver.h"
#include "gpu/emu/emu.h"
#include "gpu/emu/streams.h"
#include "gpu/emulated_cublaslt.h"
#include "gpu/emulated_handles.h"

namespace mc::gpu {

/// The host that is emulated.
struct EmulatedHost {
  bool has_driver = true;
  int version = 13000;  // of CUDA that the driver supports, times 1000
  int devices = 1;
  int capability = 90;
  int partition = 16;  // multiprocessors that share a cluster; of 132, the last ones form a smaller partition
  size_t memory_bytes = size_t{8} << 30;
  size_t host_bytes = size_t{8} << 30;  // of page-locked memory
  size_t graphs_max = SIZE_MAX;         // for which there is memory at the same time
  Status fault = Status::ok;            // what the GPU dies of: Status::ecc_uncorrectable, ...
  uint64_t fault_after = 0;             // so many operations succeed
  uint64_t fault_seed = 0;              // draws the operation at which it dies,
  uint32_t fault_within = 1;            // among the next so many
  bool has_cublaslt = true;
  size_t cublaslt_version = 130100;
  LtStatus cublaslt_create = LtStatus::ok;  // the answer of cublasLtCreate
  bool cublaslt_proposes = true;            // its heuristic knows an algorithm for every product
  size_t cublaslt_proposals = 8;            // of its heuristic at most; the first alone has other bits for few rows
  bool cublaslt_steady = true;              // the parts that an algorithm sums do not depend on the rows
  bool cublaslt_even = true;                // the last rows of a product are summed as the others
  uint64_t cublaslt_rows_max = UINT64_MAX;  // columns of D that its algorithms take at most
  bool has_nccl = true;
  std::string name = "emu";  // of its GPU
};

/// The GPU of the emulated host: its memory, its streams and how kernels run on it.
class EmulatedGpu {
 public:
  EmulatedGpu();

  /// From here on; a broken rule is forgotten.
  void set_options(const emu::Options& options);
  /// The kernel that a mutation or a fault of the options is for; the others run without. Empty: all have it.
  void set_mutated(std::string_view kernel) { mutated_ = kernel; }
  /// The options of the next launch, which is one of this kernel.
  emu::Options next_options(std::string_view kernel);
  /// For tests: the driver refuses one copy to the GPU, which works on: the one that comes after so many others.
  void refuse_copy(uint64_t after) { copies_left_ = after; }
  const emu::Counters& counters() const { return counters_; }
  /// Copies, fills and launches that have begun.
  uint64_t operations() const { return queues_.begun(); }
  /// The rule that stopped the run; nullopt when none was broken.
  std::optional<emu::Rule> broken_rule() const {
    return queues_.failure() ? std::optional(queues_.failure()->rule) : std::nullopt;
  }

 private:
  friend class EmulatedDriver;
  friend class EmulatedCublasLt;
  friend class EmulatedNccl;
  std::optional<emu::Failure> run(const emu::KernelLaunch& launch);
  void trust(emu::Options& options) const;

  emu::Options options_;
  std::string mutated_;
  bool mutated_ran_ = false;             // since set_options()
  std::optional<uint64_t> copies_left_;  // until the one that is refused
  emu::DeviceMemory memory_;
  emu::StreamQueues queues_;
  emu::Counters counters_;
};

class EmulatedDriver final : public Driver {
 public:
  explicit EmulatedDriver(const EmulatedHost& host = {});
  EmulatedGpu& gpu() { return gpu_; }

  Result<void> load() override;
  Status init() override { return host_.devices > 0 ? Status::ok : Status::no_device; }
  Status version(int* out) override;
  Status device_count(int* out) override;
  std::string device_name(int) const override { return host_.name; }
  Status describe(int device, DeviceFacts* out) override;
  Status retain(int device) override;
  void release(int) override { context_.release(); }
  Status enter() override { return context_.enter(); }
  std::string error_text(Status status) override;

  Status memory(size_t* free, size_t* total) override;
  Status allocate(uint64_t* address, size_t bytes, std::string_view what) override;
  void free(uint64_t address) override;
  Status host_allocate(void** at, size_t bytes) override;
  void host_free(void* at) override;
  Status host_access(const void* at, size_t bytes) override;

  Status stream_create(Handle* out) override;
  void stream_destroy(Handle stream) override;
  Status stream_finish(Handle stream) override;
  Status event_create(Handle* out) override;
  void event_destroy(Handle event) override { handles_.remove(event); }
  Status event_record(Handle event, Handle stream) override;
  Status event_finish(Handle event) override;
  Status stream_wait(Handle stream, Handle event) override;

  Status copy_in(uint64_t to, const void* from, size_t bytes, Handle stream) override;
  Status copy_out(void* to, uint64_t from, size_t bytes, Handle stream) override;
  Status copy_within(uint64_t to, uint64_t from, size_t bytes, Handle stream) override;
  Status fill(uint64_t to, uint8_t value, size_t bytes, Handle stream) override;
  Status find(Handle* function, const std::string& kernel) override;
  Status launch(Handle function, const LaunchShape& shape, std::span<const std::byte> params, Handle stream) override;
  Status clusters_at_once(int* out, Handle function, const LaunchShape& shape) override;
  Status encode(EncodedMap* out, const TensorBox& box) override;

  Status capture_begin(Handle stream) override;
  Status capture_end(Handle stream, Handle* graph) override;
  Status graph_launch(Handle graph, Handle stream) override;
  void graph_destroy(Handle graph) override { handles_.remove(graph); }

 private:
  friend class EmulatedCublasLt;
  friend class EmulatedNccl;
  /// Queues work, or notes it for the graph that the stream captures.
  Status submit(Handle stream, emu::StreamWork work);
  /// The status of calls that show the errors of earlier work.
  Status state();

  EmulatedHost host_;
  EmulatedGpu gpu_;
  std::string refused_map_;
  std::map<uint64_t, size_t> allocated_;  // bytes, by address
  size_t used_ = 0;
  std::map<const std::byte*, std::vector<std::byte>> pinned_;
  size_t pinned_bytes_ = 0;
  EmulatedContext context_;
  EmulatedHandles handles_;
  uint64_t fault_at_ = 0;
  bool dead_ = false;
};

}  // namespace mc::gpu
