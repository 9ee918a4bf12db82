#include "verbs/doctor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/fd.h"
#include "test.h"
#include "transports/transports.h"

namespace doctor_test {

using namespace mc;
using namespace mc::verbs;

namespace {

/// A machine made of files below a folder of its own.
struct FakeRoot {
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "mct-doctor-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name + "/";
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
  void put(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path + file).parent_path());
    std::ofstream(path + file) << text;
  }
  std::string path;
};

const Finding& named(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings)
    if (finding.name == name) return finding;
  FAIL("no finding named " << name);
  return findings.front();
}

DoctorPlan plan_for(const std::string& transport, uint64_t memory = 0) {
  DoctorPlan plan;
  plan.options.transport = transport;
  plan.options.insecure = true;
  plan.memory_bytes = memory;
  return plan;
}

wire::Gid ipv4(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}

xfer::RdmaReport one_nic(bool usable) {
  xfer::RdmaPortReport port{
      .port = 1, .state = usable ? "active" : "down", .active = usable, .ethernet = true, .mtu = 4096};
  port.mtu_max = 4096;
  port.usable = usable;
  port.reason = usable ? "10.0.0.1, RoCE v2" : "the port is down: check the link and its network interface";
  xfer::RankedGid gid{.usable = usable, .reason = usable ? "RoCE v2, IPv4" : "eth7 is down"};
  gid.entry = {.index = 3, .gid = ipv4(1), .netdev = "eth7", .netdev_up = usable, .assigned = true, .prefix = 120};
  port.gids = {gid};
  xfer::RdmaReport report;
  report.devices.push_back({.name = "mlx5_0", .mr_bytes_max = uint64_t{1} << 36, .ports = {port}, .usable = usable});
  report.usable = usable;
  return report;
}

