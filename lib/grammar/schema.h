// JSON schemas as parts of an automaton (private to lib/grammar). The subset is that of OpenAI's structured outputs
// with the usual bounds. Everything else is refused by name, because an answer must never break a rule of its schema.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/automaton.h"

namespace mc::grammar {

/// MC4029 with the place in the schema.
Error schema_error(const std::string& place, const std::string& what);

/// Adds the strings, in quotes, that match the pattern: an ECMA regular expression without look-around and references.
Result<void> add_pattern(Builder& builder, std::string_view pattern, const std::string& place, NodeId from, NodeId to);

/// Adds the decimal integers from `low` to `high`, low <= high.
void add_integers(Builder& builder, int64_t low, int64_t high, NodeId from, NodeId to);

class SchemaCompiler {
 public:
  /// All outlive this. `strict`: a keyword that JSON schema does not define is an error.
  SchemaCompiler(Builder& builder, const Json& root, bool strict) : builder_(builder), root_(root), strict_(strict) {}

  /// Adds the documents of the whole schema between the nodes.
  Result<void> add(NodeId from, NodeId to);
  /// Once the builder has settled: MC4029 when a part of the schema has no document.
  Result<void> check_possible() const;

 private:
  struct Rule {
    std::string place;
    NodeId entry = 0;
  };
  struct Bounds {
    uint32_t low = 0, high = kUnbounded;
  };
  struct Property {
    std::string key;
    const Json* schema = nullptr;  // null: any value
    bool required = false;
    std::string place;
  };

  using Text = const std::string&;
  Result<void> add_value(const Json& schema, Text place, int depth, NodeId from, NodeId to);
  Result<void> add_type(const Json& schema, std::string_view type, Text place, int depth, NodeId from, NodeId to);
  Result<void> add_reference(const Json& schema, Text place, NodeId from, NodeId to);
  Result<void> add_listed(const Json& schema, Text place, NodeId from, NodeId to);
  Result<void> add_choice(const Json& schema, const char* keyword, Text place, int depth, NodeId from, NodeId to);
  Result<void> add_object(const Json& schema, Text place, int depth, NodeId from, NodeId to);
  Result<void> add_members(const std::vector<Property>& listed, const Json& rest, Text place, int depth, NodeId from,
                           NodeId to);
  Result<NodeId> add_other_key(const std::vector<Property>& listed, Text place, NodeId from);
  Result<void> add_array(const Json& schema, Text place, int depth, NodeId from, NodeId to);
  Result<void> add_string(const Json& schema, Text place, NodeId from, NodeId to);
  Result<void> add_integer(const Json& schema, Text place, NodeId from, NodeId to);
  Result<void> check_keywords(const Json& schema, std::initializer_list<std::string_view> known, Text place) const;
  Result<Bounds> bounds(const Json& schema, const char* low, const char* high, Text place) const;
  Result<std::vector<Property>> properties_of(const Json& schema, Text place) const;
  Result<const Json*> find(std::string_view pointer, Text place) const;
  Result<NodeId> rule_of(std::string_view pointer, Text place);

  Builder& builder_;
  const Json& root_;
  const bool strict_;
  std::map<std::string, NodeId, std::less<>> rules_;  // by pointer
  std::vector<Rule> made_;
  std::vector<std::string> direct_;  // references that are followed without a byte in between
  int nested_ = 0;                   // rules under construction
};

}  // namespace mc::grammar
