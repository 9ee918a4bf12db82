// Topics of `mc-conductor help`: the words that records, metrics and errors use for reasons, stages, waits, misses and
// fallbacks, with their meaning and the next step; and the metrics of all programs.
#pragma once

#include <string>
#include <string_view>

namespace mc::verbs {

inline constexpr std::string_view kHelpTopics = "reasons, metrics, a word of these lists, the code of an HTTP error";

/// The topics `reasons` and `metrics` (whole lists), `mdoc-reasons` for mc-conductor(1) and `mdoc-metrics` for mc(7),
/// each reason, each metric and each code of an HTTP error; "" for another topic.
std::string help_topic(std::string_view topic);

}  // namespace mc::verbs
