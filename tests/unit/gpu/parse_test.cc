#include "gpu/ptx/ptx.h"
#include "unit/gpu/emulated.h"

using namespace mc;
using namespace mc::gpu;
using ptx::Operand;

TEST_CASE("gpu/ptx: an instruction keeps its name, guard and operands") {
  const std::string text =
      tested::kernel_text("@!%p3 ld.global.v2.u32 {%r4, %r5}, [%rd2+-8];\nfma.rn.f32 %f1, %f2, 0f3F800000, %f3;");
  const auto module = ptx::parse(text);
  REQUIRE_OK(module);
  const auto& code = module->find("k")->code;
  REQUIRE(code.size() == 5);
  const ptx::Instruction& load = code[2];
  CHECK(load.name == "ld.global.v2.u32");
  CHECK(load.guard == 3);
  CHECK(load.guard_negated);
  REQUIRE(load.operands.size() == 2);
  CHECK(load.operands[0].kind == Operand::Kind::list);
  CHECK(load.operands[0].parts[1].index == 5);
  CHECK(load.operands[1].kind == Operand::Kind::address);
  CHECK(load.operands[1].value == -8);
  CHECK(code[3].operands[2].kind == Operand::Kind::real);
  CHECK(code[3].operands[2].value == 0x3f800000);
}

TEST_CASE("gpu/ptx: registers of one class are numbered without overlap across declarations and scopes") {
  const std::string text = tested::kernel_text("{ .reg .b32 x; mov.u32 x, 1; }\n{ .reg .b32 x; mov.u32 x, 2; }");
  const auto module = ptx::parse(text);
  REQUIRE_OK(module);
  const ptx::Kernel& k = *module->find("k");
  CHECK(k.registers[static_cast<int>(ptx::RegClass::b32)] == 64 + 64 + 2);
  CHECK(k.code[2].operands[0].index != k.code[3].operands[0].index);
}

TEST_CASE("gpu/ptx: labels of inline assembly belong to their braces") {
  const std::string loop = "{ again: bra again; }\n";
  const std::string text = tested::kernel_text(loop + loop);
  const auto module = ptx::parse(text);
  REQUIRE_OK(module);
  const auto& code = module->find("k")->code;
  CHECK(code[2].operands[0].value == 2);
  CHECK(code[3].operands[0].value == 3);
}

TEST_CASE("gpu/ptx: an instruction knows the line that called its wrapper") {
  const std::string text =
      tested::kernel_text(".loc 2 30 3, function_name $L__info_string0, inlined_at 1 7 5\nbar.sync 0;") +
      ".file 1 \"/a/b/kernel.cu\"\n.file 2 \"/a/b/ptx.cuh\"\n.section .debug_str\n{\n.b8 1,2\n}\n";
  const auto module = ptx::parse(text);
  REQUIRE_OK(module);
  const ptx::Instruction& barrier = module->find("k")->code[2];
  CHECK(module->files[barrier.source.file] == "kernel.cu");
  CHECK(barrier.source.line == 7);
}

TEST_CASE("gpu/ptx: shared arrays and parameters get aligned offsets") {
  const auto module = ptx::parse(
      ".target sm_80\n.shared .align 4 .b8 small[6];\n.extern .shared .align 128 .b8 rest[];\n"
      ".visible .entry k(.param .u32 a, .param .u64 b, .param .align 64 .b8 c[100])\n{\nret;\n}\n");
  REQUIRE_OK(module);
  CHECK(module->target == "sm_80");
  CHECK(module->shared_bytes == 128);
  const ptx::Kernel& k = *module->find("k");
  CHECK(k.params[1].offset == 8);
  CHECK(k.params[2].offset == 64);
  CHECK(k.param_bytes == 164);
}

TEST_CASE("gpu/ptx: what is wrong is named with its line") {
  struct {
    std::string body, expected;
  } const cases[] = {
      {"mov.u32 %r64, 0;", "PTX line 14: '%r64' is a register that was not declared"},
      {"bra nowhere;", "no label 'nowhere'"},
      {"mov.u32 %r1, ;", "';' is not an operand"},
      {".local .b8 x[4];", "'.local' is not a known directive"},
      {"a: a: ret;", "names two labels"},
      {"{ { { { { { { { ret; } } } } } } } }", "opens too many scopes"},
      {"mov.u32 %r1, 99999999999999999999;", "is not a whole number"},
      {"/* open", "is not PTX"},
  };
  for (const auto& c : cases) {
    const auto module = ptx::parse(tested::kernel_text(c.body));
    INFO(c.body);
    REQUIRE(!module.has_value());
    INFO(module.error().what);
    CHECK(module.error().what.find(c.expected) != std::string::npos);
    CHECK(module.error().what.find("PTX line") != std::string::npos);
  }
}

TEST_CASE("gpu/ptx: an unknown instruction is named with its line and the next step") {
  const std::string text = tested::kernel_text("tex.1d.v4.f32.s32 %r1, %r2;");
  const auto module = ptx::parse(text);
  REQUIRE_OK(module);
  const auto program = emu::Program::load(*module, "k");
  REQUIRE(!program.has_value());
  CHECK(program.error().code == Code::unsupported);
  CHECK(program.error().what.find("PTX line 14") != std::string::npos);
  CHECK(program.error().what.find("does not know 'tex.1d.v4.f32.s32'") != std::string::npos);
  CHECK(program.error().next.find("lib/gpu/emu") != std::string::npos);
}

TEST_CASE("gpu/ptx: every beginning of a module is refused or read, never followed out of its bytes") {
  const std::string text = tested::kernel_text("@%p1 bra over;\nmov.b64 {%r1, %r2}, %rd3;\nover:");
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    const auto module = ptx::parse(std::string_view(text).substr(0, size));
    if (module) CHECK(module->kernels.empty());
  }
}
