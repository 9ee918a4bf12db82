#include "gpu/matmul.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "base/rng.h"
#include "base/units.h"
#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

constexpr MatmulRow kMatmulRows[] = {{"auto", MatmulChoice::automatic},
                                     {"own", MatmulChoice::own},
                                     {"cublaslt", MatmulChoice::cublaslt},
                                     {"cublaslt-tuned", MatmulChoice::tuned}};
constexpr uint8_t kUnknown = 0, kTaken = 1, kRefused = 2;
constexpr size_t kChunkRows = 512;         // of the product that the heuristic is asked about for a chunk of a prompt
constexpr size_t kFewestRows = 4;          // that it is asked about: scales of blocks need multiples of 4
constexpr size_t kTunedMost = 8192;        // rows: larger products share an algorithm
constexpr size_t kComparedMost = 512;      // rows of a product whose bits are compared
constexpr uint32_t kMatrixAlignment = 16;  // of every matrix: rows of 8 bf16 elements have no more
constexpr size_t kRowsBytes = 16 * kMiB;   // 512 rows of 16,384 elements
constexpr size_t kSumsBytes = 64 * kMiB;   // 512 rows of 32,768 columns
constexpr uint8_t kSumsBegin = 0x3d;       // bytes of a result to which a product is added: 0.046

LtProblem problem_of(const Product& p) {
  const auto columns = static_cast<uint64_t>(p.columns), inner = static_cast<uint64_t>(p.inner);
  LtProblem out;
  out.operation.transpose_a = kLtTransposed;
  if (p.bias != 0) {
    out.operation.epilogue = LtEpilogue::bias;
    out.operation.bias = p.bias;
  }
  out.a = {LtType::bf16, kLtColumnMajor, inner, columns, static_cast<int64_t>(inner)};
  out.b = {LtType::bf16, kLtColumnMajor, inner, p.rows, static_cast<int64_t>(inner)};
  out.c = out.d = {LtType::f32, kLtColumnMajor, columns, p.rows, static_cast<int64_t>(columns)};
  return out;
}

/// Random numbers of bf16 between 2^-15 and 2, with a sign. Their range makes sums round, also with weights of few
/// bits, whose sums of numbers of one size would be exact in any order.
std::vector<uint64_t> random_rows() {
  Rng rng(0x6d61'746d'756c);
  std::vector<uint64_t> out(kRowsBytes / sizeof(uint64_t));
  for (uint64_t& four : out) {
    const uint64_t bits = rng.next();
    four = (bits & 0x87ff'87ff'87ff'87ff) | 0x3800'3800'3800'3800;
  }
  return out;
}

LtProblem with_rows(LtProblem problem, size_t rows) {
  problem.b.columns = problem.c.columns = problem.d.columns = rows;
  return problem;
}

}  // namespace

std::span<const MatmulRow> matmul_rows() {
  return kMatmulRows;
}

std::vector<std::string_view> matmul_names() {
  std::vector<std::string_view> names;
  for (const MatmulRow& row : kMatmulRows) names.push_back(row.name);
  return names;
}

MatmulChoice matmul_choice(std::string_view name) {
  const auto found = std::ranges::find(kMatmulRows, name, &MatmulRow::name);
  return found != std::end(kMatmulRows) ? found->choice : MatmulChoice::automatic;
}

std::string matmul_text(const Device& device) {
  const Matmul* matmul = device.matmul();
  if (matmul == nullptr) return "own: " + device.matmul_reason();
  const Matmul::Report& report = matmul->report();
  return report.name + (report.workspace_bytes > 0 ? ", workspace " + human_bytes(report.workspace_bytes)
                                                   : ", without a workspace, for which the device has no memory");
}

size_t Matmul::workspace_most(int capability) {
  return (capability == 90 ? 32 : 4) * kMiB;
}

Matmul::Matmul(Matmul&& other) noexcept
    : device_(other.device_),
      is_open_(std::exchange(other.is_open_, false)),
      is_tuned_(other.is_tuned_),
      workspace_(std::move(other.workspace_)),
      rows_(std::move(other.rows_)),
      sums_(std::move(other.sums_)),
      has_rows_(other.has_rows_),
      plans_(std::move(other.plans_)),
      report_(std::move(other.report_)) {}

Matmul::~Matmul() {
  if (is_open_) library().destroy();
}

