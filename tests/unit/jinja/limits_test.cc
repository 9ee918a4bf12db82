// The limits of a rendering: steps, work, characters and depth end hostile templates with a LimitError.
#include "jinja/jinja.h"
#include "test.h"

using namespace mc;

namespace {

/// The text of a template, or its error, under limits that a small template reaches.
std::string limited(std::string_view source) {
  const auto tree = jinja::parse(source);
  REQUIRE_OK(tree);
  const auto text = jinja::render(*tree, {}, {.steps = 300'000, .work = 1 << 20});
  return text ? jinja::narrow(*text) : text.error().what;
}

}  // namespace

TEST_CASE("jinja: whatever holds a value is nested to a depth, or emptied at the end") {
  const auto chain = [](const std::string& body) {
    return "{% set ns = namespace(c=0, l=0, m=0) %}{% for i in range(20000) %}" + body + "{% endfor %}ok";
  };
  for (const char* body : {
           "{% set ns.c = cycler(ns.c) %}",
           "{% set ns.c = joiner(ns.c) %}",
           "{% set ns.c = cycler(ns.c).next %}",
           "{% for y in [ns.l] %}{% set ns.l = loop %}{% endfor %}",
           "{% set ns.c = [] | map('default', ns.c) %}",
           "{% set ns.c = [] | select('==', ns.c) %}",
           "{% set ns.c = [] | batch(2, ns.c) %}",
       }) {
    INFO(body);
    CHECK(limited(chain(body)).find("LimitError: a value nested deeper than 100 levels") != std::string::npos);
  }
  // Through a loop's scope, what it remembers, or an iterator's items the chain has any length: 20000 of them
  // take more steps than there are here, so either end will do.
  for (const char* body : {
           "{% set old = ns.l %}{% for y in [1] %}{% set ns.l = loop %}{% endfor %}",
           "{% set old = ns.l %}{% for y in [1] recursive %}{% set ns.l = loop %}{% endfor %}",
           "{% for y in [1] %}{% set ns.m = loop %}{% endfor %}{% set x = ns.m.changed(ns.l) %}{% set ns.l = ns.m %}",
           "{% set ns.m = [ns, ns] | map(attribute='l') %}{% set x = ns.m | first %}{% set ns.l = ns.m %}",
       }) {
    INFO(body);
    const std::string out = limited(chain(body));
    CHECK((out == "ok" || out.find("LimitError: the template takes more than") != std::string::npos));
  }
  CHECK(limited("{% for y in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}") == "TrueFalse");
  CHECK(limited("{% set x = [3, 4, 5] | map('abs') %}{{ x | first }}{{ x | first }}{{ x | list }}") == "34[5]");
  CHECK(limited("{% set c = cycler(cycler(1, 2), joiner('-')) %}{{ c.next().next() }}") == "1");
}

TEST_CASE("jinja: comparing texts and looking up names count towards the limits") {
  const std::string texts = "{% set s = 'a' * 20000 %}{% set t = 'a' * 20000 %}";
  for (const char* expression : {
           "[s] * 500 == [t] * 500",
           "[s] * 500 != [t] * 500",
           "[s] * 500 < [t] * 500",
           "{'x': [s] * 500} == {'x': [t] * 500}",
           "t ~ 'b' in [s ~ 'c'] * 500",
           "([s, t] * 250) | unique | list",
           "([s, t] * 250) | unique(true) | list",
           "([s, t] * 250) | min",
           "([s, t] * 250) | max(true)",
           "([s, t] * 250) | sort(case_sensitive=true)",
           "([[s], [t]] * 250) | sort",
           "([[s], [t]] * 250) | groupby(0)",
           "([s] * 500).count(t)",
           "([s ~ 'c'] * 500).index(t ~ 'b')",
       }) {
    INFO(expression);
    CHECK(limited(texts + "{{ " + expression + " }}").find("LimitError") != std::string::npos);
  }
  CHECK(limited(texts + "{{ [s] * 500 == [s] * 500 }}{{ s == t }}{{ s < t }}{{ [s] == [t ~ 'b'] }}") ==
        "TrueTrueFalseFalse");

  std::string names, given;
  for (int i = 0; i < 2000; ++i) {
    names += "{% set n" + std::to_string(i) + " = 1 %}";
    given += ",n" + std::to_string(i) + "=1";
  }
  CHECK(limited(names + "{% for i in range(9000) %}{{ n1999 }}{% endfor %}").find("LimitError") != std::string::npos);
  CHECK(limited("{% set ns = namespace(" + given.substr(1) + ") %}").find("LimitError") != std::string::npos);
  CHECK(limited(names + "{{ n1999 }}") == "1");
}

TEST_CASE("jinja: a slice of a range that does not fit in 64 bits is an error") {
  CHECK(limited("{{ range(10)[::4] }}{{ range(10)[::-3] | list }}") == "range(0, 10, 4)[9, 6, 3, 0]");
  CHECK(limited("{{ range(10)[::-9223372036854775807 - 1] | list }}") == "[9]");
  CHECK(limited("{{ range(0, 10, 3)[::9223372036854775807] }}").find("OverflowError") != std::string::npos);
  CHECK(limited("{{ range(10)[::-9223372036854775807 - 1][::-1] }}").find("OverflowError") != std::string::npos);
  CHECK(limited("{{ range(-5, 5)[::9223372036854775807][::2] }}").find("OverflowError") != std::string::npos);
  CHECK(limited("{{ 'abc'[::-9223372036854775807 - 1] }}") == "c");
}
