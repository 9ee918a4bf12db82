// From the text of an instruction to an Op: the table row with its name and operand shape is looked up once.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

using ptx::Operand;
using ptx::RegClass;

constexpr size_t kRowWordsMax = 1u << 24;  // of a warp's registers: 64 MiB

/// Rows by name; a name that `decode` completes stands under its beginning.
const std::unordered_multimap<std::string_view, const Row*>& table() {
  static const auto all = [] {
    std::unordered_multimap<std::string_view, const Row*> out;
    for (const auto rows : {arithmetic_rows(), memory_rows(), warp_rows(), async_rows(), bulk_rows(), wgmma_rows()})
      for (const Row& row : rows) out.emplace(row.name, &row);
    return out;
  }();
  return all;
}

class Decoder {
 public:
  Decoder(Decoded& code) : code_(code) {
    const auto& registers = code.kernel->registers;
    wide_ = (registers[static_cast<int>(RegClass::b32)] + registers[static_cast<int>(RegClass::b16)]) * kLanes;
    code.words = wide_ + registers[static_cast<int>(RegClass::b64)] * 2 * kLanes;
    const uint32_t predicates = registers[static_cast<int>(RegClass::pred)];
    false_ = predicates;
    trash_predicate_ = predicates + 1;
    code.predicates = predicates + 2;
    trash_ = new_row(true);
  }

  Result<void> run() {
    for (const ptx::Instruction& instruction : code_.kernel->code) {
      Op op;
      op.guard = instruction.guard;
      op.guard_negated = instruction.guard_negated;
      op.at = static_cast<uint32_t>(code_.ops.size());
      if (!find(instruction, op)) return unknown(instruction);
      if (op.run == nullptr || code_.words > kRowWordsMax) return unknown(instruction);
      code_.ops.push_back(op);
    }
    return {};
  }

