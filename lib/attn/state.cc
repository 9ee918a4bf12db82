// Merge of partial attention. See state.h.
#include "attn/state.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mc::attn {
namespace {

constexpr float kMinusInfF32 = -std::numeric_limits<float>::infinity();

}  // namespace

void clear(const StateView& state, int64_t rows, int head_dim) {
  for (int64_t row = 0; row < rows; ++row) {
    state.m[row] = kMinusInfF32;
    state.d[row] = 0;
    for (int i = 0; i < head_dim; ++i) state.o[row * head_dim + i] = 0;
  }
}

void merge(const StateView& into, const StateView& from, int64_t rows, int head_dim) {
  for (int64_t row = 0; row < rows; ++row) {
    const float m_from = from.m[row];
    if (m_from == kMinusInfF32) continue;
    float* o = into.o + row * head_dim;
    const float* o_from = from.o + row * head_dim;
    const float m_into = into.m[row];
    const bool empty = m_into == kMinusInfF32;
    const float m = empty || m_from > m_into ? m_from : m_into;
    const float keep = empty ? 0.0f : std::exp2(m_into - m);
    const float add = std::exp2(m_from - m);
    into.m[row] = m;
    into.d[row] = (empty ? 0.0f : into.d[row] * keep) + from.d[row] * add;
    for (int i = 0; i < head_dim; ++i) o[i] = (empty ? 0.0f : o[i] * keep) + o_from[i] * add;
  }
}

void normalise(const StateView& state, int64_t rows, int head_dim, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const bool empty = state.m[row] == kMinusInfF32;
    const float scale = empty ? 0.0f : 1.0f / state.d[row];
    const float* o = state.o + row * head_dim;
    float* to = out + row * head_dim;
    for (int i = 0; i < head_dim; ++i) to[i] = o[i] * scale;
    if (empty) std::fill_n(to, head_dim, 0.0f);  // o is not read
  }
}

float lse(float m, float d) {
  constexpr float kLn2 = 0.69314718055994530942f;
  return m == kMinusInfF32 ? kMinusInfF32 : (m + std::log2(d)) * kLn2;
}

}  // namespace mc::attn