Result<Matmul> Matmul::open(Device& device, bool is_tuned) {
  CublasLt& library = device.driver().cublaslt();
  MC_CHECK(library.load());
  if (const LtStatus status = library.create(); status != LtStatus::ok)
    return Error{Code::unsupported, library.file() + ": cublasLtCreate: " + std::string(name_of(status))};
  Matmul out(device, is_tuned);
  out.report_.name = "cuBLASLt " + library_version_text(library.version());
  const auto take = [&](DeviceBuffer& to, size_t bytes, std::string_view what) -> Result<void> {
    auto made = DeviceBuffer::make(device, bytes, what);
    if (made)
      to = *std::move(made);
    else if (made.error().code != Code::no_space)
      return std::move(made).error();
    return {};
  };
  MC_CHECK(take(out.workspace_, workspace_most(device.capability()), "workspace of cuBLASLt"));
  if (!is_tuned) {
    MC_CHECK(take(out.sums_, kSumsBytes, "sums to compare algorithms"));
    if (out.sums_.bytes() > 0) MC_CHECK(take(out.rows_, kRowsBytes, "rows to compare algorithms"));
  }
  out.report_.workspace_bytes = out.workspace_.bytes();
  return out;
}

CublasLt& Matmul::library() {
  return device_->driver().cublaslt();
}

/// The rows that the heuristic is asked about. Products of fp8 are parts of one product, which share an algorithm.
size_t Matmul::bucket(const LtProblem& problem, size_t rows) const {
  if (is_tuned_) return std::bit_ceil(std::clamp(rows, kFewestRows, kTunedMost));
  return problem.a.type == LtType::e4m3 ? kChunkRows : std::bit_ceil(std::clamp(rows, kFewestRows, kChunkRows));
}

/// The algorithm of a product. The heuristic is asked once for each.
Result<Matmul::Plan*> Matmul::plan_of(const LtCall& call, size_t rows) {
  const LtProblem& p = call.problem;
  const size_t asked = bucket(p, rows);
  const Key key(p.a.type, p.d.rows, p.b.rows, asked, call.beta != 0, p.operation.epilogue, p.operation.a_scale_mode,
                p.operation.b_scale_mode);
  if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
  ++report_.asked;
  const LtPreference bounds{
      .workspace_bytes = workspace_.bytes(), .splits_inner = is_tuned_, .alignment = kMatrixAlignment};
  Proposals proposals;
  const LtStatus status = library().propose(&proposals, with_rows(p, asked), bounds);
  if (status != LtStatus::ok && status != LtStatus::not_supported) {
    auto checked = device_->check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
    MC_ASSERT(!checked);
    return checked.error();
  }
  if (status != LtStatus::ok) proposals.clear();
  MC_TRY(plan, is_tuned_ || asked == kChunkRows ? chunk_plan(call, proposals) : few_plan(call, asked, proposals));
  return &plans_.emplace(key, std::move(plan)).first->second;
}

/// The first algorithm that gives a row the same bits alone and among others, and likewise the last row of half of
/// them, whose tile is not full. Where there is no room for others, or the library refuses them, the first one is
/// taken.
Result<Matmul::Plan> Matmul::chunk_plan(const LtCall& call, const Proposals& proposals) {
  const size_t most = rows_compared(call.problem);
  for (const LtProposal& proposal : proposals) {
    const Plan plan{.is_usable = true, .proposal = proposal, .checked = {}};
    if (most <= 1) return plan;
    MC_TRY(allowed, allows(with_rows(call.problem, most), proposal));
    if (!allowed) return plan;
    MC_TRY(agrees_alone, agree(call, proposal, most, proposal, 1));
    if (!agrees_alone) continue;
    MC_TRY(agrees_last, agree(call, proposal, most, proposal, most / 2 + 1));
    if (agrees_last) return plan;
  }
  return Plan{};
}

/// The first algorithm that agrees with the one for a chunk at both ends of a power of two of rows.
Result<Matmul::Plan> Matmul::few_plan(const LtCall& call, size_t rows, const Proposals& proposals) {
  MC_TRY(chunk, plan_of(call, kChunkRows));
  const size_t most = std::min(2 * rows, rows_compared(call.problem));
  const size_t fewest = rows == kFewestRows ? 1 : rows / 2 + 1;
  if (chunk->is_usable && most >= rows)
    for (const LtProposal& proposal : proposals) {
      MC_TRY(at_most, agree(call, chunk->proposal, most, proposal, rows));
      if (!at_most) continue;
      MC_TRY(at_fewest, agree(call, chunk->proposal, most, proposal, fewest));
      if (!at_fewest) continue;
      ++report_.agreed;
      return Plan{.is_usable = true, .proposal = proposal, .checked = {}};
    }
  report_.shared += chunk->is_usable ? 1 : 0;
  return Plan{.is_usable = chunk->is_usable, .proposal = chunk->proposal, .checked = {}};
}

Result<bool> Matmul::allows(const LtProblem& problem, const LtProposal& proposal) {
  uint64_t workspace = 0;
  const LtStatus status = library().check(&workspace, problem, proposal.algorithm);
  const bool refuses =
      status == LtStatus::not_supported || status == LtStatus::invalid_value || status == LtStatus::arch_mismatch;
  if (!refuses) MC_CHECK(device_->check_cublaslt(status, "cublasLtMatmulAlgoCheck"));
  return status == LtStatus::ok && workspace <= workspace_.bytes();
}

