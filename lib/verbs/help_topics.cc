#include "verbs/help_topics.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "node/node.h"
#include "product/metric_names.h"

namespace mc::verbs {
namespace {

constexpr size_t kWordWidth = 24;

std::string padded(std::string_view word) {
  return std::string(word) + std::string(word.size() < kWordWidth ? kWordWidth - word.size() : 1, ' ');
}

std::string lines(const node::ReasonWord& row) {
  MC_ASSERT(!row.word.empty() && !row.meaning.empty());
  std::string out = padded(row.word) + std::string(row.meaning) + "\n";
  if (!row.next.empty()) out += padded("") + "next: " + std::string(row.next) + "\n";
  return out;
}

std::string all_words() {
  std::string out;
  for (const node::ReasonGroup& group : node::reason_groups()) {
    out += (out.empty() ? "" : "\n") + std::string(group.title) + " (" + std::string(group.place) + ")\n";
    for (const node::ReasonWord& row : group.words) out += lines(row);
  }
  return out;
}

/// Text of mdoc, in which a minus is written \\-.
std::string mdoc(std::string_view text) {
  MC_ASSERT(!text.starts_with('.') && !text.starts_with('\''));  // such a line would be a macro
  MC_ASSERT(text.find('\n') == text.npos);
  std::string out;
  for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
  return out;
}

std::string mdoc_words() {
  std::string out;
  for (const node::ReasonGroup& group : node::reason_groups()) {
    size_t width = 0;
    for (const node::ReasonWord& row : group.words) width = std::max(width, row.word.size());
    MC_ASSERT(width > 0);
    out += ".Ss " + std::string(group.title) + "\nPrinted as " + mdoc(group.place) + ".\n";
    out += ".Bl -tag -width \"" + std::string(width, 'x') + "\" -compact\n";
    for (const node::ReasonWord& row : group.words) {
      out += ".It Cm " + std::string(row.word) + "\n" + mdoc(row.meaning) + "\n";
      if (!row.next.empty()) out += ".br\n.Em Next :\n" + mdoc(row.next) + "\n";
    }
    out += ".El\n";
  }
  return out;
}

std::string labels_of(const MetricFamily& family) {
  return *family.labels == '\0' ? "" : "{" + std::string(family.labels) + "}";
}

std::string metric_line(const MetricFamily& family) {
  MC_ASSERT(*family.name != '\0' && *family.help != '\0');
  return std::string(family.name) + labels_of(family) + "  " + std::string(to_string(family.kind)) + "\n" + padded("") +
         family.help + "\n";
}

std::string all_metrics() {
  std::string out;
  for (const MetricFamily* family : metric::kAll) out += metric_line(*family);
  return out;
}

/// Text of mdoc in which a line may end after a comma.
std::string breakable(const std::string& text) {
  std::string out;
  for (const char c : mdoc(text)) out += c == ',' ? std::string(",\\:") : std::string(1, c);
  return out;
}

std::string mdoc_metrics() {
  std::string out = ".Bl -tag -width Ds -compact\n";
  for (const MetricFamily* family : metric::kAll) {
    const std::string labels = labels_of(*family);
    out += ".It Li " + mdoc(family->name) + (labels.empty() ? "" : " " + breakable(labels)) + "\n";
    out += std::string(to_string(family->kind)) + ": " + mdoc(family->help) + "\n";
  }
  return out + ".El\n";
}

}  // namespace

std::string help_topic(std::string_view topic) {
  if (topic == "reasons") return all_words();
  if (topic == "mdoc-reasons") return mdoc_words();
  if (topic == "metrics") return all_metrics();
  if (topic == "mdoc-metrics") return mdoc_metrics();
  for (const MetricFamily* family : metric::kAll)
    if (family->name == topic) return metric_line(*family);
  if (topic.starts_with("fetch:")) topic.remove_prefix(6);
  std::string out;
  for (const node::ReasonGroup& group : node::reason_groups())
    for (const node::ReasonWord& row : group.words)
      if (row.word == topic) out += std::string(group.title) + "\n" + lines(row);
  // The code of an HTTP answer, which several errors can have.
  for (const ErrorInfo& info : error_table())
    if (!topic.empty() && info.openai_code == topic) out += explain_error(info);
  return out;
}

}  // namespace mc::verbs
