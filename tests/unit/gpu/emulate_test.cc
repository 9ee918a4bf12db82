// Each instruction's test cites the section of the PTX ISA 9.0 that it follows. Values come from tables written
// independently of the emulator's code (PTX ISA figures of the fragments).
#include "base/dtype.h"
#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using tested::Args;
using tested::Outcome;
using tested::run_body;
using tested::tid;

namespace {

/// Element i of 16 bits of shared memory holds i, for 512 elements.
void fill_shared() {
  for (uint32_t word = tid(); word < 256; word += 32) ptx::store_shared_u32(word * 4, (2 * word + 1) << 16 | 2 * word);
  ptx::warp_sync();
}
/// One thread makes an mbarrier for `count` arrivals.
void init_barrier(uint32_t at, uint32_t count) {
  if (tid() == 0) {
    ptx::mbarrier_init(at, count);
    ptx::mbarrier_init_fence();
  }
  ptx::barrier_all();
}

}  // namespace

TEST_CASE("gpu/emu: lanes that branch apart meet again in a barrier (9.7.13.1)") {
  const Outcome o = run_body([](const Args& a) {
    uint32_t value = 2;
    if (tid() < 10) {
      ptx::store_shared_u32(tid() * 4, tid());
      value = 1;
    }
    ptx::barrier_all();
    ptx::store(a.out + tid(), value + 5);
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[9] == 6);
  CHECK(o.out[10] == 7);
}

TEST_CASE("gpu/emu: special registers name the thread and the CTA (10)") {
  const Outcome o = run_body(
      [](const Args& a) {
        ptx::store(a.out + 64 * ptx::ctaid_x() + tid(), 100 * ptx::ctaid_x() + ptx::ctaid_y() + tid());
      },
      {.threads = 64, .ctas = 3});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[64 * 2 + 33] == 233);
}

TEST_CASE("gpu/emu: cvt.rn.bf16x2 puts its first source into the high half (9.7.9.21)") {
  const Outcome o = run_body([](const Args& a) { ptx::store(a.out + tid(), ptx::pack_bf16(2, 1)); });
  CHECK(o.out[3] == 0x3f804000u);
}

TEST_CASE("gpu/emu: max prefers the number when one source is NaN (9.7.3.11)") {
  const float nan = std::bit_cast<float>(0x7fc00000u);
  const Outcome o = run_body([nan](const Args& a) {
    if (tid() > 0) return;
    ptx::store(a.out, std::bit_cast<uint32_t>(ptx::max_f32(nan, -3)));
    ptx::store(a.out + 1, std::bit_cast<uint32_t>(ptx::max_f32(-3, nan)));
    ptx::store(a.out + 2, std::bit_cast<uint32_t>(ptx::max_f32(-3, -2)));
  });
  CHECK(std::bit_cast<float>(o.out[0]) == -3);
  CHECK(std::bit_cast<float>(o.out[1]) == -3);
  CHECK(std::bit_cast<float>(o.out[2]) == -2);
}

TEST_CASE("gpu/emu: ex2.approx of whole numbers is exact and of -infinity is 0 (9.7.3.20)") {
  const Outcome o = run_body([](const Args& a) {
    if (tid() > 0) return;
    ptx::store(a.out, std::bit_cast<uint32_t>(ptx::exp2_approx(-3)));
    ptx::store(a.out + 1, std::bit_cast<uint32_t>(ptx::exp2_approx(kMinusInf)));
  });
  CHECK(std::bit_cast<float>(o.out[0]) == 0.125f);
  CHECK(std::bit_cast<float>(o.out[1]) == 0.f);
}

