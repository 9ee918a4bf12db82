// `mc-bench disk`: the block store of lib/store on a folder's disk: durable puts, gets and restarts, the code that a
// cache node runs. Everything is made in DIR/mc-bench-disk and removed at the end. Every byte that is read is checked
// against its CRC32C. --against runs another program in turns with ours and prints the ratio of each pair's halves.

#include "store/disk.h"

#include <algorithm>
#include <filesystem>

#include "base/choice.h"
#include "base/errors.h"
#include "base/units.h"
#include "disk_against.h"
#include "disk_runs.h"
#include "print.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"
#include "xfer_against.h"

namespace mc::bench {
namespace {

std::string disk_io_names() {
  std::string out;
  for (const std::string& name : store::disk_names()) out += (out.empty() ? "" : "|") + name;
  return out;
}

enum class DiskOp : uint8_t { write, randread, restart };
constexpr FlagWord<DiskOp> kDiskOps[] = {
    {"write", DiskOp::write}, {"randread", DiskOp::randread}, {"restart", DiskOp::restart}};
constexpr ChoiceFlag kDiskRw =
    with_choices<kDiskOps>({.name = "rw",
                            .kind = FlagKind::list,
                            .value = "O,O",
                            .fallback = "write,randread",
                            .help = "write puts, randread gets, restart puts --blocks and opens the store again"});
constexpr Flag kDiskBs{.name = "bs",
                       .kind = FlagKind::sweep_bytes,
                       .value = "SIZES",
                       .fallback = "256KiB",
                       .help = "bytes of a block: 4KiB-1MiB*4"};
constexpr Flag kDiskJobs{
    .name = "jobs", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "threads: 1-64*2"};
constexpr Flag kDiskQd{.name = "qd",
                       .kind = FlagKind::sweep_counts,
                       .value = "N,N",
                       .fallback = "1",
                       .help = "blocks that a thread puts or gets in one call"};
constexpr Flag kDiskSize{
    .name = "size", .kind = FlagKind::bytes, .value = "SIZE", .fallback = "1GiB", .help = "capacity of the store"};
constexpr Flag kDiskBlocks{.name = "blocks",
                           .kind = FlagKind::sweep_counts,
                           .value = "N,N",
                           .fallback = "100k",
                           .help = "blocks in the store when it restarts"};
constexpr Flag kDiskIo{
    .name = "disk-io",
    .value = "W",
    .fallback = "auto",
    .help = "how the disk is driven: auto, uring, threads, or memory (no disk: the store's own speed)"};
/// Whether a put is also flushed.
constexpr FlagWord<bool> kDiskLevels[] = {{"written", false}, {"durable", true}};
constexpr ChoiceFlag kDiskLevel =
    with_choices<kDiskLevels>({.name = "level",
                               .kind = FlagKind::choice,
                               .value = "L",
                               .fallback = "durable",
                               .help = "when a put returns: on the disk, or also flushed"});
constexpr FlagWord<DiskReference> kDiskReferences[] = {
    {"none", DiskReference::none}, {"fio", DiskReference::fio}, {"rocksdb", DiskReference::rocksdb}};
constexpr ChoiceFlag kDiskAgainst =
    with_choices<kDiskReferences>({.name = "against",
                                   .kind = FlagKind::choice,
                                   .value = "REF",
                                   .fallback = "none",
                                   .help = "run a reference program in turns with the store"});
constexpr Flag kDiskAgainstJobs{.name = "against-jobs",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "0",
                                .help = "threads or processes of the reference; 0 is --jobs",
                                .check = flags::check_between<0, 256>};
constexpr Flag kDiskPairs{.name = "pairs",
                          .kind = FlagKind::count,
                          .value = "N",
                          .fallback = "5",
                          .help = "pairs of runs for --against, 1 to 1000",
                          .check = flags::check_between<1, 1000>};
constexpr auto kDiskFlagTable = flags::join(
    flags::list(&kDiskRw, &kDiskBs, &kDiskJobs, &kDiskQd, &kDiskSize, &kDiskBlocks, &kDiskLevel, &kDiskIo,
                &kDiskAgainst, &kDiskAgainstJobs, &kDiskPairs, &kStoreTime, &flags::kSeed, &kFormat, &flags::kOutput),
    flags::kEveryRun);

struct DiskPoint {
  DiskOp op = DiskOp::write;
  DiskPlan plan;
  uint64_t blocks = 0;  // restart
};

Result<std::vector<DiskPoint>> disk_points(const cli::Args& args, const std::string& folder) {
  DiskPlan plan{.directory = folder + "/store",
                .disk_io = args.text(kDiskIo),
                .capacity_bytes = args.bytes(kDiskSize),
                .durable = choice_of(args, kDiskLevel),
                .duration = args.duration(kStoreTime),
                .seed = args.count(flags::kSeed)};
  const auto names = store::disk_names();
  if (std::find(names.begin(), names.end(), plan.disk_io) == names.end())
    return bad_value(kDiskIo, "'" + plan.disk_io + "' is none of " + disk_io_names());
  if (plan.capacity_bytes < (uint64_t{64} << 20)) return bad_value(kDiskSize, "at least 64MiB");
  MC_TRY(sizes, parse_sweep_bytes(args.text(kDiskBs)));
  MC_TRY(jobs, parse_sweep_counts(args.text(kDiskJobs)));
  MC_TRY(depths, parse_sweep_counts(args.text(kDiskQd)));
  MC_TRY(blocks, parse_sweep_counts(args.text(kDiskBlocks)));
  std::vector<DiskPoint> out;
  for (const std::string& name : args.list(kDiskRw)) {
    const auto op = find_choice(kDiskRw.values, name);
    if (!op) return bad_value(kDiskRw, "'" + name + "' is none of write, randread, restart");
    const bool restarts = *op == DiskOp::restart;
    for (plan.block_bytes = 0; const uint64_t size : sizes) {
      plan.block_bytes = size;
      if (size == 0 || size > (uint64_t{8} << 20)) return bad_value(kDiskBs, "1 byte to 8MiB");
      for (const uint64_t count : restarts ? blocks : jobs)
        for (const uint64_t depth : restarts ? std::vector<uint64_t>{1} : depths) {
          if (!restarts && (count == 0 || count > 256)) return bad_value(kDiskJobs, "1 to 256");
          if (depth == 0 || depth > 1024) return bad_value(kDiskQd, "1 to 1024");
          if (restarts && count == 0) return bad_value(kDiskBlocks, "at least 1");
          plan.jobs = restarts ? 1 : count;
          plan.depth = depth;
          out.push_back({*op, plan, restarts ? count : 0});
        }
    }
  }
  return out;
}

double rate_of(const DiskFigures& figures) {
  const double seconds = to_seconds(figures.elapsed);
  return seconds > 0 ? static_cast<double>(figures.blocks) / seconds : 0;
}

Json describe(const DiskPoint& point) {
  return Json::object({{"type", "point"},
                       {"op", word_for(kDiskRw, point.op)},
                       {"block_bytes", point.plan.block_bytes},
                       {"jobs", point.plan.jobs},
                       {"depth", point.plan.depth},
                       {"level", point.plan.durable ? "durable" : "written"},
                       {"capacity_bytes", point.plan.capacity_bytes}});
}

DiskFigures run_ours(DiskTarget& target, const DiskPoint& point) {
  return point.op == DiskOp::write ? target.put(point.plan) : target.get(point.plan);
}

/// Pairs of runs, ours and theirs first by turns: a drift of the machine favours neither.
Result<void> compare(const cli::Args& args, const DiskPoint& point, DiskTarget& target, const std::string& folder,
                     Json& out) {
  const DiskReference reference = choice_of(args, kDiskAgainst);
  const bool writes = point.op == DiskOp::write;
  DiskPlan theirs = point.plan;
  if (const uint64_t jobs = args.count(kDiskAgainstJobs); jobs > 0) theirs.jobs = jobs;
  // The first run lays their files out.
  MC_TRY(warm, run_disk_reference(reference, writes, theirs, folder));
  (void)warm;
  std::vector<double> ratios, ours_all, theirs_all;
  uint64_t failed = 0;
  for (uint64_t pair = 0; pair < args.count(kDiskPairs); ++pair) {
    double ours = 0, other = 0;
    for (uint64_t half = 0; half < 2; ++half) {
      if ((pair + half) % 2 == 1) {
        MC_TRY(rate, run_disk_reference(reference, writes, theirs, folder));
        other = rate;
        continue;
      }
      const DiskFigures figures = run_ours(target, point);
      failed += figures.failed;
      ours = rate_of(figures);
    }
    ratios.push_back(ours / other);
    ours_all.push_back(ours);
    theirs_all.push_back(other);
  }
  const Ratio ratio = summarise(ratios);
  out.set("against", args.text(kDiskAgainst)).set("pairs", args.count(kDiskPairs)).set("against_jobs", theirs.jobs);
  out.set("ours_blocks_per_s", summarise(ours_all).median).set("against_blocks_per_s", summarise(theirs_all).median);
  out.set("ratio", ratio.median).set("ratio_p25", ratio.low).set("ratio_p75", ratio.high);
  out.set("failed", static_cast<uint64_t>(out["failed"].as_int()) + failed);
  return {};
}

Result<Json> measure_flow(const cli::Args& args, const DiskPoint& point, const std::string& folder) {
  MC_TRY(target, DiskTarget::open(point.plan));
  if (point.op == DiskOp::randread) MC_CHECK(target->fill(point.plan));
  const DiskFigures figures = run_ours(*target, point);
  if (figures.failed > 0)
    return Error{Code::io, "disk: " + std::to_string(figures.failed) + " blocks failed: " + figures.first_failure};
  Json out = describe(point);
  const double rate = rate_of(figures);
  out.set("disk_io", figures.disk_io).set("blocks", figures.blocks).set("failed", figures.failed);
  out.set("duration_s", to_seconds(figures.elapsed)).set("blocks_per_s", rate);
  out.set("bytes_per_s", rate * static_cast<double>(point.plan.block_bytes));
  out.set("latency_us_mean", figures.latency_us.mean()).set("latency_us_p50", figures.latency_us.quantile(.5));
  out.set("latency_us_p99", figures.latency_us.quantile(.99));
  if (point.op == DiskOp::write) out.set("group_blocks_mean", figures.group_blocks);
  if (args.present(kDiskAgainst)) MC_CHECK(compare(args, point, *target, folder, out));
  return out;
}

Result<Json> measure_restart(const DiskPoint& point) {
  DiskPlan plan = point.plan;
  const uint64_t page_bytes = (plan.block_bytes + store::kPageBytes - 1) / store::kPageBytes * store::kPageBytes;
  plan.capacity_bytes = std::max(plan.capacity_bytes, point.blocks * page_bytes / 8 * 10);
  MC_TRY(target, DiskTarget::open(plan));
  MC_TRY(figures, target->restart(plan, point.blocks));
  if (figures.restart.blocks < point.blocks)
    return Error{Code::corrupt, "disk: " + std::to_string(figures.restart.blocks) + " of " +
                                    std::to_string(point.blocks) + " blocks came back"};
  Json out = describe(point);
  out.set("capacity_bytes", plan.capacity_bytes).set("blocks", figures.restart.blocks).set("failed", 0);
  out.set("fill_s", figures.fill_s).set("open_s", figures.open_s).set("first_get_s", figures.first_get_s);
  out.set("segments_sealed", figures.restart.segments_sealed).set("segments_walked", figures.restart.segments_walked);
  out.set("damaged", static_cast<uint64_t>(figures.restart.damaged.size()));
  return out;
}

std::vector<std::string> disk_cells(const DiskPoint& point, const Json& row, bool against) {
  const auto number = [&](const char* key, double unit, int decimals) {
    return row.has(key) ? fixed(row[key].as_double() / unit, decimals) : std::string("-");
  };
  std::vector<std::string> out = {std::string(word_for(kDiskRw, point.op)),
                                  human_bytes(point.plan.block_bytes),
                                  std::to_string(point.plan.jobs),
                                  std::to_string(point.plan.depth),
                                  number("bytes_per_s", 1e6, 1),
                                  number("blocks_per_s", 1, 0),
                                  number("latency_us_p50", 1, 0),
                                  number("latency_us_p99", 1, 0),
                                  number("group_blocks_mean", 1, 1),
                                  number("first_get_s", 1, 3)};
  if (!against) return out;
  out.push_back(std::string(row["against"].as_string("-")));
  for (const char* key : {"ratio", "ratio_p25", "ratio_p75"}) out.push_back(number(key, 1, 2));
  return out;
}

/// DIR/mc-bench-disk, made now and removed with everything in it.
class BenchFolder {
 public:
  static Result<std::unique_ptr<BenchFolder>> make(const std::string& parent) {
    std::unique_ptr<BenchFolder> folder(new BenchFolder(parent + "/mc-bench-disk"));
    std::error_code error;
    if (std::filesystem::exists(folder->path_, error))
      return user_error(err::kFileAccess, folder->path_ + " is there already", "DIR",
                        "remove it: a run that was stopped left it, or another one is going on");
    folder->mine_ = std::filesystem::create_directories(folder->path_, error);
    if (!folder->mine_)
      return user_error(err::kFileAccess, "cannot make " + folder->path_ + ": " + error.message(), "DIR");
    return folder;
  }
  ~BenchFolder() {
    if (mine_) remove(path_);
  }
  /// Removes the folder while a store may still make files in it: such a file fails the removal, which is tried again.
  static void remove(const std::string& path) {
    std::error_code error;
    for (int tries = 0; tries < 100 && std::filesystem::exists(path, error); ++tries)
      std::filesystem::remove_all(path, error);
  }
  const std::string& path() const { return path_; }
  void clear(const std::string& name) const {
    std::error_code error;
    std::filesystem::remove_all(path_ + "/" + name, error);
  }

