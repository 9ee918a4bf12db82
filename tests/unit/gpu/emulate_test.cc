// Each instruction's test cites the section of the PTX ISA 9.0 that it follows. Values come from tables written
// independently of the emulator's code (PTX ISA figures of the fragments).
#include "base/dtype.h"
#include "gpu/emu/emu.h"
#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using tested::Outcome;
using tested::run_body;

namespace {

/// Stores %r10 of every thread to out[tid].
const std::string kStore = "mul.wide.u32 %rd2, %r0, 4;\nadd.s64 %rd2, %rd1, %rd2;\nst.global.u32 [%rd2], %r10;\n";
/// Shared words 0 .. 255 become 2i | (2i + 1) << 16: element i of 16 bits holds i.
const std::string kFillShared =
    "mov.u32 %r1, 0;\nfill: shl.b32 %r2, %r1, 5;\nadd.s32 %r2, %r2, %r0;\nshl.b32 %r3, %r2, 2;\nshl.b32 %r4, %r2, 1;\n"
    "add.s32 %r5, %r4, 1;\nshl.b32 %r5, %r5, 16;\nor.b32 %r4, %r4, %r5;\nst.shared.u32 [%r3], %r4;\n"
    "add.s32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 8;\n@%p1 bra fill;\nbar.warp.sync -1;\n";

}  // namespace

TEST_CASE("gpu/emu: lanes that branch apart meet again") {
  const Outcome o = run_body(
      "setp.lt.u32 %p1, %r0, 10;\nmov.u32 %r10, 1;\n@%p1 bra low;\nmov.u32 %r10, 2;\nlow: "
      "add.s32 %r10, %r10, 5;\nbar.sync 0;\n" +
      kStore);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[9] == 6);
  CHECK(o.out[10] == 7);
}

TEST_CASE("gpu/emu: integer arithmetic wraps and shifts clamp (9.7.1, 9.7.8)") {
  const Outcome o = run_body(
      "mov.u32 %r1, -1;\nshr.u32 %r2, %r1, 40;\nshr.s32 %r3, %r1, 40;\nadd.s32 %r10, %r2, %r3;\n"
      "mul.hi.u32 %r4, %r1, %r1;\nadd.s32 %r10, %r10, %r4;\n" +
      kStore);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 0xfffffffdu);  // 0 - 1 + 0xfffffffe
}

TEST_CASE("gpu/emu: cvt.rn.bf16x2 puts its first source into the high half (9.7.9.21)") {
  const Outcome o = run_body("cvt.rn.bf16x2.f32 %r10, 0f3F800000, 0f40000000;\n" + kStore);
  CHECK(o.out[3] == 0x3f804000u);
}

TEST_CASE("gpu/emu: shfl.bfly exchanges lanes (9.7.9.6)") {
  const Outcome o = run_body("shfl.sync.bfly.b32 %r10, %r0, 2, 31, -1;\n" + kStore);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[5] == 7);
}

TEST_CASE("gpu/emu: ldmatrix deals rows to lanes, and columns with .trans (9.7.14.5.15)") {
  for (const bool trans : {false, true}) {
    const Outcome o = run_body(kFillShared + "shl.b32 %r6, %r0, 4;\nldmatrix.sync.aligned.m8n8.x4" +
                               (trans ? ".trans" : "") + ".shared.b16 {%r11, %r12, %r10, %r13}, [%r6];\n" + kStore);
    CHECK_MESSAGE(o.rule.empty(), o.text);
    CHECK(o.out[5] == (trans ? 0x00990091u : 0x008b008au));
  }
}

