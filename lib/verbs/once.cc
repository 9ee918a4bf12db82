#include "verbs/once.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/hash.h"
#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "host/engine.h"
#include "kv/kv.h"
#include "model/generate.h"
#include "product/flags.h"
#include "text/text.h"
#include "verbs/once_flags.h"
#include "verbs/prompt.h"
#include "wire/mckv.h"

namespace mc::verbs {
namespace {

constexpr uint64_t kAnswerTokensMax = uint64_t{1} << 30;  // far beyond any context, far below an int32_t

constexpr const Flag* kPrefillFlags[] = {
    &flags::kPrompt,
    &flags::kPromptFile,
    &flags::kPromptIds,
    &flags::kTokens,
    &flags::kKvOut,
    &flags::kTemperature,
    &flags::kTopK,
    &flags::kTopP,
    &flags::kMinP,
    &flags::kStop,
    &flags::kMinTokens,
    &flags::kIgnoreEos,
    &flags::kLogprobs,
    &flags::kChunkTokens,
    &flags::kModel,
    &flags::kDtype,
    &flags::kWeightDtype,
    &flags::kKvDtype,
    &flags::kAttention,
    &flags::kPrefillAttention,
    &flags::kDecodeAttention,
    &flags::kBlockTokens,
    &flags::kThreads,
    &flags::kDevice,
    &flags::kKernels,
    &flags::kConfig,
    &flags::kSeed,
    &flags::kLogLevel,
    &flags::kLogFormat,
    &flags::kJson,
    &flags::kOutput,
    &flags::kPrintConfig,
};
constexpr const Flag* kDecodeFlags[] = {
    &flags::kKvIn,        &flags::kTokens,
    &flags::kTemperature, &flags::kTopK,
    &flags::kTopP,        &flags::kMinP,
    &flags::kIgnoreEos,   &flags::kLogprobs,
    &flags::kLogitsOut,   &flags::kModel,
    &flags::kDtype,       &flags::kWeightDtype,
    &flags::kKvDtype,     &flags::kAttention,
    &flags::kDecodeAttention,
    &flags::kBlockTokens, &flags::kThreads,
    &flags::kDevice,      &flags::kKernels,
    &flags::kConfig,      &flags::kSeed,
    &flags::kLogLevel,    &flags::kLogFormat,
    &flags::kJson,        &flags::kOutput,
    &flags::kPrintConfig,
};

Result<uint64_t> answer_tokens(const cli::Args& args) {
  const uint64_t count = args.count(flags::kTokens);
  if (count < 1 || count > kAnswerTokensMax)
    return user_error(err::kBadValue, "-n " + std::to_string(count) + " is not between 1 and 1073741824", "-n");
  return count;
}

/// Refuses what the API refuses of a request.
Result<void> check_sampling(const wire::Sampling& s) {
  const auto bad = [](const char* flag, double value, const char* range) {
    return user_error(err::kBadValue, std::string(flag) + " " + Json(value).dump() + " is not " + range, flag);
  };
  if (!(s.temperature >= 0)) return bad("--temperature", s.temperature, "0 (greedy) or more");
  if (!(s.top_p > 0 && s.top_p <= 1)) return bad("--top-p", s.top_p, "above 0 and at most 1");
  if (!(s.min_p >= 0 && s.min_p <= 1)) return bad("--min-p", s.min_p, "between 0 and 1");
  return {};
}

wire::Sampling sampling_of(const cli::Args& args, const model::ModelConfig& config) {
  wire::SamplingChoice given;
  if (args.given(flags::kTemperature)) given.temperature = args.number(flags::kTemperature);
  if (args.given(flags::kTopK)) given.top_k = static_cast<int64_t>(args.count(flags::kTopK));
  if (args.given(flags::kTopP)) given.top_p = args.number(flags::kTopP);
  if (args.given(flags::kMinP)) given.min_p = args.number(flags::kMinP);
  wire::Sampling s = given.over(config.generation);
  s.seed = args.count(flags::kSeed);
  if (args.present(flags::kLogprobs)) s.logprobs = static_cast<int32_t>(args.count(flags::kLogprobs));
  return s;
}

Json timings_json(const model::Generated& out, size_t prompt) {
  const double prefill_s = to_seconds(out.prefill), decode_s = to_seconds(out.decode);
  Json t = Json::object();
  t.set("prefill_ms", prefill_s * 1e3).set("decode_ms", decode_s * 1e3).set("chunks", out.prefill_chunks);
  t.set("prefill_tokens_per_s", prefill_s > 0 ? static_cast<double>(prompt) / prefill_s : 0.0);
  const double steps = out.ids.size() > 1 ? static_cast<double>(out.ids.size() - 1) : 0;
  t.set("decode_tokens_per_s", decode_s > 0 ? steps / decode_s : 0.0);
  return t;
}

/// True when the answer is printed token by token: plain text to stdout.
bool prints_as_it_comes(const cli::Args& args) {
  return !args.on(flags::kJson) && args.text(flags::kOutput) == "-";
}

Result<void> print_result(const cli::Args& args, const std::vector<uint32_t>& prompt, const model::Generated& out,
                          bool stopped, const std::string& text) {
  std::string line;
  if (args.on(flags::kJson)) {
    Json result = Json::object();
    result.set("type", "result").set("prompt_tokens", prompt.size());
    Json ids = Json::array();
    for (uint32_t id : out.ids) ids.push(id);
    result.set("output_ids", std::move(ids)).set("text", text);
    result.set("finish_reason", to_string(stopped ? model::AnswerEnd::stop : out.end));
    if (args.present(flags::kLogprobs)) {
      Json logprobs = Json::array();
      for (const auto& s : out.sampled) {
        Json top = Json::array();
        for (const auto& t : s.top) top.push(Json::object({{"id", t.token}, {"logprob", double{t.logprob}}}));
        logprobs.push(Json::object({{"id", s.token}, {"logprob", double{s.logprob}}, {"top", std::move(top)}}));
      }
      result.set("logprobs", std::move(logprobs));
    }
    result.set("timings", timings_json(out, prompt.size()));
    line = result.dump() + "\n";
  } else {
    line = (prints_as_it_comes(args) ? "" : text) + "\n";
  }
  const std::string& path = args.text(flags::kOutput);
  if (path == "-") return write_foreign(1, line);
  if (auto written = write_file_atomic(path, line); !written)
    return as_user_error(err::kFileAccess, std::move(written).error());
  return {};
}

// Text of the answer as the API would give it: without special tokens, cut at a stop string.
struct AnswerText {
  text::Detokenizer detokenizer;
  text::StopMatcher stops;
  bool is_printed = false;  // token by token
  std::string text;
  bool has_text = true;  // false: a model without a tokenizer, whose answer is the ids

