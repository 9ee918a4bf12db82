// Names of the instructions that the emulator runs, and of the lines that call them.
#pragma once

#include <cstdint>
#include <string_view>

#if defined(__clang__)
#include <cstddef>
#else
#include <source_location>
#endif

namespace mc::gpu::emu {

#if defined(__clang__)
/// clang 14 has no std::source_location with the standard library of g++.
class Where {
 public:
  static constexpr Where current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                 unsigned line = __builtin_LINE(), unsigned column = __builtin_COLUMN()) {
    Where out;
    out.file_ = file, out.function_ = function, out.line_ = line, out.column_ = column;
    return out;
  }
  const char* file_name() const { return file_; }
  const char* function_name() const { return function_; }
  unsigned line() const { return line_; }
  unsigned column() const { return column_; }

 private:
  const char *file_ = "", *function_ = "";
  unsigned line_ = 0, column_ = 0;
};
#else
using Where = std::source_location;
#endif

enum class Instruction : uint8_t {
  none,
  ld_global,
  st_global,
  atom_global,
  ld_shared,
  st_shared,
  atom_shared,
  cp_async,
  cp_async_commit,
  cp_async_wait,
  bar_sync,
  bar_arrive,
  warp_sync,
  shfl,
  ldmatrix,
  mma,
  mbarrier_init,
  mbarrier_init_fence,
  mbarrier_arrive,
  mbarrier_arrive_expect,
  mbarrier_wait,
  fence_async,
  load_tensor,
  wgmma_fence,
  wgmma,
  wgmma_commit,
  wgmma_wait,
  cvt,
  max,
  add,
  ld_acquire,
  st_release,
  fence_gpu,
  nanosleep,
  store_tensor,
  reduce_tensor,
  bulk_commit,
  bulk_wait,
  cp_async_arrive,
  cp_async_arrive_inc,
  stmatrix,
  ballot,
  mapa,
  cluster_arrive,
  cluster_wait,
  setmaxnreg_inc,
  setmaxnreg_dec,
  griddep_launch,
  griddep_wait,
  exit,
};
std::string_view to_string(Instruction instruction);

}  // namespace mc::gpu::emu
