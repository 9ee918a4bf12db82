// Clusters, distributed shared memory, bulk stores and order between CTAs: each instruction's result, cited from the
// PTX ISA 9.0, its rule, and a legal neighbour that stays silent.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

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

void meet() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
const Setting kPair{.ctas = 2, .cluster = 2};

Setting with_matrix(uint32_t rows) {
  Setting s{.box_rows = 8};
  s.tensor.resize(rows * 64);
  for (size_t i = 0; i < s.tensor.size(); ++i) s.tensor[i] = static_cast<uint16_t>(i);
  return s;
}

}  // namespace

TEST_CASE("gpu/cluster: a CTA writes the shared memory of another between two barriers (9.7.9.24, 9.7.13.3)") {
  const Outcome o = tested::run_body(
      [](const Args& a) {
        const uint32_t rank = ptx::cluster_rank();
        meet();
        ptx::store_cluster_u32(ptx::map_to_rank(tid() * 4, rank ^ 1), 100 * rank + tid());
        meet();
        ptx::store(a.out + 32 * rank + tid(), ptx::load_shared_u32(tid() * 4));
        meet();
      },
      kPair);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[5] == 105);
  CHECK(o.out[32 + 5] == 5);
}

TEST_CASE("gpu/cluster: dynamic shared memory begins at one address in all CTAs of a cluster (9.7.9.24)") {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Outcome o = tested::run_body(
        [](const Args& a) {
          const uint32_t at = ptx::dynamic_shared<1024>() + tid() * 4;
          ptx::store_shared_u32(at, 100 * ptx::cluster_rank() + tid());
          ptx::cluster_arrive();
          ptx::cluster_wait();
          ptx::store(a.out + 32 * ptx::cluster_rank() + tid(),
                     ptx::load_cluster_u32(ptx::map_to_rank(at, ptx::cluster_rank() ^ 1)));
          ptx::cluster_arrive();
          ptx::cluster_wait();
        },
        {.policy = emu::Policy::random, .seed = test::seed() + seed, .ctas = 2, .cluster = 2});
    CHECK_MESSAGE(o.rule.empty(), o.text);
    CHECK(o.out[3] == 103);
    CHECK(o.out[32 + 3] == 3);
  }
}

TEST_CASE("gpu/cluster: shared memory of another CTA needs the cluster's barrier before, between and behind") {
  const auto exchange = [](bool before, bool between, bool behind) {
    return [=](const Args&) {
      if (before) meet();
      ptx::store_cluster_u32(ptx::map_to_rank(tid() * 4, ptx::cluster_rank() ^ 1), 1);
      if (between) meet();
      if (between) ptx::load_cluster_u32(ptx::map_to_rank(tid() * 4, ptx::cluster_rank() ^ 1));
      if (behind) meet();
    };
  };
  CHECK(rule_of(exchange(true, true, true), kPair) == "");
  CHECK(rule_of(exchange(false, true, true), kPair) == "cluster");
  const std::string early = rule_of(exchange(true, true, false), kPair);
  CHECK_MESSAGE((early == "exit" || early == "cluster" || early == "cluster|exit"), early);
  CHECK(rule_of(
            [](const Args&) {
              meet();
              ptx::store_cluster_u32(ptx::map_to_rank(0, ptx::cluster_rank() ^ 1), 1);
              ptx::load_shared_u32(0);
              meet();
            },
            kPair) != "");
}

TEST_CASE("gpu/cluster: the cluster's barrier is arrived at once and waited for") {
  CHECK(rule_of([](const Args&) { ptx::cluster_wait(); }, kPair) == "barrier");
  CHECK(rule_of(
            [](const Args&) {
              ptx::cluster_arrive();
              ptx::cluster_arrive();
            },
            kPair)
            .find("barrier") != std::string::npos);
  CHECK(rule_of([](const Args&) { ptx::map_to_rank(0, 2); }, kPair) == "cluster");
  CHECK(tested::run_body([](const Args&) {}, {.ctas = 3, .cluster = 2}).rule == "launch");
}

