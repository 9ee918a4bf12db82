// `mc-bench attn`: attention alone, its rate as a share of what the machine can do (measured right before) and,
// for sparse modes, its speed as a multiple of full attention. Plans and variants take turns on one shape,
// so that a drift of the machine favours none; ratios are medians over the turns.

#include "attn/attn.h"

#include <algorithm>

#include "attn_case.h"
#include "base/errors.h"
#include "host/engine.h"
#include "mem/mem.h"
#include "print.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"
#include "xfer_against.h"

namespace mc::bench {
namespace {

constexpr Flag kPhase{.name = "phase",
                      .kind = FlagKind::list,
                      .value = "P,P",
                      .fallback = "prefill,decode",
                      .help = "prefill of the whole context, decode of one token at its end"};
constexpr Flag kAttnLengths{.name = "tokens",
                            .letter = 'n',
                            .kind = FlagKind::sweep_counts,
                            .value = "N,N",
                            .fallback = "1024-16384*4",
                            .help = "lengths of the context: 1024-1048576*4"};
constexpr Flag kPlans{.name = "attention",
                      .kind = FlagKind::list,
                      .value = "PLAN,PLAN",
                      .fallback = "full,moba:block=128,top_k=8,moba:block=512,top_k=3",
                      .help = "plans that take turns; a ratio needs full among them"};
std::vector<std::string_view> attention_kernels() {
  std::vector<std::string_view> names;
  for (const attn::Variant* variant : attn::variants()) names.push_back(attn::name_of(*variant));
  return names;
}
constexpr Flag kAttnVariants{.name = "kernels",
                             .kind = FlagKind::list,
                             .value = "V,V",
                             .fallback = "auto",
                             .help = "variants that take turns",
                             .choices = "auto",
                             .table = attention_kernels};
constexpr Flag kAttnDtypes{.name = "dtype",
                           .kind = FlagKind::list,
                           .value = "T,T",
                           .fallback = "bf16",
                           .help = "types of K and V: bf16, f32, fp8_e4m3"};
constexpr Flag kHeadDims{
    .name = "head-dim", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "128", .help = "head dimensions"};
constexpr Flag kChunk{.name = "chunk-tokens",
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "4096",
                      .help = "rows of one prefill call"};
/// Whether neighbouring rows choose the same moba blocks.
constexpr FlagWord<bool> kRoutings[] = {{"random", false}, {"coherent", true}};
constexpr ChoiceFlag kRouting = with_choices<kRoutings>(
    {.name = "routing",
     .kind = FlagKind::choice,
     .value = "R",
     .fallback = "random",
     .help = "random: each row chooses its own moba blocks; coherent: neighbours choose alike"});
/// Whether decode gathers the centroids, or reads them in the pages.
constexpr FlagWord<bool> kCentroidPlaces[] = {{"gathered", true}, {"pages", false}};
constexpr ChoiceFlag kCentroids = with_choices<kCentroidPlaces>(
    {.name = "centroids",
     .kind = FlagKind::choice,
     .value = "C",
     .fallback = "gathered",
     .help = "where the gate of decode reads centroids: gathered as in a decode node, or in the pages"});

constexpr auto kAttnFlagTable =
    flags::join(flags::list(&kPhase, &kAttnLengths, &kPlans, &kAttnVariants, &kAttnDtypes, &kHeads, &kHeadDims, &kChunk,
                            &kRouting, &kCentroids, &kRepeats, &flags::kBlockTokens, &flags::kThreads, &flags::kSeed,
                            &kFormat, &flags::kOutput, &flags::kQuiet),
                flags::kEveryRun);

constexpr int64_t kTokensMax = int64_t{1} << 24;

/// A plan or a variant as it was asked for.
struct AttnContender {
  std::string plan;
  attn::Mode mode;
  attn::Attention* attention;
  std::string kernels;
  std::vector<double> seconds;
};

struct Variants {
  std::vector<std::string> names;
  std::vector<attn::Attention> opened;
};

Result<Variants> open_variants(const cli::Args& args, Parallel& parallel) {
  Variants out;
  for (const std::string& name : args.list(kAttnVariants)) {
    MC_TRY(opened, attn::Attention::open(parallel, name));
    out.names.emplace_back(attn::name_of(opened.variant()));
    out.opened.push_back(std::move(opened));
  }
  return out;
}

Result<std::vector<AttnShape>> read_shapes(const cli::Args& args) {
  std::vector<AttnShape> shapes;
  const auto block = static_cast<uint32_t>(args.count(flags::kBlockTokens));
  for (const std::string& phase : args.list(kPhase)) {
    if (phase != "prefill" && phase != "decode")
      return user_error(err::kBadValue, "'" + phase + "' is not a phase; there are prefill and decode", "--phase");
    for (const std::string& heads : args.list(kHeads)) {
      MC_TRY(counts, read_heads(heads));
      for (const std::string& name : args.list(kAttnDtypes)) {
        const auto dtype = dtype_from(name);
        if (dtype != Dtype::bf16 && dtype != Dtype::f32 && dtype != Dtype::f8_e4m3)
          return user_error(err::kBadValue, "K and V are bf16, f32 or fp8_e4m3, not '" + name + "'", "--dtype");
        for (const uint64_t dim : args.sweep(kHeadDims)) {
          if (dim < 1 || dim > 512) return out_of_range(kHeadDims, dim, 1, 512);
          for (const uint64_t tokens : args.sweep(kAttnLengths)) {
            if (tokens < 1 || tokens > static_cast<uint64_t>(kTokensMax))
              return out_of_range(kAttnLengths, tokens, 1, static_cast<uint64_t>(kTokensMax));
            AttnShape shape{.decode = phase == "decode", .tokens = static_cast<int64_t>(tokens)};
            shape.chunk_tokens = std::clamp<int64_t>(static_cast<int64_t>(args.count(kChunk)), 1, shape.tokens);
            shape.q_heads = counts.first;
            shape.layout = {.kv_heads = counts.second,
                            .head_dim = static_cast<uint32_t>(dim),
                            .block_tokens = block,
                            .dtype = *dtype};
            shape.coherent = choice_of(args, kRouting);
            shape.gathered = choice_of(args, kCentroids);
            shapes.push_back(shape);
          }
        }
      }
    }
  }
  return shapes;
}

Result<void> check_room(const AttnShape& shape) {
  const size_t free = mem::available_bytes(), needed = shape.bytes();
  if (needed <= free / 10 * 9) return {};
  AttnShape largest = shape;
  while (largest.tokens > 1 && largest.bytes() > free / 10 * 9) largest.tokens /= 2;
  return user_error(
      err::kNotEnoughMemory,
      std::to_string(shape.tokens) + " tokens need " + human_bytes(needed) + "; " + human_bytes(free) + " are free",
      "--tokens", "ask for " + std::to_string(largest.tokens) + " tokens, or for fewer KV heads");
}

double median(std::vector<double> values) {
  return summarise(std::move(values)).median;
}

Json describe_point(const AttnShape& shape, const AttnContender& c) {
  Json out = Json::object({{"type", "point"}, {"phase", shape.decode ? "decode" : "prefill"}});
  out.set("attention", c.plan).set("kernels", c.kernels).set("dtype", to_string(shape.layout.dtype));
  out.set("q_heads", shape.q_heads).set("kv_heads", shape.layout.kv_heads).set("head_dim", shape.layout.head_dim);
  return std::move(out.set("tokens", shape.tokens).set("layers", shape.walked_layers()));
}

/// The report of one contender; `full` is the dense contender with the same kernels, if there is one.
Json describe(const AttnShape& shape, const AttnContender& c, const AttnContender* full, double bytes,
              const attn::MachinePeak& peak) {
  const auto dim = static_cast<int32_t>(shape.layout.head_dim);
  const int64_t begin = shape.decode ? shape.tokens - 1 : 0;
  const double flop = attn::prefill_flop(c.mode, shape.q_heads, dim, begin, shape.tokens - begin) +
                      attn::gate_flop(c.mode, shape.q_heads, dim, begin, shape.tokens - begin);
  const double seconds = median(c.seconds);
  const double rate = flop / seconds;
  const std::string_view instruction = attn::bounding_rate(c.kernels, shape.layout.dtype);
  const double own = peak.rate(instruction), dot = peak.rate("dot_avx512bf16");
  Json out = describe_point(shape, c);
  out.set("repeats", c.seconds.size());
  out.set("median_s", seconds).set("best_s", *std::min_element(c.seconds.begin(), c.seconds.end()));
  out.set("flop", flop).set("flop_per_s", rate).set("instruction", instruction);
  out.set("peak_share", own > 0 ? rate / own : 0.0);
  if (dot > 0 && shape.layout.dtype == Dtype::bf16) out.set("bf16_share", rate / dot);
  if (shape.decode) {
    out.set("bytes", bytes).set("bytes_per_s", bytes / seconds);
    out.set("read_share", peak.read_bytes_per_s > 0 ? bytes / seconds / peak.read_bytes_per_s : 0.0);
  }
  if (full == nullptr || full == &c) return out;
  std::vector<double> ratios;
  for (size_t i = 0; i < c.seconds.size(); ++i) ratios.push_back(full->seconds[i] / c.seconds[i]);
  const Ratio ratio = summarise(std::move(ratios));
  return std::move(out.set("speedup", ratio.median).set("speedup_p25", ratio.low).set("speedup_p75", ratio.high));
}

std::vector<std::string> attn_cells(const Json& p) {
  const auto text = [&](const char* key) { return std::string(p[key].as_string()); };
  const auto some = [&](const char* key, double scale, int decimals) {
    return p.find(key) == nullptr ? std::string("-") : fixed(p[key].as_double() * scale, decimals);
  };
  return {text("phase") + " " + p["tokens"].dump(),
          text("attention"),
          text("kernels"),
          p["q_heads"].dump() + "/" + p["kv_heads"].dump() + " d" + p["head_dim"].dump() + " " + text("dtype"),
          some("median_s", 1e3, 3),
          some("flop_per_s", 1e-9, 1),
          some("peak_share", 100, 0),
          some("bf16_share", 100, 0),
          some("bytes_per_s", 1e-9, 1),
          some("read_share", 100, 0),
          some("speedup", 1, 2)};
}

/// All contenders on one shape, by turns.
Result<void> measure(const AttnShape& shape, std::vector<AttnContender>& contenders, const cli::Args& args,
                     Parallel& parallel, const attn::MachinePeak& peak, Rows& rows) {
  MC_CHECK(check_room(shape));
  MC_TRY(made, AttnCase::open(shape, parallel, args.count(flags::kSeed)));
  for (AttnContender& c : contenders) c.seconds.clear();
  const uint64_t repeats = args.count(kRepeats);
  if (repeats > 1)
    for (AttnContender& c : contenders) MC_CHECK(made.run(*c.attention, c.mode));  // scratch grows, code is read
  for (uint64_t turn = 0; turn < repeats; ++turn)
    for (AttnContender& c : contenders) {
      MC_TRY(seconds, made.run(*c.attention, c.mode));
      c.seconds.push_back(seconds);
    }
  for (const AttnContender& c : contenders) {
    const AttnContender* full = nullptr;
    for (const AttnContender& other : contenders)
      if (other.mode.kind == attn::ModeKind::full && other.kernels == c.kernels) full = &other;
    double bytes = 0;
    if (shape.decode) {
      MC_TRY(counted, made.decode_bytes(*c.attention, c.mode));
      bytes = counted;
    }
    Json row = describe(shape, c, full, bytes, peak);
    std::vector<std::string> text = attn_cells(row);
    MC_CHECK(rows.add(std::move(row), std::move(text)));
  }
  return {};
}

}  // namespace

const cli::FlagList kAttnFlags = kAttnFlagTable;

Result<int> measure_attention(const cli::Args& args) {
  MC_TRY(rows, Rows::open(args, "mc.bench.attn.v1",
                          Table({"point", "attention", "kernels", "shape", "ms", "GFLOP/s", "% of peak", "% of bf16",
                                 "GB/s", "% of read", "x full"})));
  Parallel parallel(host::thread_count(args));
  MC_TRY(shapes, read_shapes(args));
  MC_TRY(plans, read_plans(args.list(kPlans), static_cast<uint32_t>(args.count(flags::kBlockTokens))));
  MC_TRY(variants, open_variants(args, parallel));
  std::vector<AttnContender> contenders;
  for (const auto& [name, mode] : plans)
    for (size_t v = 0; v < variants.opened.size(); ++v)
      contenders.push_back({name, mode, &variants.opened[v], variants.names[v], {}});
  for (const AttnShape& shape : shapes)
    for (const AttnContender& c : contenders) rows->expect(attn_cells(describe_point(shape, c)));
  const attn::MachinePeak peak = attn::measure_peak(parallel);
  std::string line = std::to_string(peak.threads) + " threads; " + fixed(peak.read_bytes_per_s / 1e9, 1) + " GB/s read";
  Json rates = Json::object({});
  for (const attn::PeakRate& rate : peak.rates) {
    line += ", " + rate.name + " " + fixed(rate.flop_per_s / 1e9, 1) + " GFLOP/s";
    rates.set(rate.name, rate.flop_per_s);
  }
  MC_CHECK(rows->text(line + "\n"));
  rows->fact("threads", peak.threads);
  rows->fact("routing", args.text(kRouting));
  rows->fact("centroids", args.text(kCentroids));
  rows->fact("chunk_tokens", args.count(kChunk));
  rows->fact("block_tokens", args.count(flags::kBlockTokens));
  rows->fact("peak_read_bytes_per_s", peak.read_bytes_per_s);
  rows->fact("peak_rates", std::move(rates));
  for (const AttnShape& shape : shapes) MC_CHECK(measure(shape, contenders, args, parallel, peak, *rows));
  MC_CHECK(rows->finish());
  return 0;
}

}  // namespace mc::bench
