// Kernels of a layer with one instruction left out: a run of each such mutant breaks a rule, or gives another result.
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/extent.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/layer.h"
#include "unit/gpu/device_bench.h"

namespace layer_mutants_test {
namespace {

using namespace mc;
using namespace mc::gpu;
using tested::Bench;
using tested::normal;

using Bytes = std::vector<std::byte>;

/// A launch, and what it leaves in the buffers that it writes.
struct Run {
  Bench& bench;
  Bytes out;
  bool is_broken = false;

  template <class Args>
  void launch(std::string_view kernel, const LaunchShape& shape, const Args& args) {
    is_broken = is_broken || !bench.device->launch(kernel, shape, bytes_of(args));
  }
  template <class T>
  void take(const T* at, size_t count) {
    Bytes bytes(count * sizeof(T));
    if (is_broken || !bench.device->read(reinterpret_cast<uint64_t>(at), bytes)) {
      is_broken = true;
      return;
    }
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
};

/// Leaves out each instruction that a kernel runs, one at a time, under one policy after another. At least `least`
/// mutants, so that a kernel which returns early is found.
void check_mutants(int least, const std::function<void(Run&)>& body) {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  std::vector<emu::Site> sites;
  Bench sound({.sites = &sites});
  Run want{sound};
  body(want);
  REQUIRE_FALSE(want.is_broken);
  const std::set<emu::Site> once(sites.begin(), sites.end());
  int mutants = 0;
  for (const emu::Site& site : once) {
    if (site.instruction == emu::Instruction::exit) continue;
    const emu::Mutation mutation{.site = site};
    const auto policy = static_cast<emu::Policy>(mutants++ % emu::kPolicies);
    Bench bench({.seed = rng.next(), .policy = policy, .mutation = &mutation});
    Run got{bench};
    body(got);
    CHECK_MESSAGE((got.is_broken || got.out != want.out), emu::to_string(site.instruction), " at ", site.file, ":",
                  site.line, ":", site.column);
  }
  CHECK(mutants >= least);
}

constexpr int kHeads = 4, kKvHeads = 2, kDim = 64, kRows = 6;
constexpr size_t kWidth = (kHeads + 2 * kKvHeads) * kDim;

ExtentLayout layout_of(Dtype dtype) {
  return {.layers = 1, .kv_heads = kKvHeads, .head_dim = kDim, .block_tokens = 64, .dtype = dtype};
}

/// Two pages whose bytes are 0x35: no element is zero or NaN.
KvPool put_pages(Bench& bench, const ExtentLayout& layout) {
  const bool has_codes = layout.dtype == Dtype::f8_e4m3;
  return {bench.put(std::vector<unsigned char>(2 * layout.page_bytes(), 0x35)),
          layout.page_bytes(),
          layout.head_bytes(),
          static_cast<uint32_t>(layout.v_offset()),
          static_cast<uint32_t>(layout.ksum_offset()),
          static_cast<uint32_t>(layout.kmean_offset()),
          64,
          kKvHeads,
          has_codes ? static_cast<uint32_t>(layout.scale_offset()) : 0};
}

TEST_CASE("gpu/layer_mutants: each instruction that rms_norm, silu_mul or add_to_rows leaves out is seen") {
  Rng rng(test::seed());
  constexpr size_t kColumns = 72, kTotal = 5 * kColumns;
  const std::vector<float> x = normal(rng, kTotal * 2), weight = normal(rng, kColumns);
  check_mutants(6, [&](Run& run) {
    const NormArgs args{.x = run.bench.put(x),
                        .weight = run.bench.put(weight),
                        .out = run.bench.put(std::vector<uint16_t>(kTotal, 0xeeee)),
                        .rows = 5,
                        .columns = kColumns,
                        .epsilon = 1e-5f};
    run.launch("rms_norm", {.grid = {2, 1, 1}}, args);
    run.take(args.out, kTotal);
  });
  check_mutants(4, [&](Run& run) {
    const SiluArgs args{
        .gate_up = run.bench.put(x), .out = run.bench.put(std::vector<uint16_t>(kTotal, 0xeeee)), .columns = kColumns};
    run.launch("silu_mul", {.grid = {5, 1, 1}}, args);
    run.take(args.out, kTotal);
  });
  check_mutants(4, [&](Run& run) {
    const AddArgs args{.x = run.bench.put(weight), .y = run.bench.put(x), .columns = kColumns};
    run.launch("add_to_rows", {.grid = {5, 1, 1}}, args);
    run.take(args.y, kTotal);
  });
}

TEST_CASE("gpu/layer_mutants: each instruction that rotate_and_keep leaves out is seen, for bf16 and for codes") {
  Rng rng(test::seed());
  const std::vector<float> qkv = normal(rng, kRows * kWidth), norm = normal(rng, kDim);
  const std::vector<float> cosine = normal(rng, kRows * kDim / 2), sine = normal(rng, kRows * kDim / 2);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    const ExtentLayout layout = layout_of(dtype);
    check_mutants(dtype == Dtype::bf16 ? 15 : 14, [&](Run& run) {
      Bench& bench = run.bench;
      std::vector<RowPlace> places;
      for (int r = 0; r < kRows; ++r) places.push_back({1 - r / 4, 3 + r});
      constexpr size_t kQ = kRows * kHeads * kDim, kKept = 2 * 2 * kKvHeads * kDim;
      const float* norms = bench.put(norm);
      const RotateArgs args{.pool = put_pages(bench, layout),
                            .qkv = bench.put(qkv),
                            .cosine = bench.put(cosine),
                            .sine = bench.put(sine),
                            .q_norm = norms,
                            .k_norm = norms,
                            .places = bench.put(places),
                            .q = bench.put(std::vector<uint16_t>(kQ, 0xeeee)),
                            .kept = bench.put(std::vector<uint16_t>(kKept, 0xeeee)),
                            .kept_rows = 2,
                            .q_heads = kHeads,
                            .head_dim = kDim,
                            .epsilon = 1e-5f};
      run.launch("rotate_and_keep", {.grid = {kRows, 2, 1}}, args);
      run.take(args.pool.base, 2 * layout.page_bytes());
      run.take(args.qkv, qkv.size());
      run.take(args.q, kQ);
      run.take(args.kept, kKept);
    });
  }
}

TEST_CASE("gpu/layer_mutants: each instruction that code_rows or gather_rows leaves out is seen") {
  Rng rng(test::seed());
  const ExtentLayout layout = layout_of(Dtype::f8_e4m3);
  std::vector<float> qkv = normal(rng, kRows * kWidth);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] *= static_cast<float>(1 << i / kWidth);  // later rows are larger
  check_mutants(12, [&](Run& run) {
    Bench& bench = run.bench;
    const size_t kept = kRows * kept_code_bytes(kKvHeads, kDim);
    CodeArgs args{.pool = put_pages(bench, layout),
                  .qkv = bench.put(qkv),
                  .kept = bench.put(std::vector<unsigned char>(kept, 0xee)),
                  .kept_rows = kRows,
                  .q_heads = kHeads,
                  .head_dim = kDim};
    // The second pass begins inside page 1, whose codes it shifts.
    const PageRows* passes = bench.put(std::vector<PageRows>{{1, 0, 0, 2}, {1, 2, 2, 4}});
    for (int pass = 0; pass < 2; ++pass) {
      args.pages = passes + pass;
      run.launch("code_rows", {.grid = {1, kKvHeads, 2}, .dynamic_shared = kCodeShared}, args);
    }
    run.take(args.pool.base, 2 * layout.page_bytes());
    run.take(args.kept, kept);
  });
  constexpr int kWords = 130;
  std::vector<uint32_t> from(7 * kWords);
  for (uint32_t& word : from) word = static_cast<uint32_t>(rng.next());
  check_mutants(3, [&](Run& run) {
    const GatherArgs args{.from = run.bench.put(from),
                          .to = run.bench.put(std::vector<uint32_t>(3 * kWords)),
                          .rows = run.bench.put(std::vector<int32_t>{1, 6, 3}),
                          .words = kWords};
    run.launch("gather_rows", {.grid = {3, 1, 1}}, args);
    run.take(args.to, 3 * kWords);
  });
}

TEST_CASE("gpu/layer_mutants: each instruction that seal_pages leaves out is seen, for bf16 and for codes") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    const ExtentLayout layout = layout_of(dtype);
    check_mutants(dtype == Dtype::bf16 ? 7 : 9, [&](Run& run) {
      const SealArgs args{.pool = put_pages(run.bench, layout),
                          .pages = run.bench.put(std::vector<RowPlace>{{1, 6}, {0, 63}}),
                          .head_dim = kDim};
      run.launch("seal_pages", {.grid = {2, kKvHeads, 1}}, args);
      run.take(args.pool.base, 2 * layout.page_bytes());
    });
  }
}