/// A port of 127.0.0.1 that refuses connections, and that no other program can take while the socket is open.
std::pair<Fd, uint16_t> port_without_listener() {
  Fd held(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(held.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::getsockname(held.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return {std::move(held), ntohs(address.sin_port)};
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

}  // namespace

TEST_CASE("verbs/doctor: a way of tcp that cannot be used is left aside with its reason") {
  const auto findings = judge_tcp_io({{"epoll", ""}, {"uring", "this kernel has no io_uring"}});
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].name == "tcp over uring");
  CHECK(findings[0].verdict == Verdict::unused);
  CHECK(findings[0].what == "this kernel has no io_uring");
  const auto usable = judge_tcp_io({{"epoll", ""}, {"uring", ""}});
  CHECK(usable[0].verdict == Verdict::good);
  CHECK(usable[0].what == "usable with --tcp-io uring; auto takes epoll");
}

TEST_CASE("verbs/doctor: facts come from the files of the kernel") {
  FakeRoot root;
  root.put("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n");
  root.put("proc/self/status", "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t0000000000004000\n");
  root.put("proc/sys/vm/max_map_count", "65530\n");
  root.put("proc/meminfo",
           "MemTotal: 99 kB\nMemAvailable:     2048 kB\nHugePages_Total:       8\n"
           "HugePages_Free:        5\nHugepagesize:       2048 kB\n");
  root.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.put("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
  root.put("sys/devices/system/node/node0/x", "");
  root.put("sys/devices/system/node/node1/x", "");
  root.put("sys/class/net/docker0/type", "1\n");
  root.put("sys/class/net/docker0/operstate", "up\n");
  root.put("sys/class/net/docker0/bridge/x", "");
  root.put("sys/class/net/eth1/type", "1\n");
  root.put("sys/class/net/eth1/operstate", "up\n");
  root.put("sys/class/net/lo/type", "772\n");
  root.put("dev/infiniband/uverbs0", "");
  const HostFacts facts = read_host(root.path);
  CHECK(facts.kernel == "6.1.0-56-amd64");
  CHECK(facts.lock_capable);
  CHECK(facts.map_count_max == 65530);
  CHECK(facts.memory_available == 2048 * 1024);
  CHECK(facts.huge_pages == 8);
  CHECK(facts.huge_pages_free == 5);
  CHECK(facts.huge_page_bytes == 2048 * 1024);
  CHECK(facts.transparent_pages == "madvise");
  CHECK(facts.shared_pages == "never");
  CHECK(facts.numa_nodes == 2);
  CHECK(facts.netdev == "eth1");
  CHECK(facts.verbs_devices == 1);
  CHECK_FALSE(facts.verbs_loaded);
}

TEST_CASE("verbs/doctor: an empty machine has facts too") {
  FakeRoot root;
  const HostFacts facts = read_host(root.path);
  CHECK_FALSE(facts.lock_capable);
  CHECK_FALSE(facts.memory_available.has_value());
  for (const Finding& finding : judge_host(facts, {}, plan_for("auto"))) CHECK(finding.verdict != Verdict::fix);
}

TEST_CASE("verbs/doctor: without a device auto is content and says how to get one; asking for rdma is not") {
  HostFacts host;
  host.netdev = "eth1";
  const auto content = judge_rdma({}, host, plan_for("auto"));
  REQUIRE(content.size() == 1);
  CHECK(content[0].verdict == Verdict::note);
  CHECK(content[0].what.find("tcp and shm are used") != std::string::npos);
  CHECK(content[0].next.find("rdma link add rxe0 type rxe netdev eth1") != std::string::npos);
  CHECK(judge_rdma({}, host, plan_for("tcp,rdma"))[0].verdict == Verdict::fix);
}

TEST_CASE("verbs/doctor: device files that may not be opened are named before anything is advised") {
  HostFacts host;
  host.verbs_devices = 2;
  const auto found = judge_rdma({}, host, plan_for("rdma"));
  CHECK(found[0].next.find("/dev/infiniband") != std::string::npos);
  CHECK(found[0].next.find("rxe") == std::string::npos);
}

TEST_CASE("verbs/doctor: a port that is down must be fixed when it is the only one") {
  const auto down = judge_rdma(one_nic(false), {}, plan_for("auto"));
  CHECK(named(down, "mlx5_0:1").verdict == Verdict::fix);
  CHECK(named(down, "mlx5_0:1").next == "ip link set eth7 up");
  CHECK(named(down, "mlx5_0:1 gid 3").verdict == Verdict::unused);
  CHECK(named(judge_rdma(one_nic(false), {}, plan_for("tcp")), "mlx5_0:1").verdict == Verdict::note);

  auto unplugged = one_nic(false);
  unplugged.devices[0].ports[0].gids[0].entry.netdev_up = true;
  unplugged.devices[0].ports[0].gids[0].usable = true;
  const auto dead = judge_rdma(unplugged, {}, plan_for("auto"));
  CHECK(named(dead, "mlx5_0:1").next.find("other end of eth7") != std::string::npos);
  CHECK(named(dead, "mlx5_0:1 gid 3").verdict == Verdict::unused);

  auto two = one_nic(true);
  two.devices.push_back(one_nic(false).devices[0]);
  two.devices[1].name = "mlx5_1";
  const auto found = judge_rdma(two, {}, plan_for("rdma"));
  CHECK(named(found, "mlx5_0:1").verdict == Verdict::good);
  CHECK(named(found, "mlx5_0:1 gid 3").what.find("first choice") != std::string::npos);
  CHECK(named(found, "mlx5_1:1").verdict == Verdict::note);
}

TEST_CASE("verbs/doctor: copies of a GPU that are slower than the fastest port are noted, and the emulator's are not") {
  CopyRates rates{.device = "cuda:0", .out_bytes_per_s = 24.0 * kGiB, .in_bytes_per_s = 55.0 * kGiB};
  xfer::RdmaReport rdma = one_nic(true);
  rdma.devices[0].ports[0].gbits_per_s = 400;
  const auto slow = judge_copies({rates}, rdma);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].verdict == Verdict::note);
  CHECK(slow[0].what.find("24.0 GiB/s to the host, 55.0 GiB/s from it") == 0);
  CHECK(slow[0].what.find("46.6 GiB/s, so KV waits") != std::string::npos);
  CHECK_FALSE(slow[0].next.empty());
  rdma.devices[0].ports[0].gbits_per_s = 100;
  CHECK(judge_copies({rates}, rdma)[0].verdict == Verdict::good);
  CHECK(judge_copies({rates}, {})[0].verdict == Verdict::good);
  rates.emulated = true, rates.out_bytes_per_s = 1;
  CHECK(judge_copies({rates}, rdma)[0].verdict == Verdict::good);
}

