// Callers that poll (Options::spin) on real verbs: they post and poll the devices themselves, and every promise
// holds as it does when the engine's thread works: bytes, checksums, refusals, deadlines, failover, faults.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "machine.h"

namespace spin_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

Options spinning(const std::string& devices = "rxe0,rxe2", Duration spin = 20ms) {
  Options options = reader_options(devices);
  options.spin = spin;
  return options;
}

/// How often the threads of this process went to sleep, but not this one.
uint64_t sleeps_of_others() {
  uint64_t sleeps = 0;
  const std::string self = std::to_string(::gettid());
  DIR* tasks = ::opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* each = ::readdir(tasks)) {
    if (each->d_name[0] == '.' || self == each->d_name) continue;
    std::ifstream status("/proc/self/task/" + std::string(each->d_name) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:")) sleeps += std::stoull(line.substr(line.find(':') + 1));
  }
  ::closedir(tasks);
  return sleeps;
}

Request checked(Pair& pair, size_t local_at, size_t remote_at, size_t bytes) {
  Request request = pair.read(local_at, remote_at, bytes);
  request.crc32c = crc32c(pair.kv.bytes().subspan(remote_at, bytes));
  return request;
}

}  // namespace

TEST_CASE("rdma/spin: a caller that polls reads and writes the right bytes, small and large, one and many") {
  RdmaPair pair(size_t{8} << 20, holder_options(), spinning());
  Rng rng(::mc::test::seed());
  const int kRounds = count(15, 200);
  uint64_t moved = 0;
  for (int round = 0; round < kRounds; ++round) {
    const size_t count = rng.chance(0.7) ? 1 : 1 + rng.below(6);
    std::vector<Request> reads, writes;
    for (size_t i = 0; i < count; ++i) {
      const size_t bytes = 1 + rng.below(rng.chance(0.7) ? 4096 : size_t{512} << 10);
      const size_t local_at = i * (size_t{1} << 20);
      reads.push_back(pair.read(local_at, rng.below((size_t{8} << 20) - bytes + 1), bytes));
      if (rng.chance(0.5)) reads.back().crc32c = crc32c(pair.kv.bytes().subspan(reads.back().offset, bytes));
      writes.push_back(pair.write(local_at, local_at, bytes));
      moved += 2 * bytes;
    }
    std::vector<RequestResult> results;
    CHECK(pair.reader.run(reads, &results) == Code::ok);
    for (size_t i = 0; i < count; ++i) {
      CHECK(equal(reads[i].local, pair.kv.bytes().subspan(reads[i].offset, reads[i].local.size())));
      CHECK(results[i].bytes == reads[i].local.size());
      CHECK(results[i].crc32c == reads[i].crc32c.value_or(0));
    }
    CHECK(pair.reader.run(writes) == Code::ok);
    for (const Request& write : writes)
      CHECK(equal(write.local, pair.landing.bytes().subspan(write.offset, write.local.size())));
  }
  const Counters counters = pair.reader->counters();
  CHECK(counters.slices_in_flight == 0);
  CHECK(counters.batches_open == 0);
  CHECK(counters.batches_submitted == 2 * static_cast<uint64_t>(kRounds));
  CHECK(counters.batches_done == 2 * static_cast<uint64_t>(kRounds));
  CHECK(counters.urgent_bytes + counters.bulk_bytes == moved);
}

TEST_CASE("rdma/spin: what is refused or corrupt is told as it is without polling") {
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options(), spinning());
  CHECK(pair.reader.run({{pair.read(0, 0, 64)}}) == Code::ok);
  Request wrong = checked(pair, 0, 0, 64);
  wrong.crc32c = *wrong.crc32c ^ 1;
  std::string text;
  CHECK(pair.reader.run({{wrong}}, nullptr, &text) == Code::corrupt);
  CHECK(text.find("sum to another CRC32C") != std::string::npos);
  Request into_blocks = pair.write(0, 0, 64);
  into_blocks.buffer = pair.kv_id;
  CHECK(pair.reader.run({{into_blocks}}) == Code::invalid);
  Request nothing = pair.read(0, 0, 64);
  nothing.buffer = 999;
  CHECK(pair.reader.run({{nothing}}) == Code::not_found);
  CHECK(pair.reader.run({{pair.read(0, RdmaPair::kDefaultBytes - 32, 64)}}) == Code::invalid);
  CHECK(pair.reader.run({{pair.read(0, 64, 64)}}) == Code::ok);
  CHECK(equal(pair.local.bytes().first(64), pair.kv.bytes().subspan(64, 64)));
}

TEST_CASE("rdma/spin: small reads wake no other thread of the process") {
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), spinning("rxe0"));
  CHECK(pair.reader.run({{pair.read(0, 0, 64)}}) == Code::ok);
  const size_t kReads = count<size_t>(500, 2000);
  const uint64_t before = sleeps_of_others();
  const TimePoint begin = in(Duration{});
  for (size_t i = 0; i < kReads; ++i) REQUIRE(pair.reader.run({{pair.read(0, i * 64, 64)}}) == Code::ok);
  const Duration took = in(Duration{}) - begin;
  const uint64_t sleeps = sleeps_of_others() - before;
  std::printf("%zu reads of 64 B in %.0f ms: other threads slept %zu times\n", kReads, to_ms(took),
              static_cast<size_t>(sleeps));
  // its naps, and the moments it finds us at the devices; a wake for each read would be thousands more
  CHECK(sleeps < static_cast<uint64_t>(took / 1ms) * 2 + kReads / 4);
}

