#include "wire/codec.h"

#include "base/assert.h"

namespace mc::wire {

namespace {

constexpr std::string_view kRoles[] = {"conductor", "prefill", "decode", "cache", "stage"};
constexpr std::string_view kTiers[] = {"device", "host", "disk"};

}  // namespace

std::string_view to_string(Role role) {
  MC_ASSERT_LT(static_cast<size_t>(role), std::size(kRoles));
  return kRoles[static_cast<size_t>(role)];
}

std::optional<Role> role_from(std::string_view name) {
  for (size_t i = 0; i < std::size(kRoles); ++i)
    if (kRoles[i] == name) return static_cast<Role>(i);
  return std::nullopt;
}

std::string_view to_string(Tier tier) {
  MC_ASSERT_LT(static_cast<size_t>(tier), std::size(kTiers));
  return kTiers[static_cast<size_t>(tier)];
}

Tier tier_from(std::string_view name) {
  for (size_t i = 0; i < std::size(kTiers); ++i)
    if (kTiers[i] == name) return static_cast<Tier>(i);
  return Tier::disk;
}

uint32_t Decoder::find(std::string_view key) {
  const uint32_t end = nodes_[frame_.map].next;
  auto matches = [&](uint32_t at) { return nodes_[at].type == MsgpackType::str && nodes_[at].text() == key; };
  uint32_t at = frame_.cursor;
  if (at >= end || !matches(at))
    for (at = frame_.map + 1; at < end && !matches(at);) at = nodes_[nodes_[at].next].next;
  if (at >= end) return 0;  // 0 is the root and never a field
  const uint32_t value = nodes_[at].next;
  frame_.cursor = nodes_[value].next;
  return value;
}

void Decoder::fail(std::string_view what) {
  if (failed_) return;
  failed_ = true;
  std::string text(name_);
  for (size_t i = 0; i < depth_; ++i) {
    if (steps_[i].key.empty())
      text += "[" + std::to_string(steps_[i].index) + "]";
    else
      text += (i == 0 ? ": " : ".") + std::string(steps_[i].key);
  }
  text += depth_ == 0 ? ": " : " ";
  text += what;
  error_ = Error{Code::corrupt, std::move(text)};
}

void Decoder::fail_type(std::string_view wanted, uint32_t at) {
  fail("must be " + std::string(wanted) + ", is " + std::string(to_string(nodes_[at].type)));
}

bool Decoder::enter_map(uint32_t at) {
  if (nodes_[at].type != MsgpackType::map) {
    fail_type("a map", at);
    return false;
  }
  frame_ = {at, at + 1};
  return true;
}

bool Decoder::enter_array(uint32_t at, size_t& count) {
  if (nodes_[at].type != MsgpackType::array) {
    fail_type("an array", at);
    return false;
  }
  count = nodes_[at].count;
  return true;
}

void Decoder::get(uint32_t at, bool& value) {
  if (nodes_[at].type != MsgpackType::boolean) return fail_type("true or false", at);
  value = nodes_[at].boolean;
}

void Decoder::get(uint32_t at, uint64_t& value) {
  if (nodes_[at].type != MsgpackType::u64) return fail_type("a non-negative integer", at);
  value = nodes_[at].u64;
}

void Decoder::get(uint32_t at, uint32_t& value) {
  uint64_t wide = 0;
  get(at, wide);
  if (failed_) return;
  if (wide > UINT32_MAX) return fail("is " + std::to_string(wide) + ", beyond 32 bits");
  value = static_cast<uint32_t>(wide);
}

void Decoder::get(uint32_t at, int32_t& value) {
  const MsgpackNode& node = nodes_[at];
  const bool fits = (node.type == MsgpackType::u64 && node.u64 <= INT32_MAX) ||
                    (node.type == MsgpackType::i64 && node.i64 >= INT32_MIN);
  if (!fits) return fail_type("an integer of 32 bits", at);
  value = node.type == MsgpackType::u64 ? static_cast<int32_t>(node.u64) : static_cast<int32_t>(node.i64);
}

void Decoder::get(uint32_t at, double& value) {
  const MsgpackNode& node = nodes_[at];
  switch (node.type) {
    case MsgpackType::f64: value = node.f64; return;
    case MsgpackType::u64: value = static_cast<double>(node.u64); return;
    case MsgpackType::i64: value = static_cast<double>(node.i64); return;
    default: return fail_type("a number", at);
  }
}

void Decoder::get(uint32_t at, std::string& value) {
  if (nodes_[at].type != MsgpackType::str) return fail_type("a string", at);
  if (nodes_[at].count > text_bytes_max_)
    return fail("has " + std::to_string(nodes_[at].count) + " bytes, at most " + std::to_string(text_bytes_max_) +
                " are allowed");
  value = nodes_[at].text();
}

void Decoder::get(uint32_t at, Bytes& value) {
  if (nodes_[at].type != MsgpackType::bin) return fail_type("bytes", at);
  const std::string_view text = nodes_[at].text();
  value.assign(text.begin(), text.end());
}

void Decoder::get(uint32_t at, Id128& value) {
  if (nodes_[at].type != MsgpackType::bin || nodes_[at].count != value.bytes.size()) return fail_type("16 bytes", at);
  std::memcpy(value.bytes.data(), nodes_[at].data, value.bytes.size());
}

void Decoder::get(uint32_t at, Role& value) {
  std::string name;
  get(at, name);
  if (failed_) return;
  const auto role = role_from(name);
  if (!role) return fail("names an unknown role");
  value = *role;
}

// A name that this version does not know means only that there was a reason.
void Decoder::get(uint32_t at, MissKind& value) {
  std::string name;
  get(at, name);
  value = miss_from(name);
}

void Decoder::get(uint32_t at, Tier& value) {
  std::string name;
  get(at, name);
  value = tier_from(name);
}

void Decoder::get(uint32_t at, Fallback& value) {
  std::string name;
  get(at, name);
  value = fallback_from(name);
}

void Decoder::get(uint32_t at, DemoteEnd& value) {
  std::string word;
  get(at, word);
  value = demote_end_from(word);
}

void Decoder::get(uint32_t at, CopyEnd& value) {
  std::string word;
  get(at, word);
  value = copy_end_from(word);
}

// A code that this version does not have is some error of the sender.
void Decoder::get(uint32_t at, Code& value) {
  std::string name;
  get(at, name);
  value = Code::io;
  for (uint8_t n = 0; n <= static_cast<uint8_t>(Code::cancelled); ++n)
    if (to_string(static_cast<Code>(n)) == name) value = static_cast<Code>(n);
}

}  // namespace mc::wire
