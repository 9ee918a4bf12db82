// The grammar of PTX text that nvcc emits: a recursive descent over the tokens of lexer.h. Scopes are the braces of a
// kernel and of inline assembly: each may declare registers and labels of its own.
#include <algorithm>
#include <charconv>
#include <map>

#include "gpu/ptx/lexer.h"
#include "gpu/ptx/ptx.h"

namespace mc::gpu::ptx {
namespace {

constexpr size_t kTextMax = 64u << 20;
constexpr uint32_t kRegistersMax = 1u << 16;   // of one class and kernel
constexpr size_t kInstructionsMax = 1u << 20;  // of a kernel
constexpr size_t kPartsMax = 512;              // of a list: wgmma has up to 128 accumulators
constexpr size_t kScopesMax = 8;
constexpr uint32_t kSpaceMax = 232448;  // bytes of shared memory or parameters (compute capability 9.0)

struct Declared {
  RegClass reg_class = RegClass::b32;
  uint32_t first = 0, count = 0;
};

/// A pair of braces. A family `%r<9>` is stored as its prefix `%r`, a single register by its full name.
struct Scope {
  std::map<std::string_view, Declared> families, singles;
  std::map<std::string_view, uint32_t> labels;
  struct Jump {
    uint32_t instruction, operand, line;
    std::string_view label;
  };
  std::vector<Jump> jumps;
};

struct Symbol {
  bool is_param = false;
  uint32_t offset = 0;
};

bool reg_class_of(std::string_view type, RegClass& out) {
  static const std::map<std::string_view, RegClass> kClasses = {
      {".pred", RegClass::pred}, {".b16", RegClass::b16}, {".u16", RegClass::b16}, {".s16", RegClass::b16},
      {".b32", RegClass::b32},   {".u32", RegClass::b32}, {".s32", RegClass::b32}, {".f32", RegClass::b32},
      {".b64", RegClass::b64},   {".u64", RegClass::b64}, {".s64", RegClass::b64}, {".f64", RegClass::b64}};
  const auto found = kClasses.find(type);
  if (found == kClasses.end()) return false;
  out = found->second;
  return true;
}

uint32_t bytes_of(std::string_view type) {
  if (type.size() < 3) return 0;
  const std::string_view bits = type.substr(2);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

class Parser {
 public:
  Parser(Module& module, std::string_view only)
      : module_(module), only_(only), lexer_({module.text.data(), module.text.size()}) {}

  Result<void> run() {
    MC_CHECK(advance());
    while (token_.kind != Token::Kind::end) MC_CHECK(top_level());
    return {};
  }

 private:
  Result<void> advance() {
    token_ = lexer_.next();
    if (token_.kind == Token::Kind::bad) return wrong("is not PTX");
    return {};
  }
  Error wrong(std::string_view what) const {
    return {Code::invalid, "PTX line " + std::to_string(token_.line) + ": '" + std::string(token_.text.substr(0, 60)) +
                               "' " + std::string(what)};
  }
  bool at(std::string_view text) const { return token_.text == text && token_.kind != Token::Kind::end; }
  Result<void> expect(std::string_view text) {
    if (!at(text)) return wrong("stands where '" + std::string(text) + "' should");
    return advance();
  }
  Result<int64_t> integer() {
    const bool minus = at("-");
    if (minus) MC_CHECK(advance());
    int64_t value = 0;
    if (token_.kind != Token::Kind::number || !read_integer(token_.text, value)) return wrong("is not a whole number");
    MC_CHECK(advance());
    return minus ? static_cast<int64_t>(0 - static_cast<uint64_t>(value)) : value;
  }
  Result<uint32_t> count(uint32_t most) {
    MC_TRY(value, integer());
    if (value < 0 || value > most) return wrong("follows a number that is not in 0 to " + std::to_string(most));
    return static_cast<uint32_t>(value);
  }

  Result<void> skip_to(std::string_view text) {
    while (token_.kind != Token::Kind::end && !at(text)) MC_CHECK(advance());
    return expect(text);
  }

  Result<void> top_level() {
    if (at(".version") || at(".address_size")) {
      MC_CHECK(advance());
      return advance();
    }
    if (at(".target")) {
      MC_CHECK(advance());
      module_.target = std::string(token_.text);
      return advance();
    }
    if (at(".file")) return file();
    if (at(".section")) {
      MC_CHECK(skip_to("{"));
      return skip_to("}");
    }
    if (at(".visible") || at(".extern") || at(".weak")) return advance();
    if (at(".shared")) return shared_array();
    if (at(".entry")) return kernel();
    return wrong("is not supported at the top of a module: kernels and shared arrays are");
  }

  Result<void> file() {
    MC_CHECK(advance());
    MC_TRY(number, count(1000));
    if (module_.files.size() <= number) module_.files.resize(number + 1);
    std::string_view path = token_.text;
    if (path.size() >= 2 && path.front() == '"') path = path.substr(1, path.size() - 2);
    module_.files[number] = std::string(path.substr(path.rfind('/') + 1));
    MC_CHECK(advance());
    while (at(",")) {  // size and time
      MC_CHECK(advance());
      MC_CHECK(advance());
    }
    return {};
  }

  /// `.align N .type name[bytes]`: the name with size and alignment in bytes.
  struct Variable {
    std::string_view name;
    uint32_t bytes = 0, align = 1;
  };
  Result<Variable> variable() {
    Variable out;
    if (at(".align")) {
      MC_CHECK(advance());
      MC_TRY(align, count(4096));
      out.align = std::max(align, 1u);
      if ((out.align & (out.align - 1)) != 0) return wrong("follows an alignment that is not a power of two");
    }
    const uint32_t one = bytes_of(token_.text);
    if (one == 0) return wrong("is not a type of 8 to 64 bits");
    out.align = std::max(out.align, one);
    MC_CHECK(advance());
    out.name = token_.text;
    out.bytes = one;
    MC_CHECK(advance());
    if (!at("[")) return out;
    MC_CHECK(advance());
    out.bytes = 0;
    if (!at("]")) {
      MC_TRY(items, count(kSpaceMax));
      out.bytes = one * items;
    }
    MC_CHECK(expect("]"));
    return out;
  }

  /// Places a variable behind what is there.
  Result<uint32_t> place(const Variable& v, uint32_t& end) {
    const uint32_t offset = (end + v.align - 1) / v.align * v.align;
    if (offset > kSpaceMax || v.bytes > kSpaceMax - offset) return wrong("ends a space of more than 227 KiB");
    end = offset + v.bytes;
    return offset;
  }

  Result<void> shared_array() {
    MC_CHECK(advance());
    MC_TRY(v, variable());
    MC_TRY(offset, place(v, module_.shared_bytes));
    module_.shared_align = std::max(module_.shared_align, v.align);
    if (dynamic_) return wrong("ends a shared array behind the dynamic one, which is the last");
    dynamic_ = v.bytes == 0;
    symbols_[v.name] = {false, offset};
    return expect(";");
  }

  Result<void> kernel() {
    MC_CHECK(advance());
    Kernel k;
    k.name = std::string(token_.text);
    MC_CHECK(advance());
    MC_CHECK(expect("("));
    while (!at(")")) {
      MC_CHECK(expect(".param"));
      MC_TRY(v, variable());
      MC_TRY(offset, place(v, k.param_bytes));
      k.params.push_back({v.name, offset, v.bytes});
      symbols_[v.name] = {true, offset};
      if (!at(")")) MC_CHECK(expect(","));
    }
    MC_CHECK(advance());
    while (!at("{")) {
      const bool limit = at(".maxntid") || at(".reqntid");
      if (!limit && !at(".minnctapersm")) return wrong("is not a known directive of a kernel");
      MC_CHECK(advance());
      uint32_t threads = 1;
      for (bool more = true; more;) {
        MC_TRY(extent, count(1024));
        threads *= std::max(extent, 1u);
        more = at(",");
        if (more) MC_CHECK(advance());
        if (threads > 1024) return wrong("follows more than 1024 threads");
      }
      if (limit) k.threads_max = threads;
    }
    if (!only_.empty() && k.name != only_) return skip_body();
    module_.kernels.push_back(std::move(k));
    kernel_ = &module_.kernels.back();
    source_ = caller_ = {};
    return body();
  }

  Result<void> skip_body() {
    size_t depth = 0;
    do {
      if (token_.kind == Token::Kind::end) return wrong("ends the text inside a kernel");
      if (at("{")) ++depth;
      if (at("}")) --depth;
      MC_CHECK(advance());
    } while (depth > 0);
    return {};
  }

  Result<void> body() {
    scopes_.clear();
    do {
      if (at("{")) {
        if (scopes_.size() == kScopesMax) return wrong("opens too many scopes");
        scopes_.emplace_back();
        MC_CHECK(advance());
      } else if (at("}")) {
        MC_CHECK(close_scope());
      } else {
        MC_CHECK(statement());
      }
    } while (!scopes_.empty());
    return {};
  }

  /// Jumps to labels of the scope are resolved; the others are the outer scope's.
  Result<void> close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const Scope::Jump& jump : scope.jumps) {
      const auto found = scope.labels.find(jump.label);
      if (found != scope.labels.end()) {
        kernel_->code[jump.instruction].operands[jump.operand].value = found->second;
        continue;
      }
      if (scopes_.empty())
        return Error{Code::invalid, "PTX line " + std::to_string(jump.line) + ": no label '" +
                                        std::string(jump.label.substr(0, 60)) + "' in " + kernel_->name};
      scopes_.back().jumps.push_back(jump);
    }
    return advance();
  }

