#include "jinja/check.h"

#include <algorithm>

#include "jinja/filters.h"

namespace mc::jinja {
namespace {

class Checker {
 public:
  explicit Checker(Tree& tree) : tree_(tree) {}

  Result<void> walk(const Nodes& nodes, bool soft) {
    for (const NodePtr& node : nodes)
      if (node) MC_CHECK(walk(*node, soft));
    return {};
  }

 private:
  /// The names that Jinja binds only where a body uses them.
  struct Uses {
    bool loop = false, caller = false, kwargs = false, varargs = false;
    void add(const Uses& other) {
      loop |= other.loop;
      caller |= other.caller;
      kwargs |= other.kwargs;
      varargs |= other.varargs;
    }
  };

  Error refuse(const Node& node, std::string message) const {
    return placed(node.at, failure("TemplateAssertionError", std::move(message)));
  }

  Result<void> walk(Node& node, bool soft) {
    switch (node.kind) {
      case NodeKind::name: use(node.id); return {};
      case NodeKind::filter:
        if (node.filter == nullptr && !soft) return refuse(node, "No filter named " + repr_of(node.name) + ".");
        break;
      case NodeKind::test:
        if (node.test == nullptr && !soft) return refuse(node, "No test named " + repr_of(node.name) + ".");
        break;
      case NodeKind::condition: soft = true; break;
      case NodeKind::break_:
      case NodeKind::continue_:
        if (loops_ == 0) return placed(node.at, failure("SyntaxError", "'" + jump_name(node) + "' outside loop"));
        return {};
      case NodeKind::if_: return if_(node);
      case NodeKind::for_: return for_(node, soft);
      case NodeKind::macro:
      case NodeKind::call_block: return macro(node, soft);
      case NodeKind::block:
        if (std::any_of(tree_.blocks.begin(), tree_.blocks.end(), [&](const Node* b) { return b->name == node.name; }))
          return refuse(node, "block " + repr_of(node.name) + " defined twice");
        tree_.blocks.push_back(&node);
        soft = false;
        break;
      default: break;
    }
    return children(node, soft);
  }

  static std::string jump_name(const Node& node) { return node.kind == NodeKind::break_ ? "break" : "continue"; }

  Result<void> children(Node& node, bool soft) {
    MC_CHECK(walk(node.children, soft));
    if (node.arguments) {
      MC_CHECK(walk(node.arguments->positional, soft));
      for (const auto& [name, value] : node.arguments->named) MC_CHECK(walk(*value, soft));
      if (node.arguments->star) MC_CHECK(walk(*node.arguments->star, soft));
      if (node.arguments->star_star) MC_CHECK(walk(*node.arguments->star_star, soft));
    }
    // jinja2 compiles a body other than that of an if in a frame of its own, where unknown filters are errors.
    for (const Nodes& body : node.bodies) MC_CHECK(walk(body, false));
    return {};
  }

  Result<void> if_(Node& node) {
    MC_CHECK(walk(node.children, true));
    for (const Nodes& body : node.bodies) MC_CHECK(walk(body, true));
    return {};
  }

  Result<void> for_(Node& node, bool soft) {
    if (const Node* store = stored_loop(node))
      return refuse(*store, "Can't assign to special loop variable in for-loop target");
    MC_CHECK(walk(*node.children[1], soft));
    if (node.children[2]) MC_CHECK(walk(*node.children[2], false));
    const Uses outer = std::exchange(uses_, {});
    ++loops_;
    MC_CHECK(walk(node.bodies[0], false));
    --loops_;
    node.uses_loop = uses_.loop || node.is_recursive;
    uses_.loop = false;
    uses_.add(outer);
    return walk(node.bodies[1], false);
  }

  Result<void> macro(Node& node, bool soft) {
    // The defaults and the body count as uses. The first child of a call block is the call.
    const size_t first = node.kind == NodeKind::call_block ? 1 : 0;
    if (first == 1) MC_CHECK(walk(*node.children[0], soft));
    const Uses outer = std::exchange(uses_, {});
    const uint32_t loops = std::exchange(loops_, 0);
    for (size_t i = first; i < node.children.size(); ++i)
      if (node.children[i]) MC_CHECK(walk(*node.children[i], false));
    const Uses defaults = std::exchange(uses_, {});
    for (const Nodes& body : node.bodies) MC_CHECK(walk(body, false));
    loops_ = loops;
    const auto is_parameter = [&](uint32_t id) {
      return std::any_of(node.parameters.begin(), node.parameters.end(),
                         [&](const Parameter& p) { return p.id == id; });
    };
    node.uses_caller = uses_.caller;
    if (uses_.caller)
      for (size_t i = 0; i < node.parameters.size(); ++i)
        if (node.parameters[i].id == tree_.caller_id && !node.children[first + i])
          return refuse(node,
                        "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
                        "given a default.");
    node.uses_kwargs = uses_.kwargs && !is_parameter(tree_.kwargs_id);
    node.uses_varargs = uses_.varargs && !is_parameter(tree_.varargs_id);
    uses_.add(defaults);
    uses_.add(outer);  // the names that a nested macro uses count for the outer one, as in jinja2
    return {};
  }

  void use(uint32_t id) {
    uses_.loop |= id == tree_.loop_id;
    uses_.caller |= id == tree_.caller_id;
    uses_.kwargs |= id == tree_.kwargs_id;
    uses_.varargs |= id == tree_.varargs_id;
  }

  /// The first assignment to the name `loop` inside a for statement.
  const Node* stored_loop(const Node& node) const {
    const auto in_target = [&](const auto& self, const Node& target) -> const Node* {
      if (target.kind == NodeKind::name) return target.id == tree_.loop_id ? &target : nullptr;
      for (const NodePtr& child : target.children)
        if (const Node* found = child ? self(self, *child) : nullptr) return found;
      return nullptr;
    };
    if (node.kind == NodeKind::for_ || node.kind == NodeKind::set || node.kind == NodeKind::set_block)
      if (const Node* found = in_target(in_target, *node.children[0])) return found;
    for (const Nodes& body : node.bodies)
      for (const NodePtr& child : body)
        if (const Node* found = stored_loop(*child)) return found;
    return nullptr;
  }

  Tree& tree_;
  Uses uses_;
  uint32_t loops_ = 0;
};

}  // namespace

Result<void> check(Tree& tree) {
  return Checker(tree).walk(tree.body, false);
}

}  // namespace mc::jinja
