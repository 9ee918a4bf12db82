// Ids and texts must equal those of Hugging Face's tokenizers (scripts/make-text-goldens).
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/json.h"
#include "gguf_writer.h"
#include "test.h"
#include "text/base64.h"
#include "text/text.h"

namespace tokenizer_golden_test {

using namespace mc;
using namespace mc::text;

namespace {

std::string golden_dir() {
  return test::source_dir() + "/tests/golden/text/";
}

std::vector<Json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) {
    auto row = Json::parse(line);
    REQUIRE_OK(row);
    out.push_back(std::move(*row));
  }
  REQUIRE_FALSE(out.empty());
  return out;
}

std::vector<uint32_t> ids_of(const Json& list) {
  std::vector<uint32_t> out;
  for (const Json& id : list.items()) out.push_back(static_cast<uint32_t>(id.as_int()));
  return out;
}

/// One row: `ids` with everything on, `plain` without the post-processor, `user` with special tokens as
/// text; a field that is absent equals the one before it. `user` is null where Hugging Face's Unigram makes a control
/// token of a user's text. `decoded` and `skipped` are texts; null where
/// Hugging Face's decoder loses the text of an added token.
void check_case(const Tokenizer& tokenizer, const Json& row) {
  const std::string_view text = row["text"].as_string();
  INFO("text: " << row["text"].dump());
  const auto ids = ids_of(row["ids"]);
  const auto plain = row.has("plain") ? ids_of(row["plain"]) : ids;
  const auto user = row.has("user") ? ids_of(row["user"]) : plain;
  const bool is_user_known = !row.has("user") || !row["user"].is_null();
  const auto encoded = tokenizer.encode(text);
  REQUIRE_OK(encoded);
  CHECK(*encoded == ids);
  CHECK(*tokenizer.encode(text, {.add_special = false}) == plain);
  if (is_user_known) CHECK(*tokenizer.encode(text, {.add_special = false, .parse_special = false}) == user);
  if (row.has("decoded") && row["decoded"].is_null()) return;
  const std::string_view decoded = row.has("decoded") ? row["decoded"].as_string() : text;
  CHECK(tokenizer.decode(ids, false) == decoded);
  CHECK(tokenizer.decode(ids) == (row.has("skipped") ? row["skipped"].as_string() : decoded));
}

void check_folder(const std::string& name) {
  auto tokenizer = Tokenizer::open(golden_dir() + name);
  REQUIRE_OK(tokenizer);
  for (const Json& row : read_lines(golden_dir() + name + "/cases.jsonl")) check_case(*tokenizer, row);
  for (const Json& row : read_lines(golden_dir() + name + "/fragments.jsonl")) {
    INFO("ids: " << row["ids"].dump());
    CHECK(tokenizer->decode(ids_of(row["ids"])) == row["decoded"].as_string());
  }
}

Json changed_model(const Json& model, const Json& change) {
  Json out = model, vocab = Json::object(), merges = change.has("merges") ? change["merges"] : model["merges"];
  for (const auto& [key, value] : change.members())
    if (key != "vocab_with" && key != "vocab_without" && key != "merges_with") out.set(key, value);
  const auto dropped = change["vocab_without"].items();
  for (const auto& [token, id] : (change.has("vocab") ? change["vocab"] : model["vocab"]).members())
    if (std::find(dropped.begin(), dropped.end(), Json(token)) == dropped.end()) vocab.set(token, id);
  for (const auto& [token, id] : change["vocab_with"].members()) vocab.set(token, id);
  for (const Json& merge : change["merges_with"].items()) merges.push(merge);
  return out.set("vocab", std::move(vocab)).set("merges", std::move(merges));
}

/// Each row of `variants` changes fields of `name`'s tokenizer.json; those of the model one by one, with
/// what is added to and left out of its vocabulary and merges.
void check_variants(const std::string& name, const std::string& variants) {
  std::ifstream file(golden_dir() + name + "/tokenizer.json");
  const std::string base{std::istreambuf_iterator<char>(file), {}};
  for (const Json& variant : read_lines(golden_dir() + variants)) {
    INFO("variant: " << variant["name"].as_string());
    auto spec = Json::parse(base);
    REQUIRE_OK(spec);
    for (const auto& [key, value] : variant["change"].members())
      spec->set(key, key == "model" ? changed_model((*spec)["model"], value) : value);
    auto tokenizer = Tokenizer::parse({.tokenizer = spec->dump()});
    REQUIRE_OK(tokenizer);
    for (const Json& row : variant["cases"].items()) check_case(*tokenizer, row);
  }
}

