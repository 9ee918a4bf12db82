#include "test.h"
#include "xfer_rdma/gpu.h"

using namespace mc;
using namespace mc::xfer;

namespace {

GpuPath path(const GpuFacts& facts) {
  const GpuChoice choice = choose_gpu_path(facts);
  CHECK(!choice.reason.empty());
  return choice.path;
}

}  // namespace

TEST_CASE("xfer/rdma_gpu: dmabuf before peermem before staging, and nothing without a GPU") {
  CHECK(path({}) == GpuPath::none);
  CHECK(path({.driver = true}) == GpuPath::none);
  const GpuFacts all{.driver = true, .devices = 8, .exports_dmabuf = true, .peermem = true, .verbs_dmabuf = true};
  CHECK(path(all) == GpuPath::dmabuf);
  GpuFacts old_driver = all;
  old_driver.exports_dmabuf = false;
  CHECK(path(old_driver) == GpuPath::peermem);
  GpuFacts soft_nic = all;
  soft_nic.verbs_dmabuf = false;
  CHECK(path(soft_nic) == GpuPath::peermem);
  CHECK(choose_gpu_path(soft_nic).reason.find("NIC") != std::string::npos);
  soft_nic.peermem = false;
  CHECK(path(soft_nic) == GpuPath::staged);
  CHECK(choose_gpu_path(soft_nic).reason.find("nvidia-peermem is not loaded") != std::string::npos);
}

TEST_CASE("xfer/rdma_gpu: host memory is not taken for GPU memory, and cannot be exported") {
  std::byte memory[64] = {};
  CHECK(!is_gpu_memory(memory));
  CHECK(!export_gpu_memory(memory).has_value());
  if (!gpu_facts().driver) CHECK(choose_gpu_path(gpu_facts()).reason == "no CUDA driver");
}
