// Converts control messages to bytes and back. One visitor per struct (wire/messages.h) names its fields, and the
// visitors here walk them. A struct is a map with string keys in field order, a vector an array, a pair an array of
// two, an Id128 16 bytes of bin, an enum its name. A double always takes 9 bytes. Equal messages give equal bytes, so
// golden files can hold them (tests/golden/wire/messages.txt).
//
// Decoding trusts no input. Sizes are bounded before anything is built, and unknown keys are skipped. An error names
// message, field and fault: "hello: cost.prefill_s is missing".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/json.h"
#include "base/result.h"
#include "wire/messages.h"
#include "wire/msgpack.h"

namespace mc::wire {

/// Largest body of a control message; a prompt of 2 M tokens fits.
inline constexpr size_t kMessageBytesMax = size_t{16} << 20;

std::string_view to_string(Role role);
std::optional<Role> role_from(std::string_view name);

/// The msgpack map of the message's fields. The envelope carries the type (type_name()).
Bytes encode(const Message& message);
/// Code::unsupported for an unknown type; Code::corrupt or Code::invalid for bad bytes.
Result<Message> decode(std::string_view type, std::span<const uint8_t> body);
/// The message as JSON, {"type": ..., fields...}, for logs, traces and the simulator's transcripts.
Json describe(const Message& message);
/// Names of all messages, in the order of the variant. For tests.
std::span<const std::string_view> message_types();

// ---- visitors: also usable on any other struct with fields() -------------------------------------

class FieldCounter {
 public:
  template <class T>
  void operator()(std::string_view, T&, size_t = 0) {
    ++count;
  }
  template <class T>
  void later(std::string_view, T&, size_t = 0) {
    ++count;
  }
  size_t count = 0;
};

class Encoder {
 public:
  explicit Encoder(MsgpackWriter& out) : out_(out) {}
  template <class T>
  void operator()(std::string_view key, T& field, size_t = 0) {
    out_.str(key);
    put(field);
  }
  template <class T>
  void later(std::string_view key, T& field, size_t = 0) {
    (*this)(key, field);
  }
  /// The visitors take non-const fields, since decoding shares them; encoding changes nothing.
  template <class T>
  void put_struct(const T& value) {
    T& fields = const_cast<T&>(value);
    FieldCounter counter;
    fields.fields(counter);
    out_.map(counter.count);
    fields.fields(*this);
  }

 private:
  void put(bool value) { out_.boolean(value); }
  void put(uint32_t value) { out_.u64(value); }
  void put(uint64_t value) { out_.u64(value); }
  void put(int32_t value) { out_.i64(value); }
  void put(double value) { out_.f64(value); }
  void put(const std::string& value) { out_.str(value); }
  void put(const Bytes& value) { out_.bin(value); }
  void put(const Id128& value) { out_.bin(value.bytes); }
  void put(Role value) { out_.str(to_string(value)); }
  void put(MissKind value) { out_.str(to_string(value)); }
  void put(Tier value) { out_.str(to_string(value)); }
  void put(Fallback value) { out_.str(to_string(value)); }
  void put(DemoteEnd value) { out_.str(to_string(value)); }
  void put(CopyEnd value) { out_.str(to_string(value)); }
  void put(Code value) { out_.str(to_string(value)); }
  template <class A, class B>
  void put(const std::pair<A, B>& value) {
    out_.array(2);
    put(value.first);
    put(value.second);
  }
  template <class T>
  void put(const std::vector<T>& values) {
    out_.array(values.size());
    for (const T& value : values) put(value);
  }
  template <class T>
  requires std::is_class_v<T> &&(!std::is_base_of_v<Id128, T>)void put(const T& value) { put_struct(value); }

  MsgpackWriter& out_;
};

class Decoder {
 public:
  /// `nodes` are those of one parsed message. `name` opens every error.
  Decoder(std::span<const MsgpackNode> nodes, std::string_view name) : nodes_(nodes), name_(name) {}

  /// Fills `value` from the root. The error is the first fault.
  template <class T>
  Result<void> decode_root(T& value) {
    get_struct(0, value);
    if (failed_) return error_;
    return {};
  }

