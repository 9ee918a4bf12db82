// Findings of the runs of mutants: the rule of the emulator that a run breaks, or a result that differs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "gpu/emu/rule.h"

namespace mc::bench {

class Finding {
 public:
  constexpr Finding(gpu::emu::Rule rule)
      : number_(static_cast<uint8_t>(rule)) {}  // NOLINT(google-explicit-constructor)
  /// Nothing: the mutant went unseen.
  static constexpr Finding none() { return Finding(kNone); }
  /// A wrong number or choice.
  static constexpr Finding result() { return Finding(kNone + 1); }
  /// A number within its bound that is not the number of the kernel whose bits this one promises.
  static constexpr Finding bits() { return Finding(kNone + 2); }

  constexpr uint8_t number() const { return number_; }
  constexpr std::string_view name() const {
    constexpr std::array<std::string_view, 3> kOthers = {"none", "result", "bits"};
    return number_ < kNone ? to_string(static_cast<gpu::emu::Rule>(number_)) : kOthers[number_ - kNone];
  }
  constexpr bool operator==(const Finding&) const = default;

 private:
  friend class Findings;
  static constexpr uint8_t kNone = gpu::emu::kRuleNames.size(), kCount = kNone + 3;
  constexpr explicit Finding(uint8_t number) : number_(number) {}
  uint8_t number_;
};

class Findings {
 public:
  constexpr Findings() = default;
  /// "race,in-flight": the names are checked by the compiler.
  consteval Findings(const char* names) {  // NOLINT(google-explicit-constructor): the rows of a table are texts
    for (std::string_view rest = names; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find(','));
      rest.remove_prefix(name.size() < rest.size() ? name.size() + 1 : rest.size());
      uint8_t number = 0;
      while (number < Finding::kCount && Finding(number).name() != name) ++number;
      if (number == Finding::kCount) throw "there is no such finding";
      add(Finding(number));
    }
  }
  constexpr void add(Finding finding) { bits_ |= uint32_t{1} << finding.number(); }
  constexpr bool has(Finding finding) const { return (bits_ >> finding.number() & 1) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  /// "in-flight,race"
  std::string text() const {
    std::string out;
    for (uint8_t number = 0; number < Finding::kCount; ++number)
      if (has(Finding(number))) (out += out.empty() ? "" : ",") += Finding(number).name();
    return out;
  }

 private:
  static_assert(Finding::kCount <= 32);
  uint32_t bits_ = 0;
};

}  // namespace mc::bench
