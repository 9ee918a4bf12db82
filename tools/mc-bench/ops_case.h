// The operators of `mc-bench ops`: for each what a call does, what it must give and what it moves, in one table.
// Products walk so many equal matrices that none is still in a cache when its turn comes again; a model's layers
// do the same. Inputs lean to the edges: zeros, and a few values thirty times as large as the others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "ops/matmul.h"

namespace mc::bench {

/// Types that weights of a matrix can have in memory.
std::span<const std::string_view> weight_dtypes();

/// Matrices [outputs, inputs] with the same values, each in its own memory.
class WalkedMatrices {
 public:
  /// Packed on `parallel`. Code::no_space when memory is short.
  static Result<WalkedMatrices> open(std::string_view dtype, size_t inputs, size_t outputs, Parallel& parallel,
                                     uint64_t seed);
  /// How many open() makes, and the bytes it allocates at most.
  static size_t count(std::string_view dtype, size_t inputs, size_t outputs);
  static size_t bytes(std::string_view dtype, size_t inputs, size_t outputs);

  size_t size() const { return matrices_.size(); }
  const ops::PackedMatrix& first() const { return matrices_[0]; }
  /// The one that was read longest ago, whoever read it.
  const ops::PackedMatrix& next() { return matrices_[at_++ % matrices_.size()]; }
  /// Bytes of the matrices that one product reads.
  size_t matrix_bytes() const { return first().panels() * first().panel_bytes(); }

 private:
  std::vector<ops::PackedMatrix> matrices_;
  size_t at_ = 0;
};

struct Operands;

struct Operator {
  const char* name;
  bool product;   // of weights, in each of their types; the others know f32 alone
  bool in_place;  // x is what a call finds in `out`
  bool (*takes)(size_t rows);
  size_t (*inputs)(size_t matrix_inputs, size_t matrix_outputs);  // of a row
  size_t (*outputs)(size_t matrix_inputs, size_t matrix_outputs);
  void (*run)(Operands& operands, ops::Matmul& matmul);
  /// One row in double: what it should be, and the sum of the absolute terms it is made of, both [outputs].
  void (*define)(const Operands& operands, size_t row, double* want, double* terms);
  /// The error a variant may have, as a share of those terms.
  double (*error_max)(const Operands& operands, const ops::Kernels& kernels);
};

std::span<const Operator> operators();

/// One operator on one shape.
struct Operands {
  /// `matrices` is null for operators without; it and `parallel` must outlive this.
  Operands(const Operator& op, size_t rows, size_t inputs, size_t outputs, WalkedMatrices* matrices, Parallel& parallel,
           uint64_t seed);
  /// Calls the operator once and gives its largest error in a few rows, as a share of the absolute terms.
  double check(ops::Matmul& matmul);
  double flop() const;   // of a call; products only
  double bytes() const;  // that a call must move: of decode the weights, of prefill 0, else the rows

  const Operator* op;
  size_t rows, inputs, outputs;  // inputs and outputs of a row
  WalkedMatrices* matrices;
  Parallel* parallel;
  std::vector<float> x, out;        // [rows, inputs], [rows, outputs]
  std::vector<float> weight;        // rms_norm: [inputs]
  std::vector<float> cosine, sine;  // rope: [rows, head / 2]

 private:
  struct Line {
    size_t row;
    std::vector<double> want, terms;
  };
  std::vector<Line> lines_;  // of the rows that check() looks at
};

}  // namespace mc::bench
