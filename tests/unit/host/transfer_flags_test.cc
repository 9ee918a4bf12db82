// The flags of the transfer engine: what they set, and what they refuse.
#include "host/transfer_flags.h"

#include "base/errors.h"
#include "host/daemon_flags.h"
#include "product/flags.h"
#include "test.h"
#include "transports/transports.h"
#include "wire/rdma_frame.h"

namespace transfer_flags_test {

using namespace mc;

namespace {

constexpr auto kFlags = flags::join(host::kTransferFlags, flags::list(&flags::kPrintConfig));
constexpr cli::Program kProgram{.name = "mc-try", .summary = "a program to test with", .flags = kFlags};

Result<cli::Invocation> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "mc-try");
  return cli::parse(kProgram, static_cast<int>(words.size()), words.data(),
                    [](const char*) -> const char* { return nullptr; });
}

xfer::Options options_of(const std::vector<const char*>& words) {
  const auto parsed = parse(words);
  REQUIRE_OK(parsed);
  xfer::Options options;
  host::apply_transfer_flags(parsed->args, options);
  return options;
}

}  // namespace

TEST_CASE("host/transfer_flags: without a flag the engine's own defaults hold") {
  const xfer::Options set = options_of({}), own;
  CHECK(set.spin == own.spin);
  CHECK(set.connect_timeout == own.connect_timeout);
  CHECK(set.tcp_io == own.tcp_io);
  CHECK(set.rdma_lanes == own.rdma_lanes);
  CHECK(set.rdma_pairs_max == own.rdma_pairs_max);
  CHECK(set.rdma_pace == own.rdma_pace);
  CHECK(set.rdma_traffic_class == own.rdma_traffic_class);
  CHECK(set.rdma_cooldown_min == own.rdma_cooldown_min);
  CHECK(set.rdma_cooldown_max == own.rdma_cooldown_max);
  CHECK(set.rdma_sends == own.rdma_sends);
}

TEST_CASE("host/transfer_flags: every flag sets its option, and the engine takes all of them") {
  xfer::Options set = options_of({"--tcp-io", "uring", "--rdma-lanes", "4", "--rdma-pairs-max", "64", "--rdma-pace",
                                  "5GiB/s", "--rdma-traffic-class", "104", "--rdma-cooldown", "250ms-2s",
                                  "--rdma-no-sends", "--transfer-spin", "50us", "--connect-timeout", "20s"});
  CHECK(set.connect_timeout == Duration(20s));
  CHECK(set.tcp_io == "uring");
  CHECK(set.rdma_lanes == 4);
  CHECK(set.rdma_pairs_max == 64);
  CHECK(set.rdma_pace == 5 * kGiB);
  CHECK(set.rdma_traffic_class == 104);
  CHECK(set.rdma_cooldown_min == Duration(250ms));
  CHECK(set.rdma_cooldown_max == Duration(2s));
  CHECK_FALSE(set.rdma_sends);
  CHECK(set.spin == Duration(50us));
  set.transport = "tcp";
  set.insecure = true;
  REQUIRE_OK(xfer::open_engine(set));
  CHECK(options_of({"--rdma-cooldown", "3s"}).rdma_cooldown_min == Duration(3s));
  CHECK(options_of({"--rdma-cooldown", "3s"}).rdma_cooldown_max == Duration(3s));
  CHECK(options_of({"--rdma-cooldown", "5"}).rdma_cooldown_max == Duration(5s));
  CHECK(options_of({"--transfer-spin", "1s"}).spin == Duration(1s));
  CHECK(options_of({"--rdma-cooldown", ""}).rdma_cooldown_max == xfer::Options().rdma_cooldown_max);
}

