// Every rule of the emulator: the smallest kernel that breaks it, and a legal neighbour that stays silent, under all
// policies and several seeds.
#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using tested::Outcome;
using tested::Setting;

namespace {

/// Runs under every policy and three seeds; "" when no run broke a rule, else the rule, which must be one for all runs.
std::string rule_of(const std::string& body, Setting setting = {}) {
  std::string found;
  int runs = 0, broken = 0;
  for (int policy = 0; policy < emu::kPolicies; ++policy)
    for (uint64_t seed = 0; seed < 3; ++seed, ++runs) {
      setting.policy = static_cast<emu::Policy>(policy);
      setting.seed = test::seed() + seed;
      const Outcome o = tested::run_body(body, setting);
      if (o.rule.empty()) continue;
      ++broken;
      if (!found.empty() && found != o.rule) found += "|";
      if (found.find(o.rule) == std::string::npos) found += o.rule;
    }
  return broken == 0 || broken == runs ? found : "sometimes " + found;
}

const std::string kOwnAddress = "shl.b32 %r1, %r0, 2;\nxor.b32 %r2, %r1, 4;\nxor.b32 %r3, %r1, 128;\n";
/// One thread makes an mbarrier at 8192 for `count` arrivals, with a fence and a barrier.
std::string made_barrier(int count) {
  return "setp.ne.s32 %p1, %r0, 0;\nmov.u32 %r20, 8192;\n@%p1 bra made;\nmbarrier.init.shared::cta.b64 [%r20], " +
         std::to_string(count) + ";\nfence.mbarrier_init.release.cluster;\nmade: bar.sync 0;\n";
}
std::string wait_for(int parity) {
  return "{ .reg .pred ok; again: mbarrier.try_wait.parity.shared::cta.b64 ok, [%r20], " + std::to_string(parity) +
         "; @ok bra over; bra again; over: }\n";
}
/// Lane 0 of warp 0 copies 8 rows of a tensor to shared 0 and expects `bytes`.
std::string copy_by_lane0(int bytes) {
  return "mov.b64 %rd5, k_map;\ncvta.param.u64 %rd6, %rd5;\nmov.u32 %r21, 0;\n@%p1 bra issued;\n"
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], " +
         std::to_string(bytes) +
         ";\ncp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r21], [%rd6, {%r21, "
         "%r21}], [%r20];\nissued:\n";
}
Setting with_tensor(uint32_t threads) {
  Setting s{.threads = threads};
  s.tensor.assign(16 * 64, 1);
  return s;
}

}  // namespace

TEST_CASE("gpu/rules: lanes that exchange through shared memory need bar.warp.sync") {
  const std::string write = kOwnAddress + "st.shared.u32 [%r1], %r0;\n", read = "ld.shared.u32 %r4, [%r2];\n";
  CHECK(rule_of(write + read) == "race");
  CHECK(rule_of(write + "bar.warp.sync -1;\n" + read) == "");
}

