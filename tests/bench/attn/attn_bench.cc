// Attention's rate as a share of what this machine can do. One line a measurement: best of the repeats,
// variants interleaved. With one thread the time is processor time, which other processes on the machine
// disturb less than the clock on the wall. Usage: bench-attn [--threads N] [--repeats N] [substring of the line to
// run].
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attn/attn.h"
#include "base/parallel.h"
#include "property/attn/case.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

struct Options {
  int threads = 1;
  int repeats = 7;
  const char* only = "";
};

struct Setup {
  const char* name;
  int64_t tokens;
  uint32_t kv_heads;
  int32_t q_heads;
  uint32_t head_dim;
  Dtype dtype;
  Mode mode;
  bool decode;
};

constexpr Mode kMoba128x8 = {ModeKind::moba, 128, 8};
constexpr Mode kMoba512x3 = {ModeKind::moba, 512, 3};
constexpr Setup kSetups[] = {
    {"prefill full", 2048, 2, 8, 64, Dtype::bf16, {}, false},
    {"prefill full", 8192, 2, 8, 64, Dtype::bf16, {}, false},
    {"prefill full", 2048, 2, 8, 128, Dtype::bf16, {}, false},
    {"prefill full", 8192, 2, 8, 128, Dtype::bf16, {}, false},
    {"prefill full", 4096, 2, 8, 128, Dtype::f32, {}, false},
    {"prefill moba", 8192, 2, 8, 128, Dtype::bf16, kMoba128x8, false},
    {"prefill moba", 8192, 2, 8, 128, Dtype::bf16, kMoba512x3, false},
    {"prefill moba", 32768, 1, 4, 128, Dtype::bf16, kMoba128x8, false},
    {"decode full", 65536, 8, 32, 128, Dtype::bf16, {}, true},
    {"decode full", 65536, 8, 32, 64, Dtype::bf16, {}, true},
    {"decode full", 32768, 8, 32, 128, Dtype::f32, {}, true},
    {"decode full", 2048, 1, 4, 128, Dtype::bf16, {}, true},
    {"decode full", 2048, 1, 4, 128, Dtype::f32, {}, true},
    {"decode moba", 65536, 8, 32, 128, Dtype::bf16, kMoba128x8, true},
};

double now_seconds(int threads) {
  timespec t = {};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void run(const Setup& setup, const Options& options, const MachinePeak& peak, Parallel& pool) {
  char label[160];
  std::snprintf(label, sizeof(label), "%s n=%lld heads=%d/%u d=%u %s block=%d k=%d", setup.name,
                static_cast<long long>(setup.tokens), setup.q_heads, setup.kv_heads, setup.head_dim,
                std::string(mc::to_string(setup.dtype)).c_str(), setup.mode.block, setup.mode.top_k);
  if (std::strstr(label, options.only) == nullptr) return;
  Rng rng(7);
  const ExtentLayout layout = layout_of(setup.kv_heads, setup.head_dim, setup.dtype);
  const Rows rows = random_rows(layout, setup.tokens, Data::normal, rng);
  Pages pages(layout, setup.tokens, true, rng);
  pages.append(rows, 0, setup.tokens, &pool);
  const int64_t q_rows = setup.decode ? 1 : setup.tokens;
  const Case c = {layout, setup.mode, setup.q_heads, setup.tokens, setup.tokens - q_rows, q_rows, Data::normal};
  const std::vector<float> q = random_queries(c, rng);
  std::vector<float> out(out_floats(c));
  const KvView kv = pages.view(setup.tokens);
  const std::vector<std::string> names = fast_variants();
  std::vector<double> best(names.size(), 1e30);
  std::vector<Attention> attentions;
  for (const std::string& name : names) attentions.push_back(std::move(Attention::open(pool, name)).value());
  for (int repeat = 0; repeat < options.repeats; ++repeat)
    for (size_t i = 0; i < names.size(); ++i) {
      const double start = now_seconds(options.threads);
      const auto done = setup.decode ? attentions[i].decode({.layout = layout,
                                                             .q_heads = setup.q_heads,
                                                             .sequences = 1,
                                                             .modes = &setup.mode,
                                                             .q = q.data(),
                                                             .kv = &kv,
                                                             .out = out.data()})
                                     : attentions[i].prefill(args_of(c, q, kv, out.data()));
      if (!done) std::exit(1);
      best[i] = std::min(best[i], now_seconds(options.threads) - start);
    }
  for (size_t i = 0; i < names.size(); ++i) {
    if (setup.decode) {
      const double bytes = setup.mode.kind == ModeKind::full ? decode_bytes(layout, setup.tokens) : 0;
      std::printf("%-62s %-10s %9.3f ms %8.1f GB/s  %5.1f%% of read bandwidth\n", label, names[i].c_str(),
                  best[i] * 1e3, bytes / best[i] / 1e9, 100 * bytes / best[i] / peak.read_bytes_per_s);
      continue;
    }
    const double flop = prefill_flop(setup.mode, setup.q_heads, static_cast<int32_t>(setup.head_dim), 0, setup.tokens) +
                        gate_flop(setup.mode, setup.q_heads, static_cast<int32_t>(setup.head_dim), 0, setup.tokens);
    const double rate = peak.rate(bounding_rate(names[i], setup.dtype));
    std::printf("%-62s %-10s %9.2f ms %8.1f GFLOP/s  %5.1f%% of its instruction, %5.1f%% of the machine\n", label,
                names[i].c_str(), best[i] * 1e3, flop / best[i] / 1e9, 100 * flop / best[i] / rate,
                100 * flop / best[i] / peak.best_flop_per_s());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
      options.threads = std::max(1, std::atoi(argv[++i]));
    else if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc)
      options.repeats = std::max(1, std::atoi(argv[++i]));
    else
      options.only = argv[i];
  }
  Parallel pool(options.threads);
  const MachinePeak peak = measure_peak(pool, 2s);
  std::printf("threads %d  read %.1f GB/s", peak.threads, peak.read_bytes_per_s / 1e9);
  for (const PeakRate& rate : peak.rates) std::printf("  %s %.1f GFLOP/s", rate.name.c_str(), rate.flop_per_s / 1e9);
  std::printf("\n");
  for (const Setup& setup : kSetups) run(setup, options, peak, pool);
  return 0;
}
