#include "text/normalizer.h"

#include "text/unicode.h"

namespace mc::text {
namespace {

Error too_long(size_t bytes_max) {
  return {Code::invalid, "text: the normalised text is longer than " + std::to_string(bytes_max) + " bytes"};
}

Result<std::string> replace(const Regex& regex, std::string_view text, std::string_view content, size_t bytes_max) {
  std::vector<Span> spans;
  MC_CHECK(regex.split(text, 0, static_cast<uint32_t>(text.size()), spans));
  std::string out;
  for (const Span& span : spans) {
    out += span.match ? content : text.substr(span.begin, span.end - span.begin);
    if (out.size() > bytes_max) return too_long(bytes_max);
  }
  return out;
}

}  // namespace

Result<Normalizer> Normalizer::build(const TokenizerSpec& spec) {
  Normalizer out;
  for (const NormalizerStep& step : spec.normalizer) {
    std::optional<Regex> regex;
    if (step.kind == NormalizerStep::Kind::replace) {
      MC_TRY(compiled, Regex::compile(step.pattern));
      regex = std::move(compiled);
    }
    out.steps_.push_back({step, std::move(regex)});
  }
  return out;
}

Result<std::string> Normalizer::apply(std::string_view text, size_t bytes_max) const {
  std::string current(text);
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case NormalizerStep::Kind::form: current = normalize(current, step.spec.form); break;
      case NormalizerStep::Kind::lowercase: current = lowercase(current); break;
      case NormalizerStep::Kind::prepend:
        if (!current.empty()) current.insert(0, step.spec.content);
        break;
      case NormalizerStep::Kind::replace: {
        MC_TRY(replaced, replace(*step.regex, current, step.spec.content, bytes_max));
        current = std::move(replaced);
        break;
      }
    }
    if (current.size() > bytes_max) return too_long(bytes_max);
  }
  return current;
}

}  // namespace mc::text