TEST_CASE("verbs/doctor: copies of the emulated GPU are timed, and a GPU that does not work is to be fixed") {
  const CopyRates rates = measure_copies(*gpu::parse_device("emu"));
  CHECK_FALSE(rates.trouble.has_value());
  CHECK(rates.out_bytes_per_s > 0);
  CHECK(rates.in_bytes_per_s > 0);
  const CopyRates broken = measure_copies(*gpu::parse_device("emu:fault=2"));
  REQUIRE(broken.trouble.has_value());
  const auto findings = judge_copies({broken}, {});
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].verdict == Verdict::fix);
  CHECK(findings[0].what.find("ECC") != std::string::npos);
}

TEST_CASE("verbs/doctor: a small MTU is noted with the way to a larger one") {
  auto report = one_nic(true);
  report.devices[0].ports[0].mtu = 1024;
  const auto found = judge_rdma(report, {}, plan_for("auto"));
  CHECK(named(found, "mlx5_0:1").verdict == Verdict::note);
  CHECK(named(found, "mlx5_0:1").next.find("ip link set eth7 mtu 4200") == 0);
}

TEST_CASE("verbs/doctor: the limit on locked memory counts where RDMA is used and the process has no privilege") {
  HostFacts host;
  host.memlock = uint64_t{8} << 20;
  host.memory_available = 16 * kGiB;
  const auto plan = plan_for("auto", kGiB);
  CHECK(named(judge_host(host, one_nic(true), plan), "locked memory").verdict == Verdict::fix);
  CHECK(named(judge_host(host, {}, plan), "locked memory").verdict == Verdict::note);
  CHECK(named(judge_host(host, {}, plan_for("rdma", kGiB)), "locked memory").verdict == Verdict::fix);
  host.lock_capable = true;
  CHECK(named(judge_host(host, one_nic(true), plan), "locked memory").verdict == Verdict::good);
  host.lock_capable = false;
  host.memlock = kGiB;
  CHECK(named(judge_host(host, one_nic(true), plan), "locked memory").verdict == Verdict::good);
  host.memlock = kGiB - 1;
  CHECK(named(judge_host(host, one_nic(true), plan), "locked memory").verdict == Verdict::fix);
}

TEST_CASE("verbs/doctor: memory that is not there is to fix") {
  HostFacts host;
  host.memory_available = kGiB;
  CHECK(named(judge_host(host, {}, plan_for("auto", kGiB)), "available").verdict == Verdict::good);
  CHECK(named(judge_host(host, {}, plan_for("auto", kGiB + 1)), "available").verdict == Verdict::fix);
}

TEST_CASE("verbs/doctor: GPU memory that goes through the host is noted only where RDMA works") {
  auto report = one_nic(true);
  report.gpu = {xfer::GpuPath::staged, "no dma-buf and no peermem"};
  CHECK(named(judge_host({}, report, plan_for("auto")), "memory over RDMA").verdict == Verdict::note);
  const Finding without =
      named(judge_host({.products_reason = "no cuBLASLt was found"}, report, plan_for("auto")), "matrix products");
  CHECK(without.verdict == Verdict::unused);
  CHECK(without.what == "the own kernels: no cuBLASLt was found");
  CHECK_FALSE(without.next.empty());
  const Finding with = named(judge_host({.products = "cuBLASLt 13.1.0"}, report, plan_for("auto")), "matrix products");
  CHECK(with.verdict == Verdict::good);
  CHECK(with.what == "cuBLASLt 13.1.0");
  const Finding alone =
      named(judge_host({.sums_reason = "no NCCL was found"}, report, plan_for("auto")), "sums over GPUs");
  CHECK(alone.verdict == Verdict::unused);
  CHECK(alone.what == "a model has one GPU at most: no NCCL was found");
  CHECK(alone.next == "on a host with several GPUs, install libnccl2, NCCL 2.13.0 or later");
  const Finding several = named(judge_host({.sums = "NCCL 2.28.3"}, report, plan_for("auto")), "sums over GPUs");
  CHECK(several.verdict == Verdict::good);
  CHECK(several.what == "NCCL 2.28.3");
  report.usable = false;
  CHECK(named(judge_host({}, report, plan_for("auto")), "memory over RDMA").verdict == Verdict::good);
  report.gpu = {xfer::GpuPath::none, "no CUDA driver"};
  CHECK(named(judge_host({}, report, plan_for("auto")), "memory over RDMA").verdict == Verdict::unused);
}

TEST_CASE("verbs/doctor: a transport is to fix when it was named, else it is only unused") {
  const std::vector<TransportCheck> checks = {{"shm", true, ""}, {"rdma", false, "no RDMA device"}};
  CHECK(judge_transports(checks, plan_for("auto"))[1].verdict == Verdict::unused);
  CHECK(judge_transports(checks, plan_for("rdma"))[1].verdict == Verdict::fix);
  CHECK(judge_transports(checks, plan_for("rdma"))[0].verdict == Verdict::good);
}