/// Files whose tests change the kernels that they name, and the kernels of those files.
const std::map<std::string_view, std::set<std::string_view>> kMutated = {
    {"tools/mc-bench/gpu_mutants.cc",
     {"attention_prefill_d64", "attention_decode_d64", "attention_prefill_e4m3_d64", "attention_decode_e4m3_d64",
      "attention_combine", "attention_hopper_d64", "moba_routed_d64", "moba_merge_d64", "moba_wide_d64",
      "moba_stationary_d64", "moba_transposed_d64", "moba_merge_hopper_d64", "attention_cluster_d64", "moba_centroids",
      "moba_gate_d64"}},
    {"tools/mc-bench/gpu_mutants.inc",
     {"moba_unite", "moba_count", "moba_offsets", "moba_lists", "moba_scores_d64", "moba_choose_d64"}},
    {"tools/mc-bench/gpu_experts.cc",
     {"route_rows", "group_rows", "combine_experts", "expert_product_64", "expert_product_16"}},
    {"tests/unit/gpu/layer_test.cc", {"embed_rows", "product_64", "product_16", "checksum_extents"}},
    {"tests/unit/gpu/layer_mutants_test.cc",
     {"rms_norm", "silu_mul", "add_to_rows", "rotate_and_keep", "code_rows", "gather_rows", "seal_pages"}},
    {"tests/unit/model/device_draws_test.cc", {"draw_rows", "count_tokens"}},
};
/// Files whose mutants are of every kernel that a product runs, and name none.
const std::set<std::string_view> kUnnamed = {"quantise_rows", "take_rows"};  // tests/unit/gpu/fp8_product_test.cc

