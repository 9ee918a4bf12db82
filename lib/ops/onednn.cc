// The fence around oneDNN 2.6 (C API). Parallelism is ours: OpenMP is held at one thread in every
// thread that compiles or runs a program, so that a tile is one thread's work and its order of sums is
// fixed. Weights are described as the blocked layouts that oneDNN itself prefers ("any" gives the
// same), so no reorder ever happens; creating a program fails if it would pick a slow reference path.
#include "ops/onednn.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "ops/ops.h"

namespace mc::ops {
namespace {

void hold_openmp() {
  thread_local bool held = false;
  if (held) return;
  omp_set_num_threads(1);  // of this thread only
  held = true;
}

struct Engine {
  dnnl_engine_t engine = nullptr;
  Engine() {
    hold_openmp();
    dnnl_set_primitive_cache_capacity(0);  // programs are ours to keep
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) engine = nullptr;
  }
  ~Engine() {
    if (engine) dnnl_engine_destroy(engine);
  }
};

dnnl_engine_t engine() {
  static const Engine shared;
  return shared.engine;
}

struct ThreadStream {
  dnnl_stream_t stream = nullptr;
  ThreadStream() {
    hold_openmp();
    MC_ASSERT(dnnl_stream_create(&stream, engine(), dnnl_stream_default_flags) == dnnl_success);
  }
  ~ThreadStream() { dnnl_stream_destroy(stream); }

  /// At least `bytes`, 64-byte aligned, until the next call.
  std::byte* scratch(size_t bytes) {
    if (storage_.size() < bytes + 64) storage_.resize(bytes + 64);
    return storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64;
  }

 private:
  std::vector<std::byte> storage_;
};

}  // namespace

struct TileProgram::State {
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_primitive_t primitive = nullptr;
  dnnl_memory_desc_t x, weights, y, scratch;
  size_t scratch_bytes = 0, n = 0;

  ~State() {
    if (primitive) dnnl_primitive_destroy(primitive);
    if (descriptor) dnnl_primitive_desc_destroy(descriptor);
  }
};

TileProgram::~TileProgram() = default;

Result<std::unique_ptr<TileProgram>> TileProgram::compile(Dtype dtype, size_t k, size_t n) {
  hold_openmp();
  std::unique_ptr<TileProgram> program(new TileProgram());
  program->state_ = std::make_unique<State>();
  State& s = *program->state_;
  s.n = n;
  const auto fail = [&](const char* step, dnnl_status_t status) {
    return Error{Code::unsupported, std::string("onednn: ") + step + " of a 64 x " + std::to_string(k) + " x " +
                                        std::to_string(n) + " " + std::string(to_string(dtype)) + " product: status " +
                                        std::to_string(static_cast<int>(status)) + "; run with --kernels=avx2"};
  };
  if (!engine()) return fail("engine", dnnl_runtime_error);
  const bool bf16 = dtype == Dtype::bf16;
  const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
  const auto m = static_cast<dnnl_dim_t>(kTileRows), kk = static_cast<dnnl_dim_t>(k), nn = static_cast<dnnl_dim_t>(n);
  const dnnl_dims_t x_dims = {m, kk}, w_dims = {kk, nn}, y_dims = {m, nn};
  dnnl_status_t status = dnnl_memory_desc_init_by_tag(&s.x, 2, x_dims, type, dnnl_ab);
  if (status == dnnl_success)
    status = dnnl_memory_desc_init_by_tag(&s.weights, 2, w_dims, type, bf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b);
  if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&s.y, 2, y_dims, dnnl_f32, dnnl_ab);
  if (status != dnnl_success) return fail("memory layout", status);
  dnnl_matmul_desc_t matmul;
  status = dnnl_matmul_desc_init(&matmul, &s.x, &s.weights, nullptr, &s.y);
  if (status != dnnl_success) return fail("descriptor", status);
  dnnl_primitive_attr_t attributes = nullptr;
  status = dnnl_primitive_attr_create(&attributes);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
  if (status == dnnl_success)
    status = dnnl_primitive_desc_create(&s.descriptor, &matmul, attributes, engine(), nullptr);
  dnnl_primitive_attr_destroy(attributes);
  if (status != dnnl_success) return fail("primitive", status);
  const char* implementation = nullptr;
  dnnl_primitive_desc_query(s.descriptor, dnnl_query_impl_info_str, 0, &implementation);
  if (!implementation || std::string_view(implementation).substr(0, 3) != "brg")
    return fail("a brgemm implementation", dnnl_unimplemented);
  s.scratch = *dnnl_primitive_desc_query_md(s.descriptor, dnnl_query_scratchpad_md, 0);
  s.scratch_bytes = dnnl_memory_desc_get_size(&s.scratch);
  status = dnnl_primitive_create(&s.primitive, s.descriptor);
  if (status != dnnl_success) return fail("code generation", status);
  return program;
}

void TileProgram::run(const void* x, const void* panels, float* y, size_t y_stride) const {
  thread_local ThreadStream thread;
  const State& s = *state_;
  // brgemm of oneDNN 2.6 takes no strided result: it goes through a dense tile that stays in L1 or L2.
  const size_t tile_bytes = kTileRows * s.n * sizeof(float);
  std::byte* scratch = thread.scratch(tile_bytes + s.scratch_bytes);
  const auto* tile = reinterpret_cast<const float*>(scratch);
  const dnnl_memory_desc_t* descriptors[4] = {&s.x, &s.weights, &s.y, &s.scratch};
  void* places[4] = {const_cast<void*>(x), const_cast<void*>(panels), scratch, scratch + tile_bytes};
  dnnl_memory_t memories[4];
  for (int i = 0; i < 4; ++i)
    MC_ASSERT(dnnl_memory_create(&memories[i], descriptors[i], engine(), places[i]) == dnnl_success);
  const dnnl_exec_arg_t arguments[4] = {{DNNL_ARG_SRC, memories[0]},
                                        {DNNL_ARG_WEIGHTS, memories[1]},
                                        {DNNL_ARG_DST, memories[2]},
                                        {DNNL_ARG_SCRATCHPAD, memories[3]}};
  MC_ASSERT(dnnl_primitive_execute(s.primitive, thread.stream, 4, arguments) == dnnl_success);
  for (dnnl_memory_t memory : memories) dnnl_memory_destroy(memory);
  for (size_t row = 0; row < kTileRows; ++row) std::memcpy(y + row * y_stride, tile + row * s.n, s.n * sizeof(float));
}

}  // namespace mc::ops
