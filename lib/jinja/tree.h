// The tree of a parsed template. All kinds of nodes share one struct, and the table names the fields that each kind
// uses. The depth of a tree is bounded, and so is the recursion of code that walks or frees it.
//
//   kind            children                              name, value, arguments
//   constant                                              value
//   name                                                  name, id
//   tuple, list     items
//   dict            key, value, key, value ...
//   attribute       object                                name
//   item            object, index (slice or expression)
//   slice           start, stop, step (each may be null)
//   call            callee                                arguments
//   filter          operand (null: the block's text)      name, filter, arguments
//   test            operand                               name, test, arguments
//   unary           operand                               op
//   binary, and_, or_   left, right                       op
//   concat          operands
//   compare         first, second ...                     ops: one for each but the first
//   condition       test, then, otherwise (may be null)
//   namespace_ref                                         name, id; attribute: what to set
//   data            value;   output: one expression
//   if_             tests and bodies: children[i] tests bodies[i]; the last body may have no test
//   for_            target, iterable, filter (or null); bodies: body, else
//   set             target, value;   set_block: target, filter or null; body
//   macro, call_block   [call_block: the call;] defaults; parameters
//   with            target, value, target, value ...;   filter_block: filter;   block, scope: body
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "jinja/lex.h"
#include "jinja/value.h"

namespace mc::jinja {

struct Filter;
struct Test;

enum class NodeKind : uint8_t {
  constant,
  name,
  tuple,
  list,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  unary,
  binary,
  and_,
  or_,
  concat,
  compare,
  condition,
  namespace_ref,
  data,
  output,
  if_,
  for_,
  set,
  set_block,
  macro,
  call_block,
  with,
  filter_block,
  block,
  scope,
  break_,
  continue_,
  unavailable,  // include, import, extends: an error when the statement is reached, because there is no loader
};

enum class Op : uint8_t { add, sub, mul, div, floor_div, mod, pow, neg, pos, not_, eq, ne, lt, le, gt, ge, in, not_in };

using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

struct Arguments {
  Nodes positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr star, star_star;
};

struct Parameter {
  std::string name;
  uint32_t id = 0;
};

struct Node {
  NodeKind kind = NodeKind::constant;
  Op op = Op::add;
  bool uses_loop = false;                                               // for_: the body names `loop`
  bool is_recursive = false;                                            // for_
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  // macro, call_block
  uint16_t depth = 1;
  Position at;
  uint32_t id = 0;
  std::string name, attribute;
  Value value;
  Nodes children;
  std::vector<Op> ops;
  std::vector<Nodes> bodies;
  std::unique_ptr<Arguments> arguments;
  std::vector<Parameter> parameters;
  const Filter* filter = nullptr;  // null: fails when it is reached
  const Test* test = nullptr;

  /// Each takes nodes in below this one, and counts them in `depth`. A child may be null.
  void add(NodePtr child);
  void add_body(Nodes body);
  void adopt(std::unique_ptr<Arguments> given);

 private:
  void deepen(const NodePtr& child);
};

NodePtr make_node(NodeKind kind, Position at);

struct Tree {
  Nodes body;
  std::vector<std::string> names;   // by id
  std::vector<const Node*> blocks;  // in the order of the source
  uint32_t loop_id = 0, caller_id = 0, kwargs_id = 0, varargs_id = 0;
  uint32_t id_of(std::string_view name) const;  // kNoName: not in the template
};
constexpr uint32_t kNoName = UINT32_MAX;

constexpr uint16_t kTreeDepthMax = 300;

/// "line 3, column 7: " in front of an error's text.
Error placed(Position at, Error error);

}  // namespace mc::jinja