 private:
  bool find(const ptx::Instruction& instruction, Op& op) {
    std::string_view name = instruction.name;
    while (true) {
      const auto [begin, end] = table().equal_range(name);
      for (auto at = begin; at != end; ++at) {
        const Row& row = *at->second;
        const std::string_view modifiers = instruction.name.substr(name.size());
        Op made = op;
        std::string shape(row.shape);
        if (row.decode == nullptr ? !modifiers.empty() : !row.decode(made, modifiers, shape)) continue;
        operands_.clear();
        reads_.clear();
        writes_.clear();
        if (!match(shape, instruction.operands, made)) continue;
        made.run = row.run;
        made.aligned = row.aligned;
        if (made.count == 0) made.count = static_cast<uint8_t>(std::min<size_t>(operands_.size(), 255));
        code_.operands.push_back(operands_);
        made.a = code_.operands.back().data();
        made.written_count = static_cast<uint16_t>(writes_.size());
        writes_.insert(writes_.end(), reads_.begin(), reads_.end());
        made.row_count = static_cast<uint16_t>(writes_.size());
        code_.operands.push_back(writes_);
        made.rows = code_.operands.back().data();
        code_.uses_wgmma = code_.uses_wgmma || instruction.name.starts_with("wgmma.");
        op = made;
        return true;
      }
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos) return false;
      name = name.substr(0, dot);
    }
  }

  Error unknown(const ptx::Instruction& instruction) const {
    Error error{Code::unsupported, "PTX line " + std::to_string(instruction.line) + " (" +
                                       code_.place(static_cast<uint32_t>(code_.ops.size())) +
                                       "): the emulator does not know '" + std::string(instruction.name) +
                                       "' with these operands"};
    error.where = "kernel " + code_.kernel->name;
    error.next = "add a line to a table of lib/gpu/emu, or keep the instruction out of the kernel";
    return error;
  }

  bool match(std::string_view shape, const std::vector<Operand>& operands, Op& op) {
    size_t next = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (next == operands.size()) return false;
      const Operand& operand = operands[next++];
      if (shape[i] != '{') {
        if (!one(shape[i], operand, op)) return false;
        continue;
      }
      const size_t end = shape.find('}', i);
      if (operand.kind != Operand::Kind::list || operand.parts.size() != end - i - 1) return false;
      for (const Operand& part : operand.parts)
        if (!one(shape[++i], part, op)) return false;
      i = end;
    }
    return next == operands.size();
  }

  bool one(char letter, const Operand& operand, Op& op) {
    switch (letter) {
      case 'i':
        operands_.push_back(static_cast<uint32_t>(operand.value));
        return operand.kind == Operand::Kind::integer;
      case 'l': op.target = static_cast<uint32_t>(operand.value); return operand.kind == Operand::Kind::label;
      case 'p':
      case 'q':
      case 'n':
      case 'P': return predicate(letter, operand);
      case 'm':
      case 'b':
      case 'g': return address(letter, operand, op);
      case 't': return tensor(operand);
      default: return value(letter, operand, op);
    }
  }

  bool predicate(char letter, const Operand& operand) {
    const uint32_t negated = operand.negated != (letter == 'n') ? 0x80000000u : 0;
    if (operand.kind == Operand::Kind::reg && operand.reg_class == RegClass::pred) {
      operands_.push_back(operand.index | negated);
      return negated == 0 || letter == 'q' || letter == 'n';
    }
    if (operand.kind == Operand::Kind::sink && letter == 'P') {
      operands_.push_back(trash_predicate_);
      return true;
    }
    operands_.push_back(false_ | (operand.value != 0 ? 0x80000000u : 0));
    return operand.kind == Operand::Kind::integer && letter != 'P';
  }

  bool address(char letter, const Operand& operand, Op& op) {
    if (operand.kind != Operand::Kind::address || operand.parts.size() != 1) return false;
    const Operand& base = operand.parts[0];
    const bool wide = base.kind == Operand::Kind::reg && base.reg_class == RegClass::b64;
    uint32_t row = 0;
    if (!source(base, wide, row)) return false;
    (letter == 'm' ? op.offset : op.second) = operand.value;
    if (letter != 'm') {
      operands_.push_back(row);
      return wide == (letter == 'g');
    }
    op.base = row;
    op.wide_base = wide;
    return true;
  }

  bool tensor(const Operand& operand) {
    if (operand.kind != Operand::Kind::address || operand.parts.size() != 2 || operand.value != 0) return false;
    uint32_t row = 0;
    if (!source(operand.parts[0], true, row) || operand.parts[1].kind != Operand::Kind::list) return false;
    operands_.push_back(row);
    for (const Operand& part : operand.parts[1].parts) {
      if (!source(part, false, row)) return false;
      operands_.push_back(row);
    }
    return operand.parts[1].parts.size() <= 5;
  }

  bool value(char letter, const Operand& operand, Op& op) {
    const bool written = letter >= 'A' && letter <= 'Z';
    if (written) letter = static_cast<char>(letter - 'A' + 'a');
    uint32_t row = trash_;
    if (operand.kind == Operand::Kind::sink) {
      operands_.push_back(row);
      return written;
    }
    const bool is_register = operand.kind == Operand::Kind::reg;
    if (written && !is_register) return false;
    bool wide = letter == 'd';
    if (letter == 'x') op.wide_value = wide = is_register ? operand.reg_class == RegClass::b64 : op.width == 8;
    if (is_register) {
      const bool half = operand.reg_class == RegClass::b16, word = operand.reg_class == RegClass::b32;
      if (wide != (operand.reg_class == RegClass::b64)) return false;
      if ((letter == 'r' && !word) || (letter == 'h' && !half) || (!wide && !half && !word)) return false;
    }
    if (!source(operand, wide, row)) return false;
    operands_.push_back(row);
    if (is_register) (written ? writes_ : reads_).push_back(row / kLanes);
    return !operand.negated;
  }

  /// Row of a register, constant, symbol or special register.
  bool source(const Operand& operand, bool wide, uint32_t& row) {
    switch (operand.kind) {
      case Operand::Kind::reg:
        if (operand.reg_class == RegClass::pred) return false;
        // a predicate is no value; a 64-bit register fits where 64 bits are read
        if (wide != (operand.reg_class == RegClass::b64)) return false;
        row = operand.reg_class == RegClass::b64 ? wide_ + operand.index * 2 * kLanes
              : operand.reg_class == RegClass::b32
                  ? operand.index * kLanes
                  : (code_.kernel->registers[static_cast<int>(RegClass::b32)] + operand.index) * kLanes;
        return true;
      case Operand::Kind::integer:
      case Operand::Kind::real:
      case Operand::Kind::symbol: row = constant(static_cast<uint64_t>(operand.value), wide); return true;
      case Operand::Kind::special: return special(operand.name, row) && !wide;
      default: return false;
    }
  }

  uint32_t new_row(bool wide) {
    const uint32_t row = code_.words;
    code_.words += wide ? 2 * kLanes : kLanes;
    return row;
  }
  uint32_t constant(uint64_t value, bool wide) {
    const auto [found, made] = constants_.try_emplace({value, wide}, 0);
    if (made) {
      found->second = new_row(wide);
      code_.fixed.push_back({.row = found->second, .wide = wide, .value = value});
    }
    return found->second;
  }
  bool special(std::string_view name, uint32_t& row) {
    const auto found = std::find(std::begin(kSpecials), std::end(kSpecials), name);
    if (found == std::end(kSpecials)) return false;
    const auto [at, made] = specials_.try_emplace(name, 0);
    if (made) {
      at->second = new_row(false);
      const auto number = static_cast<uint8_t>(found - std::begin(kSpecials) + 1);
      code_.fixed.push_back({.row = at->second, .special = number});
    }
    row = at->second;
    return true;
  }

  Decoded& code_;
  std::vector<uint32_t> operands_, reads_, writes_;
  std::map<std::pair<uint64_t, bool>, uint32_t> constants_;
  std::map<std::string_view, uint32_t> specials_;
  uint32_t wide_ = 0, trash_ = 0, false_ = 0, trash_predicate_ = 0;
};

}  // namespace

std::string Decoded::place(uint32_t op) const {
  const ptx::Instruction& at = kernel->code[std::min<size_t>(op, kernel->code.size() - 1)];
  if (at.source.line == 0 || at.source.file >= module->files.size())
    return std::string(at.name) + " at PTX line " + std::to_string(at.line);
  return std::string(at.name) + " at " + module->files[at.source.file] + ":" + std::to_string(at.source.line);
}

Program::Program() : code_(std::make_unique<Decoded>()) {}
Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

Result<Program> Program::load(const ptx::Module& module, std::string_view kernel) {
  Program program;
  Decoded& code = *program.code_;
  code.module = &module;
  code.kernel = module.find(kernel);
  if (code.kernel == nullptr || code.kernel->code.empty())
    return Error{Code::not_found, "no kernel '" + std::string(kernel) + "' in the PTX for " + module.target};
  code.dynamic_offset = module.shared_bytes;
  MC_CHECK(Decoder(code).run());
  return program;
}

}  // namespace mc::gpu::emu
