// Facts of the operating system for the doctor, and what they mean.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/assert.h"
#include "base/fd.h"
#include "base/units.h"
#include "gpu/libcublaslt.h"
#include "gpu/libnccl.h"
#include "gpu/optional_library.h"
#include "verbs/doctor.h"

namespace mc::verbs {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr int kCapIpcLock = 14;
constexpr uint64_t kFilesWanted = 4096;  // sockets and arenas of a few hundred peers
constexpr uint64_t kMapsWanted = 65530;  // the kernel's own default

std::string file_text(const std::string& path) {
  auto text = read_file(path, size_t{1} << 20);
  return text ? std::move(*text) : std::string();
}

std::string first_word(const std::string& text) {
  return text.substr(0, text.find_first_of(" \t\n"));
}

std::optional<uint64_t> number_in(const std::string& path) {
  auto value = parse_u64(first_word(file_text(path)));
  return value ? std::optional(*value) : std::nullopt;
}

/// "CapEff:" -> the rest of its line without blanks before it.
std::string field(const std::string& text, std::string_view name) {
  const size_t at = text.starts_with(name) ? 0 : text.find("\n" + std::string(name));
  if (at == std::string::npos) return {};
  const size_t value = text.find_first_not_of(" \t", text.find(name, at) + name.size());
  return value == std::string::npos ? "" : text.substr(value, text.find('\n', value) - value);
}

uint64_t number_field(const std::string& text, std::string_view name) {
  return parse_u64(first_word(field(text, name))).value_or(0);
}

/// "always [madvise] never" -> "madvise".
std::string chosen(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']', open);
  return open == std::string::npos || close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
}

std::vector<std::string> names_in(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(prefix)) out.push_back(at->path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// The first interface that is up and no loopback, bridge or container link.
std::string carrier_netdev(const std::string& root) {
  for (const std::string& name : names_in(root + "sys/class/net", "")) {
    const std::string folder = root + "sys/class/net/" + name;
    const bool ethernet = number_in(folder + "/type") == 1;
    if (ethernet && first_word(file_text(folder + "/operstate")) == "up" && !fs::exists(folder + "/bridge"))
      return name;
  }
  return {};
}

bool lock_capable(const std::string& status) {
  const std::string hex = first_word(field(status, "CapEff:"));
  uint64_t bits = 0;
  for (const char c : hex) {
    const size_t digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return false;
    bits = bits << 4 | digit;
  }
  return (bits >> kCapIpcLock & 1) != 0;
}

std::optional<uint64_t> limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

std::string size_text(uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited" : human_bytes(bytes);
}

Finding locked_memory(const HostFacts& host, bool matters, uint64_t needed) {
  Finding out{.area = Area::limits, .name = "locked memory"};
  const uint64_t limit = host.memlock.value_or(0);
  if (host.lock_capable || limit == kUnlimited) {
    out.what = limit == kUnlimited ? "unlimited" : size_text(limit) + ", but this process may lock more (CAP_IPC_LOCK)";
  } else if (limit >= needed) {
    out.what = size_text(limit) + ", " + size_text(needed) + " are to be registered";
  } else {
    out.verdict = matters ? Verdict::fix : Verdict::note;
    out.what = size_text(limit) + " may be locked, RDMA needs " + size_text(needed) + " registered" +
               (matters ? "" : "; nothing here uses RDMA");
    out.next =
        "ulimit -l unlimited; for good: \"* - memlock unlimited\" in /etc/security/limits.conf, or "
        "LimitMEMLOCK=infinity in the service file";
  }
  return out;
}

Finding plain_limit(std::string name, const std::optional<uint64_t>& value, uint64_t wanted, std::string next) {
  MC_ASSERT(wanted > 0 && !next.empty());
  Finding out{.area = Area::limits, .name = std::move(name)};
  out.what = !value ? "not known here" : *value == kUnlimited ? "unlimited" : std::to_string(*value);
  if (value.value_or(wanted) >= wanted) return out;
  out.verdict = Verdict::note;
  out.what += ", fewer than " + std::to_string(wanted) + ": many peers or buffers may hit it";
  out.next = std::move(next);
  return out;
}

Finding huge_pages(const HostFacts& host) {
  Finding out{.area = Area::memory, .name = "huge pages"};
  out.what = std::to_string(host.huge_pages_free) + " of " + std::to_string(host.huge_pages) + " reserved ones of " +
             human_bytes(host.huge_page_bytes) +
             " free; transparent: " + (host.transparent_pages.empty() ? "not in this kernel" : host.transparent_pages) +
             ", for shared memory: " + (host.shared_pages.empty() ? "not in this kernel" : host.shared_pages);
  const bool private_small = host.transparent_pages == "never";
  const bool shared_small = host.shared_pages == "never" || host.shared_pages == "deny";
  if (!private_small && !shared_small) return out;
  out.verdict = Verdict::note;
  out.what +=
      std::string("; ") + (shared_small ? "KV pools" : "weights") + " lie in 4 KiB pages, so registering takes longer";
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  if (private_small) out.next = "echo madvise > " + folder + "enabled";
  if (shared_small) out.next += (out.next.empty() ? "" : "; ") + ("echo advise > " + folder + "shmem_enabled");
  return out;
}

Finding gpu(const xfer::RdmaReport& rdma) {
  Finding out{.area = Area::gpu, .name = "memory over RDMA"};
  out.what = std::string(xfer::to_string(rdma.gpu.path)) + ": " + rdma.gpu.reason;
  if (rdma.gpu.path == xfer::GpuPath::none) out.verdict = Verdict::unused;
  if (rdma.gpu.path != xfer::GpuPath::staged || !rdma.usable) return out;
  out.verdict = Verdict::note;
  out.next = "modprobe nvidia-peermem, or install the open kernel modules of the driver";
  return out;
}

Finding products(const HostFacts& host) {
  Finding out{.area = Area::gpu, .name = "matrix products"};
  out.what = host.products.empty() ? "the own kernels: " + host.products_reason : host.products;
  if (!host.products.empty()) return out;
  out.verdict = Verdict::unused;
  out.next = "on a host with a GPU, install cuBLASLt of the CUDA toolkit 12.9 or later";
  return out;
}

Finding sums(const HostFacts& host) {
  Finding out{.area = Area::gpu, .name = "sums over GPUs"};
  out.what = host.sums.empty() ? "a model has one GPU at most: " + host.sums_reason : host.sums;
  if (!host.sums.empty()) return out;
  out.verdict = Verdict::unused;
  out.next = "on a host with several GPUs, install libnccl2, NCCL " + gpu::library_version_text(gpu::kNcclVersionMin) +
             " or later";
  return out;
}

/// Loads the libraries for a moment's look, which needs neither a driver nor a GPU.
void read_libraries(HostFacts& out) {
  const auto products = gpu::host_cublaslt();
  if (const auto loaded = products->load(); !loaded)
    out.products_reason = loaded.error().what;
  else
    out.products = "cuBLASLt " + gpu::library_version_text(products->version()) + " of " + products->file();
  const auto sums = gpu::host_nccl();
  if (const auto loaded = sums->load(); !loaded)
    out.sums_reason = loaded.error().what;
  else
    out.sums = "NCCL " + gpu::library_version_text(sums->version()) + " of " + sums->file();
}

}  // namespace