  bool push(uint32_t token) {
    add(has_text ? stops.push(detokenizer.push(token)) : (text.empty() ? "" : " ") + std::to_string(token));
    return !stops.stopped();
  }
  void end() {
    if (!stops.stopped()) add(stops.push(detokenizer.flush()) + stops.flush());
  }
  void add(const std::string& more) {
    text += more;
    // The last write reports a closed pipe.
    if (is_printed && !more.empty()) (void)write_foreign(1, more);
  }
};

/// A stream that ends early is of no use: its file goes. A device or a pipe stays as it is.
void remove_partial(const std::string& path, const Fd& fd) {
  struct stat found {};
  if (path != "-" && ::fstat(fd.get(), &found) == 0 && S_ISREG(found.st_mode)) ::unlink(path.c_str());
}

Result<Fd> open_output(const std::string& path) {
  if (path == "-") {
    if (::isatty(1))
      return user_error(err::kUsage, "KV bytes do not go to a terminal; redirect stdout or name a file", "--kv-out");
    return Fd(::dup(1));
  }
  // The stream holds the prompt's ids and KV: only the user may read it.
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + path));
  return fd;
}

Result<void> stream_kv(const Fd& fd, const host::Engine& engine, const model::GenerateRequest& request,
                       model::LocalPages& pages, const model::Generated& out, const wire::Sampling& sampling,
                       const wire::Stopping& stopping) {
  const kv::Namespace ns = engine.model->kv_namespace(engine.prefill_plan, engine.block_tokens);
  const ExtentLayout layout = engine.model->kv_layout(engine.block_tokens);
  wire::KvPrologue prologue;
  prologue.writer = cli::build_info().program + " " + cli::build_info().version;
  prologue.model = engine.served_name;
  prologue.kv_namespace = ns.text();
  prologue.ns = ns.id();
  prologue.set_layout(layout);
  prologue.ids = request.prompt;
  MC_ASSERT(!out.ids.empty() && out.ids.size() == out.sampled.size());
  prologue.first_token = out.ids.front();
  if (out.end == model::AnswerEnd::stop) prologue.finish_reason = to_string(out.end);
  prologue.first_logprobs.chosen = out.sampled.front().logprob;
  prologue.sampling = sampling;
  prologue.stopping = stopping;
  prologue.prefill_attention = attn::to_string(engine.prefill_plan);
  prologue.decode_attention = attn::to_string(engine.decode_plan);
  MC_TRY(writer,
         wire::KvWriter::open([&](std::span<const std::byte> bytes) { return write_all(fd.get(), bytes); }, prologue));
  const auto hashes = kv::chain(ns.id(), request.prompt, engine.block_tokens);
  MC_ASSERT_LE(hashes.size(), prologue.block_count());
  MC_ASSERT_LE(prologue.block_count(), pages.page_count());
  for (uint32_t block = 0; block < prologue.block_count(); ++block) {
    const auto page = pages.page(block);
    std::vector<uint32_t> crcs;
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      crcs.push_back(crc32c(page.subspan(layout.layer_offset(layer), layout.layer_bytes())));
    MC_CHECK(writer.add(block < hashes.size() ? hashes[block] : BlockHash{}, page, crcs));
  }
  return writer.finish();
}

