// Instructions that stay inside one lane: arithmetic, comparison, conversion, selection, moves and branches (PTX ISA
// 9.0, sections 9.7.1 to 9.7.9 and 9.7.12). One line of the table an instruction.
#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

template <class T>
using Slot = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// A lane's value out of its slot; 16-bit registers are the low half of a 32-bit slot.
template <class T>
T get(Slot<T> slot) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<T>(slot);
  else
    return static_cast<T>(slot);
}
template <class T>
Slot<T> put(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<Slot<T>>(value);
  else
    return static_cast<Slot<T>>(static_cast<std::make_unsigned_t<T>>(value));
}

/// f(lane) for all lanes of the mask, written so that the usual full mask compiles to vector code.
template <class F>
void each(uint32_t mask, F&& f) {
  if (mask == kAllLanes)
    for (uint32_t i = 0; i < kLanes; ++i) f(i);
  else
    for_lanes(mask, f);
}

template <class D, class A, auto kF>
Flow unary(Warp& w, const Op& op, uint32_t mask) {
  auto* d = w.row<D>(op.a[0]);
  const auto* a = w.row<A>(op.a[1]);
  each(mask, [&](uint32_t i) { d[i] = put<D>(static_cast<D>(kF(get<A>(a[i])))); });
  return Flow::next;
}
template <class D, class A, class B, auto kF>
Flow binary(Warp& w, const Op& op, uint32_t mask) {
  auto* d = w.row<D>(op.a[0]);
  const auto* a = w.row<A>(op.a[1]);
  const auto* b = w.row<B>(op.a[2]);
  each(mask, [&](uint32_t i) { d[i] = put<D>(static_cast<D>(kF(get<A>(a[i]), get<B>(b[i])))); });
  return Flow::next;
}
template <class D, class A, class C, auto kF>
Flow ternary(Warp& w, const Op& op, uint32_t mask) {
  auto* d = w.row<D>(op.a[0]);
  const auto* a = w.row<A>(op.a[1]);
  const auto* b = w.row<A>(op.a[2]);
  const auto* c = w.row<C>(op.a[3]);
  each(mask, [&](uint32_t i) { d[i] = put<D>(static_cast<D>(kF(get<A>(a[i]), get<A>(b[i]), get<C>(c[i])))); });
  return Flow::next;
}
template <class T, auto kF>
Flow compare(Warp& w, const Op& op, uint32_t mask) {
  const auto* a = w.row<T>(op.a[1]);
  const auto* b = w.row<T>(op.a[2]);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(kF(get<T>(a[i]), get<T>(b[i]))) << i;
  uint32_t& p = w.predicates[op.a[0]];
  p = (p & ~mask) | (bits & mask);
  return Flow::next;
}

