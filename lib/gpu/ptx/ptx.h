// PTX text as data: the kernels of one module, their parameters, registers and instructions. parse() takes what nvcc
// 13.0 emits for the kernels of lib/gpu/kernels (PTX ISA 9.0, sections 4 and 5) and refuses the rest with the line: no
// functions, no local memory, no textures. Names of instructions are kept as text; lib/gpu/emu gives them meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::gpu::ptx {

enum class RegClass : uint8_t { pred, b16, b32, b64 };

/// One operand. A register is its class and its number among the kernel's registers of that class.
struct Operand {
  enum class Kind : uint8_t {
    reg,      // %r5, also !%p5
    integer,  // 5, -5, 0x5
    real,     // 0f3F800000, 0d...: `value` holds the bits
    special,  // %tid.x
    symbol,   // a parameter or shared array: `value` is the offset in its space
    label,    // `value` is the instruction's number
    list,     // {a, b}: parts
    address,  // [a+16]: parts[0] is the base, value the offset; parts[1] the coordinates of a tensor copy
    sink,     // _
  };
  Kind kind = Kind::integer;
  RegClass reg_class = RegClass::b32;
  bool negated = false;
  bool is_param = false;  // of a symbol: in parameter space, else in shared memory
  uint32_t index = 0;     // of a register
  int64_t value = 0;
  std::string_view name;  // of a special register
  std::vector<Operand> parts;
};

/// A line of the CUDA source: where the wrapper of an instruction was called, as .loc tells with -lineinfo.
struct SourceLine {
  uint16_t file = 0;  // number in Module::files
  uint32_t line = 0;
};

struct Instruction {
  std::string_view name;  // "ld.global.v2.u32", without the guard
  std::vector<Operand> operands;
  int32_t guard = -1;  // number of the guarding predicate
  bool guard_negated = false;
  uint32_t line = 0;  // in the PTX text
  SourceLine source;  // outside the file of the wrappers, if the instruction was inlined from it
  SourceLine caller;  // where the function of `source` was inlined; line 0: it was not
};

struct Param {
  std::string_view name;
  uint32_t offset = 0, bytes = 0;
};

struct Kernel {
  std::string name;
  std::vector<Param> params;
  uint32_t param_bytes = 0;
  uint32_t threads_max = 0;    // .maxntid; 0: not stated
  uint32_t registers[4] = {};  // by RegClass
  std::vector<Instruction> code;
};

/// Views point into `text`, so a module is moved and never copied.
struct Module {
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  std::vector<char> text;
  std::string target;              // "sm_80"
  uint32_t shared_bytes = 0;       // of arrays of known size; dynamic shared memory starts behind them
  uint32_t shared_align = 16;      // largest alignment of a shared array
  std::vector<std::string> files;  // by number; [0] is empty
  std::vector<Kernel> kernels;

  const Kernel* find(std::string_view kernel) const;
};

/// Reads a module. Code::invalid names the line and what stands there. Safe for any bytes: text, registers, operands
/// and nesting are bounded. With `kernel`, the bodies of other kernels are skipped.
Result<Module> parse(std::string_view text, std::string_view kernel = {});

}  // namespace mc::gpu::ptx
