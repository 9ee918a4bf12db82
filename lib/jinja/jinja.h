// A sandboxed interpreter of the Jinja language, in which chat templates are written. It gives the output of Python's
// jinja2 3.1 as transformers configures it: ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, break and
// continue, the generation tag, raise_exception, strftime_now, tojson without escapes. A template reaches no file and
// no clock, only the values it is given. Each character of the result carries a bit that says whether it came from a
// user (value.h).
//
//   MC_TRY(tree, jinja::parse(source));
//   MC_TRY(text, jinja::render(tree, {{"messages", jinja::Value::from_json(messages, true)}}));
#pragma once

#include <ctime>
#include <optional>

#include "jinja/tree.h"
#include "jinja/value.h"

namespace mc::jinja {

constexpr size_t kSourceBytesMax = 1 << 20;

/// `source` is valid UTF-8. invalid: "line 3, column 7: TemplateSyntaxError: unexpected '}'".
Result<Tree> parse(std::string_view source);

struct Limits {
  size_t steps = 2'000'000;   // nodes visited, items walked
  size_t work = 64u << 20;    // characters read or written
  size_t chars = 16u << 20;   // characters of all texts made; an item of a list counts as eight
  size_t output = 16u << 20;  // characters of the result
  uint32_t depth = 400;       // nesting of expressions, bodies and macro calls
};

struct Context {
  std::vector<std::pair<std::string, Value>> variables;
  std::optional<std::tm> now;  // the time that strftime_now formats; without it that function is not defined
};

/// invalid: the place and Python's name of the error stand in front, "line 3, column 7: UndefinedError: 'x' is
/// undefined". TemplateError comes from the template's own raise_exception, LimitError from `limits`.
Result<Str> render(const Tree& tree, const Context& context, const Limits& limits = {});

}  // namespace mc::jinja