/// The vocabulary of a Unigram model with one `score` for all tokens, or all moved by `shift`, and more tokens behind.
Json changed_scores(const Json& vocab, const Json& change) {
  Json out = Json::array();
  for (const Json& row : vocab.items()) {
    const double score =
        change["score"].is_null() ? row[1].as_double(0) + change["shift"].as_double(0) : change["score"].as_double(0);
    out.push(Json::array({row[size_t{0}], score}));
  }
  for (const Json& row : change["vocab_with"].items()) out.push(row);
  return out;
}

void check_unigram_variants() {
  const Json base = read_lines(golden_dir() + "unigram/tokenizer.json")[0];
  for (const Json& variant : read_lines(golden_dir() + "unigram/variants.jsonl")) {
    INFO("variant: " << variant["name"].as_string());
    Json spec = base, model = base["model"];
    const Json& change = variant["change"]["model"];
    model.set("vocab", changed_scores(model["vocab"], change));
    if (change.has("byte_fallback")) model.set("byte_fallback", change["byte_fallback"]);
    for (const auto& [key, value] : variant["change"].members()) spec.set(key, value);
    spec.set("model", std::move(model));
    auto tokenizer = Tokenizer::parse({.tokenizer = spec.dump()});
    REQUIRE_OK(tokenizer);
    for (const Json& row : variant["cases"].items()) check_case(*tokenizer, row);
  }
}

/// A file in memory, with `hole` bytes of zeros at its end that take no memory until they are read.
Result<Tokenizer> open_gguf(const test::GgufWriter& writer, uint64_t hole = 0) {
  const Fd file(::memfd_create("tokenizer", MFD_CLOEXEC));
  REQUIRE(file);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get()), bytes = writer.bytes();
  std::ofstream(path, std::ios::binary) << bytes;
  std::filesystem::resize_file(path, bytes.size() + hole);
  return Tokenizer::open(path);
}

/// The golden tokenizer of a folder as a GGUF file.
test::GgufWriter as_gguf(const std::string& name, const std::string& pre) {
  std::ifstream file(golden_dir() + name + "/tokenizer.json");
  const auto spec = Json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
  REQUIRE_OK(spec);
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto put = [&](std::string_view text, int64_t id, int32_t type) {
    tokens.resize(std::max(tokens.size(), static_cast<size_t>(id) + 1));
    types.resize(tokens.size(), 5);
    tokens[static_cast<size_t>(id)] = text;
    types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [text, id] : (*spec)["model"]["vocab"].members()) put(text, id.as_int(), 1);
  for (const Json& added : (*spec)["added_tokens"].items())
    put(added["content"].as_string(), added["id"].as_int(), added["special"].as_bool() ? 3 : 4);
  std::vector<std::string> merges;
  for (const Json& merge : (*spec)["model"]["merges"].items())
    merges.push_back(merge.is_string() ? std::string(merge.as_string())
                                       : std::string(merge[0].as_string()) + " " + std::string(merge[1].as_string()));
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre).texts("tokenizer.ggml.tokens", tokens);
  writer.numbers<int32_t>("tokenizer.ggml.token_type", gguf::ValueType::i32, types);
  writer.texts("tokenizer.ggml.merges", merges);
  const auto folder = Tokenizer::open(golden_dir() + name);
  REQUIRE_OK(folder);
  if (folder->bos_id()) writer.whole("tokenizer.ggml.bos_token_id", *folder->bos_id());
  if (folder->eos_id()) writer.whole("tokenizer.ggml.eos_token_id", *folder->eos_id());
  return writer;
}

std::string refusal(const test::GgufWriter& writer, uint64_t hole = 0) {
  const auto opened = open_gguf(writer, hole);
  return opened ? "ok" : "MC" + std::to_string(opened.error().mc) + " " + opened.error().what;
}

}  // namespace

