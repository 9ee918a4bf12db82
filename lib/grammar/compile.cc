// From the text of a grammar to its automaton.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"

namespace mc::grammar {
namespace {

constexpr int kNestingMax = 8;
constexpr size_t kPartsMax = 512;

bool is_mark(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 0x20 && c <= 0x7E) || c == '\t' || c == '\n'; });
}

class Compiler {
 public:
  Result<NodeId> compile(const Json& grammar) {
    const NodeId from = builder.node(), to = builder.node();
    builder.returns(to);
    MC_CHECK(add(grammar, 0, from, to));
    if (builder.is_full()) return schema_error("#", "the schema is too large");
    builder.settle();
    for (const auto& schema : schemas_) MC_CHECK(schema->check_possible());
    if (builder.levels_of(from) > kLevelsMax) return schema_error("#", "no document satisfies it");
    if (builder.is_too_wide())
      return schema_error("#", "it has too many alternatives; at most " + std::to_string(kFollowersMax) +
                                   " can begin at one place of an answer");
    return from;
  }

  Builder builder;
  std::vector<std::string> literals;

 private:
  Result<void> add(const Json& grammar, int depth, NodeId from, NodeId to) {
    const auto refuse = [](const char* what) { return user_error(err::kSchemaUnsupported, what); };
    if (depth > kNestingMax || !grammar.is_object()) return refuse("a grammar is no object, or nested too deep");
    if (const Json* json = grammar.find("json")) return add_json(json->as_string(), from, to);
    if (const Json* schema = grammar.find("schema")) {
      schemas_.push_back(std::make_unique<SchemaCompiler>(builder, *schema, grammar["strict"].as_bool()));
      return schemas_.back()->add(builder.space(from), to);
    }
    if (grammar.has("blanks")) {
      const NodeId line = builder.text(from, "\n");
      for (const NodeId at : {from, line, builder.text(line, "\n")}) builder.jump(at, to);
      return {};
    }
    for (const char* name : {"text", "until"}) {
      const Json* text = grammar.find(name);
      if (!text) continue;
      if (text->as_string().empty()) return refuse("a text is empty");
      literals.emplace_back(text->as_string());
      if (std::string_view(name) == "text")
        builder.text(from, text->as_string(), to);
      else if (is_mark(text->as_string()))
        builder.until(from, text->as_string(), to);
      else
        return refuse("a mark has other bytes than printable ASCII, tabs and line feeds");
      return {};
    }
    const Json& parts = grammar.has("seq") ? grammar["seq"] : grammar["any"];
    if (!parts.is_array() || parts.size() == 0 || parts.size() > kPartsMax) return refuse("a grammar has no parts");
    for (const Json& part : parts.items()) {
      const bool is_last = grammar.has("any") || &part == &parts.items().back();
      const NodeId next = is_last ? to : builder.node();
      MC_CHECK(add(part, depth + 1, from, next));
      if (!grammar.has("any")) from = next;
    }
    return {};
  }

  Result<void> add_json(std::string_view what, NodeId from, NodeId to) {
    const Prelude& p = builder.prelude();
    if (what != "object" && what != "value") return user_error(err::kSchemaUnsupported, "json is object or value");
    builder.call(builder.space(from), what == "object" ? p.object : p.value, to);
    return {};
  }

  std::vector<std::unique_ptr<SchemaCompiler>> schemas_;
};

}  // namespace

Grammar::Grammar(std::unique_ptr<const Automaton> automaton, std::vector<std::string> literals)
    : automaton_(std::move(automaton)), literals_(std::move(literals)) {
  for (const Node& node : automaton_->nodes)
    bytes_ += sizeof(Node) + node.bytes.capacity() * sizeof(ByteEdge) + node.jumps.capacity() * sizeof(Jump);
  for (const std::string& literal : literals_) bytes_ += sizeof literal + literal.capacity();
}
Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(std::string_view text) {
  if (text.size() > kTextBytesMax)
    return user_error(err::kSchemaUnsupported, "the schema has " + std::to_string(text.size()) +
                                                   " bytes with its surroundings, at most " +
                                                   std::to_string(kTextBytesMax) + " are supported");
  auto parsed = Json::parse(text, {.bytes = kTextBytesMax, .depth = 64, .values = size_t{1} << 17});
  if (!parsed) return as_user_error(err::kSchemaUnsupported, std::move(parsed).error());
  Compiler compiler;
  MC_TRY(start, compiler.compile(*parsed));
  auto automaton = std::make_unique<const Automaton>(compiler.builder.take(start));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(automaton), std::move(compiler.literals)));
}

}  // namespace mc::grammar