TEST_CASE("host/transfer_flags: a bad value is refused with the name of its flag") {
  const std::pair<const char*, const char*> bad[] = {
      {"--tcp-io", "aio"},          {"--rdma-lanes", "0"},           {"--rdma-lanes", "5"},
      {"--rdma-pairs-max", "3"},    {"--rdma-pairs-max", "many"},    {"--rdma-pace", "fast"},
      {"--rdma-pace", "0"},         {"--rdma-traffic-class", "256"}, {"--rdma-cooldown", "0s"},
      {"--rdma-cooldown", "2s-1s"}, {"--rdma-cooldown", "1s-"},      {"--rdma-cooldown", "1s-2h"},
      {"--transfer-spin", "5h"},    {"--transfer-spin", "1001ms"},
      {"--connect-timeout", "99ms"}, {"--connect-timeout", "31s"}};
  for (const auto& [flag, value] : bad) {
    const std::string words = std::string(flag) + " " + value;
    CAPTURE(words);
    const auto parsed = parse({flag, value});
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().mc == err::kBadValue);
    CHECK(parsed.error().where == flag);
  }
}

TEST_CASE("host/transfer_flags: faults are read kind by kind, and what is none is refused") {
  const auto plan = host::parse_faults("delay=0.5:20ms, corrupt=0.25,fail=1,lose=0");
  REQUIRE_OK(plan);
  CHECK(plan->delay == 0.5);
  CHECK(plan->delay_for == Duration(20ms));
  CHECK(plan->corrupt == 0.25);
  CHECK(plan->fail_completion == 1);
  CHECK(plan->lose_peer == 0);
  CHECK(plan->any());
  for (const char* bad : {"delay=0.5", "delay", "flip=1", "corrupt=2", "corrupt=-1", "corrupt=nan", "fail=", "=1",
                          "delay=1:", "corrupt=0.1,,fail=1"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(host::parse_faults(bad).has_value());
    CHECK_FALSE(flags::check_transfer_faults(bad).has_value());
  }
  CHECK_FALSE(flags::check_fetch_timeout("9ms").has_value());
  CHECK(flags::check_fetch_timeout("10ms").has_value());
  CHECK(flags::check_fetch_timeout("10m").has_value());
  CHECK_FALSE(flags::check_fetch_timeout("601s").has_value());
  CHECK_FALSE(flags::check_lease_time("9ms").has_value());
  CHECK(flags::check_lease_time("10ms").has_value());
}

TEST_CASE("host/transfer_flags: every number of lanes that the flag allows the wire allows too") {
  for (uint64_t lanes = 1; lanes <= 6; ++lanes)
    CHECK(flags::kRdmaLanes.check(std::to_string(lanes)).has_value() == (lanes <= wire::kRdmaLanesMax));
}

TEST_CASE("host/transfer_flags: an engine that does not open says which flag, port or device is to blame") {
  const auto number = [](const xfer::Options& options) {
    const auto opened = host::open_transfers(options);
    REQUIRE_FALSE(opened.has_value());
    return opened.error().mc;
  };
  xfer::Options options{.transport = "tcp", .secret = std::string(32, 's')};
  auto first = host::open_transfers(options);
  REQUIRE_OK(first);
  xfer::Options taken = options;
  taken.tcp_bind = (*first)->uris().front().substr(6);
  CHECK(number(taken) == err::kPortInUse);
  xfer::Options exposed = options;
  exposed.tcp_bind = "0.0.0.0:0";
  exposed.local_secret = true;
  CHECK(number(exposed) == err::kAuthRequired);
  exposed.tcp_bind = "127.0.0.1:0";
  exposed.secret.clear();
  CHECK(number(exposed) == err::kAuthRequired);
  xfer::Options wrong = options;
  wrong.tcp_bind = "127.0.0.1:99999";
  CHECK(number(wrong) == err::kBadValue);
  xfer::Options unknown = options;
  unknown.transport = "pigeon";
  CHECK(number(unknown) == err::kBadValue);
  xfer::Options no_such_device = options;
  no_such_device.transport = "rdma";
  no_such_device.rdma_devices = "no_such_device";
  const auto refused = host::open_transfers(no_such_device);
  REQUIRE_FALSE(refused.has_value());
  CHECK((refused.error().mc == err::kTransportUnusable || refused.error().mc == err::kBadValue));
}

}  // namespace transfer_flags_test