TEST_CASE("text/tokenizer: the same vocabularies in GGUF files give Hugging Face's ids and texts") {
  for (const auto& [name, pre] : {std::pair{"llama3", "llama-bpe"}, std::pair{"qwen2", "qwen2"}}) {
    CAPTURE(name);
    const auto tokenizer = open_gguf(as_gguf(name, pre));
    REQUIRE_OK(tokenizer);
    size_t checked = 0;
    for (const Json& row : read_lines(golden_dir() + name + "/cases.jsonl")) {
      // A GGUF file cannot say that an added token is matched in normalised text.
      if (row["text"].as_string().find("cafe\u0301!") != std::string_view::npos) continue;
      check_case(*tokenizer, row);
      ++checked;
    }
    CHECK(checked > 20);
  }
}

TEST_CASE("text/tokenizer: SentencePiece's tokens and scores in a GGUF file give Hugging Face's ids") {
  const Json golden = read_lines(test::source_dir() + "/tests/golden/gguf/sentencepiece.json")[0];
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Json& token : golden["tokens"].items()) tokens.emplace_back(token.as_string());
  for (const Json& score : golden["scores"].items()) scores.push_back(static_cast<float>(score.as_double()));
  for (const Json& type : golden["types"].items()) types.push_back(static_cast<int32_t>(type.as_int()));
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
  writer.numbers<float>("tokenizer.ggml.scores", gguf::ValueType::f32, scores);
  writer.numbers<int32_t>("tokenizer.ggml.token_type", gguf::ValueType::i32, types);
  writer.whole("tokenizer.ggml.bos_token_id", 1).whole("tokenizer.ggml.eos_token_id", 2);
  writer.whole("tokenizer.ggml.unknown_token_id", 0).text("tokenizer.chat_template", "{{ messages[0]['content'] }}");
  const auto tokenizer = open_gguf(writer);
  REQUIRE_OK(tokenizer);
  CHECK(tokenizer->config().chat_template == "{{ messages[0]['content'] }}");
  CHECK(tokenizer->eos_id() == 2);
  for (const Json& row : golden["cases"].items()) {
    INFO("text: " << row["text"].dump());
    CHECK(tokenizer->encode(row["text"].as_string()).value() == ids_of(row["ids"]));
  }
  CHECK(tokenizer->decode(tokenizer->encode("Hello  world \u4e2d").value()) == "Hello  world \u4e2d");
}

TEST_CASE("text/tokenizer: a Unigram vocabulary with its map of characters in a GGUF file gives Hugging Face's ids") {
  const Json spec = read_lines(golden_dir() + "unigram/tokenizer.json")[0];
  std::vector<std::string> tokens;
  std::vector<float> scores;
  for (const Json& row : spec["model"]["vocab"].items()) {
    tokens.emplace_back(row[size_t{0}].as_string());
    scores.push_back(static_cast<float>(row[1].as_double()));
  }
  std::vector<int32_t> types(tokens.size(), 1);
  types[0] = 2;
  types[1] = types[2] = 3;
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", tokens);
  writer.numbers<float>("tokenizer.ggml.scores", gguf::ValueType::f32, scores);
  writer.numbers<int32_t>("tokenizer.ggml.token_type", gguf::ValueType::i32, types);
  writer.whole("tokenizer.ggml.unknown_token_id", 0).whole("tokenizer.ggml.bos_token_id", 1);
  writer.whole("tokenizer.ggml.eos_token_id", 2);
  auto broken = writer;
  for (const Json& variant : read_lines(golden_dir() + "unigram/variants.jsonl")) {
    if (variant["name"] != Json("map of characters")) continue;
    const auto map = decode_base64(variant["change"]["normalizer"]["precompiled_charsmap"].as_string());
    REQUIRE(map.has_value());
    writer.numbers<int8_t>("tokenizer.ggml.precompiled_charsmap", gguf::ValueType::i8,
                           std::vector<int8_t>(map->begin(), map->end()));
    const auto tokenizer = open_gguf(writer);
    REQUIRE_OK(tokenizer);
    for (const Json& row : variant["cases"].items()) {
      INFO("text: " << row["text"].dump());
      const auto wanted = ids_of(row.has("plain") ? row["plain"] : row["ids"]);
      CHECK(tokenizer->encode(row["text"].as_string(), {.add_special = false}).value() == wanted);
    }
  }
  broken.numbers<int32_t>("tokenizer.ggml.precompiled_charsmap", gguf::ValueType::i32, {1, 256});
  CHECK(refusal(broken).find("precompiled_charsmap holds a number that is no byte") != std::string::npos);
}