TEST_CASE("gpu/emu: mma.m16n8k16 multiplies by the tables of fragments (9.7.14.5.8)") {
  // A[m][k] = 16 m + k, B = identity for k < 8: D[m][n] = 16 m + n.
  std::string body = "shr.u32 %r1, %r0, 2;\nand.b32 %r2, %r0, 3;\nshl.b32 %r2, %r2, 1;\n";
  for (int r = 0; r < 4; ++r) {
    body += "shl.b32 %r3, %r1, 4;\nadd.s32 %r3, %r3, %r2;\nadd.s32 %r3, %r3, " +
            std::to_string(128 * (r & 1) + 8 * (r >> 1)) +
            ";\nadd.s32 %r4, %r3, 1;\ncvt.rn.f32.s32 %f1, %r3;\n"
            "cvt.rn.f32.s32 %f2, %r4;\ncvt.rn.bf16x2.f32 %r" +
            std::to_string(20 + r) + ", %f2, %f1;\n";
  }
  // B register 0: k = 2q, 2q + 1 against n = g; register 1 (k >= 8) is zero.
  body +=
      "sub.s32 %r5, %r1, %r2;\nmov.u32 %r24, 0;\nmov.u32 %r25, 0;\nsetp.eq.s32 %p1, %r5, 0;\n@%p1 mov.u32 %r24, "
      "0x3f80;\n"
      "setp.eq.s32 %p2, %r5, 1;\n@%p2 mov.u32 %r24, 0x3f800000;\nmov.f32 %f10, 0f00000000;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f20,%f21,%f22,%f23}, {%r20,%r21,%r22,%r23}, {%r24,%r25}, "
      "{%f10,%f10,%f10,%f10};\ncvt.rzi.s32.f32 %r30, %f20;\ncvt.rzi.s32.f32 %r31, %f21;\ncvt.rzi.s32.f32 %r32, %f22;\n"
      "cvt.rzi.s32.f32 %r33, %f23;\nshl.b32 %r6, %r32, 16;\nor.b32 %r10, %r30, %r6;\n";
  const Outcome o = run_body(body + kStore);
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[5] == (146u << 16 | 18u));
  CHECK(o.counters.matrix_products == 1);
}

TEST_CASE("gpu/emu: cp.async copies the first bytes and zeroes the rest (9.7.9.25.3)") {
  for (const uint32_t bytes : {0u, 4u, 8u, 16u}) {
    INFO(bytes);
    const Outcome one = run_body(
        "setp.ne.s32 %p1, %r0, 0;\n@%p1 ret;\nmov.u32 %r1, 0x01020304;\n"
        "st.global.v4.u32 [%rd1+2048], {%r1, %r1, %r1, %r1};\nmov.u32 %r2, " +
        std::to_string(bytes) +
        ";\ncp.async.cg.shared.global [%r0], [%rd1+2048], 16, %r2;\ncp.async.commit_group;\n"
        "cp.async.wait_group 0;\nld.shared.u32 %r10, [%r0+8];\nst.global.u32 [%rd1], %r10;");
    CHECK_MESSAGE(one.rule.empty(), one.text);
    CHECK(one.out[0] == (bytes > 8 ? 0x01020304u : 0u));
  }
}

TEST_CASE("gpu/emu: a tensor copy swizzles by absolute address and zeroes what lies outside (9.7.9.27.1.2)") {
  std::vector<uint16_t> matrix(16 * 64);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<uint16_t>(i);
  const std::string setup =
      "setp.ne.s32 %p1, %r0, 0;\n@%p1 bra made;\nmbarrier.init.shared::cta.b64 [8192], 1;\n"
      "fence.mbarrier_init.release.cluster;\nmade: bar.sync 0;\n@%p1 bra issued;\nmov.b64 %rd5, k_map;\n"
      "cvta.param.u64 %rd6, %rd5;\nmov.u32 %r20, 8192;\nmov.u32 %r21, 0;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 1024;\n";
  const std::string rest =
      "issued: { .reg .pred ok; again: mbarrier.try_wait.parity.shared::cta.b64 ok, [8192], 0; @ok bra over; bra "
      "again; "
      "over: }\nshl.b32 %r1, %r0, 5;\nadd.s32 %r2, %r1, 0;\nld.shared.u16 %r10, [%r2];\n";
  const std::string copy =
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r21], "
      "[%rd6, {%r21, %r22}], [%r20];\n";
  Outcome o = run_body(setup + "mov.u32 %r22, 8;\n" + copy + rest + "ld.shared.u16 %r10, [418];\n" + kStore,
                       {.tensor = matrix});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 713);  // element (3, 9) of the box from row 8, at byte 0x1a2
  o = run_body(setup + "mov.u32 %r22, 12;\n" + copy + rest + "ld.shared.u16 %r10, [512];\n" + kStore,
               {.tensor = matrix});
  CHECK_MESSAGE(o.rule.empty(), o.text);
  CHECK(o.out[0] == 0);  // row 4 of the box is row 16 of 16
}

