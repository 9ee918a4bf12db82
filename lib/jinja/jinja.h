// A small sandboxed interpreter for the Jinja that chat templates are written in, equal to Python's
// jinja2 3.1 as transformers configures it: ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks,
// break and continue, the generation tag, raise_exception, strftime_now, tojson without escapes.
// No files, no clock, no way to anything but the values it is given. Each character of the result knows
// whether it came from a user (value.h).
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
  size_t chars = 16u << 20;   // characters of all texts made; a list's item counts as some
  size_t output = 16u << 20;  // characters of the result
  uint32_t depth = 400;       // of expressions, bodies and macro calls within each other
};

struct Context {
  std::vector<std::pair<std::string, Value>> variables;
  std::optional<std::tm> now;  // what strftime_now tells; without it that function is not defined
};

/// invalid, with "line 3, column 7: " and Python's name of the error in front: "UndefinedError: 'x' is
/// undefined"; "TemplateError: " is the template's own raise_exception, "LimitError: " one of `limits`.
Result<Str> render(const Tree& tree, const Context& context, const Limits& limits = {});

}  // namespace mc::jinja
