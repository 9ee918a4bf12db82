#include "kv/namespace.h"

#include <charconv>
#include <optional>

#include "base/hash.h"

namespace mc::kv {
namespace {

constexpr std::string_view kTitle = "mc-namespace 1";
constexpr size_t kTextBytesMax = 16 << 10;

// One visitor names every field once, so text(), fields() and parse() agree. The salt is not among the fields that may
// be shown.
template <class Self, class Visit>
void visit_shown_fields(Self& self, Visit visit) {
  visit("weights", self.weights);
  visit("config", self.config);
  visit("dtype", self.dtype);
  visit("weight_dtype", self.weight_dtype);
  visit("kv_dtype", self.kv_dtype);
  visit("rope", self.rope);
  visit("attention", self.attention);
  visit("layers", self.layers);
  visit("kv_heads", self.kv_heads);
  visit("head_dim", self.head_dim);
  visit("block_tokens", self.block_tokens);
  visit("layout", self.layout);
}
template <class Self, class Visit>
void visit_fields(Self& self, Visit visit) {
  visit_shown_fields(self, visit);
  visit("salt", self.salt);
}

std::string value_text(const std::string& value) {
  return value;
}
std::string value_text(uint32_t value) {
  return std::to_string(value);
}

std::string escape(std::string_view value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '%') {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> unescape(std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] != '%') {
      out += value[i];
      continue;
    }
    unsigned byte = 0;
    if (i + 2 >= value.size()) return std::nullopt;
    const char* end = value.data() + i + 3;
    if (const auto r = std::from_chars(value.data() + i + 1, end, byte, 16); r.ec != std::errc{} || r.ptr != end)
      return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

bool assign(std::string& field, const std::string& value) {
  field = value;
  return true;
}
bool assign(uint32_t& field, const std::string& value) {
  const char* end = value.data() + value.size();
  const auto r = std::from_chars(value.data(), end, field);
  return !value.empty() && r.ec == std::errc{} && r.ptr == end && std::to_string(field) == value;
}

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::string Namespace::text() const {
  std::string out(kTitle);
  out += '\n';
  visit_fields(*this, [&](std::string_view name, const auto& value) {
    out += name;
    out += '=';
    out += escape(value_text(value));
    out += '\n';
  });
  return out;
}

NamespaceId Namespace::id() const {
  return NamespaceId{Sha256().update(text()).finish128()};
}

Namespace Namespace::with_salt(std::string_view new_salt) const {
  Namespace salted = *this;
  salted.salt = new_salt;
  return salted;
}

std::vector<std::pair<std::string, std::string>> Namespace::fields() const {
  std::vector<std::pair<std::string, std::string>> out;
  visit_shown_fields(*this,
                     [&](std::string_view name, const auto& value) { out.emplace_back(name, value_text(value)); });
  return out;
}

Result<Namespace> Namespace::parse(std::string_view text) {
  if (text.size() > kTextBytesMax)
    return Error{Code::corrupt, "namespace: text of " + std::to_string(text.size()) + " bytes, at most " +
                                    std::to_string(kTextBytesMax) + " are allowed"};
  if (take_line(text) != kTitle)
    return Error{Code::corrupt, "namespace: line 1 must be \"" + std::string(kTitle) + "\""};
  Namespace out;
  int line_number = 1;
  std::optional<Error> failure;
  visit_fields(out, [&](std::string_view name, auto& field) {
    if (failure) return;
    ++line_number;
    const std::string_view line = take_line(text);
    const std::string where = "namespace: line " + std::to_string(line_number) + ": ";
    if (line.substr(0, name.size()) != name || line.substr(name.size(), 1) != "=") {
      failure = Error{Code::corrupt, where + "expected \"" + std::string(name) + "=...\""};
      return;
    }
    const auto value = unescape(line.substr(name.size() + 1));
    if (!value || !assign(field, *value)) failure = Error{Code::corrupt, where + "bad value of " + std::string(name)};
  });
  if (failure) return std::move(*failure);
  if (!text.empty()) return Error{Code::corrupt, "namespace: unknown text after line " + std::to_string(line_number)};
  return out;
}

std::vector<FieldDifference> differences(const Namespace& ours, const Namespace& theirs) {
  const auto our_fields = ours.fields(), their_fields = theirs.fields();
  std::vector<FieldDifference> out;
  for (size_t i = 0; i < our_fields.size(); ++i)
    if (our_fields[i] != their_fields[i])
      out.push_back({our_fields[i].first, our_fields[i].second, their_fields[i].second});
  return out;
}

}  // namespace mc::kv
