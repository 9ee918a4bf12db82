#include "text/decoder.h"

#include "text/byte_level.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of a token <0xNN>. Digits of either case count, as in Hugging Face's decoder; encoding (bpe.cc) uses
// upper-case tokens only.
std::optional<char> fallback_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = hex_digit(text[3]), low = hex_digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high << 4 | low);
}

void replace(const Regex& regex, std::string_view content, std::string& text) {
  std::vector<Span> spans;
  if (!regex.split(text, 0, static_cast<uint32_t>(text.size()), spans)) return;
  std::string out;
  for (const Span& span : spans)
    out += span.match ? content : std::string_view(text).substr(span.begin, span.end - span.begin);
  if (out.size() <= kTokenBytesMax) text = std::move(out);
}

void strip(const DecoderStep& step, std::string& text) {
  std::string_view left = text;
  for (uint32_t i = 0; i < step.start && left.starts_with(step.content); ++i) left.remove_prefix(step.content.size());
  for (uint32_t i = 0; i < step.stop && left.ends_with(step.content); ++i) left.remove_suffix(step.content.size());
  text = std::string(left);
}

/// Replaces marks by spaces. At the start of a text they are dropped, unless encoding never puts one there.
void read_marks(const DecoderStep& step, bool first, std::string& text) {
  const bool drop = first && step.prepend != PrependScheme::never;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (std::string_view(text).substr(at).starts_with(step.content)) {
      if (!drop) out += ' ';
      at += step.content.size();
    } else {
      out += text[at++];
    }
  }
  text = std::move(out);
}

}  // namespace

Result<Decoder> Decoder::build(const TokenizerSpec& spec) {
  using Kind = DecoderStep::Kind;
  Decoder out;
  bool joined = false;
  for (const DecoderStep& step : spec.decoder) {
    if (step.kind == Kind::strip && joined) {
      out.strip_count_ = step.start;
      out.strip_character_ = step.content;
      continue;
    }
    joined |= step.kind == Kind::fuse || step.kind == Kind::byte_level;
    out.byte_level_ |= step.kind == Kind::byte_level;
    out.first_differs_ |= step.kind == Kind::metaspace && step.prepend != PrependScheme::never;
    std::optional<Regex> regex;
    if (step.kind == Kind::replace) {
      MC_TRY(compiled, Regex::compile(step.pattern));
      regex = std::move(compiled);
    }
    if (step.kind != Kind::fuse) out.steps_.push_back({step, std::move(regex)});
  }
  return out;
}

Decoder::Token Decoder::apply(std::string_view spelling, bool first) const {
  using Kind = DecoderStep::Kind;
  Token out{std::string(spelling)};
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case Kind::byte_level:
        if (auto bytes = bytes_spelt(out.text)) out.text = std::move(*bytes);
        break;
      case Kind::byte_fallback:
        if (const auto byte = fallback_byte(out.text)) {
          out.text.assign(1, *byte);
          out.byte = true;
        }
        break;
      case Kind::replace: replace(*step.regex, step.spec.content, out.text); break;
      case Kind::strip: strip(step.spec, out.text); break;
      case Kind::metaspace: read_marks(step.spec, first, out.text); break;
      case Kind::fuse: break;
    }
  }
  return out;
}

}  // namespace mc::text
