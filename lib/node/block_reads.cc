#include "node/block_reads.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {

constexpr uint64_t kPageBytesMax = uint64_t{1} << 32;

LayerRange common(const wire::HolderPart& a, const wire::HolderPart& b) {
  const uint32_t first = std::max(a.first_layer, b.first_layer);
  return {first, std::max(first, std::min(a.end_layer, b.end_layer))};
}

/// Indexes of the blocks of which member `member` of the reader's pipeline lacks its layers.
std::vector<size_t> lacked(const BlockRead& read, size_t member) {
  std::vector<size_t> out;
  for (size_t i = 0; i < read.blocks.size(); ++i)
    if (read.held.empty() || (read.held[i] >> member & 1) == 0) out.push_back(i);
  return out;
}

/// The offset of a block's page in the buffer of a member. The grant has the offset in the first member's buffer.
uint64_t page_offset(const wire::LeasedBlock& block, const wire::HolderPart& first, const wire::HolderPart& part) {
  return block.page_offset / first.page_bytes * part.page_bytes;
}

}  // namespace

bool are_sound(std::span<const wire::HolderPart> parts, uint32_t layers) {
  uint32_t next = 0;
  for (const wire::HolderPart& part : parts) {
    if (part.first_layer != next || part.end_layer <= next || part.page_bytes - 1 >= kPageBytesMax) return false;
    next = part.end_layer;
  }
  return parts.empty() || next == layers;
}

bool BlockReads::start(const BlockRead& read, const ExtentLayout& layout, TimePoint now, Actions& out) {
  MC_ASSERT(read.read != 0 && !read.blocks.empty());
  MC_ASSERT_EQ(read.blocks.size(), read.pages.size());
  MC_ASSERT(are_sound(read.parts, layout.layers));
  for (const wire::HolderPart& part : read.parts)
    if (!peers_.has(part.node, part.instance)) return false;
  const HolderParts here = reader_.parts();
  if (!here) return false;
  MC_ASSERT(are_sound(*here, layout.layers));
  MC_ASSERT(read.held.empty() || (read.held.size() == read.blocks.size() && here->size() > 1));
  // A process with all layers counts as the only member of a pipeline. The page size is then of no use but as a factor.
  const std::vector<wire::HolderPart> whole_there = {{read.node, read.instance, 0, layout.layers, 1}};
  const std::vector<wire::HolderPart> whole_here = {{"", {}, 0, layout.layers, 1}};
  const std::span<const wire::HolderPart> from = read.parts.empty() ? std::span(whole_there) : std::span(read.parts);
  const std::span<const wire::HolderPart> to = here->empty() ? std::span(whole_here) : std::span(*here);
  if (from.size() == 1 && to.size() == 1) {  // the usual case: one read under the caller's number
    if (read.by_layer && layout.layers > 1)
      start_by_layer(read, from[0], layout, out);
    else
      start_here(read, lacked(read, 0), from[0], {0, layout.layers}, layout, read.read, out);
    return true;
  }
  Whole& whole = wholes_[read.read];
  MC_ASSERT_EQ(whole.pieces_left, 0u);
  whole.done.read = read.read;
  for (const wire::HolderPart& reader : to) {
    const bool is_here = &reader == &to[0];
    if (!is_here) whole.stages.push_back(reader.instance);
    const std::vector<size_t> blocks = lacked(read, static_cast<size_t>(&reader - &to[0]));
    if (blocks.empty()) continue;
    for (const wire::HolderPart& holder : from) {
      const LayerRange layers = common(reader, holder);
      if (layers.count() == 0) continue;
      const uint64_t piece = numbers_.next();
      pieces_[piece] =
          is_here ? Piece{.whole = read.read, .first_layer = layers.first}
                  : Piece{read.read, reader.node, reader.instance, after(now, read.budget + kAnswerTime), layers.first};
      ++whole.pieces_left;
      if (is_here)
        start_here(read, blocks, holder, layers, layout, piece, out);
      else
        start_there(read, blocks, holder, reader, layers, layout, piece, out);
    }
  }
  MC_ASSERT(whole.pieces_left > 0);
  return true;
}

void BlockReads::start_by_layer(const BlockRead& read, const wire::HolderPart& from, const ExtentLayout& layout,
                                Actions& out) {
  Whole& whole = wholes_[read.read];
  whole.done.read = read.read;
  whole.pieces_left = std::min(kLayerPieces, layout.layers);
  const std::vector<size_t> blocks = lacked(read, 0);
  uint32_t first = 0;
  for (uint32_t n = 1; n <= whole.pieces_left; ++n) {
    const uint32_t end = layout.layers * n / whole.pieces_left;
    const uint64_t piece = numbers_.next();
    pieces_[piece] = Piece{.whole = read.read, .first_layer = first};
    start_here(read, blocks, from, {first, end}, layout, piece, out);
    first = end;
  }
}

