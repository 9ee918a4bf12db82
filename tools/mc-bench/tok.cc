// `mc-bench tok`: the speed of a tokenizer on one thread, and whether its ids are those of another
// program (--golden; scripts/make-text-goldens --compare writes them with Hugging Face's tokenizers).

#include <algorithm>

#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "host/engine.h"
#include "model/find.h"
#include "print.h"
#include "product/flags.h"
#include "text/text.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kGolden{
    .name = "golden",
    .value = "FILE",
    .help =
        "JSON lines with text, and ids (with special tokens) or plain (without), and the decoded text where it "
        "is not the text; exit 4 when any differ"};
constexpr Flag kTokRepeats{.name = "repeats",
                           .letter = 'r',
                           .kind = FlagKind::count,
                           .value = "N",
                           .fallback = "5",
                           .help = "measurements, 1 to 10000; the best is shown",
                           .check = flags::check_between<1, 10'000>};

constexpr auto kTokFlagTable = flags::join(
    flags::list(&kGolden, &kTokRepeats, &flags::kModel, &kFormat, &flags::kOutput, &flags::kQuiet), flags::kEveryRun);

constexpr size_t kCorpusBytesMax = size_t{1} << 30;
constexpr size_t kDocumentBytes = 64 << 10;

struct Document {
  std::string text;
  std::optional<std::vector<uint32_t>> ids;
  std::optional<std::string> decoded;  // the text of the ids
  bool add_special = false;
};

/// Pieces of about 64 KiB, cut at line ends, so that one text is what a request might hold.
Result<void> read_corpus(const std::string& path, std::vector<Document>& out) {
  MC_TRY(text, read_input(path, kCorpusBytesMax));
  if (const auto at = find_invalid_utf8(text))
    return user_error(err::kInputNotUtf8, path + " is not UTF-8 at byte " + std::to_string(*at));
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.size();
    if (end - begin > kDocumentBytes) {
      end = text.rfind('\n', begin + kDocumentBytes) + 1;  // npos + 1 is 0
      if (end <= begin) end = begin + kDocumentBytes;
      while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    }
    out.push_back({text.substr(begin, end - begin), std::nullopt, std::nullopt, false});
    begin = end;
  }
  return {};
}

Result<void> read_golden(const std::string& path, std::vector<Document>& out) {
  MC_TRY(text, read_input(path, kCorpusBytesMax));
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = path + ":" + std::to_string(++line_number);
    auto row = Json::parse(std::string_view(text).substr(begin, end - begin));
    if (!row) return within(where, std::move(row).error());
    begin = end + 1;
    const bool plain = (*row)["plain"].is_array();
    const Json& ids = (*row)[plain ? "plain" : "ids"];
    if (!(*row)["text"].is_string() || !ids.is_array())
      return user_error(err::kBadValue, where + ": a line needs text, and ids or plain", "--golden");
    std::vector<uint32_t> wanted;
    wanted.reserve(ids.size());
    for (const Json& id : ids.items()) wanted.push_back(static_cast<uint32_t>(id.as_int()));
    // Where the row has both, the decoded text is that of the ids with special tokens.
    std::optional<std::string> decoded;
    const Json& made = row->has("decoded") ? (*row)["decoded"] : (*row)["text"];
    if (made.is_string() && !(plain && row->has("ids"))) decoded = made.as_string();
    out.push_back({std::string((*row)["text"].as_string()), std::move(wanted), std::move(decoded), !plain});
  }
  return {};
}

struct Comparison {
  static constexpr size_t kShown = 20;
  size_t compared = 0;
  size_t mismatches = 0;
  std::vector<std::string> shown;  // what the first of them look like
};

/// Where the ids differ from the wanted ones, or else the text of the ids; empty when they agree.
std::string difference(const text::Tokenizer& tokenizer, const Document& document, const std::vector<uint32_t>& ids) {
  if (ids != *document.ids) {
    const auto at = std::mismatch(ids.begin(), ids.end(), document.ids->begin(), document.ids->end()).first;
    std::string out = "after " + Json(tokenizer.decode(std::span(ids.begin(), at))).dump();
    constexpr size_t kLongest = 200;
    if (out.size() > kLongest) out = "after ..." + out.substr(out.size() - kLongest);
    return "token " + std::to_string(at - ids.begin()) + ", " + out;
  }
  if (!document.decoded) return {};
  const std::string decoded = tokenizer.decode(ids, false);
  if (decoded == *document.decoded) return {};
  const std::string& wanted = *document.decoded;
  const auto at = std::mismatch(decoded.begin(), decoded.end(), wanted.begin(), wanted.end()).first;
  return "the text of the ids, byte " + std::to_string(at - decoded.begin());
}