  template <class T>
  void operator()(std::string_view key, T& field) {
    read(key, field, true);
  }
  /// Reads a field that older senders do not send.
  template <class T>
  void later(std::string_view key, T& field) {
    read(key, field, false);
  }
  /// Reads the first `most` elements of a list that its receiver keeps. Elements with long texts are errors.
  template <class T>
  void operator()(std::string_view key, std::vector<T>& list, size_t most) {
    read_short(key, list, most, true);
  }
  template <class T>
  void later(std::string_view key, std::vector<T>& list, size_t most) {
    read_short(key, list, most, false);
  }

 private:
  static constexpr size_t kTextBytesMax = size_t{1} << 20, kShortTextBytesMax = 256;

  // A struct that is being read: its map node, and the place where the next key is expected. Senders write fields in
  // order, so the expected place is nearly always right.
  struct Frame {
    uint32_t map = 0;
    uint32_t cursor = 0;
  };

  // The path to the value that is being read. It is rendered only for errors.
  struct Step {
    std::string_view key;  // empty = element `index` of an array
    size_t index = 0;
  };
  static constexpr size_t kDepthMax = 2 * 16;  // a field and an element for each level parse_msgpack allows

  template <class T>
  void read(std::string_view key, T& field, bool required) {
    if (failed_) return;
    Step& step = push();
    step.key = key;
    const uint32_t at = find(key);
    if (at != 0)
      get(at, field);
    else if (required)
      fail("is missing");
    --depth_;
  }
  template <class T>
  void read_short(std::string_view key, std::vector<T>& list, size_t most, bool required) {
    list_max_ = most, text_bytes_max_ = kShortTextBytesMax;
    read(key, list, required);
    list_max_ = SIZE_MAX, text_bytes_max_ = kTextBytesMax;
  }
  Step& push() {
    MC_ASSERT_LT(depth_, kDepthMax);
    return steps_[depth_++];
  }
  uint32_t find(std::string_view key);
  void fail(std::string_view what);
  void fail_type(std::string_view wanted, uint32_t at);
  bool enter_map(uint32_t at);
  bool enter_array(uint32_t at, size_t& count);

  void get(uint32_t at, bool& value);
  void get(uint32_t at, uint32_t& value);
  void get(uint32_t at, uint64_t& value);
  void get(uint32_t at, int32_t& value);
  void get(uint32_t at, double& value);
  void get(uint32_t at, std::string& value);
  void get(uint32_t at, Bytes& value);
  void get(uint32_t at, Id128& value);
  void get(uint32_t at, Role& value);
  void get(uint32_t at, MissKind& value);
  void get(uint32_t at, Tier& value);
  void get(uint32_t at, Fallback& value);
  void get(uint32_t at, DemoteEnd& value);
  void get(uint32_t at, CopyEnd& value);
  void get(uint32_t at, Code& value);

  template <class A, class B>
  void get(uint32_t at, std::pair<A, B>& value) {
    size_t count = 0;
    if (!enter_array(at, count)) return;
    if (count != 2) return fail("must have two elements, has " + std::to_string(count));
    get(at + 1, value.first);
    if (!failed_) get(nodes_[at + 1].next, value.second);
  }
  template <class T>
  void get(uint32_t at, std::vector<T>& values) {
    size_t count = 0;
    if (!enter_array(at, count)) return;
    count = std::min(count, std::exchange(list_max_, SIZE_MAX));
    values.clear();
    values.reserve(count < 4096 ? count : 4096);  // the rest grows with the elements that decode
    uint32_t next = at + 1;
    Step& step = push();
    step.key = {};
    for (step.index = 0; step.index < count && !failed_; ++step.index) {
      get(next, values.emplace_back());
      next = nodes_[next].next;
    }
    --depth_;
  }
  template <class T>
  requires std::is_class_v<T> &&(!std::is_base_of_v<Id128, T>)void get(uint32_t at, T& value) { get_struct(at, value); }

  template <class T>
  void get_struct(uint32_t at, T& value) {
    const Frame outer = frame_;
    if (enter_map(at)) value.fields(*this);
    frame_ = outer;
  }

  std::span<const MsgpackNode> nodes_;
  std::string_view name_;
  std::array<Step, kDepthMax> steps_;
  size_t depth_ = 0;
  size_t list_max_ = SIZE_MAX;             // of the next list
  size_t text_bytes_max_ = kTextBytesMax;  // of a string
  Frame frame_;
  bool failed_ = false;
  Error error_;
};

}  // namespace mc::wire