/// A predicate operand, which may be negated.
uint32_t predicate(const Warp& w, uint32_t operand) {
  const uint32_t bits = w.predicates[operand & 0x7fffffffu];
  return (operand >> 31) != 0 ? ~bits : bits;
}
template <auto kF>
Flow logic(Warp& w, const Op& op, uint32_t mask) {
  uint32_t& p = w.predicates[op.a[0]];
  p = (p & ~mask) | (kF(predicate(w, op.a[1]), predicate(w, op.a[2])) & mask);
  return Flow::next;
}
Flow move_predicate(Warp& w, const Op& op, uint32_t mask) {
  uint32_t& p = w.predicates[op.a[0]];
  p = (p & ~mask) | (predicate(w, op.a[1]) & mask);
  return Flow::next;
}
template <class T>
Flow select(Warp& w, const Op& op, uint32_t mask) {
  auto* d = w.row<T>(op.a[0]);
  const auto* a = w.row<T>(op.a[1]);
  const auto* b = w.row<T>(op.a[2]);
  const uint32_t bits = predicate(w, op.a[3]);
  each(mask, [&](uint32_t i) { d[i] = (bits >> i & 1) != 0 ? a[i] : b[i]; });
  return Flow::next;
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;
// Integers wrap.
constexpr auto kAdd = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return a + b;
  else
    return static_cast<Unsigned<decltype(a)>>(a) + static_cast<Unsigned<decltype(a)>>(b);
};
constexpr auto kSub = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return a - b;
  else
    return static_cast<Unsigned<decltype(a)>>(a) - static_cast<Unsigned<decltype(a)>>(b);
};
constexpr auto kMul = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return a * b;
  else
    return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
};
constexpr auto kMulHigh = [](auto a, auto b) {
  using Wide = std::conditional_t<std::is_signed_v<decltype(a)>, __int128, unsigned __int128>;
  return static_cast<decltype(a)>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(a)));
};
constexpr auto kMulWide = [](auto a, auto b) {
  using Wide = std::conditional_t<std::is_signed_v<decltype(a)>, int64_t, uint64_t>;
  return static_cast<Wide>(a) * static_cast<Wide>(b);
};
constexpr auto kMad = [](auto a, auto b, auto c) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) + static_cast<uint64_t>(c);
};
constexpr auto kMadWide = [](auto a, auto b, auto c) {
  return static_cast<decltype(c)>(static_cast<uint64_t>(kMulWide(a, b)) + static_cast<uint64_t>(c));
};
// Division by zero is unspecified for integers (9.7.1.7): all ones, as chips give. The smallest number by -1 wraps.
constexpr auto kDiv = [](auto a, auto b) {
  using T = decltype(a);
  if constexpr (std::is_floating_point_v<T>)
    return a / b;
  else if constexpr (std::is_signed_v<T>)
    return b == 0 ? T{-1} : b == -1 ? static_cast<T>(0 - Unsigned<T>(a)) : a / b;
  else
    return b == 0 ? static_cast<T>(~T{}) : static_cast<T>(a / b);
};
constexpr auto kRem = [](auto a, auto b) {
  using T = decltype(a);
  if constexpr (std::is_signed_v<T>)
    return b == 0 ? a : b == -1 ? T{0} : static_cast<T>(a % b);
  else
    return b == 0 ? a : static_cast<T>(a % b);
};
constexpr auto kMin = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return std::fmin(a, b);
  else
    return std::min(a, b);
};
constexpr auto kMax = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return std::fmax(a, b);
  else
    return std::max(a, b);
};
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNot = [](auto a) { return ~a; };
constexpr auto kSame = [](auto a) { return a; };
constexpr auto kLow = [](uint64_t a) { return static_cast<uint32_t>(a); };
constexpr auto kLowSigned = [](uint64_t a) { return static_cast<int32_t>(a); };
constexpr auto kNeg = [](auto a) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return -a;
  else
    return 0 - static_cast<Unsigned<decltype(a)>>(a);
};
constexpr auto kAbs = [](auto a) { return std::abs(a); };
constexpr auto kShl = [](auto a, uint32_t by) { return by >= 8 * sizeof(a) ? decltype(a){0} : decltype(a)(a << by); };
constexpr auto kShr = [](auto a, uint32_t by) {
  if (by >= 8 * sizeof(a)) return a < 0 ? static_cast<decltype(a)>(-1) : decltype(a){0};
  return static_cast<decltype(a)>(a >> by);
};
constexpr auto kFma = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
constexpr auto kExp2 = [](float a) { return std::exp2(a); };
constexpr auto kLog2 = [](float a) { return std::log2(a); };
constexpr auto kReciprocal = [](auto a) { return 1 / a; };
constexpr auto kRoot = [](auto a) { return std::sqrt(a); };
constexpr auto kPopc = [](auto a) { return std::popcount(a); };
constexpr auto kClz = [](auto a) { return std::countl_zero(a); };
constexpr auto kBfind = [](uint32_t a) {
  return a == 0 ? kAllLanes : 31u - static_cast<uint32_t>(std::countl_zero(a));
};
constexpr auto kBrev = [](uint32_t a) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (a >> i & 1) << (31 - i);
  return out;
};
constexpr auto kEq = [](auto a, auto b) { return a == b; };
constexpr auto kNe = [](auto a, auto b) { return a < b || a > b; };  // ordered: false for NaN
constexpr auto kLt = [](auto a, auto b) { return a < b; };
constexpr auto kLe = [](auto a, auto b) { return a <= b; };
constexpr auto kGt = [](auto a, auto b) { return a > b; };
constexpr auto kGe = [](auto a, auto b) { return a >= b; };
constexpr auto kEqu = [](auto a, auto b) { return !(a < b || a > b); };
constexpr auto kNeu = [](auto a, auto b) { return !(a == b); };
constexpr auto kLtu = [](auto a, auto b) { return !(a >= b); };
constexpr auto kLeu = [](auto a, auto b) { return !(a > b); };
constexpr auto kGtu = [](auto a, auto b) { return !(a <= b); };
constexpr auto kGeu = [](auto a, auto b) { return !(a < b); };
constexpr auto kNan = [](auto a, auto b) { return a != a || b != b; };
constexpr auto kNum = [](auto a, auto b) { return a == a && b == b; };
constexpr auto kBf16 = [](float a) { return f32_to_bf16(a); };
constexpr auto kFromBf16 = [](uint16_t a) { return bf16_to_f32(a); };
constexpr auto kPackBf16 = [](float high, float low) {
  return static_cast<uint32_t>(f32_to_bf16(high)) << 16 | f32_to_bf16(low);
};
constexpr auto kToSigned = [](float a) {  // truncates and saturates (9.7.9.21)
  return a != a ? 0 : a >= 2147483648.f ? INT32_MAX : a < -2147483648.f ? INT32_MIN : static_cast<int32_t>(a);
};
constexpr auto kToShared = [](uint64_t a) { return a - kSharedWindow; };
constexpr auto kFromShared = [](uint64_t a) { return a + kSharedWindow; };
constexpr auto kToParam = [](uint64_t a) { return a - kParamWindow; };
constexpr auto kFromParam = [](uint64_t a) { return a + kParamWindow; };
// The low 32 bits of high:low shifted left, or of it shifted right, by `by` modulo 32 (9.7.8.7).
constexpr auto kFunnelLeft = [](uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << (by & 31) >> 32);
};
constexpr auto kFunnelRight = [](uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31));
};
/// Bytes 0-3 of a and 4-7 of b chosen by the nibbles of c; bit 3 of a nibble repeats the byte's sign.
constexpr auto kPermute = [](uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = c >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 0xff;
    if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
};