TEST_CASE("gpu/emu: a failure names rule, kernel, CTA, warp, seed and policy") {
  const Outcome o = run_body("st.global.u32 [%rd1+4096], %r0;", {.policy = emu::Policy::sticky, .seed = 77});
  CHECK(o.rule == "bounds");
  for (const char* part :
       {"st.global.u32 at PTX line", "kernel k", "CTA (0, 0, 0)", "warp 0", "seed 77", "policy sticky"})
    CHECK_MESSAGE(o.text.find(part) != std::string::npos, o.text);
}

TEST_CASE("gpu/emu: one seed is one interleaving") {
  // 64 threads take tickets; the order of the warps decides who gets which.
  const std::string racy =
      "setp.ne.s32 %p1, %r0, 0;\nmov.u32 %r1, 0;\n@%p1 bra made;\nst.shared.u32 [%r1], %r1;\nmade: "
      "bar.sync 0;\natom.shared.add.u32 %r10, [%r1], 1;\n" +
      kStore;
  const auto run_once = [&](uint64_t seed) {
    return run_body(racy, {.threads = 64, .policy = emu::Policy::random, .seed = seed});
  };
  const Outcome first = run_once(5);
  CHECK_MESSAGE(first.rule.empty(), first.text);
  CHECK(run_once(5).out == first.out);
  bool other = false;
  for (uint64_t seed = 6; seed < 16; ++seed) other = other || run_once(seed).out != first.out;
  CHECK(other);
}

TEST_CASE("gpu/emu: wgmma reads swizzled tiles by their descriptors and deals rows to warps (9.7.15.5)") {
  // Rows 0 to 63 of the tensor are A[m][k] = m + 2 k, rows 64 to 71 are B[n][k] = (n == k): D[m][n] = m + 2 n.
  std::vector<uint16_t> matrix(72 * 64);
  for (uint32_t m = 0; m < 64; ++m)
    for (uint32_t k = 0; k < 64; ++k) matrix[m * 64 + k] = f32_to_bf16(static_cast<float>(m + 2 * k));
  for (uint32_t n = 0; n < 8; ++n) matrix[(64 + n) * 64 + n] = f32_to_bf16(1);
  const std::string body =
      "setp.ne.s32 %p1, %r0, 0;\nmov.u32 %r20, 12288;\nmov.u32 %r21, 0;\nmov.b64 %rd5, k_map;\n"
      "cvta.param.u64 %rd6, %rd5;\n@%p1 bra made;\nmbarrier.init.shared::cta.b64 [%r20], 1;\n"
      "fence.mbarrier_init.release.cluster;\nmade: bar.sync 0;\n@%p1 bra issued;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 9216;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r21], [%rd6, {%r21, %r21}], "
      "[%r20];\nissued: { .reg .pred ok; again: mbarrier.try_wait.parity.shared::cta.b64 ok, [%r20], 0; @ok bra over; "
      "bra "
      "again; over: }\nmov.b64 %rd7, 0x4000004000010000;\nmov.b64 %rd8, "
      "0x4000004000010200;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %rd7, %rd8, 0, 1, 1, 0, 0;\n"
      "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  for (int v = 0; v < 4; ++v) {
    const Outcome o = run_body(body + "cvt.rzi.s32.f32 %r10, %f" + std::to_string(v + 1) + ";\n" + kStore,
                               {.threads = 128, .tensor = matrix, .box_rows = 72});
    CHECK_MESSAGE(o.rule.empty(), o.text);
    for (uint32_t t : {0u, 5u, 37u, 127u}) {
      const uint32_t row = t / 32 * 16 + t % 32 / 4 + (v >= 2 ? 8 : 0),
                     column = 2 * (t % 4) + static_cast<uint32_t>(v & 1);
      CHECK(o.out[t] == row + 2 * column);
    }
  }
}