/// Whether the algorithm of a plan takes a number of rows, which the library is asked once. A list of noted launches
/// has no way back from a product that is refused, so it is asked before.
Result<bool> Matmul::takes(Plan& plan, const LtProblem& problem) {
  const size_t rows = problem.d.columns;
  if (!plan.is_usable) return false;
  if (plan.checked.size() <= rows) plan.checked.resize(rows + 1, kUnknown);
  if (plan.checked[rows] == kUnknown) {
    MC_TRY(allowed, allows(problem, plan.proposal));
    plan.checked[rows] = allowed ? kTaken : kRefused;
  }
  return plan.checked[rows] == kTaken;
}

size_t Matmul::rows_compared(const LtProblem& problem) const {
  if (is_tuned_ || problem.a.type != LtType::bf16) return 0;
  return std::min({kComparedMost, rows_.bytes() / (problem.b.rows * 2), sums_.bytes() / (problem.d.rows * 4)});
}

/// The bits of row 0 and of row `last` of a product of random rows with the weights of a call. The product runs now,
/// also while launches are noted.
Result<Matmul::Bits> Matmul::bits(LtCall call, const LtProposal& proposal, size_t rows, size_t last) {
  if (!has_rows_) {
    const std::vector<uint64_t> rows_of_bits = random_rows();
    MC_CHECK(device_->write(rows_.address(), std::as_bytes(std::span(rows_of_bits))));
    has_rows_ = true;
  }
  call.problem = with_rows(call.problem, rows);
  call.b = rows_.address();
  call.c = call.d = sums_.address();
  call.algorithm = proposal.algorithm;
  call.workspace = workspace_.address();
  call.workspace_bytes = workspace_.bytes();
  const size_t columns = call.problem.d.rows;
  MC_CHECK(device_->fill(call.d, kSumsBegin, rows * columns * 4));
  MC_CHECK(device_->multiply_now(call));
  Bits out(2 * columns);
  const auto half = std::as_writable_bytes(std::span(out)).subspan(columns * 4);
  MC_CHECK(device_->read(call.d, std::as_writable_bytes(std::span(out)).first(columns * 4)));
  MC_CHECK(device_->read(call.d + last * columns * 4, half));
  return out;
}

/// Whether two algorithms give the first and the last of `fewer` rows the same bits, the first one among `rows` rows. A
/// number of rows that one of them refuses does not agree.
Result<bool> Matmul::agree(const LtCall& call, const LtProposal& one, size_t rows, const LtProposal& other,
                           size_t fewer) {
  MC_ASSERT(fewer > 0 && fewer <= rows);
  MC_TRY(one_allowed, allows(with_rows(call.problem, rows), one));
  MC_TRY(other_allowed, allows(with_rows(call.problem, fewer), other));
  if (!one_allowed || !other_allowed) return false;
  MC_TRY(want, bits(call, one, rows, fewer - 1));
  MC_TRY(got, bits(call, other, fewer, fewer - 1));
  return got == want;
}

/// The plan of a call, or null when no algorithm takes it.
Result<Matmul::Plan*> Matmul::usable_plan(const LtCall& call, size_t rows) {
  MC_ASSERT_LE(call.problem.d.columns, (rows + 3) / 4 * 4);
  if ((call.a | call.b | call.c | call.d) % kMatrixAlignment != 0) return nullptr;
  MC_TRY(plan, plan_of(call, rows));
  MC_TRY(taken, takes(*plan, call.problem));
  if (taken) return plan;
  if (is_tuned_) return nullptr;
  MC_TRY(chunk, plan_of(call, kChunkRows));
  MC_TRY(chunk_taken, takes(*chunk, call.problem));
  return chunk_taken ? chunk : nullptr;
}

Result<bool> Matmul::takes(const LtCall& call, size_t rows) {
  MC_TRY(plan, usable_plan(call, rows));
  return plan != nullptr;
}

Result<bool> Matmul::queue(LtCall call, size_t rows) {
  MC_TRY(plan, usable_plan(call, rows));
  if (plan == nullptr) return ++report_.refused, false;
  call.algorithm = plan->proposal.algorithm;
  call.workspace = workspace_.address();
  call.workspace_bytes = workspace_.bytes();
  MC_CHECK(device_->multiply(call));
  report_.last = plan->proposal;
  ++report_.queued;
  return true;
}

Result<bool> Matmul::queue(const Product& p) {
  MC_ASSERT(p.rows > 0 && p.columns > 0 && p.inner > 0 && p.inner % 8 == 0);
  LtCall call;
  call.problem = problem_of(p);
  call.a = p.w;
  call.b = p.x;
  call.c = call.d = p.y;
  call.beta = p.adds ? 1 : 0;
  return queue(call, p.rows);
}

}  // namespace mc::gpu