 private:
  explicit BenchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool mine_ = false;
};

}  // namespace

const cli::FlagList kDiskFlags = kDiskFlagTable;

Result<int> measure_disk(const cli::Args& args) {
  const std::string parent = args.positional_one("DIR");
  const std::string path = (parent.empty() ? "." : parent) + "/mc-bench-disk";
  MC_TRY(points, disk_points(args, path));
  const bool against = args.present(kDiskAgainst);
  for (const DiskPoint& point : points)
    if (against && point.op == DiskOp::restart)
      return user_error(err::kUsage, "--against has no reference for --op restart", "--against",
                        "leave one of them out");
  MC_TRY(folder, BenchFolder::make(parent.empty() ? "." : parent));
  std::vector<std::string> header = {"op",    "size",   "jobs",   "qd",        "MB/s",
                                     "blk/s", "p50 us", "p99 us", "blk/write", "restart s"};
  if (against) header.insert(header.end(), {"against", "ratio", "p25", "p75"});
  MC_TRY(rows, Rows::open(args, "mc.bench.disk.v1", Table(header), {.clean = [path = folder->path()] {
                            DiskTarget::open_no_more();
                            BenchFolder::remove(path);
                          }}));
  rows->fact("failed", 0);
  for (const DiskPoint& point : points) {
    auto measured = point.op == DiskOp::restart ? measure_restart(point) : measure_flow(args, point, folder->path());
    if (!measured) {
      const err::Number number = measured.error().code == Code::no_space ? err::kDiskFull : err::kFileAccess;
      return as_user_error(number, within(folder->path(), std::move(measured).error()));
    }
    Json row = std::move(*measured);
    auto cells = disk_cells(point, row, against);
    MC_CHECK(rows->add(std::move(row), std::move(cells)));
    folder->clear("store");
  }
  MC_CHECK(rows->finish());
  return 0;
}

}  // namespace mc::bench