TEST_CASE("gpu/cluster: lanes that took different ways meet before the cluster's barrier, it is .aligned (9.7.13.3)") {
  enum class Met { not_at_all, in_part, in_a_barrier, in_an_exchange, in_the_warp };
  const auto branch = [](Met met, bool loops, bool between) {
    return [=](const Args&) {
      if (between) ptx::cluster_arrive();
      const uint32_t times = loops ? 1 + tid() % 2 : tid() == 5 ? 1 : 0;
      for (uint32_t i = 0; i < times; ++i) ptx::store_shared_u32(tid() * 4, i);
      if (met == Met::in_part && tid() < 16) ptx::warp_sync(0xffff);
      if (met == Met::in_a_barrier) ptx::barrier_all();
      if (met == Met::in_an_exchange) ptx::shuffle_xor(tid(), 1);
      if (met == Met::in_the_warp) ptx::warp_sync();
      if (!between) ptx::cluster_arrive();
      ptx::cluster_wait();
    };
  };
  for (const bool loops : {false, true})
    for (const bool between : {false, true}) {
      for (const Met met : {Met::not_at_all, Met::in_part})
        CHECK(rule_of(branch(met, loops, between), kPair) == "divergence");
      for (const Met met : {Met::in_a_barrier, Met::in_an_exchange, Met::in_the_warp})
        CHECK(rule_of(branch(met, loops, between), kPair) == "");
    }
}

TEST_CASE("gpu/cluster: a CTA arrives at an mbarrier of another, which sees what came before (9.7.13.15.13)") {
  const Outcome o = tested::run_body(
      [](const Args& a) {
        const uint32_t rank = ptx::cluster_rank();
        if (tid() == 0) {
          ptx::mbarrier_init(8192, 32);
          ptx::mbarrier_init_fence();
        }
        ptx::warp_sync();
        meet();
        if (rank == 1) {
          ptx::store_cluster_u32(ptx::map_to_rank(tid() * 4, 0), 7 + tid());
          ptx::mbarrier_arrive_cluster(ptx::map_to_rank(8192, 0));
        } else {
          ptx::mbarrier_wait(8192, 0);
          ptx::store(a.out + tid(), ptx::load_shared_u32(tid() * 4));
        }
        meet();
      },
      {.policy = emu::Policy::random, .seed = test::seed(), .ctas = 2, .cluster = 2});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[3] == 10);
}

TEST_CASE("gpu/cluster: a multicast copy reaches every CTA that it names (9.7.9.27.1.2)") {
  Setting setting = with_matrix(16);
  setting.ctas = setting.cluster = 2;
  const auto copy = [](uint16_t ranks) {
    return [=](const Args& a) {
      if (tid() == 0) {
        ptx::mbarrier_init(8192, 1);
        ptx::mbarrier_init_fence();
      }
      ptx::warp_sync();
      meet();
      if (tid() == 0) ptx::mbarrier_arrive_expect(8192, 1024);
      if (tid() == 0 && ptx::cluster_rank() == 0) ptx::load_box_multicast(0, a.map, 0, 8, 0, 0, 8192, ranks);
      ptx::mbarrier_wait(8192, 0);
      ptx::store(a.out + 32 * ptx::cluster_rank() + tid(), ptx::load_shared_u32(416));
      ptx::warp_sync();
      meet();
    };
  };
  const Outcome o = tested::run_body(copy(3), setting);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK((o.out[0] >> 16) == 713);
  CHECK((o.out[32] >> 16) == 713);
  CHECK(rule_of(copy(1), setting) == "deadlock");
  CHECK(rule_of(copy(5), setting) == "cluster");
}

TEST_CASE("gpu/cluster: stmatrix is the way back of ldmatrix (9.7.14.5.16)") {
  for (const bool trans : {false, true}) {
    const Outcome o = tested::run_body([trans](const Args& a) {
      for (uint32_t word = tid(); word < 128; word += 32)
        ptx::store_shared_u32(word * 4, (2 * word + 1) << 16 | 2 * word);
      ptx::warp_sync();
      uint32_t d[4];
      ptx::ldmatrix_x4(d, tid() * 16);
      if (trans)
        ptx::stmatrix_x4_trans(1024 + tid() * 16, d);
      else
        ptx::stmatrix_x4(1024 + tid() * 16, d);
      ptx::warp_sync();
      ptx::store(a.out + tid(), ptx::load_shared_u32(1024 + tid() * 4));
    });
    CHECK_MESSAGE(o.rule.empty(), o.text);
    // Word 5 holds elements (1, 2) and (1, 3) of the first matrix: 10 and 11, or transposed (2, 1) and (3, 1).
    CHECK(o.out[5] == (trans ? (25u << 16 | 17u) : (11u << 16 | 10u)));
  }
}

