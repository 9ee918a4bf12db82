// The definition of a Llama forward pass in double, over the weights that the definition of a file's types gives:
// token by token, with a loop for every sum. For models without biases, with norms on layers alone and full attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "test.h"

namespace mc::test {

class DoubleLlama {
 public:
  using Vector = std::vector<double>;

  explicit DoubleLlama(const std::string& path) : config_(config_of(path)), rope_(config_.rope, config_.head_dim) {
    auto files = model::WeightFiles::open(path);
    REQUIRE_OK(files);
    for (const model::Tensor& tensor : files->tensors()) weights_.emplace(tensor.entry.name, widened(tensor));
  }

  /// Logits of the token behind the prompt.
  Vector logits(std::span<const uint32_t> prompt) const {
    std::vector<Vector> states;
    for (const uint32_t token : prompt) states.push_back(weights_.at("model.embed_tokens.weight")[token]);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) run_layer(layer, states);
    return product("lm_head", norm("model.norm", states.back()));
  }

 private:
  using Matrix = std::vector<Vector>;

  static model::ModelConfig config_of(const std::string& path) {
    auto config = model::read_config(path);
    REQUIRE_OK(config);
    return std::move(*config);
  }

  static Matrix widened(const model::Tensor& tensor) {
    const auto& shape = tensor.entry.shape;
    const size_t rows = shape.size() == 1 ? 1 : shape[0], columns = shape.back();
    const gguf::Type type = tensor.blocks.value_or(gguf::Type::f32);
    MC_ASSERT(tensor.blocks || tensor.entry.dtype == Dtype::f32);
    const ops::WeightRows order{.rows = rows, .paired_head = tensor.paired_head};
    Matrix out;
    std::vector<float> row(columns);
    for (size_t i = 0; i < rows; ++i) {
      gguf::widen_row(type, tensor.data + order.stored_row(i) * gguf::row_bytes(type, columns), columns, row.data());
      out.emplace_back(row.begin(), row.end());
    }
    return out;
  }

  Vector product(const std::string& name, const Vector& x) const {
    const Matrix& rows = weights_.at(name + ".weight");
    Vector y(rows.size());
    size_t row = 0;
    // Each addition of a row waits for the one before it, so four rows take turns.
    for (; row + 4 <= rows.size(); row += 4) {
      const double *a = rows[row].data(), *b = rows[row + 1].data(), *c = rows[row + 2].data(),
                   *d = rows[row + 3].data(), *of_x = x.data();
      double sums[4] = {};
      for (size_t i = 0, n = x.size(); i < n; ++i) {
        sums[0] += a[i] * of_x[i];
        sums[1] += b[i] * of_x[i];
        sums[2] += c[i] * of_x[i];
        sums[3] += d[i] * of_x[i];
      }
      std::copy_n(sums, 4, &y[row]);
    }
    for (; row < rows.size(); ++row)
      for (size_t i = 0; i < x.size(); ++i) y[row] += rows[row][i] * x[i];
    return y;
  }

  Vector norm(const std::string& name, const Vector& x) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{config_.norm_epsilon});
    Vector y = weights_.at(name + ".weight")[0];
    for (size_t i = 0; i < x.size(); ++i) y[i] *= x[i] * scale;
    return y;
  }

  void turn(Vector& heads, size_t position) const {
    const size_t half = config_.head_dim / 2;
    for (size_t head = 0; head < heads.size(); head += config_.head_dim)
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * double{rope_.frequency()[i]};
        double &left = heads[head + i], &right = heads[head + half + i];
        const double turned = left * std::cos(angle) - right * std::sin(angle);
        right = right * std::cos(angle) + left * std::sin(angle);
        left = turned;
      }
  }

  /// Attention of one token: a softmax for each query head.
  Vector attended(const Vector& q, const Matrix& k, const Matrix& v, size_t tokens) const {
    const size_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
    Vector out(q.size());
    for (size_t head = 0; head < config_.heads; ++head) {
      const size_t from = head * dim, kv = head / group * dim;
      Vector scores(tokens);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t i = 0; i < dim; ++i) scores[t] += q[from + i] * k[t][kv + i];
        scores[t] /= std::sqrt(static_cast<double>(dim));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      for (size_t t = 0; t < tokens; ++t)
        for (size_t i = 0; i < dim; ++i) out[from + i] += scores[t] / sum * v[t][kv + i];
    }
    return out;
  }

  void run_layer(uint32_t layer, std::vector<Vector>& states) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    Matrix k, v;
    for (size_t t = 0; t < states.size(); ++t) {
      Vector& x = states[t];
      const Vector in = norm(at + "input_layernorm", x);
      Vector q = product(at + "self_attn.q_proj", in);
      k.push_back(product(at + "self_attn.k_proj", in));
      v.push_back(product(at + "self_attn.v_proj", in));
      turn(q, t);
      turn(k.back(), t);
      add(x, product(at + "self_attn.o_proj", attended(q, k, v, t + 1)));
      const Vector inner = norm(at + "post_attention_layernorm", x);
      Vector gate = product(at + "mlp.gate_proj", inner);
      const Vector up = product(at + "mlp.up_proj", inner);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(x, product(at + "mlp.down_proj", gate));
    }
  }

  static void add(Vector& x, const Vector& more) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
  }

  model::ModelConfig config_;
  ops::Rope rope_;
  std::map<std::string, Matrix> weights_;
};

}  // namespace mc::test