TEST_CASE("gpu/emu: shfl.bfly exchanges lanes, of 32 and of 64 bits (9.7.9.6)") {
  const Outcome o = run_body([](const Args& a) {
    const uint32_t one = ptx::shuffle_xor(tid(), 2);
    const int64_t two = ptx::shuffle_xor(int64_t{tid()} << 40, 16);
    ptx::store(a.out + tid(), one + static_cast<uint32_t>(two >> 30));
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[5] == 7 + (21u << 10));
}

TEST_CASE("gpu/emu: atom.or and atom.add return the value before (9.7.13.6)") {
  const Outcome o = run_body([](const Args& a) {
    if (tid() == 0) {
      ptx::store_shared_u32(0, 0);
      ptx::store_shared_u32(4, 0);
    }
    ptx::warp_sync();
    ptx::atomic_or_shared(0, 1u << tid());
    const uint32_t before = ptx::atomic_add_shared(4, 3);
    ptx::warp_sync();
    ptx::store(a.out + tid(), ptx::load_shared_u32(0));
    ptx::store(a.out + 32 + tid(), before % 3 == 0 && before < 96 ? ptx::load_shared_u32(4) : 0);
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[7] == 0xffffffffu);
  CHECK(o.out[32 + 7] == 96);
}

TEST_CASE("gpu/emu: ldmatrix deals rows to lanes, and columns with .trans (9.7.14.5.15)") {
  for (const bool trans : {false, true}) {
    const Outcome o = run_body([trans](const Args& a) {
      fill_shared();
      uint32_t d[4];
      if (trans)
        ptx::ldmatrix_x4_trans(d, tid() * 16);
      else
        ptx::ldmatrix_x4(d, tid() * 16);
      ptx::store(a.out + tid(), d[2]);
    });
    CHECK_MESSAGE(o.rule.empty(), o.text);
    CHECK(o.out[5] == (trans ? 0x00990091u : 0x008b008au));
    CHECK(o.counters.bank_conflicts == 0);
  }
}

TEST_CASE("gpu/emu: ldmatrix rows at a pitch of 128 bytes meet in one bank (9.7.14.5.15)") {
  const Outcome o = run_body([](const Args&) {
    for (uint32_t at = tid() * 4; at < 4096; at += 128) ptx::store_shared_u32(at, 0);
    ptx::warp_sync();
    uint32_t d[4];
    ptx::ldmatrix_x4(d, tid() * 128);
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.counters.bank_conflicts == 28);  // 7 of each matrix
}

TEST_CASE("gpu/emu: mma.m16n8k16 multiplies by the tables of fragments (9.7.14.5.8)") {
  // A[m][k] = 16 m + k, B = identity for k < 8: D[m][n] = 16 m + n.
  const Outcome o = run_body([](const Args& out) {
    const uint32_t g = tid() / 4, q = 2 * (tid() % 4);
    uint32_t a[4];
    for (uint32_t r = 0; r < 4; ++r) {
      const auto first = static_cast<float>(16 * (g + 8 * (r & 1)) + q + 8 * (r >> 1));
      a[r] = ptx::pack_bf16(first, first + 1);
    }
    const uint32_t b0 = ptx::pack_bf16(q == g ? 1.f : 0.f, q + 1 == g ? 1.f : 0.f);
    float d[4] = {};
    ptx::mma_16816(d, a, b0, 0);
    for (uint32_t r = 0; r < 4; ++r) ptx::store(out.out + 4 * tid() + r, static_cast<uint32_t>(d[r]));
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  const uint32_t expected[] = {18, 19, 146, 147};
  for (size_t r = 0; r < 4; ++r) CHECK(o.out[4 * 5 + r] == expected[r]);
  CHECK(o.counters.matrix_products == 1);
}

TEST_CASE("gpu/emu: cp.async copies the first bytes and zeroes the rest (9.7.9.25.3)") {
  for (const uint32_t bytes : {0u, 4u, 8u, 16u}) {
    INFO(bytes);
    const Outcome o = run_body([bytes](const Args& a) {
      if (tid() > 0) return;
      for (int i = 0; i < 4; ++i) ptx::store(a.out + 512 + i, 0x01020304u);
      ptx::cp_async_16(0, a.out + 512, bytes);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      for (uint32_t i = 0; i < 4; ++i) ptx::store(a.out + i, ptx::load_shared_u32(4 * i));
    });
    CHECK_MESSAGE(o.rule.empty(), o.text);
    for (uint32_t i = 0; i < 4; ++i) CHECK(o.out[i] == (4 * i < bytes ? 0x01020304u : 0u));
  }
}

TEST_CASE(
    "gpu/emu: an mbarrier's phase ends with its last arrival, and a fresh one's other parity is over (9.7.13.15)") {
  const Outcome o = run_body(
      [](const Args& a) {
        init_barrier(8192, 64);
        ptx::mbarrier_wait(8192, 1);
        ptx::store_shared_u32(tid() * 4, tid());
        ptx::mbarrier_arrive(8192);
        ptx::mbarrier_wait(8192, 0);
        ptx::store(a.out + tid(), ptx::load_shared_u32((63 - tid()) * 4));
      },
      {.threads = 64, .policy = emu::Policy::random, .seed = test::seed()});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[5] == 58);
}

TEST_CASE("gpu/emu: bar.arrive does not wait for the others (9.7.13.1)") {
  const Outcome o = run_body(
      [](const Args& a) {
        if (tid() < 32) {
          ptx::store_shared_u32(tid() * 4, 7);
          ptx::barrier_arrive<1, 64>();
        } else {
          ptx::barrier_sync<1, 64>();
          ptx::store(a.out + tid(), ptx::load_shared_u32((tid() - 32) * 4));
        }
      },
      {.threads = 64, .policy = emu::Policy::sticky, .seed = test::seed()});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[40] == 7);
}

TEST_CASE("gpu/emu: a tensor copy swizzles by absolute address and zeroes what lies outside (9.7.9.27.1.2)") {
  std::vector<uint16_t> matrix(16 * 64);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<uint16_t>(i);
  const auto copy = [&](int row, uint32_t byte) {
    return run_body(
        [=](const Args& a) {
          init_barrier(8192, 1);
          if (tid() == 0) {
            ptx::mbarrier_arrive_expect(8192, 1024);
            ptx::load_box(0, a.map, 0, row, 0, 0, 8192);
          }
          ptx::mbarrier_wait(8192, 0);
          ptx::store(a.out + tid(), ptx::load_shared_u32(byte));
        },
        {.tensor = matrix});
  };
  Outcome o = copy(8, 416);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK((o.out[0] >> 16) == 713);  // element (3, 9) of the box from row 8, at byte 0x1a2
  o = copy(12, 512);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 0);  // row 4 of the box is row 16 of 16
  o = copy(-3, 2 * 128);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 0);  // row -1
}

TEST_CASE("gpu/emu: wgmma reads swizzled tiles by their descriptors and deals rows to warps (9.7.15.5)") {
  // Rows 0 to 63 of the tensor are A[m][k] = m + 2 k, rows 64 to 127 are B[n][k] = (n == k): D[m][n] = m + 2 n, n < 16.
  std::vector<uint16_t> matrix(128 * 64);
  for (uint32_t m = 0; m < 64; ++m)
    for (uint32_t k = 0; k < 64; ++k) matrix[m * 64 + k] = f32_to_bf16(static_cast<float>(m + 2 * k));
  for (uint32_t n = 0; n < 64; ++n) matrix[(64 + n) * 64 + n] = f32_to_bf16(1);
  const Outcome o = run_body(
      [](const Args& a) {
        init_barrier(20480, 1);
        if (tid() == 0) {
          ptx::mbarrier_arrive_expect(20480, 16384);
          ptx::load_box(0, a.map, 0, 0, 0, 0, 20480);
        }
        ptx::mbarrier_wait(20480, 0);
        Acc d[32] = {};
        ptx::wgmma_fence(d);
        ptx::wgmma_64x64_ss(d, ptx::descriptor(0, 16), ptx::descriptor(8192, 16), false);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(d);
        for (uint32_t v = 0; v < 4; ++v)
          ptx::store(a.out + 4 * tid() + v, static_cast<uint32_t>(static_cast<float>(d[v])));
      },
      {.threads = 128, .shared = 24576, .tensor = matrix, .box_rows = 128});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  for (const uint32_t t : {0u, 5u, 37u, 127u})
    for (uint32_t v = 0; v < 4; ++v) {
      const uint32_t row = t / 32 * 16 + t % 32 / 4 + (v >= 2 ? 8 : 0), column = 2 * (t % 4) + (v & 1);
      CHECK(o.out[4 * t + v] == row + 2 * column);
    }
}

TEST_CASE("gpu/emu: wgmma takes A from registers, B MN-major, and adds to its accumulators (9.7.15.5)") {
  // B[k][n] = k + n in rows of 64 n; A[m][k] = (k == m % 16): D[m][n] = 100 + 2 (m % 16 + n), twice the product.
  std::vector<uint16_t> matrix(64 * 64);
  for (uint32_t k = 0; k < 64; ++k)
    for (uint32_t n = 0; n < 64; ++n) matrix[k * 64 + n] = f32_to_bf16(static_cast<float>(k + n));
  const Outcome o = run_body(
      [](const Args& args) {
        init_barrier(20480, 1);
        if (tid() == 0) {
          ptx::mbarrier_arrive_expect(20480, 8192);
          ptx::load_box(0, args.map, 0, 0, 0, 0, 20480);
        }
        ptx::mbarrier_wait(20480, 0);
        const uint32_t g = tid() % 32 / 4, q = 2 * (tid() % 4);
        uint32_t a[4];
        for (uint32_t r = 0; r < 4; ++r) {
          const uint32_t row = g + 8 * (r & 1), k = q + 8 * (r >> 1);
          a[r] = ptx::pack_bf16(k == row ? 1.f : 0.f, k + 1 == row ? 1.f : 0.f);
        }
        Acc d[32];
        for (Acc& x : d) x = 100;
        ptx::wgmma_hold(a);
        ptx::wgmma_fence(d);
        for (int i = 0; i < 2; ++i) ptx::wgmma_64x64_rs(d, a, ptx::descriptor(0, 8192));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(d);
        for (uint32_t v = 0; v < 4; ++v)
          ptx::store(args.out + 4 * tid() + v, static_cast<uint32_t>(static_cast<float>(d[v])));
      },
      {.threads = 128, .shared = 24576, .tensor = matrix, .box_rows = 64});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  for (const uint32_t t : {0u, 9u, 70u, 127u})
    for (uint32_t v = 0; v < 4; ++v) {
      const uint32_t row = t % 32 / 4 + (v >= 2 ? 8 : 0), column = 2 * (t % 4) + (v & 1);
      CHECK(o.out[4 * t + v] == 100 + 2 * (row + column));
    }
}

TEST_CASE("gpu/emu: a failure names rule, line, kernel, CTA, warp, lane, seed and policy") {
  const tested::Body body = [](const Args& a) { ptx::store(a.out + 1024, tid()); };
  const std::string line = std::to_string(__LINE__ - 1);
  const Outcome o = run_body(body, {.policy = emu::Policy::sticky, .seed = 77});
  CHECK(o.rule == "bounds");
  for (const std::string& part : {"st.global at emulate_test.cc:" + line + ":", std::string("kernel k, CTA (0, 0, 0)"),
                                  std::string("warp 0, lane "), std::string("seed 77, policy sticky")})
    CHECK_MESSAGE(o.text.find(part) != std::string::npos, o.text);
}

TEST_CASE("gpu/emu: one seed is one interleaving") {
  // 64 threads take tickets; the order of the warps decides who gets which.
  const auto run_once = [&](uint64_t seed) {
    return run_body(
        [](const Args& a) {
          if (tid() == 0) ptx::store_shared_u32(0, 0);
          ptx::barrier_all();
          ptx::store(a.out + tid(), ptx::atomic_add_shared(0, 1));
        },
        {.threads = 64, .policy = emu::Policy::random, .seed = seed});
  };
  const Outcome first = run_once(5);
  CHECK_MESSAGE(first.rule.empty(), first.text);
  CHECK(run_once(5).out == first.out);
  bool other = false;
  for (uint64_t seed = 6; seed < 16; ++seed) other = other || run_once(seed).out != first.out;
  CHECK(other);
}

TEST_CASE("gpu/emu: an exception in one lane's frames stays there") {
  const Outcome o = run_body([](const Args& a) {
    try {
      throw tid();
    } catch (uint32_t thrown) {
      ptx::store(a.out + tid(), thrown);
    }
  });
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[31] == 31);
}