  Result<void> statement() {
    if (token_.kind == Token::Kind::end) return wrong("ends the text inside a kernel");
    if (at(".reg")) return registers();
    if (at(".loc")) return location();
    if (at(".pragma")) return skip_to(";");
    if (at(".shared")) return shared_array();
    if (at(";")) return advance();
    if (token_.text.front() == '.') return wrong("is not a known directive inside a kernel");
    if (token_.kind == Token::Kind::word && lexer_.peek() == ':') {
      if (!scopes_.back().labels.emplace(token_.text, static_cast<uint32_t>(kernel_->code.size())).second)
        return wrong("names two labels");
      MC_CHECK(advance());
      return expect(":");
    }
    return instruction();
  }

  Result<void> registers() {
    MC_CHECK(advance());
    Declared d;
    if (!reg_class_of(token_.text, d.reg_class)) return wrong("is not a register type");
    MC_CHECK(advance());
    uint32_t& used = kernel_->registers[static_cast<int>(d.reg_class)];
    for (bool more = true; more;) {
      const std::string_view name = token_.text;
      if (token_.kind != Token::Kind::word) return wrong("is not a register's name");
      MC_CHECK(advance());
      const bool family = at("<");
      d.first = used;
      d.count = 1;
      if (family) {
        MC_CHECK(advance());
        MC_TRY(number, count(kRegistersMax));
        d.count = number;
        MC_CHECK(expect(">"));
      }
      if (d.count > kRegistersMax - used) return wrong("follows too many registers");
      used += d.count;
      (family ? scopes_.back().families : scopes_.back().singles)[name] = d;
      more = at(",");
      if (more) MC_CHECK(advance());
    }
    return expect(";");
  }

