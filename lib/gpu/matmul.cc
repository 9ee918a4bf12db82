#include "gpu/matmul.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "base/units.h"

namespace mc::gpu {
namespace {

constexpr MatmulRow kMatmulRows[] = {{"auto", MatmulChoice::automatic},
                                     {"own", MatmulChoice::own},
                                     {"cublaslt", MatmulChoice::cublaslt},
                                     {"cublaslt-tuned", MatmulChoice::tuned}};
constexpr uint8_t kUnknown = 0, kTaken = 1, kRefused = 2;
constexpr size_t kRowsAsked = 512;         // of the product that the heuristic is asked about: a chunk of a prompt
constexpr size_t kTunedMost = 8192;        // rows: larger products share an algorithm
constexpr uint32_t kMatrixAlignment = 16;  // of every matrix: rows of 8 bf16 elements have no more

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
  out.report_.name = "cuBLASLt " + cublaslt_version_text(library.version());
  auto workspace = DeviceBuffer::make(device, workspace_most(device.capability()), "workspace of cuBLASLt");
  if (!workspace && workspace.error().code != Code::no_space) return std::move(workspace).error();
  if (workspace) out.workspace_ = *std::move(workspace);
  out.report_.workspace_bytes = out.workspace_.bytes();
  return out;
}

CublasLt& Matmul::library() {
  return device_->driver().cublaslt();
}

/// The rows that the heuristic is asked about; multiples of 4, which scales of blocks need.
size_t Matmul::bucket(size_t rows) const {
  return is_tuned_ ? std::bit_ceil(std::clamp<size_t>(rows, 4, kTunedMost)) : kRowsAsked;
}

/// The algorithm of a product. The heuristic is asked once for each.
Result<Matmul::Plan*> Matmul::plan_of(const LtCall& call, size_t rows) {
  const LtProblem& p = call.problem;
  const size_t asked = bucket(rows);
  const auto [found, is_new] =
      plans_.try_emplace(Key(p.a.type, p.d.rows, p.b.rows, asked, call.beta != 0, p.operation.epilogue,
                             p.operation.a_scale_mode, p.operation.b_scale_mode));
  Plan& plan = found->second;
  if (!is_new) return &plan;
  ++report_.asked;
  const LtPreference bounds{
      .workspace_bytes = workspace_.bytes(), .splits_inner = is_tuned_, .alignment = kMatrixAlignment};
  const LtStatus status = library().propose(&plan.proposal, with_rows(p, asked), bounds);
  plan.is_usable = status == LtStatus::ok;
  if (status != LtStatus::ok && status != LtStatus::not_supported) {
    plans_.erase(found);  // the next product asks again
    auto checked = device_->check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
    MC_ASSERT(!checked);
    return checked.error();
  }
  return &plan;
}

/// Whether the algorithm of a plan takes a number of rows, which the library is asked once. A list of noted launches
/// has no way back from a product that is refused, so it is asked before.
Result<bool> Matmul::takes(Plan& plan, const LtProblem& problem) {
  const size_t rows = problem.d.columns;
  if (!plan.is_usable) return false;
  if (plan.checked.size() <= rows) plan.checked.resize(rows + 1, kUnknown);
  if (plan.checked[rows] == kUnknown) {
    uint64_t workspace = 0;
    const LtStatus status = library().check(&workspace, problem, plan.proposal.algorithm);
    const bool refuses =
        status == LtStatus::not_supported || status == LtStatus::invalid_value || status == LtStatus::arch_mismatch;
    if (!refuses) MC_CHECK(device_->check_cublaslt(status, "cublasLtMatmulAlgoCheck"));
    plan.checked[rows] = status == LtStatus::ok && workspace <= workspace_.bytes() ? kTaken : kRefused;
  }
  return plan.checked[rows] == kTaken;
}

Result<bool> Matmul::queue(LtCall call, size_t rows) {
  MC_ASSERT_LE(call.problem.d.columns, (rows + 3) / 4 * 4);
  const auto refuse = [this] { return ++report_.refused, false; };
  if ((call.a | call.b | call.c | call.d) % kMatrixAlignment != 0) return refuse();
  MC_TRY(plan, plan_of(call, rows));
  MC_TRY(taken, takes(*plan, call.problem));
  if (!taken) return refuse();
  call.algorithm = plan->proposal.algorithm;
  call.workspace = workspace_.address();
  call.workspace_bytes = workspace_.bytes();
  MC_CHECK(device_->multiply(call));
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