Result<void> write_kv(const cli::Args& args, const host::Engine& engine, const model::GenerateRequest& request,
                      model::LocalPages& pages, const model::Generated& out, const wire::Sampling& sampling,
                      const wire::Stopping& stopping) {
  const std::string& path = args.text(flags::kKvOut);
  MC_TRY(fd, open_output(path));
  auto written = stream_kv(fd, engine, request, pages, out, sampling, stopping);
  if (written) return {};
  remove_partial(path, fd);
  return within("--kv-out " + path, std::move(written).error());
}

/// Damage, or a version of the format that this program does not know.
Error stream_error(const std::string& path, bool is_empty, Error error) {
  if (is_empty)
    return user_error(err::kKvFileCorrupt,
                      (path == "-" ? "stdin" : path) + " is empty: end of the stream before its header",
                      "--kv-in " + path,
                      "give it what 'mc-prefill once --kv-out' writes; when that is in the same pipe, it has failed");
  const err::Number number = error.code == Code::unsupported ? err::kKvFileVersion : err::kKvFileCorrupt;
  return as_user_error(number, within(path, std::move(error)));
}

/// NumPy's format 1.0: what `--logits-out d.npy` promises.
Result<void> write_npy(const std::string& path, std::span<const float> values, size_t columns) {
  MC_ASSERT(columns > 0 && values.size() % columns == 0);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(values.size() / columns) +
                       ", " + std::to_string(columns) + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ').append("\n");
  MC_ASSERT_EQ((10 + header.size()) % 64, size_t{0});  // the values are aligned
  MC_ASSERT_LT(header.size(), size_t{1} << 16);
  std::string out = std::string("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size() & 255);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return write_file_atomic(path, out);
}

constexpr const char* kForeignNext =
    "use the -m, --dtype, --kv-dtype and --block-tokens it was written with; mc-cache inspect prints them";

Error layout_error(const kv::Namespace& ours, const kv::Namespace& theirs) {
  const auto differences = kv::differences(ours, theirs);
  MC_ASSERT(!differences.empty());
  std::string equal;
  for (const auto& [field, value] : ours.fields())
    if (std::none_of(differences.begin(), differences.end(),
                     [&other = field](const auto& d) { return d.name == other; }))
      equal += " " + field;
  const auto& first = differences.front();
  return user_error(
      err::kKvFileForeign,
      "the KV stream has " + first.name + "=" + first.theirs + ", this decode has " + first.name + "=" + first.ours,
      "--kv-in, field " + first.name + "; also compared and equal:" + equal, kForeignNext);
}

/// The request that the stream carries, with the flags that were given in its place; `made_with` is the plan of its KV.
Result<model::GenerateRequest> carried_request(const cli::Args& args, const wire::KvPrologue& prologue,
                                               const host::Engine& engine, const attn::Plan& made_with) {
  const auto& config = engine.model->config();
  model::GenerateRequest request;
  request.prompt = prologue.ids;
  MC_TRY(most, answer_tokens(args));
  if (!args.given(flags::kTokens)) most = std::min<uint64_t>(prologue.stopping.max_tokens, kAnswerTokensMax);
  request.max_tokens = static_cast<int32_t>(most);
  request.min_tokens = static_cast<int32_t>(prologue.stopping.min_tokens);
  request.stop_ids = args.on(flags::kIgnoreEos) ? std::vector<uint32_t>{} : prologue.stopping.stop_ids;
  wire::Sampling sampling = prologue.sampling;
  if (args.given(flags::kTemperature)) sampling.temperature = args.number(flags::kTemperature);
  if (args.given(flags::kTopK)) sampling.top_k = static_cast<uint32_t>(args.count(flags::kTopK));
  if (args.given(flags::kTopP)) sampling.top_p = args.number(flags::kTopP);
  if (args.given(flags::kMinP)) sampling.min_p = args.number(flags::kMinP);
  if (args.given(flags::kSeed)) sampling.seed = args.count(flags::kSeed);
  if (args.present(flags::kLogprobs)) sampling.logprobs = static_cast<int32_t>(args.count(flags::kLogprobs));
  MC_CHECK(check_sampling(sampling));
  request.sampling = sampling;
  request.prefill_plan = made_with;
  const bool own_plan = args.given(flags::kAttention) || args.given(flags::kDecodeAttention);
  MC_TRY(carried, model::resolve_plan(prologue.decode_attention, config, engine.block_tokens));
  request.decode_plan = own_plan ? engine.decode_plan : carried;
  if (request.prompt.size() + static_cast<size_t>(request.max_tokens) > config.max_positions)
    return user_error(err::kContextLength,
                      "prompt of " + std::to_string(request.prompt.size()) + " tokens and " +
                          std::to_string(request.max_tokens) + " answer tokens exceed the context of " +
                          std::to_string(config.max_positions),
                      "-n", "shorten the prompt, or lower -n");
  return request;
}

}  // namespace