  /// `.loc file line column, function_name label, inlined_at file line column`
  Result<void> location() {
    MC_CHECK(advance());
    SourceLine own, caller;
    const auto place = [&](SourceLine& out) -> Result<void> {
      MC_TRY(file, count(1000));
      MC_TRY(line, count(1u << 24));
      out = {static_cast<uint16_t>(file), line};
      return integer() ? Result<void>{} : wrong("is not a column");
    };
    MC_CHECK(place(own));
    if (at(",")) {
      MC_CHECK(advance());
      MC_CHECK(expect("function_name"));
      MC_CHECK(advance());
      MC_CHECK(expect(","));
      MC_CHECK(expect("inlined_at"));
      MC_CHECK(place(caller));
    }
    if (own.line == 0) return {};
    source_ = own;
    caller_ = caller;
    return {};
  }

  Result<void> instruction() {
    Instruction out;
    out.line = token_.line;
    out.source = source_;
    out.caller = caller_;
    if (at("@")) {
      MC_CHECK(advance());
      out.guard_negated = at("!");
      if (out.guard_negated) MC_CHECK(advance());
      MC_TRY(guard, operand(0));
      if (guard.kind != Operand::Kind::reg || guard.reg_class != RegClass::pred)
        return wrong("follows a guard that is not a predicate");
      out.guard = static_cast<int32_t>(guard.index);
    }
    if (token_.kind != Token::Kind::word) return wrong("is not an instruction");
    out.name = token_.text;
    out.line = token_.line;
    MC_CHECK(advance());
    while (!at(";")) {
      pending_label_ = {};
      MC_TRY(one, operand(0));
      if (one.kind == Operand::Kind::label)
        scopes_.back().jumps.push_back({static_cast<uint32_t>(kernel_->code.size()),
                                        static_cast<uint32_t>(out.operands.size()), out.line, pending_label_});
      out.operands.push_back(std::move(one));
      if (out.operands.size() > kPartsMax) return wrong("follows too many operands");
      if (at(";")) break;
      if (at("|"))
        MC_CHECK(advance());
      else
        MC_CHECK(expect(","));
      if (at(";")) return wrong("is not an operand");
    }
    if (kernel_->code.size() == kInstructionsMax) return wrong("ends too many instructions");
    kernel_->code.push_back(std::move(out));
    return advance();
  }

  Result<Operand> operand(int depth) {
    if (depth > 2) return wrong("nests operands too deep");
    if (at("{")) return list(depth);
    if (at("[")) return address(depth);
    Operand out;
    if (at("!")) {
      MC_CHECK(advance());
      out.negated = true;
    }
    if (token_.kind == Token::Kind::number || at("-")) return number();
    if (token_.kind != Token::Kind::word) return wrong("is not an operand");
    MC_CHECK(name(out));
    MC_CHECK(advance());
    return out;
  }