TEST_CASE("gpu/cluster: a ballot has a bit of every lane (9.7.13.9)") {
  const Outcome o = tested::run_body([](const Args& a) { ptx::store(a.out + tid(), ptx::ballot(tid() % 3 == 0)); });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[4] == 0x49249249u);
}

TEST_CASE("gpu/cluster: cp.async.mbarrier.arrive publishes a thread's copies (9.7.13.15.17)") {
  const auto copy = [](uint32_t count) {
    return [=](const Args& a) {
      if (tid() == 0) {
        ptx::mbarrier_init(8192, count);
        ptx::mbarrier_init_fence();
      }
      ptx::barrier_all();
      ptx::cp_async_16(tid() * 16, a.out + 512 + tid() * 4, 16);
      ptx::cp_async_arrive(8192);
      ptx::mbarrier_wait(8192, 0);
      ptx::load_shared_u32((63 - tid()) * 16);
    };
  };
  const Setting two{.threads = 64};
  CHECK(rule_of(copy(64), two) == "");
  CHECK(rule_of(copy(65), two) == "deadlock");
  CHECK(rule_of(copy(63), two) != "");
}

namespace {

enum class Tracked { sound, own_unwaited, barrier_only, group_wait, no_arrive, unfenced, fenced, plain_write };

/// 64 threads copy 16 bytes each, tracked by an mbarrier, and read their own or those of another thread.
Body tracked_copies(Tracked kind, bool increments) {
  return [=](const Args& a) {
    if (tid() == 0) {
      ptx::mbarrier_init(8192, increments ? 1 : 64);
      ptx::mbarrier_init_fence();
    }
    ptx::barrier_all();
    if (kind == Tracked::plain_write) ptx::store_shared_u32(4096 + tid() * 4, tid());
    ptx::cp_async_16(tid() * 16, a.out + 512 + tid() * 4, 16);
    if (kind != Tracked::no_arrive || tid() != 3) {
      if (increments)
        ptx::cp_async_arrive_inc(8192);
      else
        ptx::cp_async_arrive(8192);
    }
    if (kind == Tracked::own_unwaited) ptx::load_shared_u32(tid() * 16);
    if (kind == Tracked::group_wait) {
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      ptx::load_shared_u32(tid() * 16);
    }
    ptx::barrier_all();  // orders what the threads did, not the copies
    if (increments && tid() == 0) ptx::mbarrier_arrive(8192);
    if (kind != Tracked::barrier_only) ptx::mbarrier_wait(8192, 0);
    if (kind == Tracked::fenced) ptx::fence_async_shared();
    if (kind == Tracked::unfenced || kind == Tracked::fenced) {
      ptx::barrier_all();
      if (tid() > 0) return;
      ptx::store_box(a.map, 0, 0, 0, 0, 0);
      ptx::bulk_commit();
      ptx::bulk_wait<0>();
      return;
    }
    ptx::load_shared_u32((63 - tid()) * 16);
    if (kind == Tracked::plain_write) ptx::load_shared_u32(4096 + (63 - tid()) * 4);
  };
}

bool is_unordered(const std::string& rule) {
  return rule == "in-flight" || rule == "race";
}

}  // namespace