TEST_CASE("rdma/spin: a deadline is kept while the caller polls, and the memory comes back") {
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), spinning("rxe0"));
  CHECK(pair.reader.run({{pair.read(0, 0, 64)}}) == Code::ok);
  {
    const Netem slow("v0", {.delay = 400ms}), slow_back("v1", {.delay = 400ms});
    for (const size_t bytes : {size_t{64}, size_t{1} << 20}) {
      CAPTURE(bytes);
      const TimePoint deadline = in(100ms);
      auto batch = pair.reader->submit(std::vector{pair.read(0, 0, bytes)}, deadline);
      REQUIRE_OK(batch);
      const Event done = pair.reader.done(*batch);
      CHECK(in(Duration{}) >= deadline);
      CHECK(done.code == Code::timeout);
      CHECK(in(Duration{}) - deadline < 5s);  // of a machine that may be starved; else within a few ms
      CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    }
  }
  CHECK(until([&] { return pair.reader.run({{checked(pair, 0, 4096, 64)}}) == Code::ok; }));
  CHECK(equal(pair.local.bytes().first(64), pair.kv.bytes().subspan(4096, 64)));
  CHECK(pair.reader->counters().quarantined_bytes == 0);
}

TEST_CASE("rdma/spin: a path that is cut fails no batch of a caller that polls, and no byte") {
  constexpr size_t kLarge = size_t{4} << 20;
  const size_t kPieces = count<size_t>(100, 200);
  RdmaPair pair(kLarge, holder_options(), spinning());
  for (int round = 0; round < count(2, 20); ++round) {
    CAPTURE(round);
    const std::string cut = round % 2 == 0 ? "v0" : "v3";
    const std::string sender = cut == "v0" ? "v1" : "v3";
    const auto path_carries = [&] {
      return carries(sender, size_t{1} << 17, [&] { CHECK(pair.reader.run({{pair.read(0, 0, kLarge)}}) == Code::ok); });
    };
    CHECK(path_carries());  // a path may come up after the connection
    const uint64_t lost = failures(pair.reader, "rdma: port down") + failures(pair.reader, "rdma: path fault");
    const auto sent = sent_bytes("v1") + sent_bytes("v3");  // before the read: on a busy host it may be over at once
    auto large = pair.reader->submit(std::vector{checked(pair, 0, 0, kLarge)}, in(kLong));
    REQUIRE_OK(large);
    std::thread cutter([&] {
      CHECK(until([&] { return sent_bytes("v1") + sent_bytes("v3") > sent + kLarge / 16; }));
      set_link(cut, false);
    });
    const Event done = pair.reader.done(*large);
    cutter.join();
    CHECK_MESSAGE(done.code == Code::ok, done.text);
    CHECK(pair.reader->close(*large, in(kLong)).has_value());
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    for (size_t i = 0; i < kPieces; ++i) {  // one after another, each posted by submit() itself
      std::string text;
      const Request piece = checked(pair, i * 64, (kPieces - i) * 4096, 64);
      REQUIRE_MESSAGE(pair.reader.run({&piece, 1}, nullptr, &text) == Code::ok, text);
    }
    const auto faults = [&] {
      return failures(pair.reader, "rdma: port down") + failures(pair.reader, "rdma: path fault");
    };
    CHECK(until([&] { return faults() > lost; }));  // a busy machine tells of a port late
    set_link(cut, true);
    CHECK(path_carries());  // with its link the path comes back
  }
}

TEST_CASE("rdma/spin: injected faults end every batch once, with its own bytes or an error") {
  Options reader = spinning("rxe0");
  reader.faults = {.seed = ::mc::test::seed(),
                   .fail_submit = 0.05,
                   .fail_completion = 0.05,
                   .delay = 0.1,
                   .drop_completion = 0.02,
                   .duplicate_completion = 0.1,
                   .corrupt = 0.05,
                   .delay_for = 2ms};
  reader.drain_grace = 100ms;
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), reader);
  const size_t kReads = count<size_t>(150, 300);
  size_t right = 0, corrupt = 0, late = 0;
  for (size_t i = 0; i < kReads; ++i) {
    const Request request = checked(pair, i * 64, i * 128, 64);
    auto batch = pair.reader->submit({&request, 1}, in(500ms));
    REQUIRE_OK(batch);
    const Event done = pair.reader.done(*batch);
    switch (done.code) {
      case Code::ok:
        ++right;
        CHECK(equal(request.local, pair.kv.bytes().subspan(request.offset, 64)));
        break;
      case Code::corrupt: ++corrupt; break;
      case Code::timeout: ++late; break;
      default: CHECK_MESSAGE(false, done.text);
    }
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
  }
  CHECK(right > kReads / 2);
  CHECK(corrupt > 0);
  CHECK(late < kReads / 3);
  CHECK(std::none_of(pair.reader.seen.begin(), pair.reader.seen.end(),
                     [](const Event& event) { return event.kind == Event::Kind::batch_done; }));
  CHECK(pair.reader->counters().slices_in_flight == 0);
}

}  // namespace spin_test
