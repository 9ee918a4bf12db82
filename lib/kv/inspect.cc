#include "kv/inspect.h"

#include <algorithm>

#include "base/hash.h"
#include "kv/chain.h"
#include "kv/namespace.h"

namespace mc::kv {
namespace {

void check_blocks(wire::KvReader& reader, const std::vector<BlockHash>& ids, Inspection& out) {
  for (;;) {
    auto block = reader.next();
    if (!block) {
      out.damage = std::move(block).error();
      return;
    }
    if (!*block) return;
    const wire::BlockHeader& h = (*block)->header;
    const size_t ordinal = out.blocks.size();
    Inspection::Block& b = out.blocks.emplace_back();
    b.id = BlockHash{h.id};
    b.first_position = h.first_position;
    b.token_count = h.token_count;
    b.id_matches = h.is_tail() || (ordinal < ids.size() && ids[ordinal] == b.id);
    while (reader.extents_left() > 0) {
      if (auto held = reader.skip_extent(); !held) {
        out.damage = std::move(held).error();
        return;
      }
      out.extent_bytes += reader.layout().layer_bytes();
    }
    b.checksums_hold = true;
  }
}

}  // namespace

Result<Inspection> inspect(const wire::ReadBytes& read) {
  MC_TRY(reader, wire::KvReader::open(read));
  Inspection out;
  out.prologue = reader.prologue();
  out.layout = reader.layout();
  const auto name_space = Namespace::parse(out.prologue.kv_namespace);
  out.namespace_matches = name_space && name_space->id() == out.prologue.ns;
  check_blocks(reader, chain(out.prologue.ns, out.prologue.ids, out.layout.block_tokens), out);
  return out;
}

bool Inspection::sound() const {
  return !damage && std::all_of(blocks.begin(), blocks.end(),
                                [](const Block& block) { return block.id_matches && block.checksums_hold; });
}

size_t Inspection::whole_blocks() const {
  return static_cast<size_t>(std::ranges::count_if(blocks, &Block::checksums_hold));
}

std::string Inspection::verdict() const {
  if (sound()) return "sound";
  if (!damage) return "ids do not match the prompt";
  const std::string whole = std::to_string(whole_blocks()) + " of " + std::to_string(prologue.block_count());
  return is_cut_short() ? "cut short: " + whole + " blocks are whole; " + damage->what : "damaged: " + damage->what;
}

std::string Inspection::text() const {
  // A block is incomplete when its bytes could not be read to their end.
  const std::string bad = damage && damage->code != Code::corrupt ? "incomplete" : "MISMATCH";
  const auto& p = prologue;
  std::string out;
  auto line = [&](std::string_view name, const std::string& value) {
    out += std::string(name) + std::string(16 - name.size(), ' ') + value + "\n";
  };
  line("writer", p.writer);
  line("model", p.model);
  line("namespace", p.ns.hex() + (namespace_matches ? "" : " (salted, or not the id of the namespace text)"));
  line("layout", std::to_string(layout.layers) + " layers x " + std::to_string(layout.kv_heads) + " kv heads x " +
                     std::to_string(layout.head_dim) + ", " + p.kv_dtype + ", " + std::to_string(layout.block_tokens) +
                     " tokens a block, " + std::to_string(layout.layer_bytes()) + " bytes an extent");
  line("prompt", std::to_string(p.ids.size()) + " tokens in " + std::to_string(p.block_count()) + " blocks");
  line("first token", std::to_string(p.first_token) + (p.finish_reason.empty() ? "" : " (" + p.finish_reason + ")"));
  line("sampling", "temperature " + Json(p.sampling.temperature).dump() + " top_k " + std::to_string(p.sampling.top_k) +
                       " top_p " + Json(p.sampling.top_p).dump() + " seed " + std::to_string(p.sampling.seed) +
                       " stream " + std::to_string(p.sampling.stream) + " next " + std::to_string(p.next_index));
  line("prefill", p.prefill_attention);
  line("decode", p.decode_attention);
  out += "\n   BLOCK  POSITIONS        ID                                ID-CHECK  CHECKSUMS\n";
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = blocks[i];
    const std::string positions =
        std::to_string(b.first_position) + ".." + std::to_string(b.first_position + b.token_count - 1);
    const std::string id = b.id.is_zero() ? "(tail, not indexed)" : b.id.hex();
    const std::string ordinal = std::to_string(i);
    out += std::string(8 - std::min<size_t>(8, ordinal.size()), ' ') + ordinal + "  " + positions +
           std::string(17 - std::min<size_t>(17, positions.size()), ' ') + id +
           std::string(34 - std::min<size_t>(34, id.size()), ' ') + (b.id_matches ? "ok        " : "MISMATCH  ") +
           (b.checksums_hold ? "ok" : bad) + "\n";
  }
  return out + "\n" + verdict() + "\n";
}

Json Inspection::json() const {
  const auto& p = prologue;
  Json list = Json::array();
  for (const Block& b : blocks)
    list.push(Json::object({{"id", b.id.is_zero() ? Json(nullptr) : Json(b.id.hex())},
                            {"first_position", b.first_position},
                            {"tokens", b.token_count},
                            {"id_matches", b.id_matches},
                            {"checksums_hold", b.checksums_hold}}));
  Json out = Json::object({{"type", "mckv"},
                           {"writer", p.writer},
                           {"model", p.model},
                           {"namespace", p.ns.hex()},
                           {"namespace_text", p.kv_namespace},
                           {"namespace_matches", namespace_matches},
                           {"layers", layout.layers},
                           {"kv_heads", layout.kv_heads},
                           {"head_dim", layout.head_dim},
                           {"block_tokens", layout.block_tokens},
                           {"kv_dtype", p.kv_dtype},
                           {"prompt_tokens", p.ids.size()},
                           {"first_token", p.first_token},
                           {"finish_reason", p.finish_reason},
                           {"prefill_attention", p.prefill_attention},
                           {"decode_attention", p.decode_attention},
                           {"extent_bytes", extent_bytes}});
  out.set("blocks", std::move(list));
  out.set("sound", sound());
  out.set("damage", damage ? Json(damage->what) : Json(nullptr));
  return out;
}

}  // namespace mc::kv