const std::span<const Flag* const> kPrefillOnceFlags = kPrefillFlags;
const std::span<const Flag* const> kDecodeOnceFlags = kDecodeFlags;

Result<int> prefill_once(const cli::Args& args) {
  const bool to_stream = args.present(flags::kKvOut);
  MC_TRY(engine, host::open_engine(args));
  MC_TRY(tokenizer, text::Tokenizer::open_or_ids(engine.directory));
  const auto& config = engine.model->config();
  MC_TRY(prompt, read_prompt(args, &tokenizer, config.vocab));
  const uint64_t chunk = args.count(flags::kChunkTokens);
  MC_TRY(runner,
         model::Runner::open(*engine.model, *engine.parallel,
                             {.block_tokens = engine.block_tokens,
                              .max_chunk_tokens = static_cast<uint32_t>(std::max<uint64_t>(chunk, engine.block_tokens)),
                              .max_batch = 1,
                              .kernels = args.text(flags::kKernels)},
                             engine.devices.get()));
  if (chunk == 0 || chunk % engine.block_tokens != 0)
    return user_error(err::kBadValue,
                      "--chunk-tokens " + std::to_string(chunk) + " is not a multiple of --block-tokens " +
                          std::to_string(engine.block_tokens),
                      "--chunk-tokens");
  const wire::Sampling sampling = sampling_of(args, config);
  MC_CHECK(check_sampling(sampling));
  wire::Stopping stopping;
  MC_TRY(most, answer_tokens(args));
  stopping.max_tokens = static_cast<uint32_t>(most);
  stopping.min_tokens = static_cast<uint32_t>(args.count(flags::kMinTokens));
  if (!args.on(flags::kIgnoreEos)) stopping.stop_ids = config.special.eos;
  model::GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = to_stream ? 1 : static_cast<int32_t>(stopping.max_tokens);
  request.min_tokens = static_cast<int32_t>(stopping.min_tokens);
  request.stop_ids = stopping.stop_ids;
  request.sampling = sampling;
  MC_ASSERT(request.max_tokens > 0);
  request.chunk_tokens = static_cast<uint32_t>(chunk);
  request.prefill_plan = engine.prefill_plan;
  request.decode_plan = engine.decode_plan;
  if (prompt.size() + static_cast<size_t>(request.max_tokens) > config.max_positions)
    return user_error(err::kContextLength,
                      "prompt of " + std::to_string(prompt.size()) + " tokens and " +
                          std::to_string(request.max_tokens) + " answer tokens exceed the context of " +
                          std::to_string(config.max_positions),
                      "-n", "shorten the prompt, or lower -n");
  MC_TRY(stops, text::StopMatcher::build(args.list(flags::kStop)));
  AnswerText answer{text::Detokenizer(tokenizer, true, text::TextStart::before), std::move(stops),
                    !to_stream && prints_as_it_comes(args), "", tokenizer.no_text() == nullptr};
  request.on_token = [&](const ops::Sampled& s) { return answer.push(s.token); };
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), static_cast<int64_t>(prompt.size()) + request.max_tokens));
  model::Generated out;
  MC_CHECK(model::run_prefill(runner, pages, request, SystemClock::instance(), out));
  MC_ASSERT(!out.ids.empty());
  if (to_stream) {
    MC_CHECK(write_kv(args, engine, request, pages, out, sampling, stopping));
    return 0;
  }
  if (out.end == model::AnswerEnd::length && static_cast<int32_t>(out.ids.size()) < request.max_tokens)
    MC_CHECK(model::run_decode(runner, pages, request, SystemClock::instance(), out));
  answer.end();
  MC_CHECK(print_result(args, prompt, out, answer.stops.stopped(),
                        tokenizer.no_text() && args.on(flags::kJson) ? "" : answer.text));
  return 0;
}

