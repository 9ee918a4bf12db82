#include "model/device_rank.h"

namespace mc::model {

Result<void> DeviceRank::after_attention(uint32_t layer) {
  MC_TRY(rows, rows_behind(layer));
  return layers().finish(layer, rows);
}

Result<void> DeviceRank::finish_last_row(std::span<float> logits, std::span<float> hidden) {
  MC_TRY(row, attend_last_row());
  MC_CHECK(layers().finish(layers().config().layers - 1, row));
  return end_last_row(logits, hidden);
}

Result<void> DeviceRank::finish_rows(const MixedPass& pass) {
  MC_TRY(rows, attend_last_rows());
  if (rows.count == 0) return {};
  MC_CHECK(layers().finish(layers().config().layers - 1, rows));
  return end_rows(pass);
}

}  // namespace mc::model