TEST_CASE("gpu/cluster: copies that an mbarrier tracks are there for those that wait for its phase (9.7.13.15.17)") {
  Setting s = with_matrix(8);
  s.threads = 64;
  for (const emu::Policy policy : {emu::Policy::in_order, emu::Policy::random, emu::Policy::sticky})
    for (uint64_t i = 0; i < 4; ++i)
      for (const bool increments : {false, true}) {
        s.policy = policy, s.seed = test::seed() + i;
        INFO("seed ", s.seed, ", policy ", emu::to_string(policy), increments ? "" : ", .noinc");
        const auto rule = [&](Tracked kind) { return tested::run_body(tracked_copies(kind, increments), s).rule; };
        CHECK(rule(Tracked::sound) == "");
        CHECK(rule(Tracked::group_wait) == "");
        CHECK(rule(Tracked::plain_write) == "");  // ordered by the CTA's barrier
        // The arrival is asynchronous: neither the thread that issued it nor bar.sync waits for the copies.
        CHECK(is_unordered(rule(Tracked::own_unwaited)));
        CHECK(is_unordered(rule(Tracked::barrier_only)));
        // cp.async writes through the generic proxy (9.7.9.25): whoever waited fences before the async proxy reads.
        CHECK(rule(Tracked::fenced) == "");
        CHECK(rule(Tracked::unfenced) == "proxy");
        // A thread that leaves the arrival out: with .noinc the phase lacks it, without it the copy is not tracked.
        const std::string left_out = rule(Tracked::no_arrive);
        CHECK_MESSAGE((increments ? is_unordered(left_out) || left_out == "exit" : left_out == "deadlock"), left_out);
      }
}

TEST_CASE("gpu/cluster: the arrival of tracked copies releases nothing else that the thread did (9.7.13.15.17)") {
  const auto body = [](bool arrives_itself) {
    return [=](const Args& a) {
      if (tid() == 0) {
        ptx::mbarrier_init(8192, 32);
        ptx::mbarrier_init_fence();
      }
      ptx::barrier_all();
      if (tid() < 32) {
        ptx::store_shared_u32(4096 + tid() * 4, tid());
        ptx::cp_async_16(tid() * 16, a.out + 512 + tid() * 4, 16);
        if (arrives_itself) {
          ptx::cp_async_arrive_inc(8192);
          ptx::mbarrier_arrive(8192);
        } else {
          ptx::cp_async_arrive(8192);
        }
        return;
      }
      ptx::mbarrier_wait(8192, 0);
      ptx::load_shared_u32((tid() - 32) * 16);
      ptx::load_shared_u32(4096 + (tid() - 32) * 4);
    };
  };
  for (const emu::Policy policy : {emu::Policy::in_order, emu::Policy::random}) {
    const Setting two{.threads = 64, .policy = policy, .seed = test::seed()};
    INFO("seed ", test::seed(), ", policy ", emu::to_string(policy));
    CHECK(rule_of(body(true), two) == "");
    CHECK(rule_of(body(false), two) == "race");
  }
}

TEST_CASE("gpu/cluster: a phase that is held open by incrementing arrivals alone never ends (9.7.13.15.17)") {
  CHECK(rule_of([](const Args& a) {
          if (tid() == 0) {
            ptx::mbarrier_init(8192, 1);
            ptx::mbarrier_init_fence();
          }
          ptx::warp_sync();
          ptx::cp_async_16(tid() * 16, a.out + 512 + tid() * 4, 16);
          ptx::cp_async_arrive_inc(8192);
          ptx::mbarrier_wait(8192, 0);
        }) == "deadlock");
}

TEST_CASE("gpu/cluster: a bulk store writes the rows that lie in the tensor (9.7.9.27.1.3)") {
  const Outcome o = tested::run_body(
      [](const Args& a) {
        for (uint32_t at = tid() * 4; at < 1024; at += 128) ptx::store_shared_u32(at, 0x00070007);
        ptx::fence_async_shared();
        ptx::warp_sync();
        if (tid() > 0) return;
        ptx::store_box(a.map, 0, 12, 0, 0, 0);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
      },
      with_matrix(16));
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.tensor[11 * 64 + 63] == 11 * 64 + 63);
  CHECK(o.tensor[12 * 64] == 7);
  CHECK(o.tensor[15 * 64 + 63] == 7);
}

