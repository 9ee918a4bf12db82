// The parts of a rendering, each by itself: its budget and its scopes. golden_test.cc compares rendered templates with
// Jinja's.
#include "jinja/interpreter.h"

#include "test.h"

using namespace mc;
using namespace mc::jinja;

TEST_CASE("jinja: a budget fails at the first charge beyond its limit, and names the limit") {
  Budget budget({.steps = 2, .work = 10, .chars = 6, .output = 4, .depth = 1});
  CHECK(budget.spend(2));
  CHECK(budget.spend(1).error().what == "LimitError: the template takes more than 2 steps");
  CHECK(budget.make(6));  // which reads them too: 4 characters are left to read
  CHECK(budget.effort().most == 4);
  CHECK_FALSE(budget.make(1));
  CHECK(budget.read(4));
  CHECK_FALSE(budget.read(1));
  CHECK(budget.check_output(1, 3));
  CHECK_FALSE(budget.check_output(2, 3));
  CHECK_FALSE(budget.check_output(5, 1));
  const Budget::Level outer(budget);
  CHECK(budget.check_depth());
  {
    const Budget::Level inner(budget);
    CHECK_FALSE(budget.check_depth());
  }
  CHECK(budget.check_depth());
}

TEST_CASE("jinja: an inner scope hides a variable until it is closed") {
  Tree tree;
  tree.names = {"a", "b", "range"};
  const Context context{.variables = {{"b", Value(7)}}};
  Budget budget({});
  Scopes scopes(tree, context, budget);
  REQUIRE_OK(scopes.bind(0, Value(1)));
  {
    const Scopes::Within inner(scopes, scopes.current());
    CHECK(*scopes.find_here(0) == nullptr);
    CHECK(scopes.find(0, "a")->integer() == 1);
    REQUIRE_OK(scopes.bind(0, Value(2)));
    CHECK(scopes.find(0, "a")->integer() == 2);
    const Scopes::Back outside(scopes, scopes.root());
    CHECK(scopes.find(0, "a")->integer() == 1);
  }
  CHECK(scopes.find(0, "a")->integer() == 1);
  CHECK(scopes.find(1, "b")->integer() == 7);
  CHECK(scopes.find(2, "range")->is(Kind::function));
}

TEST_CASE("jinja: a name that nothing has bound is undefined, not an error") {
  Tree tree;
  tree.names = {"a"};
  Budget budget({});
  Scopes scopes(tree, {}, budget);
  const auto value = scopes.find(0, "a");
  REQUIRE_OK(value);
  CHECK(value->is(Kind::undefined));
}

TEST_CASE("jinja: a captured scope is emptied with the scopes it came from") {
  ScopePtr kept;
  {
    Tree tree;
    tree.names = {"a"};
    Budget budget({});
    Scopes scopes(tree, {}, budget);
    REQUIRE_OK(scopes.bind(0, Value(1)));
    kept = scopes.capture();
    CHECK(kept->variables.size() == 1);
  }
  CHECK(kept->variables.empty());
}