template <class T>
T field_mask(uint32_t length) {
  return length >= 8 * sizeof(T) ? ~T{0} : static_cast<T>((T{1} << length) - 1);
}
/// bfe.u: bits [from, from + length) of a.
template <class T>
T extract(T a, uint32_t from, uint32_t length) {
  return (from & 0xff) >= 8 * sizeof(T) ? T{0} : static_cast<T>(a >> (from & 0xff) & field_mask<T>(length & 0xff));
}
constexpr auto kExtract = [](auto a, uint32_t from, uint32_t length) { return extract(a, from, length); };

Flow insert_bits(Warp& w, const Op& op, uint32_t mask) {  // bfi: a into b at `from`
  for_lanes(mask, [&](uint32_t i) {
    const uint32_t a = w.word(op.a[1], i), b = w.word(op.a[2], i);
    const uint32_t from = w.word(op.a[3], i) & 0xff, length = w.word(op.a[4], i) & 0xff;
    const uint32_t bits = from > 31 ? 0 : field_mask<uint32_t>(length) << from;
    w.registers[op.a[0] + i] = from > 31 ? b : (b & ~bits) | (a << from & bits);
  });
  return Flow::next;
}
Flow extract32(Warp& w, const Op& op, uint32_t mask) {
  for_lanes(mask, [&](uint32_t i) {
    w.registers[op.a[0] + i] = extract(w.word(op.a[1], i), w.word(op.a[2], i), w.word(op.a[3], i));
  });
  return Flow::next;
}
/// lop3: the truth table `a[4]` of three bits.
Flow logic3(Warp& w, const Op& op, uint32_t mask) {
  for_lanes(mask, [&](uint32_t i) {
    const uint32_t a = w.word(op.a[1], i), b = w.word(op.a[2], i), c = w.word(op.a[3], i);
    uint32_t out = 0;
    for (uint32_t bits = 0; bits < 8; ++bits)
      if ((op.a[4] >> bits & 1) != 0)
        out |= ((bits & 4) != 0 ? a : ~a) & ((bits & 2) != 0 ? b : ~b) & ((bits & 1) != 0 ? c : ~c);
    w.registers[op.a[0] + i] = out;
  });
  return Flow::next;
}
Flow pack64(Warp& w, const Op& op, uint32_t mask) {
  auto* d = w.row<uint64_t>(op.a[0]);
  each(mask, [&](uint32_t i) { d[i] = static_cast<uint64_t>(w.word(op.a[2], i)) << 32 | w.word(op.a[1], i); });
  return Flow::next;
}
Flow unpack64(Warp& w, const Op& op, uint32_t mask) {
  each(mask, [&](uint32_t i) {
    const uint64_t value = w.wide(op.a[2], i);
    w.registers[op.a[0] + i] = static_cast<uint32_t>(value);
    w.registers[op.a[1] + i] = static_cast<uint32_t>(value >> 32);
  });
  return Flow::next;
}
Flow pack32(Warp& w, const Op& op, uint32_t mask) {
  each(mask, [&](uint32_t i) { w.registers[op.a[0] + i] = w.word(op.a[2], i) << 16 | (w.word(op.a[1], i) & 0xffffu); });
  return Flow::next;
}
Flow unpack32(Warp& w, const Op& op, uint32_t mask) {
  each(mask, [&](uint32_t i) {
    const uint32_t value = w.word(op.a[2], i);
    w.registers[op.a[0] + i] = value & 0xffffu;
    w.registers[op.a[1] + i] = value >> 16;
  });
  return Flow::next;
}

/// Lanes whose guard holds jump; the others go on.
Flow branch(Warp& w, const Op& op, uint32_t mask) {
  Strand& strand = w.strands[w.current];
  const uint32_t stay = strand.mask & ~mask;
  if (stay == 0) {
    strand.pc = op.target;
    return Flow::jump;
  }
  strand.mask = stay;
  ++strand.pc;
  w.strands.push_back({mask, op.target});
  return Flow::jump;
}

constexpr Row kArithmeticRows[] = {
#include "gpu/emu/arithmetic.inc"
};

}  // namespace

std::span<const Row> arithmetic_rows() {
  return kArithmeticRows;
}

}  // namespace mc::gpu::emu