TEST_CASE("gpu/rules: warps that exchange through shared memory need bar.sync") {
  const std::string write = kOwnAddress + "st.shared.u32 [%r1], %r0;\n", read = "ld.shared.u32 %r4, [%r3];\n";
  const std::string rule = rule_of(write + read, {.threads = 64});
  CHECK((rule == "race" || rule == "race|uninitialised" || rule == "uninitialised" || rule == "uninitialised|race"));
  CHECK(rule_of(write + "bar.sync 0;\n" + read, {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: a buffer is not written again before its readers have met the writer") {
  const std::string first = kOwnAddress + "st.shared.u32 [%r1], %r0;\nbar.sync 0;\nld.shared.u32 %r4, [%r3];\n";
  CHECK(rule_of(first + "st.shared.u32 [%r1], %r4;\n", {.threads = 64}) == "race");
  CHECK(rule_of(first + "bar.sync 0;\nst.shared.u32 [%r1], %r4;\n", {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: atomics need no order among themselves, a plain read after them does") {
  const std::string made =
      "mov.u32 %r1, 0;\nsetp.ne.s32 %p1, %r0, 0;\n@%p1 bra made;\nst.shared.u32 [%r1], %r1;\nmade: "
      "bar.sync 0;\natom.shared.add.u32 %r2, [%r1], 1;\n";
  CHECK(rule_of(made + "ld.shared.u32 %r3, [%r1];\n", {.threads = 64}) == "race");
  CHECK(rule_of(made + "bar.sync 0;\nld.shared.u32 %r3, [%r1];\n", {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: bytes of cp.async belong to the copy until the issuing lane waits") {
  const std::string copy =
      "shl.b32 %r1, %r0, 4;\nxor.b32 %r2, %r1, 16;\nmul.wide.u32 %rd2, %r0, 16;\nadd.s64 %rd2, %rd1, "
      "%rd2;\ncp.async.cg.shared.global [%r1], [%rd2], 16;\ncp.async.commit_group;\n";
  const std::string wait = "cp.async.wait_group 0;\n", own = "ld.shared.u32 %r3, [%r1];\n",
                    other = "ld.shared.u32 %r3, [%r2];\n";
  CHECK(rule_of(copy + own + wait) == "in-flight");
  CHECK(rule_of(copy + wait + own) == "");
  CHECK(rule_of(copy + "cp.async.wait_group 1;\n" + own + wait) == "in-flight");
  CHECK(rule_of(copy + wait + other) == "race");
  CHECK(rule_of(copy + wait + "bar.warp.sync -1;\n" + other) == "");
  CHECK(rule_of(copy) == "exit");
}

TEST_CASE("gpu/rules: shared memory that nobody wrote is not read") {
  CHECK(rule_of("mov.u32 %r1, 0;\nld.shared.u32 %r4, [%r1];\n") == "uninitialised");
}

TEST_CASE("gpu/rules: addresses are inside and aligned") {
  CHECK(rule_of("mov.u32 %r1, 16384;\nst.shared.u32 [%r1], %r0;\n") == "bounds");
  CHECK(rule_of("mov.u32 %r1, 2;\nst.shared.u32 [%r1], %r0;\n") == "alignment");
  CHECK(rule_of("mov.u32 %r1, 8;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];\n") == "bounds");
}

TEST_CASE("gpu/rules: a barrier is reached by all warps that it counts") {
  const std::string half = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra over;\n";
  CHECK(rule_of(half + "bar.sync 0;\nover:", {.threads = 64}) == "deadlock");
  CHECK(rule_of(half + "bar.sync 1, 32;\nover:", {.threads = 64}) == "");
  CHECK(rule_of("bar.sync 1, 96;", {.threads = 64}) == "barrier");
  CHECK(rule_of("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra low;\nbar.sync 1, 64;\nbra over;\nlow: bar.sync 1, 32;\nover:",
                {.threads = 64}) != "");
}

TEST_CASE("gpu/rules: lanes of a warp do not wait in different collectives") {
  CHECK(rule_of("setp.lt.u32 %p1, %r0, 16;\n@%p1 bra low;\nbar.sync 0;\nbra over;\nlow: bar.sync 0;\nover:") ==
        "deadlock");
  CHECK(rule_of("setp.lt.u32 %p1, %r0, 16;\n@!%p1 bra over;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\nover:") ==
        "divergence");
}

TEST_CASE("gpu/rules: an mbarrier is made, fenced and ordered before its use") {
  const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [%r20];\n";
  CHECK(rule_of("mov.u32 %r20, 8192;\n" + arrive) == "barrier");
  CHECK(rule_of(made_barrier(64) + arrive + wait_for(0), {.threads = 64}) == "");
  CHECK(rule_of(made_barrier(65) + arrive + wait_for(0), {.threads = 64}) == "deadlock");
  const std::string made = made_barrier(64), unordered = made.substr(0, made.find("bar.sync"));
  CHECK(rule_of(unordered + "\n" + arrive + wait_for(0), {.threads = 64}) == "barrier");
  CHECK(rule_of(made_barrier(1) + "ld.shared.u32 %r1, [%r20];\n") == "barrier");
}

TEST_CASE("gpu/rules: bytes of a bulk copy are read behind a wait for its phase") {
  const std::string begin = made_barrier(1) + copy_by_lane0(1024), read = "ld.shared.u32 %r4, [%r21];\n";
  CHECK(rule_of(begin + wait_for(0) + read, with_tensor(64)) == "");
  CHECK(rule_of(made_barrier(1) + copy_by_lane0(512) + wait_for(0) + read, with_tensor(64)) != "");
  CHECK(rule_of(made_barrier(1) + copy_by_lane0(2048) + wait_for(0) + read, with_tensor(64)) == "deadlock");
  // Only lane 0 of each warp waits; the others need bar.warp.sync.
  const std::string elected =
      "and.b32 %r5, %r0, 31;\nsetp.ne.s32 %p2, %r5, 0;\n@%p2 bra waited;\n" + wait_for(0) + "waited:\n";
  CHECK(rule_of(begin + elected + "bar.warp.sync -1;\n" + read, with_tensor(64)) == "");
  // Before the issue the bytes are undefined, then in flight, then written for those alone who waited.
  const std::string rule = rule_of(begin + elected + read, with_tensor(64));
  CHECK(!rule.empty());
  CHECK(rule.find("sometimes") == std::string::npos);
}

TEST_CASE("gpu/rules: what lanes wrote reaches a bulk copy through fence.proxy.async before the barrier") {
  const std::string write = made_barrier(1) + "shl.b32 %r1, %r0, 2;\nst.shared.u32 [%r1], %r0;\n";
  const std::string copy = copy_by_lane0(1024) + wait_for(0);
  CHECK(rule_of(write + "bar.sync 0;\n" + copy, with_tensor(64)) == "proxy");
  CHECK(rule_of(write + "fence.proxy.async.shared::cta;\nbar.sync 0;\n" + copy, with_tensor(64)) == "");
  CHECK(rule_of(write + "bar.sync 0;\nfence.proxy.async.shared::cta;\n" + copy, with_tensor(64)) == "proxy");
}

TEST_CASE("gpu/rules: two CTAs do not share global memory within a grid") {
  CHECK(rule_of("st.global.u32 [%rd1], %r0;\n", {.ctas = 2}) == "race");
  CHECK(rule_of("ld.global.u32 %r1, [%rd1];\n", {.ctas = 2}) == "");
  const std::string own = "mov.u32 %r1, %ctaid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd1, %rd2;\n";
  CHECK(rule_of(own + "st.global.u32 [%rd2], %r0;\n", {.ctas = 2}) == "");
}

TEST_CASE("gpu/rules: an endless loop ends with a report") {
  CHECK(rule_of("loop: bra loop;") == "endless");
}
