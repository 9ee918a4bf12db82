// setmaxnreg (PTX ISA 9.0, section 9.7.19.5): registers move between the warpgroups of a CTA, and each wrong use is
// reported under every schedule.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using tested::Args;
using tested::Body;
using tested::Outcome;
using tested::rule_of;
using tested::Setting;
using tested::tid;

namespace {

// A launch of 384 threads gives each of them 168 registers: 65,536 / 384 by 8.
const Setting kThree{.threads = 384};

/// The first warpgroup gives registers away, the others take some.
template <int kFirst, int kOthers>
void give_and_take(const Args&) {
  if (tid() < 128)
    ptx::decrease_registers<kFirst>();
  else
    ptx::increase_registers<kOthers>();
}

/// The rule that all runs break, and whether each run says `text`.
std::pair<std::string, bool> said(const Body& body, const Setting& setting, std::string_view text) {
  const std::string rule = rule_of(body, setting);
  return {rule, tested::run_body(body, setting).text.find(text) != std::string::npos};
}

}  // namespace

TEST_CASE("gpu/registers: setmaxnreg moves registers between warpgroups, within the CTA's (9.7.19.5)") {
  CHECK(rule_of(give_and_take<24, 240>, kThree) == "");  // 24 + 2 x 240 = 3 x 168
  CHECK(rule_of(give_and_take<40, 232>, kThree) == "");
  CHECK(rule_of(give_and_take<40, 240>, kThree) == "deadlock");
  // The 65,536 - 384 x 168 registers that the launch did not give to the CTA are not in its pool.
  CHECK(rule_of(give_and_take<32, 240>, kThree) == "deadlock");
}

TEST_CASE("gpu/registers: an increase waits for a decrease of another warpgroup, and without one it never ends") {
  CHECK(rule_of(
            [](const Args&) {
              if (tid() >= 128) ptx::increase_registers<176>();
            },
            kThree) == "deadlock");
}

TEST_CASE("gpu/registers: setmaxnreg orders no memory, though the one that takes waits for the one that gives") {
  const auto handed = [](bool met) {
    return [met](const Args& a) {
      if (tid() < 128) {
        if (tid() == 0) ptx::store_shared_u32(0, 7);
        ptx::decrease_registers<24>();
        if (met) ptx::barrier_arrive<1, 384>();
      } else {
        ptx::increase_registers<240>();
        if (met) ptx::barrier_sync<1, 384>();
        ptx::store(a.out + tid(), ptx::load_shared_u32(0));
      }
    };
  };
  CHECK(rule_of(handed(true), kThree) == "");
  const std::string rule = rule_of(handed(false), kThree);
  CHECK_MESSAGE((rule == "race" || rule == "uninitialised" || rule == "race|uninitialised"), rule);
}

TEST_CASE("gpu/registers: a count is 24 to 256, a multiple of 8, and in the direction of its instruction (9.7.19.5)") {
  const Setting one{.threads = 128};  // 256 registers
  CHECK(rule_of([](const Args&) { ptx::decrease_registers<24>(); }, one) == "");
  CHECK(rule_of([](const Args&) { ptx::decrease_registers<256>(); }, one) == "");
  const std::pair<std::string, bool> wrong("registers", true);
  CHECK(said([](const Args&) { ptx::decrease_registers<16>(); }, one, "16 registers are not 24 to 256, by 8") == wrong);
  CHECK(said([](const Args&) { ptx::decrease_registers<100>(); }, one, "100 registers are not 24") == wrong);
  CHECK(said([](const Args&) { ptx::increase_registers<264>(); }, one, "264 registers are not 24") == wrong);
  CHECK(said([](const Args&) { ptx::increase_registers<0>(); }, one, "0 registers are not 24") == wrong);
  CHECK(said([](const Args&) { ptx::decrease_registers<176>(); }, kThree, "dec to 176 registers, the warp has 168") ==
        wrong);
  CHECK(said([](const Args&) { ptx::increase_registers<160>(); }, kThree, "inc to 160 registers, the warp has 168") ==
        wrong);
}

TEST_CASE("gpu/registers: all warps of a warpgroup run one setmaxnreg, and there are four of them (9.7.19.5)") {
  const std::pair<std::string, bool> wrong("registers", true);
  // Warp 2 leaves it out, before or behind the others.
  for (const bool waits : {false, true}) {
    const auto missing = [waits](const Args&) {
      if (tid() / 32 != 2) ptx::decrease_registers<40>();
      if (waits) ptx::barrier_all();
    };
    CHECK(said(missing, {.threads = 128}, "without") == wrong);
  }
  const auto two_counts = [](const Args&) {
    if (tid() < 64)
      ptx::decrease_registers<40>();
    else
      ptx::decrease_registers<48>();
  };
  CHECK(said(two_counts, {.threads = 128}, "ran another one, of ") == wrong);
  const auto two_places = [](const Args&) {
    if (tid() < 64)
      ptx::decrease_registers<40>();
    else
      ptx::decrease_registers<40>();
  };
  CHECK(said(two_places, {.threads = 128}, "ran another one, of 40 registers") == wrong);
  const auto rest = [](const Args&) {
    if (tid() >= 128) ptx::decrease_registers<40>();
  };
  CHECK(said(rest, {.threads = 192}, "no full warpgroup") == wrong);
}

TEST_CASE("gpu/registers: the lanes of a warp run setmaxnreg together, it is .aligned (9.7.19.5)") {
  CHECK(rule_of(
            [](const Args&) {
              if (tid() % 32 < 16) ptx::decrease_registers<40>();
            },
            {.threads = 128}) == "divergence");
}

TEST_CASE("gpu/registers: the warps of a warpgroup meet between two setmaxnreg (9.7.19.5)") {
  enum class Met { not_at_all, in_warps, in_half, in_group, in_cta };
  const auto twice = [](Met met) {
    return [met](const Args&) {
      ptx::decrease_registers<48>();
      if (met == Met::in_warps) ptx::warp_sync();
      if (met == Met::in_half && tid() < 64) ptx::barrier_sync<1, 64>();
      if (met == Met::in_half && tid() >= 64) ptx::barrier_sync<2, 64>();
      if (met == Met::in_group) ptx::barrier_sync<1, 128>();
      if (met == Met::in_cta) ptx::barrier_all();
      ptx::decrease_registers<40>();
    };
  };
  const Setting one{.threads = 128};
  const std::pair<std::string, bool> wrong("registers", true);
  for (const Met met : {Met::not_at_all, Met::in_warps, Met::in_half})
    CHECK(said(twice(met), one, "was not met since the last one") == wrong);
  CHECK(rule_of(twice(Met::in_group), one) == "");
  CHECK(rule_of(twice(Met::in_cta), one) == "");
}
