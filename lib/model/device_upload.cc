#include "model/device_upload.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::model {
namespace {

constexpr size_t kUploadBytes = size_t{8} << 20;    // that are copied at a time
constexpr size_t kUploadRows = ops::kPanelColumns;  // rows that a thread writes at a time

/// The row of a matrix that is row `row` of a cut; nullopt: it is zero.
std::optional<size_t> source_row(const MatrixCut& cut, size_t row) {
  if (cut.rows.empty()) return row;
  for (const RowRun& run : cut.rows) {
    if (row < run.padded) return row < run.count ? std::optional(run.first + row) : std::nullopt;
    row -= run.padded;
  }
  return std::nullopt;
}

}  // namespace

Result<void> DeviceUpload::prepare() {
  MC_TRY(stream, gpu::Stream::make(device_));
  stream_ = std::move(stream);
  for (Piece& piece : pieces_) {
    MC_TRY(copied, gpu::Event::make(device_));
    piece.copied = std::move(copied);
  }
  scratch_.resize(static_cast<size_t>(parallel_.threads()));
  return {};
}

/// Memory for a piece, once the copy from it has ended.
Result<std::span<std::byte>> DeviceUpload::room(Piece& piece, size_t bytes) {
  MC_CHECK(piece.copied.finish());
  if (piece.memory.bytes() < bytes) {
    piece.memory = gpu::PinnedBuffer();  // first the old one goes: the host need not have both
    MC_TRY(memory, gpu::PinnedBuffer::make(device_, bytes, "copies of weights"));
    piece.memory = std::move(memory);
  }
  return piece.memory.view(0, bytes);
}

Result<void> DeviceUpload::fit(const ops::PackedMatrix* matrix, size_t panel_bytes, size_t row_columns) {
  try {
    for (Scratch& scratch : scratch_) {
      if (matrix != nullptr) scratch.unpack.fit(*matrix);
      scratch.panel.resize(std::max(scratch.panel.size(), panel_bytes));
      scratch.row.resize(std::max(scratch.row.size(), row_columns));
    }
  } catch (const std::bad_alloc&) {
    return user_error(err::kNotEnoughMemory, "the host has no memory to unpack weights for the GPU", "--threads",
                      "give fewer threads, or free memory");
  }
  return {};
}

Result<void> DeviceUpload::pieces(size_t units, size_t unit_bytes, size_t bytes, uint64_t to, const Fill& fill) {
  MC_ASSERT(bytes > (units - 1) * unit_bytes && bytes <= units * unit_bytes);
  const size_t at_once = std::max<size_t>(1, kUploadBytes / unit_bytes);
  for (size_t first = 0; first < units; first += at_once) {
    const size_t count = std::min(at_once, units - first), begin = first * unit_bytes;
    const size_t piece_bytes = std::min(bytes - begin, count * unit_bytes);
    Piece& piece = pieces_[next_++ % std::size(pieces_)];
    MC_TRY(memory, room(piece, piece_bytes));
    std::byte* const at = memory.data();
    parallel_.for_each(static_cast<int64_t>(count), [&](int64_t index, int worker) {
      const auto unit = static_cast<size_t>(index);
      fill(first + unit, scratch_[static_cast<size_t>(worker)], at + unit * unit_bytes);
    });
    MC_CHECK(stream_.copy_in(to + begin, piece.memory, 0, piece_bytes));
    MC_CHECK(stream_.record(piece.copied));
  }
  return {};
}

Result<void> DeviceUpload::rows(const ops::PackedMatrix& from, const MatrixCut& cut, size_t weight_bytes, uint64_t to,
                                const Unpack& unpack) {
  const size_t columns = from.columns(), count = cut.row_count(from.rows()), width = cut.column_count(columns);
  const size_t line = width * weight_bytes, source_line = columns * weight_bytes;
  const RowRun taken = cut.columns.padded > 0 ? cut.columns : RowRun{0, columns, columns};
  // Neighbouring rows are mostly of one panel, which is unpacked once for them.
  const auto cut_rows = [&](size_t unit, Scratch& scratch, std::byte* out) {
    size_t held = from.panels();
    for (size_t row = unit * kUploadRows; row < std::min(count, (unit + 1) * kUploadRows); ++row, out += line) {
      const auto source = source_row(cut, row);
      const size_t bytes = source ? taken.count * weight_bytes : 0;
      std::memset(out + bytes, 0, line - bytes);
      if (!source) continue;
      if (const size_t panel = *source / ops::kPanelColumns; panel != held) {
        unpack(panel, scratch, scratch.panel.data());
        held = panel;
      }
      const size_t in_panel = *source % ops::kPanelColumns;
      std::memcpy(out, scratch.panel.data() + in_panel * source_line + taken.first * weight_bytes, bytes);
    }
  };
  const bool is_whole = cut.is_whole(from.rows(), columns);
  MC_CHECK(fit(&from, is_whole ? 0 : ops::kPanelColumns * source_line, 0));
  return pieces((count + kUploadRows - 1) / kUploadRows, kUploadRows * line, count * line, to,
                is_whole ? unpack : Fill(cut_rows));
}

Result<void> DeviceUpload::matrix(const ops::PackedMatrix& from, const MatrixCut& cut, uint64_t to) {
  return rows(from, cut, sizeof(bf16_t), to, [&](size_t panel, Scratch& scratch, std::byte* out) {
    ops::unpack_panel(from, panel, scratch.unpack, reinterpret_cast<bf16_t*>(out));
  });
}

Result<void> DeviceUpload::codes(const ops::PackedMatrix& from, const MatrixCut& cut, uint64_t to) {
  return rows(from, cut, 1, to, [&](size_t panel, Scratch&, std::byte* out) {
    ops::unpack_codes(from, panel, reinterpret_cast<uint8_t*>(out));
  });
}

Result<void> DeviceUpload::table(size_t count, size_t columns, uint64_t to,
                                 const std::function<void(size_t row, float* out)>& read) {
  const size_t line = columns * sizeof(bf16_t);
  MC_CHECK(fit(nullptr, 0, columns));
  return pieces((count + kUploadRows - 1) / kUploadRows, kUploadRows * line, count * line, to,
                [&](size_t unit, Scratch& scratch, std::byte* out) {
                  float* const wide = scratch.row.data();
                  auto* narrow = reinterpret_cast<bf16_t*>(out);
                  const size_t end = std::min(count, (unit + 1) * kUploadRows);
                  for (size_t row = unit * kUploadRows; row < end; ++row, narrow += columns) {
                    read(row, wide);
                    std::transform(wide, wide + columns, narrow, f32_to_bf16);
                  }
                });
}

Result<void> DeviceUpload::finish() {
  return stream_.finish();
}

}  // namespace mc::model
