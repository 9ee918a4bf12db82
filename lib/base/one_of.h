// A std::variant whose special members are compiled once. A variant of many structs costs every file that moves or
// destroys one a second of compile time: its visits are instantiated there for each alternative.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

namespace mc {

/// Index of the smallest alternative: the cheapest one to construct before it is replaced.
template <class... Alternatives>
constexpr size_t smallest_alternative(const std::variant<Alternatives...>*) {
  constexpr std::array<size_t, sizeof...(Alternatives)> kSizes{sizeof(Alternatives)...};
  size_t found = 0;
  for (size_t i = 1; i < kSizes.size(); ++i) found = kSizes[i] < kSizes[found] ? i : found;
  return found;
}

/// `Variant`, and used like it: std::get_if, std::visit, std::holds_alternative. The header that names it also says
/// `extern template class OneOf<Variant>;`, and one .cc includes base/one_of.inc and says MC_ONE_OF(Variant).
template <class Variant>
class OneOf : public Variant {
 public:
  OneOf();
  OneOf(const OneOf& other);
  OneOf(OneOf&& other) noexcept;
  OneOf& operator=(const OneOf& other);
  OneOf& operator=(OneOf&& other) noexcept;
  ~OneOf();

  /// Holds `value`, whose type is one of the alternatives.
  template <class T>
  requires(!std::derived_from<T, Variant>)
      OneOf(T value)  // NOLINT(google-explicit-constructor): as a std::variant is made of its alternatives
      : Variant(std::in_place_index<smallest_alternative(static_cast<const Variant*>(nullptr))>) {
    hold(std::move(value));
  }

 private:
  template <class T>
  [[gnu::noinline]] void hold(T&& value);
};

}  // namespace mc