TEST_CASE("gpu/cluster: a bulk reduction adds to what is there (9.7.9.27.1.4)") {
  const Body add_twice = [](const Args& a) {
    for (uint32_t at = tid() * 4; at < 1024; at += 128) ptx::store_shared_u32(at, std::bit_cast<uint32_t>(1.5f));
    ptx::fence_async_shared();
    ptx::warp_sync();
    if (tid() > 0) return;
    for (int i = 0; i < 2; ++i) ptx::reduce_box(a.map, 0, 6, 0, 0, 0);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  };
  Setting setting{.is_f32 = true};
  setting.tensor.assign(8 * 64, 0);
  const float one = 1;
  for (size_t i = 0; i < setting.tensor.size(); i += 2) std::memcpy(&setting.tensor[i], &one, 4);
  const Outcome o = tested::run_body(add_twice, setting);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  for (const size_t row : {5u, 6u, 7u}) {
    float sum;
    std::memcpy(&sum, &o.tensor[row * 64 + 10], 4);
    CHECK(sum == (row < 6 ? 1.f : 4.f));  // rows 2 to 7 of the box lie behind the tensor
  }
  CHECK(rule_of(add_twice, with_matrix(8)) == "tensor map");  // of bf16
}

TEST_CASE("gpu/cluster: the source of a bulk store is fenced, at rest until it is read, and waited for") {
  enum class Slip { none, no_fence, overwritten, not_waited, read_back, negative };
  const auto store = [](Slip slip) {
    return [slip](const Args& a) {
      for (uint32_t at = tid() * 4; at < 1024; at += 128) ptx::store_shared_u32(at, 7);
      if (slip != Slip::no_fence) ptx::fence_async_shared();
      ptx::warp_sync();
      if (tid() > 0) return;
      ptx::store_box(a.map, 0, slip == Slip::negative ? -1 : 0, 0, 0, 0);
      ptx::bulk_commit();
      if (slip == Slip::not_waited) return;
      if (slip != Slip::overwritten) ptx::bulk_wait_read<0>();
      ptx::store_shared_u32(0, 1);
      ptx::bulk_wait_read<0>();
    };
  };
  const Setting s = with_matrix(16);
  CHECK(rule_of(store(Slip::none), s) == "");
  CHECK(rule_of(store(Slip::no_fence), s) == "proxy");
  CHECK(rule_of(store(Slip::overwritten), s) == "reused");
  CHECK(rule_of(store(Slip::not_waited), s) == "exit");
  CHECK(rule_of(store(Slip::negative), s) == "bounds");
}

TEST_CASE("gpu/cluster: atomics of several CTAs meet in one word, plain writes do not (9.7.13.6)") {
  const Setting four{.ctas = 4};
  const Outcome o = tested::run_body(
      [](const Args& a) {
        ptx::atomic_add(a.out, 1);
        ptx::reduce_add(reinterpret_cast<float*>(a.out) + 1, 0.5f);
      },
      four);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 128);
  CHECK(std::bit_cast<float>(o.out[1]) == 64.f);
}

namespace {

enum class Last { sound, no_barrier, no_release, no_acquire, fences };

/// Every CTA writes a part; the last one to count itself reads them all.
Body last_arriver(Last kind) {
  return [kind](const Args& a) {
    ptx::store(a.out + 64 + ptx::ctaid_x() * 64 + tid(), tid());
    if (kind != Last::no_barrier) ptx::barrier_all();
    if (tid() == 0) {
      uint32_t before = 0;
      if (kind == Last::sound || kind == Last::no_barrier) before = ptx::atomic_add_ordered(a.out, 1);
      if (kind == Last::fences || kind == Last::no_acquire) ptx::fence_gpu();
      if (kind != Last::sound && kind != Last::no_barrier) before = ptx::atomic_add(a.out, 1);
      if (kind == Last::fences || kind == Last::no_release) ptx::fence_gpu();
      ptx::store_shared_u32(0, before);
    }
    ptx::barrier_all();
    if (ptx::load_shared_u32(0) != 3) return;
    for (uint32_t cta = 0; cta < 4; ++cta) ptx::load(a.out + 64 + cta * 64 + (tid() ^ 33));
  };
}

}  // namespace

TEST_CASE("gpu/cluster: the last CTA reads what the others wrote behind release and acquire (8.9)") {
  const Setting four{.threads = 64, .ctas = 4};
  CHECK(rule_of(last_arriver(Last::sound), four) == "");
  CHECK(rule_of(last_arriver(Last::fences), four) == "");
  CHECK(rule_of(last_arriver(Last::no_release), four) == "race");
  CHECK(rule_of(last_arriver(Last::no_acquire), four) == "race");
  CHECK(rule_of(last_arriver(Last::no_barrier), four) == "race");
}

