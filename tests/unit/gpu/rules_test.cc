// Every rule of the emulator: the smallest kernel that breaks it, and a legal neighbour that stays silent, under all
// policies and several seeds.
#include <algorithm>

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

constexpr uint32_t kBarrier = 8192;  // shared address of the tests' mbarrier

/// One thread makes an mbarrier; the others wait for it, unless the test wants it otherwise.
void make_barrier(uint32_t count, bool fenced = true, bool ordered = true) {
  if (tid() == 0) {
    ptx::mbarrier_init(kBarrier, count);
    if (fenced) ptx::mbarrier_init_fence();
  }
  if (ordered) ptx::barrier_all();
}
/// Thread 0 copies 8 rows of the tensor to shared 0 and announces `bytes`.
void copy_rows(const Args& a, uint32_t bytes) {
  if (tid() != 0) return;
  ptx::mbarrier_arrive_expect(kBarrier, bytes);
  ptx::load_box(0, a.map, 0, 0, 0, 0, kBarrier);
}
Setting with_tensor(uint32_t threads) {
  Setting s{.threads = threads};
  s.tensor.assign(64 * 64, 0x3f80);
  return s;
}

}  // namespace

TEST_CASE("gpu/rules: lanes that exchange through shared memory need bar.warp.sync") {
  const auto exchange = [](bool synchronised) {
    return [=](const Args&) {
      ptx::store_shared_u32(tid() * 4, tid());
      if (synchronised) ptx::warp_sync();
      ptx::load_shared_u32((tid() ^ 1) * 4);
    };
  };
  CHECK((rule_of(exchange(false)) == "race|uninitialised" || rule_of(exchange(false)) == "uninitialised"));
  CHECK(rule_of(exchange(true)) == "");
}

TEST_CASE("gpu/rules: a write over another lane's value needs bar.warp.sync") {
  const auto twice = [](bool synchronised) {
    return [=](const Args&) {
      if (tid() == 0) ptx::store_shared_u32(0, 1);
      if (synchronised) ptx::warp_sync();
      if (tid() == 1) ptx::store_shared_u32(0, 2);
    };
  };
  CHECK(rule_of(twice(false)) == "race");
  CHECK(rule_of(twice(true)) == "");
}

TEST_CASE("gpu/rules: a mask of bar.warp.sync orders the lanes that it names") {
  const auto pairs = [](uint32_t mask) {
    return [=](const Args&) {
      if (tid() > 3) return;
      ptx::store_shared_u32(tid() * 4, tid());
      if ((mask >> tid() & 1) != 0) ptx::warp_sync(mask);
      if (tid() < 2) ptx::load_shared_u32((tid() ^ 1) * 4);
    };
  };
  CHECK(rule_of(pairs(3)) == "");
  CHECK(rule_of(pairs(12)) != "");
}

