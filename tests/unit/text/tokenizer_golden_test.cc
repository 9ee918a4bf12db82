// Ids and texts must equal those of Hugging Face's tokenizers (scripts/make-text-goldens).
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "test.h"
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
/// text; a field that is absent equals the one before it. `decoded` and `skipped` are texts; null where
/// Hugging Face's decoder loses the text of an added token.
void check_case(const Tokenizer& tokenizer, const Json& row) {
  const std::string_view text = row["text"].as_string();
  INFO("text: " << row["text"].dump());
  const auto ids = ids_of(row["ids"]);
  const auto plain = row.has("plain") ? ids_of(row["plain"]) : ids;
  const auto user = row.has("user") ? ids_of(row["user"]) : plain;
  const auto encoded = tokenizer.encode(text);
  REQUIRE_OK(encoded);
  CHECK(*encoded == ids);
  CHECK(*tokenizer.encode(text, {.add_special = false}) == plain);
  CHECK(*tokenizer.encode(text, {.add_special = false, .parse_special = false}) == user);
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

}  // namespace

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

TEST_CASE("text/tokenizer: every pre-tokenizer and normalizer that is read gives Hugging Face's ids and texts") {
  check_variants("gpt2", "variants.jsonl");
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