TEST_CASE("gpu/cluster: a CTA that waits for a flag lets the one run that sets it (9.7.9.8, ld.acquire)") {
  const auto flag = [](bool released) {
    return [=](const Args& a) {
      if (tid() > 0) return;
      if (ptx::ctaid_x() == 0) {
        while (ptx::load_acquire(a.out) == 0) ptx::pause();
        ptx::store(a.out + 2, ptx::load(a.out + 1));
      } else {
        ptx::store(a.out + 1, 99u);
        if (released)
          ptx::store_release(a.out, 1);
        else
          ptx::atomic_add(a.out, 1);
      }
    };
  };
  CHECK(rule_of(flag(true), {.ctas = 2}) == "");
  CHECK(rule_of(flag(false), {.ctas = 2}) == "race");
}

namespace {

enum class Handing { sound, not_met, before_wait };

/// CTA 4 writes a word and releases a flag; CTA 2, of another cluster, acquires it. CTA 3 of its cluster reads the
/// word, and so does CTA 0 of a third cluster, behind a flag that CTA 3 releases.
Body handed_on(Handing kind) {
  return [kind](const Args& a) {
    uint32_t *first = a.out, *second = a.out + 1, *word = a.out + 2;
    const uint32_t cta = ptx::ctaid_x();
    if (cta == 4 && tid() == 0) {
      ptx::store(word, 77u);
      ptx::store_release(first, 1);
    }
    if (cta == 2 && tid() == 0)
      while (ptx::load_acquire(first) == 0) ptx::pause();
    if (cta == 2 || cta == 3) {
      ptx::warp_sync();
      if (kind != Handing::not_met) ptx::cluster_arrive();
      if (kind == Handing::before_wait && cta == 3) ptx::load(word);
      if (kind != Handing::not_met) ptx::cluster_wait();
    }
    if (cta == 3 && tid() == 0) {
      ptx::store(a.out + 3, ptx::load(word));
      ptx::store_release(second, 1);
    }
    if (cta == 0 && tid() == 0) {
      while (ptx::load_acquire(second) == 0) ptx::pause();
      ptx::store(a.out + 4, ptx::load(word));
    }
  };
}

}  // namespace

TEST_CASE(
    "gpu/cluster: the wait at the cluster's barrier acquires what another CTA acquired before (9.7.13.3, 8.9.5)") {
  for (const emu::Policy policy : {emu::Policy::in_order, emu::Policy::random, emu::Policy::sticky}) {
    const Setting six{.policy = policy, .seed = test::seed(), .ctas = 6, .cluster = 2};
    INFO("seed ", test::seed(), ", policy ", emu::to_string(policy));
    const Outcome o = tested::run_body(handed_on(Handing::sound), six);
    CHECK_MESSAGE(o.rule.empty(), o.text);
    CHECK(o.out[3] == 77);
    CHECK(o.out[4] == 77);
    // Without the barrier, or before its wait, nothing orders the read behind the write of the other cluster. The
    // writer may also find that it comes behind the reader.
    CHECK(rule_of(handed_on(Handing::not_met), six) == "race");
    CHECK(rule_of(handed_on(Handing::before_wait), six) == "race");
  }
}

TEST_CASE("gpu/cluster: an access costs no more wavefronts than it states itself") {
  const auto stores = [](uint32_t stride, uint32_t other_stride, Banks banks) {
    return [=](const Args&) {
      ptx::store_shared_u32(tid() * stride, 1, banks);
      ptx::store_shared_u32(8192 + tid() * other_stride, 1);  // states that its lanes do not meet
    };
  };
  constexpr tested::Setting kNone{.conflicts_max = 0};
  CHECK(rule_of(stores(8, 4, {.lanes = 2}), kNone) == "");
  CHECK(rule_of(stores(16, 4, {.lanes = 2}), kNone) == "bank conflict");
  CHECK(rule_of(stores(8, 8, {.lanes = 2}), kNone) == "bank conflict");
  CHECK(rule_of(stores(128, 4, {.lanes = 32}), kNone) == "");
  CHECK(tested::run_body(stores(16, 8, {.lanes = 2}), kNone).text.find("3 extra wavefronts, the access states 1") !=
        std::string::npos);
}