HostFacts read_host(const std::string& root) {
  HostFacts out;
  out.kernel = first_word(file_text(root + "proc/sys/kernel/osrelease"));
  out.memlock = limit_of(RLIMIT_MEMLOCK);
  out.open_files = limit_of(RLIMIT_NOFILE);
  out.lock_capable = lock_capable(file_text(root + "proc/self/status"));
  out.map_count_max = number_in(root + "proc/sys/vm/max_map_count");
  const std::string memory = file_text(root + "proc/meminfo");
  if (!field(memory, "MemAvailable:").empty()) out.memory_available = number_field(memory, "MemAvailable:") * 1024;
  out.huge_page_bytes = number_field(memory, "Hugepagesize:") * 1024;
  out.huge_pages = number_field(memory, "HugePages_Total:");
  out.huge_pages_free = number_field(memory, "HugePages_Free:");
  const std::string pages = root + "sys/kernel/mm/transparent_hugepage/";
  out.transparent_pages = chosen(file_text(pages + "enabled"));
  out.shared_pages = chosen(file_text(pages + "shmem_enabled"));
  out.numa_nodes = static_cast<unsigned>(names_in(root + "sys/devices/system/node", "node").size());
  out.netdev = carrier_netdev(root);
  if (root == "/") read_libraries(out);
  out.verbs_loaded = fs::exists(root + "sys/class/infiniband_verbs");
  for (const std::string& name : names_in(root + "dev/infiniband", "uverbs")) {
    ++out.verbs_devices;
    if (::access((root + "dev/infiniband/" + name).c_str(), R_OK | W_OK) == 0) ++out.verbs_readable;
  }
  MC_ASSERT_LE(out.verbs_readable, out.verbs_devices);
  return out;
}

std::vector<Finding> judge_host(const HostFacts& host, const xfer::RdmaReport& rdma, const DoctorPlan& plan) {
  const bool matters = rdma.usable || plan.wants("rdma");
  const uint64_t needed = plan.memory_bytes > 0 ? plan.memory_bytes : host.memory_available.value_or(0) / 10 * 8;
  std::vector<Finding> out;
  out.push_back(locked_memory(host, matters, needed));
  out.push_back(plain_limit("open files", host.open_files, kFilesWanted, "ulimit -n 65536"));
  out.push_back(plain_limit("memory maps", host.map_count_max, kMapsWanted, "sysctl -w vm.max_map_count=262144"));
  if (host.memory_available) {
    Finding memory{.area = Area::memory, .name = "available"};
    memory.what = human_bytes(*host.memory_available) + " on " + std::to_string(std::max(1u, host.numa_nodes)) +
                  (host.numa_nodes > 1 ? " NUMA nodes" : " NUMA node");
    if (plan.memory_bytes > *host.memory_available) {
      memory.verdict = Verdict::fix;
      memory.what += ", less than the " + human_bytes(plan.memory_bytes) + " asked for";
      memory.next = "lower --memory, and --kv-mem or --dram of the node it stands for";
    }
    out.push_back(std::move(memory));
  }
  out.push_back(huge_pages(host));
  out.push_back(gpu(rdma));
  out.push_back(products(host));
  out.push_back(sums(host));
  return out;
}

}  // namespace mc::verbs