std::string text_of(std::string_view file) {
  std::ifstream in(test::source_dir() + "/" + std::string(file));
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST_CASE("gpu/layer_mutants: every kernel has a mutant, or is an instance of the code of one that has") {
  std::set<std::string_view> known = kUnnamed;
  for (const auto& [file, kernels] : kMutated) {
    const std::string text = text_of(file);
    for (const std::string_view kernel : kernels) {
      CHECK_MESSAGE(text.find('"' + std::string(kernel) + '"') != std::string::npos, file, " names no ", kernel);
      known.insert(kernel);
    }
  }
  const std::string trials = text_of("tools/mc-bench/gpu_trials.cc");
  std::set<std::string_view> all;
  for (const emu::Kernel& kernel : emulated_kernels()) {
    const std::string name(kernel.name);
    all.insert(kernel.name);
    // A kernel for heads of 128 is the template of the one for heads of 64.
    const bool is_wide = name.ends_with("_d128");
    const std::string of = is_wide ? name.substr(0, name.size() - 3) + "64" : name;
    CHECK_MESSAGE((known.contains(of) || trials.find('"' + name + '"') != std::string::npos), name);
  }
  for (const std::string_view kernel : known) CHECK_MESSAGE(all.contains(kernel), kernel, " is no kernel");
}

}  // namespace
}  // namespace layer_mutants_test