TEST_CASE("gpu/cluster: accesses of the copies of an unrolled loop are compared copy by copy") {
  // Lanes have a word of two rows, the second of which begins a word later. Odd lanes skip the first row.
  const auto rows = [](bool numbered, uint32_t gap) {
    return [=](const Args&) {
      for (uint32_t row = 0; row < 2; ++row)
        if (row == 1 || tid() % 2 == 0)
          ptx::store_shared_u32(row * (128 + gap) + tid() * 4, 1, {.copy = numbered ? row : kUnnumbered});
    };
  };
  CHECK(rule_of(rows(true, 4), {.conflicts_max = 0}) == "");
  CHECK(rule_of(rows(false, 4), {.conflicts_max = 0}) == "bank conflict");  // an even lane's first beside an odd one's
  // Lanes of the second half begin four rows of the table later: without a gap they meet those of the first half.
  const auto halves = [](uint32_t gap) {
    return [=](const Args&) {
      for (uint32_t copy = 0; copy < 2; ++copy)
        ptx::store_shared_u32(tid() / 16 * (512 + gap) + tid() % 16 * 8 + copy * 4, 1, {.copy = copy});
    };
  };
  CHECK(rule_of(halves(4), {.conflicts_max = 0}) == "");
  CHECK(rule_of(halves(0), {.conflicts_max = 0}) == "bank conflict");
}

TEST_CASE("gpu/cluster: a numbered access is counted when some lanes of the warp never make it") {
  const auto even_lanes = [](uint32_t stride, uint32_t copy) {
    return [=](const Args&) {
      if (tid() % 2 == 0) ptx::store_shared_u32(tid() * stride, 1, {.copy = copy});
    };
  };
  CHECK(rule_of(even_lanes(128, 0), {.conflicts_max = 0}) == "bank conflict");
  CHECK(rule_of(even_lanes(128, 7), {.conflicts_max = 0}) == "bank conflict");
  CHECK(rule_of(even_lanes(4, 0), {.conflicts_max = 0}) == "");
  const Outcome found = tested::run_body(even_lanes(128, 0), {.conflicts_max = 0});
  CHECK(found.text.find("st.shared at ") != std::string::npos);
  CHECK(found.text.find("15 extra wavefronts") != std::string::npos);
  // The first call of each lane is one access, and so is the second.
  const auto some_twice = [](uint32_t gap) {
    return [=](const Args&) {
      for (uint32_t i = 0; i < 1 + tid() % 2; ++i)
        ptx::store_shared_u32(i * 4096 + tid() * (4 + i * gap), 1, {.copy = 0});
    };
  };
  CHECK(rule_of(some_twice(0), {.conflicts_max = 0}) == "");
  CHECK(rule_of(some_twice(60), {.conflicts_max = 0}) == "bank conflict");
}

TEST_CASE("gpu/cluster: a statement about banks that means nothing stops the program") {
  // A child process ends in the assertion of lib/base.
  const auto ends = [](Banks banks) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(SIGABRT, SIG_DFL);  // doctest's handler would report the child's end
      ::close(STDERR_FILENO);
      tested::run_body([=](const Args&) { ptx::store_shared_u32(tid() * 4, 1, banks); });
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  };
  CHECK(ends({.lanes = 0}));
  CHECK(ends({.lanes = 33}));
  CHECK(ends({.copy = 256}));
  CHECK_FALSE(ends({.lanes = 32, .copy = 254}));
}

TEST_CASE("gpu/cluster: an access costs no more wavefronts than the kernel states") {
  const auto stride = [](uint32_t bytes) { return [=](const Args&) { ptx::store_shared_u32(tid() * bytes, 1); }; };
  CHECK(rule_of(stride(4), {.conflicts_max = 0}) == "");
  CHECK(rule_of(stride(8), {.conflicts_max = 0}) == "bank conflict");
  CHECK(rule_of(stride(8), {.conflicts_max = 1}) == "");
  CHECK(tested::run_body(stride(128)).counters.bank_conflicts == 31);
  // 16 bytes a lane are four wavefronts in any case.
  CHECK(rule_of([](const Args&) { ptx::zero_16(tid() * 16); }, {.conflicts_max = 0}) == "");
}