namespace {

/// Reads the blocks of the stream into the first pages.
Result<void> read_pages(wire::KvReader& reader, model::LocalPages& pages) {
  for (size_t block = 0;; ++block) {
    MC_TRY(header, reader.next());
    if (!header) return {};
    MC_ASSERT_LT(block, pages.page_count());  // the reader ends after the blocks of the prompt
    MC_CHECK(reader.read_page(pages.page(block)));
  }
}

}  // namespace

Result<int> decode_once(const cli::Args& args) {
  const std::string& path = args.text(flags::kKvIn);
  if (path.empty()) return user_error(err::kUsage, "give --kv-in FILE, or - for stdin", "--kv-in");
  Fd fd(path == "-" ? ::dup(0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + path));
  uint64_t reads = 0;
  auto opened = wire::KvReader::open([&](std::span<std::byte> bytes) {
    auto read = read_all(fd.get(), bytes);
    reads += read.has_value();
    return read;
  });
  if (!opened) return stream_error(path, reads == 0, std::move(opened).error());
  wire::KvReader reader = std::move(*opened);
  if (reader.prologue().prefix_only)
    return user_error(err::kKvFileForeign, "the KV stream is a prefix alone, without a first token", "--kv-in",
                      "give it to a node: mc-cache import NODE; decode continues streams of mc-prefill once");
  // Before the model: its attention plan may not exist for the wrong block size.
  if (reader.layout().block_tokens != args.count(flags::kBlockTokens))
    return user_error(err::kKvFileForeign,
                      "the KV stream has block_tokens=" + std::to_string(reader.layout().block_tokens) +
                          ", this decode has block_tokens=" + args.text(flags::kBlockTokens),
                      "--kv-in, field block_tokens", kForeignNext);
  MC_TRY(engine, host::open_engine(args));
  const auto& config = engine.model->config();
  const wire::KvPrologue& prologue = reader.prologue();
  // The plan the KV was made with comes with the stream; the rest must be ours to the letter.
  MC_TRY(made_with, model::resolve_plan(prologue.prefill_attention, config, engine.block_tokens));
  const kv::Namespace ours = engine.model->kv_namespace(made_with, engine.block_tokens);
  MC_TRY(theirs, kv::Namespace::parse(prologue.kv_namespace));
  if (!kv::differences(ours, theirs).empty()) return layout_error(ours, theirs);
  MC_TRY(tokenizer, text::Tokenizer::open_or_ids(engine.directory));
  MC_TRY(runner, model::Runner::open(*engine.model, *engine.parallel,
                                     {.block_tokens = engine.block_tokens,
                                      .max_chunk_tokens = engine.block_tokens,
                                      .max_batch = 1,
                                      .kernels = args.text(flags::kKernels)},
                                     engine.devices.get()));
  MC_TRY(request, carried_request(args, prologue, engine, made_with));
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(),
                                            static_cast<int64_t>(request.prompt.size()) + request.max_tokens));
  if (auto read = read_pages(reader, pages); !read) return stream_error(path, false, std::move(read).error());
  AnswerText answer{text::Detokenizer(tokenizer, true, text::TextStart::before), text::StopMatcher(),
                    prints_as_it_comes(args), "", tokenizer.no_text() == nullptr};
  request.on_token = [&](const ops::Sampled& s) { return answer.push(s.token); };
  model::Generated out;
  out.ids.push_back(prologue.first_token);
  out.sampled.push_back({prologue.first_token, static_cast<float>(prologue.first_logprobs.chosen), {}});
  answer.push(prologue.first_token);
  std::vector<float> logits;
  if (prologue.finish_reason == to_string(model::AnswerEnd::stop))  // the stream's word becomes a type here
    out.end = model::AnswerEnd::stop;
  else if (request.max_tokens > 1)
    MC_CHECK(model::run_decode(runner, pages, request, SystemClock::instance(), out));
  if (args.present(flags::kLogitsOut)) {
    // The logits after the whole answer but its last token: one more row, nothing drawn.
    logits.resize(config.vocab);
    std::vector<std::byte*> list(pages.pages(), pages.pages() + pages.page_count());
    const model::DecodeRow row{out.ids.back(), static_cast<int64_t>(request.prompt.size() + out.ids.size()) - 1,
                               list.data(), &request.decode_plan};
    MC_CHECK(runner.decode({&row, 1}, logits));
    MC_CHECK(write_npy(args.text(flags::kLogitsOut), logits, config.vocab));
  }
  answer.end();
  MC_CHECK(print_result(args, request.prompt, out, false, answer.text));
  return 0;
}

}  // namespace mc::verbs
