// The fence around msgpack-cxx: no other file includes it.
#define MSGPACK_NO_BOOST
#include "wire/msgpack.h"

#include <bit>
#include <msgpack/null_visitor.hpp>
#include <msgpack/pack.hpp>
#include <msgpack/parse.hpp>
#include <msgpack/unpack.hpp>
#include <string>

namespace mc::wire {
namespace {

struct Sink {
  std::vector<uint8_t>& bytes;
  void write(const char* data, size_t size) { bytes.insert(bytes.end(), data, data + size); }
};

class NodeBuilder : public msgpack::null_visitor {
 public:
  NodeBuilder(size_t byte_count, const MsgpackLimits& limits) : byte_count_(byte_count), limits_(limits) {}

  bool visit_nil() { return leaf(MsgpackType::nil) != nullptr; }
  bool visit_boolean(bool value) {
    MsgpackNode* node = leaf(MsgpackType::boolean);
    if (node) node->boolean = value;
    return node != nullptr;
  }
  bool visit_positive_integer(uint64_t value) {
    MsgpackNode* node = leaf(MsgpackType::u64);
    if (node) node->u64 = value;
    return node != nullptr;
  }
  bool visit_negative_integer(int64_t value) {
    MsgpackNode* node = leaf(MsgpackType::i64);
    if (node) node->i64 = value;
    return node != nullptr;
  }
  bool visit_float32(float value) { return visit_float64(static_cast<double>(value)); }
  bool visit_float64(double value) {
    MsgpackNode* node = leaf(MsgpackType::f64);
    if (node) node->f64 = value;
    return node != nullptr;
  }
  bool visit_str(const char* data, uint32_t size) { return text(MsgpackType::str, data, size); }
  bool visit_bin(const char* data, uint32_t size) { return text(MsgpackType::bin, data, size); }
  bool visit_ext(const char*, uint32_t) { return fail("extension types are not used here"); }
  bool start_array(uint32_t count) { return open(MsgpackType::array, count, count); }
  bool end_array() { return close(); }
  bool start_map(uint32_t count) { return open(MsgpackType::map, count, size_t{2} * count); }
  bool end_map() { return close(); }
  void parse_error(size_t, size_t offset) { offset_ = offset, reason_ = "is malformed"; }
  void insufficient_bytes(size_t, size_t offset) { offset_ = offset, reason_ = "ends too early"; }

  std::vector<MsgpackNode> nodes;
  const char* limit_reason() const { return limit_reason_; }
  std::string describe() const { return std::string(reason_) + " at byte " + std::to_string(offset_); }

 private:
  bool fail(const char* reason) {
    limit_reason_ = reason;
    return false;
  }
  MsgpackNode* leaf(MsgpackType type) {
    if (nodes.size() >= limits_.nodes) {
      fail("has too many values");
      return nullptr;
    }
    MsgpackNode& node = nodes.emplace_back();
    node.type = type;
    node.next = static_cast<uint32_t>(nodes.size());
    return &node;
  }
  bool text(MsgpackType type, const char* data, uint32_t size) {
    MsgpackNode* node = leaf(type);
    if (!node) return false;
    node->data = data;
    node->count = size;
    return true;
  }
  // Each element takes at least one byte, so a count beyond the bytes of the message is false. The counts of all
  // containers together have the same bound.
  bool open(MsgpackType type, uint32_t count, size_t elements) {
    if (open_.size() >= limits_.depth) return fail("is nested too deeply");
    claimed_ += elements;
    if (claimed_ > byte_count_) return fail("announces more values than it has bytes");
    MsgpackNode* node = leaf(type);
    if (!node) return false;
    node->count = count;
    open_.push_back(static_cast<uint32_t>(nodes.size() - 1));
    return true;
  }
  bool close() {
    nodes[open_.back()].next = static_cast<uint32_t>(nodes.size());
    open_.pop_back();
    return true;
  }

  size_t byte_count_;
  MsgpackLimits limits_;
  size_t claimed_ = 0;
  std::vector<uint32_t> open_;
  const char* limit_reason_ = nullptr;
  const char* reason_ = "is malformed";
  size_t offset_ = 0;
};

}  // namespace

void MsgpackWriter::map(size_t pair_count) {
  Sink sink{bytes_};
  msgpack::packer<Sink>(sink).pack_map(static_cast<uint32_t>(pair_count));
}
void MsgpackWriter::array(size_t count) {
  Sink sink{bytes_};
  msgpack::packer<Sink>(sink).pack_array(static_cast<uint32_t>(count));
}
void MsgpackWriter::str(std::string_view text) {
  Sink sink{bytes_};
  msgpack::packer<Sink> packer(sink);
  packer.pack_str(static_cast<uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}
void MsgpackWriter::bin(std::span<const uint8_t> bytes) {
  Sink sink{bytes_};
  msgpack::packer<Sink> packer(sink);
  packer.pack_bin(static_cast<uint32_t>(bytes.size()));
  packer.pack_bin_body(reinterpret_cast<const char*>(bytes.data()), static_cast<uint32_t>(bytes.size()));
}
void MsgpackWriter::u64(uint64_t value) {
  Sink sink{bytes_};
  msgpack::packer<Sink>(sink).pack_uint64(value);
}
void MsgpackWriter::i64(int64_t value) {
  Sink sink{bytes_};
  msgpack::packer<Sink>(sink).pack_int64(value);
}
void MsgpackWriter::f64(double value) {
  // Written without the packer, which turns 2.0 into the integer 2, and -0.0 into 0.
  const auto bits = std::bit_cast<uint64_t>(value);
  bytes_.push_back(0xcb);
  for (int shift = 56; shift >= 0; shift -= 8) bytes_.push_back(static_cast<uint8_t>(bits >> shift));
}
void MsgpackWriter::boolean(bool value) {
  Sink sink{bytes_};
  msgpack::packer<Sink> packer(sink);
  value ? packer.pack_true() : packer.pack_false();
}
void MsgpackWriter::nil() {
  Sink sink{bytes_};
  msgpack::packer<Sink>(sink).pack_nil();
}

std::string_view to_string(MsgpackType type) {
  static constexpr std::string_view kNames[] = {"nil",   "boolean", "integer", "negative integer", "number", "string",
                                                "bytes", "array",   "map"};
  return kNames[static_cast<size_t>(type)];
}

Result<std::vector<MsgpackNode>> parse_msgpack(std::span<const uint8_t> bytes, const MsgpackLimits& limits) {
  if (bytes.size() > limits.bytes)
    return Error{Code::invalid, "msgpack: " + std::to_string(bytes.size()) + " bytes, at most " +
                                    std::to_string(limits.bytes) + " are allowed"};
  NodeBuilder builder(bytes.size(), limits);
  size_t offset = 0;
  bool parsed = false;
  try {
    parsed = msgpack::parse(reinterpret_cast<const char*>(bytes.data()), bytes.size(), offset, builder);
  } catch (const std::exception& e) {  // only allocation can fail here
    return Error{Code::no_space, std::string("msgpack: ") + e.what()};
  }
  if (builder.limit_reason()) return Error{Code::invalid, std::string("msgpack: ") + builder.limit_reason()};
  if (!parsed) return Error{Code::corrupt, "msgpack: " + builder.describe()};
  if (offset != bytes.size())
    return Error{Code::corrupt, "msgpack: " + std::to_string(bytes.size() - offset) + " stray bytes behind the value"};
  return std::move(builder.nodes);
}

}  // namespace mc::wire