  Result<Operand> number() {
    Operand out;
    const std::string_view text = token_.text;
    if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
      const bool single = text[1] == 'f' || text[1] == 'F';
      uint64_t bits = 0;
      const auto read = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
      if (text.size() != (single ? 10u : 18u) || read.ptr != text.data() + text.size())
        return wrong("is not the bits of a real number");
      out.kind = Operand::Kind::real;
      out.reg_class = single ? RegClass::b32 : RegClass::b64;
      out.value = static_cast<int64_t>(bits);
      MC_CHECK(advance());
      return out;
    }
    MC_TRY(value, integer());
    out.value = value;
    return out;
  }

  Result<Operand> list(int depth) {
    Operand out;
    out.kind = Operand::Kind::list;
    MC_CHECK(advance());
    while (!at("}")) {
      MC_TRY(part, operand(depth + 1));
      out.parts.push_back(std::move(part));
      if (out.parts.size() > kPartsMax) return wrong("follows too many operands");
      if (!at("}")) MC_CHECK(expect(","));
    }
    MC_CHECK(advance());
    return out;
  }

  Result<Operand> address(int depth) {
    Operand out;
    out.kind = Operand::Kind::address;
    MC_CHECK(advance());
    MC_TRY(base, operand(depth + 1));
    out.parts.push_back(std::move(base));
    if (at("+")) {
      MC_CHECK(advance());
      MC_TRY(offset, integer());
      out.value = offset;
    }
    if (at(",")) {
      MC_CHECK(advance());
      MC_TRY(coordinates, operand(depth + 1));
      out.parts.push_back(std::move(coordinates));
    }
    MC_CHECK(expect("]"));
    return out;
  }

  /// A register, special register, symbol or label.
  Result<void> name(Operand& out) {
    const std::string_view text = token_.text;
    if (text == "_") {
      out.kind = Operand::Kind::sink;
      return {};
    }
    for (size_t s = scopes_.size(); s-- > 0;)
      if (const auto found = scopes_[s].singles.find(text); found != scopes_[s].singles.end()) {
        out.kind = Operand::Kind::reg;
        out.reg_class = found->second.reg_class;
        out.index = found->second.first;
        return {};
      }
    if (text.front() == '%') {
      const size_t digits = std::min(text.find_first_of("0123456789"), text.size());
      for (size_t s = scopes_.size(); s-- > 0 && digits < text.size();) {
        const auto found = scopes_[s].families.find(text.substr(0, digits));
        if (found == scopes_[s].families.end()) continue;
        int64_t number = 0;
        if (!read_integer(text.substr(digits), number) || number >= found->second.count)
          return wrong("is a register that was not declared");
        out.kind = Operand::Kind::reg;
        out.reg_class = found->second.reg_class;
        out.index = found->second.first + static_cast<uint32_t>(number);
        return {};
      }
      out.kind = Operand::Kind::special;
      out.name = text;
      return {};
    }
    if (const auto found = symbols_.find(text); found != symbols_.end()) {
      out.kind = Operand::Kind::symbol;
      out.is_param = found->second.is_param;
      out.value = found->second.offset;
      return {};
    }
    out.kind = Operand::Kind::label;
    pending_label_ = text;
    return {};
  }

  Module& module_;
  std::string_view only_;
  Lexer lexer_;
  Token token_;
  std::map<std::string_view, Symbol> symbols_;
  std::vector<Scope> scopes_;
  Kernel* kernel_ = nullptr;
  SourceLine source_, caller_;
  bool dynamic_ = false;
  std::string_view pending_label_;
};

}  // namespace

const Kernel* Module::find(std::string_view kernel) const {
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return k.name == kernel; });
  return found == kernels.end() ? nullptr : &*found;
}

Result<Module> parse(std::string_view text, std::string_view kernel) {
  if (text.size() > kTextMax) return Error{Code::invalid, "PTX of more than 64 MiB"};
  Module module;
  module.text.assign(text.begin(), text.end());
  MC_CHECK(Parser(module, kernel).run());
  const auto is_wrapper = [&](SourceLine place) {
    const std::string_view file = place.file < module.files.size() ? std::string_view(module.files[place.file]) : "";
    return file == "ptx.cuh" || file == "hopper.cuh" || file.ends_with(".hpp") || file.ends_with(".h");
  };
  for (Kernel& kernel : module.kernels)
    for (Instruction& i : kernel.code)
      if (is_wrapper(i.source) && i.caller.line > 0) i.source = i.caller;
  return module;
}

}  // namespace mc::gpu::ptx