TEST_CASE("gpu/rules: warps that exchange through shared memory need bar.sync") {
  const auto exchange = [](bool synchronised) {
    return [=](const Args&) {
      ptx::store_shared_u32(tid() * 4, tid());
      if (synchronised) ptx::barrier_all();
      ptx::load_shared_u32((tid() ^ 32) * 4);
    };
  };
  const std::string rule = rule_of(exchange(false), {.threads = 64});
  CHECK((rule == "race|uninitialised" || rule == "uninitialised" || rule == "race"));
  CHECK(rule_of(exchange(true), {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: a buffer is not written again before its readers have met the writer") {
  const auto twice = [](bool synchronised) {
    return [=](const Args&) {
      ptx::store_shared_u32(tid() * 4, tid());
      ptx::barrier_all();
      const uint32_t theirs = ptx::load_shared_u32((tid() ^ 32) * 4);
      if (synchronised) ptx::barrier_all();
      ptx::store_shared_u32(tid() * 4, theirs);
    };
  };
  CHECK(rule_of(twice(false), {.threads = 64}) == "race");
  CHECK(rule_of(twice(true), {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: words of 16 bytes that were written whole have writers and readers of their own") {
  const auto part = [](uint32_t read, bool synchronised) {
    return [=](const Args&) {
      if (tid() == 0) ptx::zero_16(0);
      ptx::barrier_all();
      if (tid() == 32) ptx::store_shared_u32(8, 1);
      if (synchronised) ptx::barrier_all();
      if (tid() == 0) ptx::load_shared_u32(read);
    };
  };
  CHECK(rule_of(part(8, false), {.threads = 64}) == "race");
  CHECK(rule_of(part(8, true), {.threads = 64}) == "");
  CHECK(rule_of(part(4, false), {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: 16 bytes are not written whole before the readers of each word have met the writer") {
  const auto whole = [](uint32_t read, bool synchronised) {
    return [=](const Args&) {
      if (tid() == 0) ptx::zero_16(0);
      ptx::barrier_all();
      if (tid() == 32) ptx::load_shared_u32(read);
      if (synchronised) ptx::barrier_all();
      if (tid() == 0) ptx::zero_16(0);
      ptx::barrier_all();
      if (tid() == 0) ptx::zero_16(0);
      if (tid() == 33) ptx::load_shared_u32(16);
    };
  };
  for (const uint32_t word : {0u, 4u, 12u}) CHECK(rule_of(whole(word, false), {.threads = 64}) == "race");
  CHECK(rule_of(whole(4, true), {.threads = 64}) == "uninitialised");  // the word behind the 16 bytes
}

TEST_CASE("gpu/rules: a word of global memory that was read is no longer free of order when it is written") {
  const auto twice = [](bool synchronised) {
    return [=](const Args& a) {
      ptx::load(a.out);
      ptx::barrier_all();
      if (tid() == 0) ptx::store(a.out, 1u);
      if (synchronised) ptx::barrier_all();
      if (tid() == 33) ptx::load(a.out);
    };
  };
  CHECK(rule_of(twice(false), {.threads = 64}) != "");
  CHECK(rule_of(twice(true), {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: atomics need no order among themselves, a plain read after them does") {
  const auto count = [](bool synchronised) {
    return [=](const Args&) {
      if (tid() == 0) ptx::store_shared_u32(0, 0);
      ptx::barrier_all();
      ptx::atomic_add_shared(0, 1);
      if (synchronised) ptx::barrier_all();
      ptx::load_shared_u32(0);
    };
  };
  CHECK(rule_of(count(false), {.threads = 64}) == "race");
  CHECK(rule_of(count(true), {.threads = 64}) == "");
}

TEST_CASE("gpu/rules: bytes of cp.async belong to the copy until the issuing lane waits") {
  enum class Order { waits, reads_first, leaves_one, never };
  const auto copy = [](Order order, uint32_t other, bool synchronised) {
    return [=](const Args& a) {
      ptx::cp_async_16(tid() * 16, a.out + tid() * 4, 16);
      ptx::cp_async_commit();
      if (order == Order::never) return;
      if (order == Order::waits) ptx::cp_async_wait<0>();
      if (order == Order::leaves_one) ptx::cp_async_wait<1>();
      if (synchronised) ptx::warp_sync();
      ptx::load_shared_u32((tid() ^ other) * 16);
      if (order != Order::waits) ptx::cp_async_wait<0>();
    };
  };
  CHECK(rule_of(copy(Order::reads_first, 0, false)) == "in-flight");
  CHECK(rule_of(copy(Order::leaves_one, 0, false)) == "in-flight");
  CHECK(rule_of(copy(Order::waits, 0, false)) == "");
  const std::string other = rule_of(copy(Order::waits, 1, false));
  CHECK_MESSAGE(other.find("sometimes") == std::string::npos, other);
  CHECK(!other.empty());
  CHECK(rule_of(copy(Order::waits, 1, true)) == "");
  CHECK(rule_of(copy(Order::never, 0, false)) == "exit");
}

TEST_CASE("gpu/rules: memory that nobody wrote is not read") {
  CHECK(rule_of([](const Args&) { ptx::load_shared_u32(0); }) == "uninitialised");
}

TEST_CASE("gpu/rules: addresses are inside and aligned") {
  CHECK(rule_of([](const Args&) { ptx::store_shared_u32(16384, 0); }) == "bounds");
  CHECK(rule_of([](const Args&) { ptx::store_shared_u32(2, 0); }) == "alignment");
  CHECK(rule_of([](const Args&) { ptx::zero_16(8); }) == "alignment");
  CHECK(rule_of([](const Args& a) { ptx::load(a.out + 1024); }) == "bounds");
  CHECK(rule_of([](const Args& a) { ptx::load(reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(a.out) + 2)); }) ==
        "alignment");
  CHECK(rule_of([](const Args&) {
          uint32_t d[4];
          ptx::ldmatrix_x4(d, 8);
        }) == "alignment");
}

TEST_CASE("gpu/rules: a kernel that wants more alignment of shared memory than it states is found") {
  const auto wants = [](auto align) {
    return [=](const Args&) {
      const uint32_t base = ptx::dynamic_shared<decltype(align)::value>();
      if (base % 1024 != 0) ptx::zero_16(base + 8);  // stands for a tile that is not aligned
    };
  };
  bool found = false;
  for (uint64_t seed = 0; seed < 32; ++seed)
    found =
        found || tested::run_body(wants(std::integral_constant<uint32_t, 128>{}), {.seed = seed}).rule == "alignment";
  CHECK(found);
  CHECK(rule_of(wants(std::integral_constant<uint32_t, 1024>{})) == "");
}

TEST_CASE("gpu/rules: a barrier is reached by all warps that it counts") {
  const Setting two{.threads = 64};
  CHECK(rule_of(
            [](const Args&) {
              if (tid() < 32) ptx::barrier_all();
            },
            two) == "deadlock");
  CHECK(rule_of(
            [](const Args&) {
              if (tid() < 32) ptx::barrier_sync<1, 32>();
            },
            two) == "");
  CHECK(rule_of([](const Args&) { ptx::barrier_sync<1, 96>(); }, two) == "barrier");
  CHECK(rule_of([](const Args&) { ptx::barrier_sync<16, 64>(); }, two) == "barrier");
  CHECK(rule_of(
            [](const Args&) {
              if (tid() < 32)
                ptx::barrier_sync<1, 64>();
              else
                ptx::barrier_sync<1, 96>();
            },
            {.threads = 96}) != "");
}

TEST_CASE("gpu/rules: a warp does not arrive at a barrier twice in place of another one") {
  const auto arrives = [](bool twice) {
    return [twice](const Args&) {
      if (tid() < 32) {
        ptx::barrier_arrive<1, 64>();
        if (twice) ptx::barrier_arrive<1, 64>();  // the second warp comes later
        ptx::barrier_sync<2, 64>();
      } else {
        ptx::barrier_sync<2, 64>();
        ptx::barrier_sync<1, 64>();
      }
    };
  };
  CHECK(rule_of(arrives(false), {.threads = 64}) == "");
  CHECK(rule_of(arrives(true), {.threads = 64}) == "barrier");
}

TEST_CASE("gpu/rules: lanes of a warp do not wait in different collectives") {
  const Body two_places = [](const Args&) {
    if (tid() < 16)
      ptx::barrier_all();
    else
      ptx::barrier_all();
  };
  CHECK(rule_of(two_places) == "divergence");
  CHECK(rule_of([](const Args&) {
          if (tid() < 16) ptx::shuffle_xor(tid(), 1);
        }) == "divergence");
  CHECK(rule_of([](const Args&) { ptx::warp_sync(0xfffffffeu); }) == "divergence");
}

TEST_CASE("gpu/rules: an mbarrier is made, fenced and ordered before its use") {
  const Setting two{.threads = 64};
  const auto use = [](uint32_t count, bool ordered) {
    return [=](const Args&) {
      make_barrier(count, true, ordered);
      ptx::mbarrier_arrive(kBarrier);
      ptx::mbarrier_wait(kBarrier, 0);
    };
  };
  CHECK(rule_of([](const Args&) { ptx::mbarrier_arrive(kBarrier); }, two) == "barrier");
  CHECK(rule_of(use(64, true), two) == "");
  CHECK(rule_of(use(65, true), two) == "deadlock");
  CHECK(rule_of(use(64, false), two) == "barrier");
  CHECK(rule_of([](const Args&) { make_barrier(0); }, two) == "barrier");
  CHECK(rule_of(
            [](const Args&) {
              make_barrier(1);
              ptx::load_shared_u32(kBarrier);
            },
            two) == "barrier");
  CHECK(rule_of(
            [](const Args& a) {
              make_barrier(1, false);
              copy_rows(a, 1024);
              ptx::mbarrier_wait(kBarrier, 0);
            },
            with_tensor(64)) == "barrier");
}

TEST_CASE("gpu/rules: a phase takes no more arrivals than its count") {
  CHECK(rule_of([](const Args&) {
          make_barrier(1);
          if (tid() == 0) {
            ptx::mbarrier_arrive_expect(kBarrier, 16);
            ptx::mbarrier_arrive(kBarrier);
          }
        }) == "barrier");
}

TEST_CASE("gpu/rules: bytes of a bulk copy are read behind a wait for its phase") {
  const auto copy = [](uint32_t bytes) {
    return [=](const Args& a) {
      make_barrier(1);
      copy_rows(a, bytes);
      ptx::mbarrier_wait(kBarrier, 0);
      ptx::load_shared_u32(0);
    };
  };
  CHECK(rule_of(copy(1024), with_tensor(64)) == "");
  CHECK(rule_of(copy(2048), with_tensor(64)) == "deadlock");
  const std::string half = rule_of(copy(512), with_tensor(64));
  CHECK_MESSAGE((!half.empty() && half.find("sometimes") == std::string::npos), half);
  // Only lane 0 of each warp waits; the others need bar.warp.sync.
  const auto elected = [](bool synchronised) {
    return [=](const Args& a) {
      make_barrier(1);
      copy_rows(a, 1024);
      if (tid() % 32 == 0) ptx::mbarrier_wait(kBarrier, 0);
      if (synchronised) ptx::warp_sync();
      ptx::load_shared_u32(0);
    };
  };
  CHECK(rule_of(elected(true), with_tensor(64)) == "");
  const std::string rule = rule_of(elected(false), with_tensor(64));
  CHECK_MESSAGE((!rule.empty() && rule.find("sometimes") == std::string::npos), rule);
}

TEST_CASE("gpu/rules: a CTA does not exit before a bulk copy into it has ended") {
  CHECK(rule_of(
            [](const Args& a) {
              make_barrier(1);
              copy_rows(a, 1024);
            },
            with_tensor(64))
            .find("exit") != std::string::npos);
}

TEST_CASE("gpu/rules: a bulk copy does not overwrite what others still read") {
  const auto refill = [](bool released) {
    return [=](const Args& a) {
      make_barrier(1);
      copy_rows(a, 1024);
      ptx::mbarrier_wait(kBarrier, 0);
      ptx::load_shared_u32(tid() * 4);
      ptx::fence_async_shared();
      if (released) ptx::barrier_all();
      copy_rows(a, 1024);
      ptx::mbarrier_wait(kBarrier, 1);
    };
  };
  CHECK(rule_of(refill(true), with_tensor(64)) == "");
  const std::string rule = rule_of(refill(false), with_tensor(64));
  CHECK_MESSAGE((!rule.empty() && rule.find("sometimes") == std::string::npos), rule);
}

TEST_CASE("gpu/rules: what lanes wrote reaches a bulk copy through fence.proxy.async before the barrier") {
  enum class Fence { none, before, behind };
  const auto overwrite = [](Fence fence) {
    return [=](const Args& a) {
      make_barrier(1);
      ptx::store_shared_u32(tid() * 4, tid());
      if (fence == Fence::before) ptx::fence_async_shared();
      ptx::barrier_all();
      if (fence == Fence::behind) ptx::fence_async_shared();
      copy_rows(a, 1024);
      ptx::mbarrier_wait(kBarrier, 0);
    };
  };
  CHECK(rule_of(overwrite(Fence::none), with_tensor(64)) == "proxy");
  CHECK(rule_of(overwrite(Fence::before), with_tensor(64)) == "");
  CHECK(rule_of(overwrite(Fence::behind), with_tensor(64)) == "proxy");
}

namespace {

enum class Slip {
  none,
  no_fence,
  read_before_wait,
  write_before_wait,
  left_open,
  operand_overwritten,
  no_proxy_fence,
  a_changed,
  a_not_held,
  wrong_descriptor,
  inside_rows
};

/// A product of one warpgroup over tiles that the lanes themselves wrote, with one slip.
Body product(Slip slip) {
  return [slip](const Args&) {
    const uint32_t thread = tid();
    for (uint32_t at = thread * 16; at < 8192; at += 128 * 16) ptx::zero_16(at);
    if (slip != Slip::no_proxy_fence) ptx::fence_async_shared();
    ptx::barrier_all();
    Acc d[32] = {};
    uint32_t a[4] = {};
    if (slip != Slip::a_not_held) ptx::wgmma_hold(a);
    if (slip != Slip::no_fence) ptx::wgmma_fence(d);
    uint64_t b = ptx::descriptor(slip == Slip::inside_rows ? 128 : 0, 8192);
    if (slip == Slip::wrong_descriptor) b ^= thread == 40 ? 64 : 0;
    ptx::wgmma_64x64_rs(d, a, b);
    ptx::wgmma_commit();
    if (slip == Slip::read_before_wait && d[3] > 0) return;
    if (slip == Slip::write_before_wait) d[3] = 1;
    if (slip == Slip::a_changed) a[1] = 1;
    if (slip == Slip::operand_overwritten) ptx::zero_16(thread * 16);
    if (slip != Slip::left_open) ptx::wgmma_wait<0>(d);
  };
}

}  // namespace

TEST_CASE("gpu/rules: wgmma has its registers fenced, its operands at rest and its result waited for (9.7.15.7)") {
  const Setting group{.threads = 128};
  CHECK(rule_of(product(Slip::none), group) == "");
  CHECK(rule_of(product(Slip::no_fence), group) == "wgmma fence");
  CHECK(rule_of(product(Slip::a_not_held), group) == "wgmma fence");
  CHECK(rule_of(product(Slip::read_before_wait), group) == "accumulator");
  CHECK(rule_of(product(Slip::write_before_wait), group) == "accumulator");
  CHECK(rule_of(product(Slip::a_changed), group) == "accumulator");
  CHECK(rule_of(product(Slip::left_open), group) == "exit");
  CHECK(rule_of(product(Slip::no_proxy_fence), group) == "proxy");
  CHECK(rule_of(product(Slip::operand_overwritten), group).find("reused") != std::string::npos);
  CHECK(rule_of(product(Slip::wrong_descriptor), group) == "wgmma");
  CHECK(rule_of(product(Slip::inside_rows), group) == "alignment");
  CHECK(rule_of(product(Slip::none), {.threads = 96}) == "wgmma");
}

TEST_CASE("gpu/rules: two CTAs do not share global memory within a grid") {
  const Setting two{.ctas = 2};
  CHECK(rule_of(
            [](const Args& a) {
              if (tid() == 0) ptx::store(a.out, 1u);
            },
            two) == "race");
  CHECK(rule_of([](const Args& a) { ptx::load(a.out); }, two) == "");
  CHECK(rule_of(
            [](const Args& a) {
              if (tid() == 0) ptx::store(a.out + ptx::ctaid_x(), 1u);
            },
            two) == "");
}

TEST_CASE("gpu/rules: an endless loop ends with a report") {
  CHECK(rule_of([](const Args& a) {
          for (;;) ptx::load(a.out);
        }) == "endless");
}

TEST_CASE("gpu/rules: a launch beyond the chip's limits is refused") {
  const Body nothing = [](const Args&) {};
  CHECK(tested::run_body(nothing, {.threads = 48}).rule == "launch");
  CHECK(tested::run_body(nothing, {.threads = 1056}).rule == "launch");
  CHECK(tested::run_body(nothing, {.shared = 232449}).rule == "launch");
  CHECK(tested::run_body(nothing, {.threads = 1024, .shared = 232448}).rule == "");
}
