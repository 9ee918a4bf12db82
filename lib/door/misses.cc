#include "door/misses.h"

namespace mc::door {
namespace {

wire::MissKind told(const wire::Miss& miss, MissReader reader) {
  return reader == MissReader::client && miss.kind == wire::MissKind::salt ? wire::MissKind::cold : miss.kind;
}

}  // namespace

Json misses_json(std::span<const wire::Miss> misses, MissReader reader) {
  Json out = Json::array();
  for (const wire::Miss& miss : misses) {
    const wire::MissKind kind = told(miss, reader);
    Json run = Json::object({{"reason", wire::to_string(kind)}, {"first_block", miss.first_block}});
    run.set("blocks", miss.block_count);
    if (kind == miss.kind && !miss.node.empty()) run.set("node", miss.node);
    if (kind == wire::MissKind::evicted) run.set("age_ms", miss.age_ms);
    out.push(std::move(run));
  }
  return out;
}

std::string_view first_miss(std::span<const wire::Miss> misses, MissReader reader) {
  return misses.empty() ? std::string_view() : wire::to_string(told(misses.front(), reader));
}

}  // namespace mc::door