TEST_CASE("text/tokenizer: a GGUF file whose tokenizer is absent, foreign or contradictory is refused by key") {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refusal({}), "MC3001 "));
  CHECK(has(refusal({}), "there is no tokenizer, because tokenizer.ggml.model is missing"));
  test::GgufWriter bert;
  bert.text("tokenizer.ggml.model", "bert");
  CHECK(has(refusal(bert), "MC3007 "));
  CHECK(has(refusal(bert), "tokenizer.ggml.model is 'bert'; supported: 'gpt2' (byte-level BPE)"));
  const auto small = [](const std::string& pre, const std::string& merge, std::vector<std::string> tokens) {
    test::GgufWriter writer;
    writer.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
    writer.texts("tokenizer.ggml.merges", {merge}).texts("tokenizer.ggml.tokens", tokens);
    return writer;
  };
  CHECK(refusal(small("gpt-2", "a b", {"a", "b", "ab"})) == "ok");
  CHECK(has(refusal(small("odd", "a b", {"a", "b", "ab"})), "tokenizer.ggml.pre is 'odd'; supported: gpt-2, smollm"));
  CHECK(has(refusal(small("gpt-2", "ab", {"a", "b", "ab"})), "tokenizer.ggml.merges[0] is 'ab'; it must be two"));
  CHECK(has(refusal(small("gpt-2", "a c", {"a", "b", "ab"})), "lacks a part of it or its result"));
  CHECK(has(refusal(small("gpt-2", "a b", {"a", "a", "ab"})), "tokenizer.ggml.tokens[1] is 'a', like token 0"));
  CHECK(has(refusal(small("gpt-2", "a b", {"a", "\xff", "ab"})), "tokenizer.ggml.tokens[1] is not valid UTF-8"));
  auto types = small("gpt-2", "a b", {"a", "b", "ab"});
  types.numbers<int32_t>("tokenizer.ggml.token_type", gguf::ValueType::i32, {1, 7, 1});
  CHECK(has(refusal(types), "tokenizer.ggml.token_type[1] is no token type from 0 to 6"));
  auto ids = small("gpt-2", "a b", {"a", "b", "ab"});
  ids.whole("tokenizer.ggml.bos_token_id", 3);
  CHECK(has(refusal(ids), "tokenizer.ggml.bos_token_id is 3, but there are 3 tokens"));
  test::GgufWriter piece;
  piece.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"a", "b"});
  CHECK(has(refusal(piece), "tokenizer.ggml.scores is missing; it must have one number for each of 2 tokens"));
}

