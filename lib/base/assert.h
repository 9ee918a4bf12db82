// Bugs are not errors: MC_ASSERT stays on in release builds and aborts with file, line and the
// values of both sides. MC_DCHECK is for inner loops and vanishes unless MC_DEBUG is defined.
//
//   MC_ASSERT(page < page_count_);          // prints the expression
//   MC_ASSERT_EQ(free + used, total);       // prints both values
#pragma once

#include <sstream>
#include <string>

namespace mc {

[[noreturn]] void assert_failed(const char* file, int line, const char* expr, const std::string& values);

template <class A, class B>
[[noreturn]] void assert_cmp_failed(const char* file, int line, const char* expr, const A& a, const B& b) {
  std::ostringstream values;
  values << a << " vs " << b;
  assert_failed(file, line, expr, values.str());
}

}  // namespace mc

#define MC_ASSERT(cond)                                                              \
  do {                                                                               \
    if (!(cond)) [[unlikely]] ::mc::assert_failed(__FILE__, __LINE__, #cond, {});    \
  } while (0)
#define MC_ASSERT_CMP_(a, op, b)                                                     \
  do {                                                                               \
    const auto& mc_a = (a);                                                          \
    const auto& mc_b = (b);                                                          \
    if (!(mc_a op mc_b)) [[unlikely]]                                                \
      ::mc::assert_cmp_failed(__FILE__, __LINE__, #a " " #op " " #b, mc_a, mc_b);    \
  } while (0)
#define MC_ASSERT_EQ(a, b) MC_ASSERT_CMP_(a, ==, b)
#define MC_ASSERT_LE(a, b) MC_ASSERT_CMP_(a, <=, b)
#define MC_ASSERT_LT(a, b) MC_ASSERT_CMP_(a, <, b)
#ifdef MC_DEBUG
#define MC_DCHECK(cond) MC_ASSERT(cond)
#else
#define MC_DCHECK(cond) ((void)0)
#endif
