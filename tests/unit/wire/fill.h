// A visitor that gives every field of a message a value drawn from one seed, edges included.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "wire/messages.h"

namespace mc::test {

class Fill {
 public:
  Fill(uint64_t seed, size_t elements_max) : rng_(seed), elements_max_(elements_max) {}
  template <class T>
  void operator()(std::string_view, T& field, size_t = 0) {
    put(field);
  }
  template <class T>
  void later(std::string_view, T& field, size_t = 0) {
    put(field);
  }

 private:
  size_t some() { return rng_.below(elements_max_ + 1); }
  uint64_t integer(uint64_t max) {
    switch (rng_.below(4)) {
      case 0: return rng_.below(128);
      case 1: return max;
      case 2: return max >> rng_.below(32);
      default: return rng_.next() & max;
    }
  }
  template <class Enum>
  void put_one_of(Enum& value, Enum last) {
    value = static_cast<Enum>(rng_.below(static_cast<uint64_t>(last) + 1));
  }
  void put(bool& value) { value = rng_.chance(0.5); }
  void put(uint32_t& value) { value = static_cast<uint32_t>(integer(UINT32_MAX)); }
  void put(uint64_t& value) { value = integer(UINT64_MAX); }
  void put(int32_t& value) { value = static_cast<int32_t>(integer(UINT32_MAX)); }
  void put(double& value) {
    static constexpr double kEdges[] = {0.0, -0.0, 1.0, -2.0, 0.1, 1e300, -1e-300, 4503599627370497.5};
    value = rng_.chance(0.5) ? kEdges[rng_.below(std::size(kEdges))] : rng_.normal();
  }
  void put(std::string& value) {
    value.clear();
    for (size_t i = some() * 3; i > 0; --i) value += static_cast<char>('a' + rng_.below(26));
  }
  void put(wire::Bytes& value) {
    value.resize(some() * 3);
    for (uint8_t& byte : value) byte = static_cast<uint8_t>(rng_.next());
  }
  void put(Id128& value) {
    for (uint8_t& byte : value.bytes) byte = static_cast<uint8_t>(rng_.next());
  }
  void put(wire::MissKind& value) { value = wire::miss_rows()[rng_.below(wire::miss_rows().size())].kind; }
  void put(wire::Fallback& value) { value = wire::fallback_rows()[rng_.below(wire::fallback_rows().size())].fallback; }
  void put(wire::DemoteEnd& value) { put_one_of(value, wire::kDemoteEndLast); }
  void put(wire::CopyEnd& value) { put_one_of(value, wire::kCopyEndLast); }
  void put(Code& value) { value = static_cast<Code>(rng_.below(static_cast<uint64_t>(Code::cancelled) + 1)); }
  void put(wire::Tier& value) { value = static_cast<wire::Tier>(rng_.below(3)); }
  void put(wire::Role& value) { value = static_cast<wire::Role>(rng_.below(4)); }
  template <class A, class B>
  void put(std::pair<A, B>& value) {
    put(value.first);
    put(value.second);
  }
  template <class T>
  void put(std::vector<T>& values) {
    values.resize(some());
    for (T& value : values) put(value);
  }
  template <class T>
  requires std::is_class_v<T> &&(!std::is_base_of_v<Id128, T>)void put(T& value) { value.fields(*this); }

  Rng rng_;
  size_t elements_max_;
};

template <size_t I = 0>
wire::Message filled_message(size_t index, uint64_t seed, size_t elements_max) {
  if constexpr (I < std::variant_size_v<wire::MessageVariant>) {
    if (index != I) return filled_message<I + 1>(index, seed, elements_max);
    std::variant_alternative_t<I, wire::MessageVariant> message;
    Fill fill(seed, elements_max);
    message.fields(fill);
    return message;
  } else {
    return {};
  }
}

}  // namespace mc::test