void BlockReads::start_here(const BlockRead& read, std::span<const size_t> blocks, const wire::HolderPart& from,
                            LayerRange layers, const ExtentLayout& layout, uint64_t piece, Actions& out) const {
  Read action;
  action.read = piece;
  action.peer = from.node, action.instance = from.instance;
  action.pool = read.pool;
  action.budget = read.budget;
  action.urgent = read.urgent;
  const wire::HolderPart& first = read.parts.empty() ? from : read.parts.front();
  for (const size_t i : blocks) {
    const uint64_t page = page_offset(read.blocks[i], first, from);
    MC_ASSERT_EQ(read.blocks[i].layer_crcs.size(), layout.layers);
    for (uint32_t layer = layers.first; layer < layers.end; ++layer)
      action.slices.push_back({read.pages[i], layout.layer_offset(layer),
                               page + (layer - from.first_layer) * layout.layer_bytes(),
                               static_cast<uint32_t>(layout.layer_bytes()), read.blocks[i].layer_crcs[layer]});
  }
  out.push_back(std::move(action));
}

void BlockReads::start_there(const BlockRead& read, std::span<const size_t> blocks, const wire::HolderPart& from,
                             const wire::HolderPart& to, LayerRange layers, const ExtentLayout& layout, uint64_t piece,
                             Actions& out) const {
  wire::StageRead message;
  message.read = piece;
  message.node = from.node, message.instance = from.instance;
  message.first_layer = layers.first;
  message.budget_ms = static_cast<uint32_t>(std::clamp<int64_t>(read.budget / 1ms, 1, 3'600'000));
  message.urgent = read.urgent;
  const wire::HolderPart& first = read.parts.empty() ? from : read.parts.front();
  for (const size_t i : blocks) {
    message.pages.push_back(read.pages[i]);
    message.offsets.push_back(page_offset(read.blocks[i], first, from) +
                              (layers.first - from.first_layer) * layout.layer_bytes());
  }
  for (uint32_t layer = layers.first; layer < layers.end; ++layer) {
    auto& crcs = message.crcs.emplace_back();
    for (const size_t i : blocks) crcs.push_back(read.blocks[i].layer_crcs[layer]);
  }
  out.push_back(Send{to.node, to.instance, std::move(message)});
}

uint32_t BlockReads::layers_here(uint64_t read) const {
  const auto whole = wholes_.find(read);
  return whole == wholes_.end() ? 0 : whole->second.layers_here;
}

void BlockReads::cancel(uint64_t read, Actions& out) const {
  if (!wholes_.contains(read)) return out.push_back(CancelRead{read});
  for (const auto& [number, piece] : pieces_) {
    if (piece.whole != read) continue;
    if (piece.stage.is_zero())
      out.push_back(CancelRead{number});
    else
      out.push_back(Send{piece.node, piece.stage, wire::StageReadCancel{number}});
  }
}

/// The first layer that a piece has still to bring.
uint32_t BlockReads::first_unread(uint64_t read) const {
  uint32_t first = UINT32_MAX;
  for (const auto& [number, piece] : pieces_)
    if (piece.whole == read) first = std::min(first, piece.first_layer);
  MC_ASSERT_LT(first, UINT32_MAX);
  return first;
}

void BlockReads::Whole::fail(Code code, const std::string& what, bool refused) {
  if (done.code != Code::ok) return;
  done.code = code, done.what = what, done.refused = refused;
}

std::optional<ReadDone> BlockReads::end(std::map<uint64_t, Piece>::iterator piece, Code code, const std::string& what,
                                        bool refused) {
  const auto whole = wholes_.find(piece->second.whole);
  MC_ASSERT(whole != wholes_.end() && whole->second.pieces_left > 0);
  pieces_.erase(piece);
  if (code != Code::ok) whole->second.fail(code, what, refused);
  if (--whole->second.pieces_left > 0) {
    if (whole->second.done.code == Code::ok) whole->second.layers_here = first_unread(whole->first);
    return std::nullopt;
  }
  ReadDone done = std::move(whole->second.done);
  wholes_.erase(whole);
  return done;
}

std::optional<ReadDone> BlockReads::on_read(const ReadDone& done) {
  const auto piece = pieces_.find(done.read);
  if (piece == pieces_.end()) return done;
  MC_ASSERT(piece->second.stage.is_zero());
  return end(piece, done.code, done.what);
}

std::optional<ReadDone> BlockReads::on_stage_read(const NodeId& stage, const InstanceId& instance,
                                                  const wire::StageReadDone& done) {
  const auto piece = pieces_.find(done.read);
  if (piece == pieces_.end() || piece->second.stage.is_zero() || piece->second.stage != instance) return std::nullopt;
  return end(piece, done.code, stage + ": " + done.message, done.refused);
}

std::vector<ReadDone> BlockReads::on_stage_gone(const InstanceId& instance) {
  const std::string why = "a pipeline stage that read was lost";
  for (auto& [number, whole] : wholes_)
    if (std::ranges::find(whole.stages, instance) != whole.stages.end()) whole.fail(Code::peer_lost, why, false);
  std::vector<ReadDone> out;
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    const auto piece = at++;
    if (piece->second.stage.is_zero() || piece->second.stage != instance) continue;
    if (auto done = end(piece, Code::peer_lost, why)) out.push_back(*std::move(done));
  }
  return out;
}

std::vector<ReadDone> BlockReads::on_tick(TimePoint now) {
  std::vector<ReadDone> out;
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    const auto piece = at++;
    if (now < piece->second.until) continue;
    if (auto done = end(piece, Code::timeout, "a pipeline stage does not say whether it has read"))
      out.push_back(*std::move(done));
  }
  return out;
}

TimePoint BlockReads::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [number, piece] : pieces_) at = std::min(at, piece.until);
  return at;
}

}  // namespace mc::node