TEST_CASE("text/tokenizer: the arrays of a GGUF file are counted before they are expanded") {
  const auto peak_bytes = [] {
    struct rusage usage;
    REQUIRE(::getrusage(RUSAGE_SELF, &usage) == 0);
    return static_cast<uint64_t>(usage.ru_maxrss) << 10;
  };
  // The elements are the hole: zeros, or empty strings.
  const auto sparse = [](test::GgufWriter writer, const char* key, gguf::ValueType type, uint64_t count) {
    writer.raw(key, 9, test::little_endian(static_cast<uint32_t>(type)) + test::little_endian(count));
    return refusal(writer, count * (type == gguf::ValueType::string ? 8 : 1));
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  test::GgufWriter piece, tokens, bytes;
  piece.text("tokenizer.ggml.model", "llama");
  tokens = piece;
  tokens.texts("tokenizer.ggml.tokens", {"a", "b"});
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  bytes.texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  uint64_t before = peak_bytes();
  const uint64_t many = uint64_t{64} << 20;
  CHECK(has(sparse(tokens, "tokenizer.ggml.token_type", gguf::ValueType::u8, many), "for each of 2 tokens"));
  CHECK(has(sparse(tokens, "tokenizer.ggml.scores", gguf::ValueType::u8, many), "for each of 2 tokens"));
  CHECK(peak_bytes() < before + (uint64_t{128} << 20));
  before = peak_bytes();
  CHECK(has(sparse(piece, "tokenizer.ggml.tokens", gguf::ValueType::string, many / 8),
            "is [8388608 of string]; it must be an array of 1 to 4194304 strings"));
  CHECK(peak_bytes() < before + (uint64_t{128} << 20));  // of which the file is 64 MiB
  CHECK(has(sparse(bytes, "tokenizer.ggml.merges", gguf::ValueType::string, 4194305),
            "tokenizer.ggml.merges is [4194305 of string]; it must have at most 4194304"));
}

TEST_CASE("text/tokenizer: the long tokens of a GGUF file are bounded together") {
  const auto refused = [](const std::string& model, size_t count) {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < count; ++i) tokens.push_back(std::to_string(100'000 + i) + std::string(4090, 'x'));
    test::GgufWriter writer;
    writer.text("tokenizer.ggml.model", model).texts("tokenizer.ggml.tokens", tokens);
    writer.numbers<float>("tokenizer.ggml.scores", gguf::ValueType::f32, std::vector<float>(count));
    writer.text("tokenizer.ggml.pre", "gpt-2").texts("tokenizer.ggml.merges", {});
    return refusal(writer);
  };
  CHECK(refused("llama", 257).find("tokenizer.ggml.tokens has too many long tokens") != std::string::npos);
  CHECK(refused("gpt2", 257) == "ok");
  CHECK(refused("gpt2", 16385).find("tokenizer.ggml.tokens has more than 67108864 bytes") != std::string::npos);
}

TEST_CASE("text/tokenizer: GPT-2's form gives Hugging Face's ids and texts") {
  check_folder("gpt2");
}
TEST_CASE("text/tokenizer: Llama 3's form gives Hugging Face's ids and texts") {
  check_folder("llama3");
}
TEST_CASE("text/tokenizer: Qwen2's form gives Hugging Face's ids and texts") {
  check_folder("qwen2");
}

TEST_CASE("text/tokenizer: Llama 2's form gives Hugging Face's ids and texts") {
  check_folder("llama2");
}
TEST_CASE("text/tokenizer: Mistral's form gives Hugging Face's ids and texts") {
  check_folder("mistral3");
}

TEST_CASE("text/tokenizer: Unigram gives Hugging Face's ids and texts") {
  const auto tokenizer = Tokenizer::open(golden_dir() + "unigram");
  REQUIRE_OK(tokenizer);
  for (const Json& row : read_lines(golden_dir() + "unigram/cases.jsonl")) check_case(*tokenizer, row);
}
TEST_CASE("text/tokenizer: Unigram breaks ties, falls back to bytes and maps characters as Hugging Face's") {
  check_unigram_variants();
}

TEST_CASE("text/tokenizer: every pre-tokenizer and normalizer that is read gives Hugging Face's ids and texts") {
  check_variants("gpt2", "variants.jsonl");
}
TEST_CASE("text/tokenizer: bytes without a token vanish or become the unknown token as in Hugging Face's") {
  check_variants("gpt2", "byte_variants.jsonl");
}
TEST_CASE("text/tokenizer: every way to spell, fall back, put around and decode gives Hugging Face's ids and texts") {
  check_variants("llama2", "character_variants.jsonl");
}

TEST_CASE("text/tokenizer: the embedded model's tokenizer and template are read, and every text makes the round") {
  auto tokenizer = Tokenizer::open(test::source_dir() + "/lib/model/mc-tiny");
  REQUIRE_OK(tokenizer);
  CHECK(tokenizer->bos_id().has_value());
  CHECK(tokenizer->eos_id().has_value());
  const auto chat = ChatTemplate::open(tokenizer->config());
  REQUIRE_OK(chat);
  CHECK(to_string(*(*chat)->render(std::vector<ChatMessage>{{"user", "hi"}})) ==
        tokenizer->config().bos_token + "<|user|>\nhi<|end|>\n<|assistant|>\n");
  for (const Json& row : read_lines(golden_dir() + "gpt2/cases.jsonl")) {
    const auto ids = tokenizer->encode(row["text"].as_string(), {.add_special = false, .parse_special = false});
    REQUIRE_OK(ids);
    CHECK(tokenizer->decode(*ids, false) == row["text"].as_string());
  }
}

}  // namespace tokenizer_golden_test
