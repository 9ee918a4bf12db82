// `mc-conductor help reasons`: the words that records, metrics and errors use for reasons, stages, waits, misses and
// fallbacks, with their meaning and the next step.
#pragma once

#include <string>
#include <string_view>

namespace mc::verbs {

inline constexpr std::string_view kReasonTopics = "reasons, a word of that list";

/// The topics `reasons` (all words), `mdoc-reasons` (the same for mc-conductor(1)) and each word; "" for another topic.
std::string reason_topic(std::string_view topic);

}  // namespace mc::verbs
