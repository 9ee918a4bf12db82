#include "disk_against.h"

#include <cstdlib>
#include <filesystem>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "child.h"
#include "print.h"

namespace mc::bench {
namespace {

constexpr uint64_t kRocksBytes = uint64_t{256} << 20;  // of all keys

std::vector<std::string> fio_command(bool write, const DiskPlan& plan, const std::string& folder) {
  const std::string op = write ? "write" : "randread";
  // As many bytes as the store cycles through, or reads from: the host may cache some of them.
  const uint64_t bytes = write ? plan.capacity_bytes : plan.capacity_bytes / 2;
  const uint64_t each = std::max(bytes / plan.jobs / plan.block_bytes, uint64_t{8}) * plan.block_bytes;
  std::vector<std::string> out = {"fio",
                                  "--name=" + op,
                                  "--directory=" + folder,
                                  "--rw=" + op,
                                  "--bs=" + std::to_string(plan.block_bytes),
                                  "--size=" + std::to_string(each),
                                  "--numjobs=" + std::to_string(plan.jobs),
                                  "--direct=1",
                                  "--overwrite=1",
                                  "--time_based",
                                  "--runtime=" + std::to_string(plan.duration / 1ms) + "ms",
                                  "--group_reporting",
                                  "--output-format=json"};
  if (write && plan.durable) out.push_back("--fdatasync=1");
  if (!write || plan.depth > 1) {
    out.push_back("--ioengine=io_uring");
    out.push_back("--iodepth=" + std::to_string(plan.depth));
  }
  return out;
}

std::vector<std::string> db_bench_command(bool write, const DiskPlan& plan, const std::string& folder) {
  const uint64_t keys = std::max(kRocksBytes / plan.block_bytes, uint64_t{1000});
  std::vector<std::string> out = {"db_bench",
                                  "--db=" + folder + "/rocksdb",
                                  "--num=" + std::to_string(keys),
                                  "--value_size=" + std::to_string(plan.block_bytes),
                                  "--threads=" + std::to_string(plan.jobs),
                                  "--duration=" + std::to_string(std::max<int64_t>(plan.duration / 1s, 1)),
                                  "--compression_type=none"};
  if (plan.block_bytes >= 4096) out.push_back("--enable_blob_files=1");
  if (write) {
    out.push_back("--benchmarks=fillrandom");
    out.push_back(plan.durable ? "--sync=1" : "--sync=0");
  } else {
    const bool there = std::filesystem::exists(folder + "/rocksdb/CURRENT");
    out.push_back(there ? "--benchmarks=readrandom" : "--benchmarks=fillseq,readrandom");
    if (there) out.push_back("--use_existing_db=1");
    out.push_back("--use_direct_reads=1");
  }
  return out;
}

}  // namespace

Result<double> parse_fio(const std::string& text, bool write) {
  const size_t begin = text.find('{');
  const auto result = Json::parse(begin == std::string::npos ? "" : std::string_view(text).substr(begin));
  const double rate = result ? (*result)["jobs"][0][write ? "write" : "read"]["iops"].as_double() : 0;
  if (rate <= 0) return user_error(err::kReferenceFailed, "fio: " + last_words(text), "--against");
  return rate;
}

Result<double> parse_db_bench(const std::string& text) {
  // "readrandom   :   11.2 micros/op 89211 ops/sec 5.0 seconds ..."; the last such line counts
  const size_t at = text.rfind(" ops/sec");
  const size_t begin = at == std::string::npos ? at : text.find_last_of(' ', at - 1);
  const double rate = begin == std::string::npos ? 0 : std::strtod(text.c_str() + begin, nullptr);
  if (rate <= 0) return user_error(err::kReferenceFailed, "db_bench: " + last_words(text), "--against");
  return rate;
}

Result<double> run_disk_reference(DiskReference reference, bool writes, const DiskPlan& plan,
                                  const std::string& folder) {
  MC_ASSERT(reference != DiskReference::none);
  const bool fio = reference == DiskReference::fio;
  const auto command = fio ? fio_command(writes, plan, folder) : db_bench_command(writes, plan, folder);
  auto child = Child::start(command);
  if (!child)
    return user_error(err::kReferenceMissing, command.front() + ": " + child.error().what, "--against",
                      std::string("install it: apt-get install ") + (fio ? "fio" : "rocksdb-tools"));
  MC_TRY(status, child->finish(steady_now() + 10 * plan.duration + 300s));
  if (status != 0)
    return user_error(err::kReferenceFailed, command.front() + ": " + last_words(child->text()), "--against");
  return fio ? parse_fio(child->text(), writes) : parse_db_bench(child->text());
}

}  // namespace mc::bench