/// Tokens of all documents; compares where there are ids to compare with.
Result<std::vector<std::vector<uint32_t>>> encode_all(const text::Tokenizer& tokenizer,
                                                      const std::vector<Document>& documents, Comparison& comparison) {
  std::vector<std::vector<uint32_t>> out;
  for (size_t i = 0; i < documents.size(); ++i) {
    const Document& document = documents[i];
    MC_TRY(ids, tokenizer.encode(document.text, {.add_special = document.add_special}));
    if (document.ids) {
      ++comparison.compared;
      const std::string found = difference(tokenizer, document, ids);
      if (!found.empty() && comparison.mismatches++ < Comparison::kShown)
        comparison.shown.push_back("text " + std::to_string(i) + ", " + found);
    }
    out.push_back(std::move(ids));
  }
  return out;
}

template <typename Body>
double best_of(uint64_t repeats, const Body& body) {
  double best = 0;
  for (uint64_t r = 0; r < repeats; ++r) {
    const TimePoint began = SystemClock::instance().now();
    body();
    const double seconds = to_seconds(SystemClock::instance().now() - began);
    if (r == 0 || seconds < best) best = seconds;
  }
  return std::max(best, 1e-9);
}

}  // namespace

const cli::FlagList kTokFlags = kTokFlagTable;

Result<int> measure_tokenizer(const cli::Args& args) {
  MC_TRY(sink, Sink::open(args));
  // A folder with a tokenizer alone will do.
  std::string directory = args.text(flags::kModel);
  if (directory.empty() || directory == "mc-tiny") {
    MC_TRY(found, model::find_model(directory));
    directory = std::move(found);
  }
  MC_TRY(tokenizer, text::Tokenizer::open(directory));
  std::vector<Document> documents;
  for (const std::string& path : args.positional("CORPUS")) MC_CHECK(read_corpus(path, documents));
  if (args.present(kGolden)) MC_CHECK(read_golden(args.text(kGolden), documents));
  if (documents.empty())
    return user_error(err::kBadValue,
                      "there is no text to compare: " + std::to_string(args.positional("CORPUS").size()) +
                          " files were named, and --golden is " + (args.present(kGolden) ? "empty" : "not given"),
                      "CORPUS", "name a file of text, or give --golden FILE");

  Comparison comparison;
  MC_TRY(encoded, encode_all(tokenizer, documents, comparison));
  const uint64_t repeats = args.count(kTokRepeats);
  size_t bytes = 0, tokens = 0;
  for (const Document& document : documents) bytes += document.text.size();
  for (const auto& ids : encoded) tokens += ids.size();
  const double encode_s = best_of(repeats, [&] {
    for (const Document& document : documents) (void)tokenizer.encode(document.text, {.add_special = false});
  });
  const double decode_s = best_of(repeats, [&] {
    for (const auto& ids : encoded) (void)tokenizer.decode(ids);
  });

  Json result = result_head("mc.bench.tok.v1", args);
  const double megabytes = static_cast<double>(bytes) / 1e6;
  result.set("model", host::served_name(directory)).set("texts", documents.size()).set("bytes", bytes);
  result.set("tokens", tokens).set("encode_mb_per_s", megabytes / encode_s);
  result.set("encode_tokens_per_s", static_cast<double>(tokens) / encode_s);
  result.set("decode_mb_per_s", megabytes / decode_s);
  result.set("decode_tokens_per_s", static_cast<double>(tokens) / decode_s);
  result.set("compared", comparison.compared).set("mismatches", comparison.mismatches);
  if (comparison.mismatches > 0) {
    Json shown = Json::array();
    for (const std::string& text : comparison.shown) shown.push(text);
    result.set("first_mismatch", comparison.shown.front()).set("differences", std::move(shown));
  }
  Table table({"", "MB/s", "tokens/s"});
  table.add({"encode", fixed(megabytes / encode_s, 1), thousands(static_cast<uint64_t>(tokens / encode_s))});
  table.add({"decode", fixed(megabytes / decode_s, 1), thousands(static_cast<uint64_t>(tokens / decode_s))});
  MC_CHECK(sink.text(host::served_name(directory) + ": " + thousands(documents.size()) + " texts, " + thousands(bytes) +
                     " bytes, " + thousands(tokens) + " tokens; one thread, best of " + std::to_string(repeats) +
                     "\n"));
  MC_CHECK(sink.table(table));
  if (comparison.compared > 0)
    MC_CHECK(sink.text(std::to_string(comparison.mismatches) + " of " + std::to_string(comparison.compared) +
                       " texts differ from " + args.text(kGolden) +
                       (comparison.shown.empty() ? "" : "; the first: " + comparison.shown.front()) + "\n"));
  MC_CHECK(sink.line(result));
  MC_CHECK(sink.finish());
  return comparison.mismatches > 0 ? kExitGoalMissed : kExitOk;
}

}  // namespace mc::bench