TEST_CASE("verbs/doctor: a peer that runs is reached over every transport it offers") {
  auto server = xfer::open_engine({.name = "server", .transport = "shm,tcp", .insecure = true});
  REQUIRE_OK(server);
  DoctorPlan plan = plan_for("auto");
  std::string tcp;
  for (const std::string& uri : (*server)->uris())
    if (uri.starts_with("tcp://")) tcp = uri;
  const auto checks = check_peer(tcp, plan);
  REQUIRE(checks.size() >= 2);
  CHECK(checks[0].transport == "tcp");
  CHECK(checks[0].usable);
  CHECK_FALSE(checks[0].alternative);
  bool shm = false;
  for (const auto& check : checks) shm |= check.transport == "shm" && check.usable && check.alternative;
  CHECK(shm);
  for (const Finding& finding : judge_peers(checks, plan)) CHECK(finding.verdict != Verdict::fix);
}

TEST_CASE("verbs/doctor: a peer that does not listen, and an unknown scheme, are to fix with a way out") {
  const auto [held, port] = port_without_listener();
  const std::string uri = "tcp://127.0.0.1:" + std::to_string(port);
  DoctorPlan plan = plan_for("auto");
  plan.timeout = 300ms;
  for (const std::string& peer : {uri, std::string("carrier-pigeon://x"), std::string("")}) {
    CAPTURE(peer);
    const auto checks = check_peer(peer, plan);
    REQUIRE(checks.size() == 1);
    CHECK_FALSE(checks[0].usable);
    CHECK(judge_peers(checks, plan)[0].verdict == Verdict::fix);
    CHECK_FALSE(judge_peers(checks, plan)[0].next.empty());
    CHECK((checks[0].trouble == PeerTrouble::no_listener) == (peer == uri));
    const bool says_start = judge_peers(checks, plan)[0].next.find("start the peer") != std::string::npos;
    CHECK(says_start == (peer == uri));
  }
}

TEST_CASE("verbs/doctor: a peer that a secret keeps apart is to fix with a key, whichever side holds it") {
  const std::string secrets[] = {"", std::string(32, 's'), std::string(32, 'x')};
  for (const std::string& theirs : secrets)
    for (const std::string& ours : secrets) {
      CAPTURE(theirs);
      CAPTURE(ours);
      auto peer = xfer::open_engine({.name = "peer", .transport = "tcp", .secret = theirs, .insecure = theirs.empty()});
      REQUIRE_OK(peer);
      DoctorPlan plan = plan_for("tcp");
      plan.options.secret = ours;
      plan.options.insecure = ours.empty();
      const auto checks = check_peer((*peer)->uris().front(), plan);
      REQUIRE(checks.size() >= 1);
      CHECK(checks[0].usable == (ours == theirs));
      if (ours == theirs) continue;
      CHECK(checks[0].trouble == PeerTrouble::no_secret);
      CHECK(judge_peers(checks, plan)[0].next.find("--auth") != std::string::npos);
    }
}

TEST_CASE("verbs/doctor: without a key, an address of another host is to fix with one before it is dialled") {
  DoctorPlan plan = plan_for("tcp");
  plan.options.insecure = false;
  plan.timeout = 300ms;
  const auto checks = check_peer("tcp://192.0.2.1:7790", plan);
  REQUIRE(checks.size() == 1);
  CHECK(checks[0].trouble == PeerTrouble::no_secret);
}

TEST_CASE("verbs/doctor: every finding is a line, and what to do stands below it") {
  const std::vector<Finding> findings = {{Area::rdma, "devices", Verdict::note, "none", "buy one"},
                                         {Area::limits, "open files", Verdict::good, "1024"}};
  CHECK(findings_text(findings) ==
        "note    rdma devices       none\n        -> buy one\nok      limits open files  1024\n");
}

TEST_CASE("verbs/doctor: a long finding goes on below its own column, within 80 columns") {
  const std::string words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
  const std::string text = findings_text({{Area::memory, "huge pages", Verdict::note, words}});
  CHECK(text ==
        "note    memory huge pages  one two three four five six seven eight nine ten\n"
        "                           eleven twelve thirteen fourteen\n");
}

}  // namespace doctor_test
