// The reference: the definition of prefill and decode, in double precision.
#pragma once

#include "attn/args.h"

namespace mc::attn {

/// The gate (MoBA, arXiv:2502.13189, section 2.2): for every row the top_k - 1 history blocks of each query head, in
/// the form of PrefillArgs::selection_in. Dense rows and slots without a candidate get -1.
void ref_select(const PrefillArgs& args, int32_t* selection);

/// Computes the gate scores of one row's candidates in double: [candidates]. Returns their number.
int64_t ref_scores(const PrefillArgs& args, int64_t row, int32_t q_head, double* scores);

void ref_prefill(const PrefillArgs& args);
void ref_decode(const DecodeArgs& args);

}  // namespace mc::attn
