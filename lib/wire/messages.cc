// Instantiates the visitors of wire/codec.h for every alternative of Message.
#include "wire/messages.h"

#include <array>

#include "base/one_of.inc"
#include "wire/codec.h"

MC_ONE_OF(mc::wire::MessageVariant);

namespace mc::wire {
namespace {

constexpr size_t kTypeCount = std::variant_size_v<MessageVariant>;

template <size_t... I>
constexpr std::array<std::string_view, kTypeCount> type_names(std::index_sequence<I...>) {
  return {std::variant_alternative_t<I, MessageVariant>::kType...};
}
constexpr auto kTypes = type_names(std::make_index_sequence<kTypeCount>());

template <class T>
Result<Message> decode_as(std::span<const MsgpackNode> nodes) {
  T message;
  MC_CHECK(Decoder(nodes, T::kType).decode_root(message));
  return Message(std::move(message));
}

using DecodeFunction = Result<Message> (*)(std::span<const MsgpackNode>);
template <size_t... I>
constexpr std::array<DecodeFunction, kTypeCount> decode_functions(std::index_sequence<I...>) {
  return {&decode_as<std::variant_alternative_t<I, MessageVariant>>...};
}
constexpr auto kDecoders = decode_functions(std::make_index_sequence<kTypeCount>());

// The text is made from the encoded nodes and not from the struct, so it shows the fields that were sent.
Json to_json(std::span<const MsgpackNode> nodes, uint32_t at) {
  const MsgpackNode& node = nodes[at];
  switch (node.type) {
    case MsgpackType::nil: return nullptr;
    case MsgpackType::boolean: return node.boolean;
    case MsgpackType::u64: return node.u64 <= INT64_MAX ? Json(node.u64) : Json(std::to_string(node.u64));
    case MsgpackType::i64: return node.i64;
    case MsgpackType::f64: return node.f64;
    case MsgpackType::str: return std::string(node.text());
    case MsgpackType::bin: {
      static constexpr char kDigits[] = "0123456789abcdef";
      std::string hex;
      for (const char c : node.text()) {
        hex += kDigits[static_cast<uint8_t>(c) >> 4];
        hex += kDigits[static_cast<uint8_t>(c) & 15];
      }
      return hex;
    }
    case MsgpackType::array: {
      Json out = Json::array();
      for (uint32_t child = at + 1; child < node.next; child = nodes[child].next) out.push(to_json(nodes, child));
      return out;
    }
    case MsgpackType::map: {
      Json out = Json::object();
      for (uint32_t key = at + 1; key < node.next; key = nodes[nodes[key].next].next)
        out.set(nodes[key].text(), to_json(nodes, nodes[key].next));
      return out;
    }
  }
  return nullptr;
}

}  // namespace

std::string_view type_name(const Message& message) {
  return kTypes[message.index()];
}

std::span<const std::string_view> message_types() {
  return kTypes;
}

Bytes encode(const Message& message) {
  MsgpackWriter out;
  std::visit([&](const auto& m) { Encoder(out).put_struct(m); }, message);
  return out.take();
}

Result<Message> decode(std::string_view type, std::span<const uint8_t> body) {
  for (size_t i = 0; i < kTypeCount; ++i) {
    if (kTypes[i] != type) continue;
    auto nodes = parse_msgpack(body, {.bytes = kMessageBytesMax});
    if (!nodes) return within(type, std::move(nodes).error());
    return kDecoders[i](*nodes);
  }
  return Error{Code::unsupported, "message: unknown type \"" + std::string(type.substr(0, 64)) + "\""};
}

Json describe(const Message& message) {
  Json out = Json::object({{"type", type_name(message)}});
  const Bytes body = encode(message);
  auto nodes = parse_msgpack(body, {.bytes = SIZE_MAX, .nodes = SIZE_MAX});
  if (!nodes) return out.set("error", nodes.error().what);
  const Json fields = to_json(*nodes, 0);
  for (const JsonMember& member : fields.members()) out.set(member.key, member.value);
  return out;
}

}  // namespace mc::wire
