// Result keeps a value in place, and an error in memory of its own.
#include "base/result.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "test.h"

namespace result_test {
namespace {

using namespace mc;

static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(std::is_copy_constructible_v<Result<std::string>>);
static_assert(std::is_nothrow_move_constructible_v<Result<std::string>>);
static_assert(sizeof(Result<void>) == sizeof(void*));
static_assert(sizeof(Result<int>) == 2 * sizeof(void*));

/// Counts the objects that are alive.
struct Counted {
  explicit Counted(int number) : number(number) { ++alive; }
  Counted(const Counted& other) : number(other.number) { ++alive; }
  Counted(Counted&& other) noexcept : number(other.number) { ++alive; }
  Counted& operator=(const Counted&) = default;
  ~Counted() { --alive; }

  int number;
  static inline int alive = 0;
};

Result<Counted> counted(int number) {
  if (number < 0) return {Code::invalid, "a negative number"};
  return Counted(number);
}

Result<int> doubled(int number) {
  MC_TRY(found, counted(number));
  return 2 * found.number;
}

Result<void> checked(int number) {
  MC_CHECK(doubled(number));
  return {};
}

}  // namespace

TEST_CASE("base/result: an error is what it was made of, however it was given") {
  const std::string lvalue = "a text that is too long for the string itself";
  const Result<int> literal{Code::busy, "literal"}, view{Code::io, std::string_view("view")}, copied{Code::io, lvalue},
      moved{Code::corrupt, lvalue + "!"};
  CHECK(literal.error().code == Code::busy);
  CHECK(literal.error().what == "literal");
  CHECK(view.error().what == "view");
  CHECK(copied.error().what == lvalue);
  CHECK(moved.error().what == lvalue + "!");
  const Error whole{Code::timeout, "what", 2104, "where", "next"};
  const Result<void> kept = whole;
  CHECK(kept.error().mc == 2104);
  CHECK(kept.error().where == "where");
  CHECK(kept.error().next == "next");
  CHECK(whole.what == "what");
}

TEST_CASE("base/result: values live once, and errors go up through results of other types") {
  {
    const Result<Counted> good = counted(7), bad = counted(-1);
    CHECK(Counted::alive == 1);
    CHECK(good->number == 7);
    CHECK_FALSE(bad.has_value());
  }
  CHECK(Counted::alive == 0);
  CHECK(doubled(4).value() == 8);
  CHECK(checked(4).has_value());
  const Result<void> failed = checked(-1);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().code == Code::invalid);
  CHECK(failed.error().what == "a negative number");
  CHECK(Counted::alive == 0);
}

TEST_CASE("base/result: copies and assignments between values and errors") {
  {
    Result<Counted> a = counted(1);
    const Result<Counted> failed = counted(-1);
    a = failed;
    CHECK(Counted::alive == 0);
    CHECK(a.error().what == failed.error().what);
    a.error().what = "another text";
    CHECK(failed.error().what == "a negative number");
    a = counted(2);
    CHECK(a->number == 2);
    a = Counted(3);
    CHECK(a->number == 3);
    a = Error{Code::busy, "later"};
    CHECK(a.error().code == Code::busy);
    const Result<Counted> b = counted(5), c = b;
    CHECK(Counted::alive == 2);
    CHECK(c->number == 5);
  }
  CHECK(Counted::alive == 0);
  Result<int> itself{Code::io, "text"};
  Result<int>& same = itself;
  itself = same;
  CHECK(itself.error().what == "text");
}

TEST_CASE("base/result: a failed result that was moved from is still a failed one") {
  Result<std::string> a{Code::io, "text"};
  Result<std::string> b = std::move(a);
  CHECK(b.error().what == "text");
  CHECK_FALSE(a.has_value());  // NOLINT(bugprone-use-after-move)
  Result<std::string> c = std::move(a), d = c;
  CHECK_FALSE(c.has_value());
  CHECK_FALSE(d.has_value());
  a = std::string("a value again");
  CHECK(*a == "a value again");
  std::vector<Result<std::unique_ptr<int>>> many;
  for (int i = 0; i < 20; ++i) {
    many.emplace_back(std::make_unique<int>(i));
    many.emplace_back(Code::busy, "number " + std::to_string(i));
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(**many[2 * i] == i);
    CHECK(many[2 * i + 1].error().what == "number " + std::to_string(i));
  }
  CHECK(std::move(many[1]).value_or(nullptr) == nullptr);
}

TEST_CASE("base/result: the value of a failed result ends the program") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // doctest's handler would report the child's end
    ::close(STDERR_FILENO);
    const Result<int> failed{Code::io, "text"};
    ::_exit(*failed);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

}  // namespace result_test
