// A hostile tokenizer.json: every malformed or foreign file is refused, and the error names the field.
#include <fstream>

#include "unit/text/small_tokenizer.h"

using namespace mc;
using namespace mc::text;

namespace {

struct Refusal {
  Code code = Code::ok;
  int mc = 0;
  std::string what = "accepted";
};

Refusal open_text(std::string tokenizer, std::string config = {}) {
  auto opened = Tokenizer::parse({.tokenizer = std::move(tokenizer), .config = std::move(config)});
  if (opened) return {};
  return {opened.error().code, opened.error().mc, opened.error().what};
}

/// The small tokenizer with one top-level field replaced (or removed, for no value).
Refusal with(const char* key, const char* value) {
  Json spec = test::small_tokenizer_json({{"a", "b"}}, {{.content = "<x>", .special = true}});
  Json changed = Json::object();
  for (const auto& [name, field] : spec.members())
    if (name != key) changed.set(name, field);
  if (value != nullptr) changed.set(key, *Json::parse(value));
  return open_text(changed.dump());
}

/// The same for a field of the model.
Refusal with_model(const char* key, const char* value) {
  const Json spec = test::small_tokenizer_json({{"a", "b"}});
  Json model = Json::object();
  for (const auto& [name, field] : spec["model"].members())
    if (name != key) model.set(name, field);
  if (value != nullptr) model.set(key, *Json::parse(value));
  Json changed = spec;
  changed.set("model", model);
  return open_text(changed.dump());
}

Refusal with_merges(const char* merges) {
  return with_model("merges", merges);
}

#define CHECK_REFUSED(result, wanted_code, wanted_text)         \
  do {                                                          \
    const Refusal refusal = (result);                           \
    INFO("got: " << refusal.what);                              \
    CHECK(refusal.code == (wanted_code));                       \
    CHECK(refusal.what.find(wanted_text) != std::string::npos); \
  } while (0)

}  // namespace

TEST_CASE("text/tokenizer_file: another kind of model is refused by field and value") {
  CHECK_REFUSED(with_model("type", R"("WordPiece")"), Code::unsupported, R"(model.type "WordPiece")");
  CHECK_REFUSED(with_model("dropout", "0.1"), Code::unsupported, "model.dropout 0.1");
  CHECK_REFUSED(with("normalizer", R"({"type":"BertNormalizer"})"), Code::unsupported,
                R"(normalizer.type "BertNormalizer")");
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"UnicodeScripts"})"), Code::unsupported,
                R"(pre_tokenizer.type "UnicodeScripts")");
  CHECK_REFUSED(with("post_processor", R"({"type":"Unknown"})"), Code::unsupported, R"(post_processor.type "Unknown")");
  CHECK_REFUSED(with("decoder", R"({"type":"WordPiece"})"), Code::unsupported, R"(decoder.type "WordPiece")");
  CHECK_REFUSED(with("decoder", "null"), Code::unsupported, "decoder null");
  CHECK(with_model("type", R"("WordPiece")").mc == 3007);
  CHECK(with_model("type", nullptr).what == "accepted");  // files from before the field existed
}

TEST_CASE("text/tokenizer_file: the vocabulary of a Unigram model is checked token by token") {
  const auto unigram = [](const std::string& vocab, const std::string& unknown = "0") {
    const std::string model = R"({"type":"Unigram","unk_id":)" + unknown + R"(,"vocab":)" + vocab + "}";
    return with("model", model.c_str());
  };
  CHECK(unigram(R"([["<unk>",0],["<x>",0],["",0],["a",-1.5]])").what ==
        "tokenizer.json: added_tokens[0]: <x> has id 1 "
        "in model.vocab and 257 here");
  const std::string added = R"(["a",0],["b",-1])";
  CHECK(unigram("[" + added + "]").what == "accepted");
  CHECK_REFUSED(unigram("[]"), Code::invalid, "model.vocab must be an array of 1 to 4194304 tokens with scores");
  CHECK_REFUSED(unigram("{}"), Code::invalid, "model.vocab must be an array");
  CHECK_REFUSED(unigram(R"([["a"]])"), Code::invalid, R"(model.vocab[0] ["a"] must be a token and a finite score)");
  CHECK_REFUSED(unigram(R"([["a","0"]])"), Code::invalid, "must be a token and a finite score");
  CHECK_REFUSED(unigram("[" + added + R"(,["a",-2]])"), Code::invalid, "model.vocab[2]: token a occurs twice");
  CHECK_REFUSED(unigram("[" + added + "]", "2"), Code::invalid, "model.unk_id is 2, which is no token");
  CHECK_REFUSED(unigram("[" + added + "]", "null"), Code::invalid, "model.unk_id must be an integer, it is null");
  CHECK_REFUSED(unigram("[[\"" + std::string(5000, 'a') + "\",0]]"), Code::invalid, "model.vocab[0] has 5000 bytes");
}

TEST_CASE("text/tokenizer_file: a map of characters that is cut off or points outside itself is refused or ignored") {
  const auto map = [](const std::string& base64) {
    return with("normalizer", (R"({"type":"Precompiled","precompiled_charsmap":")" + base64 + "\"}").c_str());
  };
  CHECK_REFUSED(map("?"), Code::invalid, "normalizer.precompiled_charsmap must be base64");
  CHECK_REFUSED(map(""), Code::corrupt, "normalizer.precompiled_charsmap has 0 bytes");
  CHECK_REFUSED(map("BQAAAAAAAAAA"), Code::corrupt, "has an array of 5 bytes in 5");
  CHECK_REFUSED(map("CAAAAAAAAAA="), Code::corrupt, "has an array of 8 bytes in 4");
  CHECK_REFUSED(map("BAAAAAAAAAD/"), Code::corrupt, "has a text that is not UTF-8");
  CHECK(map("BAAAAAAAAAA=").what == "accepted");
}

TEST_CASE("text/tokenizer_file: missing parts are named") {
  CHECK_REFUSED(with("model", nullptr), Code::invalid, "model is missing");
  CHECK_REFUSED(with("model", "[]"), Code::invalid, "model must be an object, it is array");
  CHECK_REFUSED(with_model("vocab", nullptr), Code::invalid, "model.vocab is missing");
  CHECK_REFUSED(with_model("merges", nullptr), Code::invalid, "model.merges is missing");
  CHECK_REFUSED(with_model("vocab", "{}"), Code::invalid, "model.vocab is empty");
  CHECK_REFUSED(with_model("vocab", R"({"a":0})"), Code::invalid, "model.merges[0]");
  CHECK(with("model", nullptr).mc == 3002);
  const auto missing = Tokenizer::open(test::source_dir() + "/tests/golden");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::not_found);
  CHECK(missing.error().mc == 3001);
  CHECK(missing.error().what.find("tokenizer.json") != std::string::npos);
}

TEST_CASE("text/tokenizer_file: the parts of BPE over characters are checked field by field") {
  CHECK_REFUSED(with_model("continuing_subword_prefix", "7"), Code::invalid,
                "model.continuing_subword_prefix must be a string");
  CHECK_REFUSED(with_model("continuing_subword_prefix", R"("##")"), Code::invalid,
                R"(model.merges[0] ["a","b"] has a right part without)");
  CHECK_REFUSED(with_model("fuse_unk", "1"), Code::invalid, "model.fuse_unk must be a boolean");
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"Metaspace","replacement":"ab"})"), Code::invalid,
                R"(pre_tokenizer.replacement "ab" must be one character)");
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"Metaspace","prepend_scheme":"last"})"), Code::unsupported,
                R"(pre_tokenizer.prepend_scheme "last")");
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"CharDelimiterSplit","delimiter":""})"), Code::invalid,
                "pre_tokenizer.delimiter");
  CHECK_REFUSED(with("normalizer", R"({"type":"Prepend"})"), Code::invalid, "normalizer.prepend must be a string");
  CHECK_REFUSED(with("post_processor", R"({"type":"BertProcessing"})"), Code::invalid, "post_processor.cls null");
  const auto decoders = [](const std::string& steps) {
    return with("decoder", (R"({"type":"Sequence","decoders":[)" + steps + "]}").c_str());
  };
  const std::string strip = R"({"type":"Strip","content":" ","start":1,"stop":0})";
  CHECK(decoders(R"({"type":"ByteFallback"},{"type":"Fuse"},)" + strip).what == "accepted");
  CHECK_REFUSED(decoders(R"({"type":"Fuse"},)" + strip + "," + strip), Code::unsupported, "Strip once after Fuse");
  CHECK_REFUSED(decoders(R"({"type":"Fuse"},{"type":"ByteFallback"})"), Code::unsupported,
                "decoder.type after the tokens are joined");
  CHECK_REFUSED(decoders(R"({"type":"ByteFallback"},{"type":"Metaspace"})"), Code::unsupported,
                "decoder.type after ByteFallback");
  CHECK_REFUSED(decoders(R"({"type":"Strip","content":" ","start":-1,"stop":0})"), Code::invalid, "decoder.start -1");
  Json spec = test::small_tokenizer_json(), model = spec["model"];
  model.set("unk_token", "<unk>");
  spec.set("model", model).set("pre_tokenizer", nullptr);
  CHECK_REFUSED(open_text(spec.dump()), Code::invalid, "model.unk_token <unk> is not in model.vocab");
}

TEST_CASE("text/tokenizer_file: a vocabulary without a byte that should become an unknown token names that token") {
  Json spec = test::small_tokenizer_json();
  Json model = spec["model"], vocab = Json::object();
  for (const auto& [name, id] : model["vocab"].members())
    if (id.as_int() != ' ') vocab.set(name, id);
  model.set("vocab", vocab);
  spec.set("model", model);
  CHECK(Tokenizer::parse({.tokenizer = spec.dump()}).has_value());
  model.set("unk_token", "<unk>");
  spec.set("model", model);
  CHECK_REFUSED(open_text(spec.dump()), Code::invalid, "model.unk_token <unk> is not in model.vocab");
}

TEST_CASE("text/tokenizer_file: merges must name tokens of the vocabulary") {
  CHECK_REFUSED(with_merges(R"([["a","c"]])"), Code::invalid, R"(model.merges[0] ["a","c"] names the token ac)");
  CHECK_REFUSED(with_merges(R"([["a","b"],["\u4e2d","b"]])"), Code::invalid, "model.merges[1]");
  CHECK_REFUSED(with_merges(R"(["ab"])"), Code::invalid, "must be two tokens with one space between");
  CHECK_REFUSED(with_merges(R"(["a b c"])"), Code::invalid, "must be two tokens with one space between");
  CHECK_REFUSED(with_merges(R"([["a"]])"), Code::invalid, "must be a string or a pair of strings");
  CHECK_REFUSED(with_merges(R"([5])"), Code::invalid, "must be a string or a pair of strings");
  CHECK_REFUSED(with_merges(R"({})"), Code::invalid, "model.merges must be an array");
  CHECK(with_merges(R"(["#version: 0.2","a b"])").what == "accepted");
  CHECK(with_merges(R"([["a","b"],["a","b"]])").what == "accepted");
}

TEST_CASE("text/tokenizer_file: ids are unique, whole and below the limit") {
  CHECK_REFUSED(with_model("vocab", R"({"a":0,"b":0})"), Code::invalid, "id 0 is given to two tokens, the second is b");
  CHECK_REFUSED(with_model("vocab", R"({"a":-1})"), Code::invalid, "model.vocab.a is -1");
  CHECK_REFUSED(with_model("vocab", R"({"a":4194304})"), Code::invalid, "ids go from 0 to 4194303");
  CHECK_REFUSED(with_model("vocab", R"({"a":99999999999999999999})"), Code::invalid, "model.vocab.a");
  CHECK_REFUSED(with_model("vocab", R"({"a":1.5})"), Code::invalid, "model.vocab.a must be an integer");
  CHECK_REFUSED(with_model("vocab", R"({"a":"1"})"), Code::invalid, "model.vocab.a must be an integer, it is string");
  CHECK_REFUSED(with_model("vocab", R"({"":1})"), Code::invalid, "a token of 0 bytes");
  CHECK_REFUSED(with_model("vocab", ("{\"" + std::string(5000, 'a') + "\":1}").c_str()), Code::invalid,
                "a token of 5000 bytes");
  CHECK_REFUSED(with("added_tokens", R"([{"id":97,"content":"<y>"}])"), Code::invalid,
                "id 97 is a in model.vocab and <y> here");
  CHECK_REFUSED(with("added_tokens", R"([{"id":300,"content":"a"}])"), Code::invalid,
                "a has id 97 in model.vocab and 300 here");
  CHECK_REFUSED(with("added_tokens", R"([{"id":300,"content":"<y>"},{"id":300,"content":"<z>"}])"), Code::invalid,
                "added_tokens[1]: id 300");
  CHECK_REFUSED(with("added_tokens", R"([{"id":300,"content":"<y>"},{"id":301,"content":"<y>"}])"), Code::invalid,
                "has the ids 300 and 301");
  CHECK_REFUSED(with("added_tokens", R"([{"id":300,"content":""}])"), Code::invalid,
                "added_tokens[0].content has 0 bytes");
  CHECK_REFUSED(with("added_tokens", R"([{"content":"<y>"}])"), Code::invalid, "added_tokens[0].id must be an integer");
  CHECK_REFUSED(with("added_tokens", R"([{"id":300,"content":"<y>","special":"yes"}])"), Code::invalid,
                "added_tokens[0].special must be a boolean");
  CHECK(with("added_tokens", R"([{"id":300,"content":"<y>"},{"id":300,"content":"<y>"}])").what == "accepted");
}

TEST_CASE("text/tokenizer_file: a text cut off anywhere, or nested without end, is an error") {
  const std::string whole = test::small_tokenizer_json({{"a", "b"}}).dump();
  for (size_t length = 0; length < whole.size(); length += 97)
    CHECK(open_text(whole.substr(0, length)).what.find("tokenizer.json: ") == 0);
  CHECK_REFUSED(open_text(""), Code::invalid, "tokenizer.json: ");
  CHECK_REFUSED(open_text(std::string(100'000, '[')), Code::invalid, "tokenizer.json: ");
  std::string nested = R"({"type":"ByteLevel","add_prefix_space":false})";
  for (int i = 0; i < 40; ++i) nested = R"({"type":"Sequence","pretokenizers":[)" + nested + "]}";
  Json spec = test::small_tokenizer_json();
  CHECK_REFUSED(open_text(R"({"pre_tokenizer":)" + nested + "}"), Code::invalid, "tokenizer.json: ");
}

TEST_CASE("text/tokenizer_file: steps of the pipeline are checked field by field") {
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"})"),
                Code::unsupported, "pre-tokenizer pattern: missing closing parenthesis");
  const auto split = [](const std::string& fields) {
    const std::string step =
        R"({"type":"Sequence","pretokenizers":[{"type":"Split",)" + fields + R"(},{"type":"ByteLevel"}]})";
    return with("pre_tokenizer", step.c_str());
  };
  CHECK_REFUSED(split(R"("pattern":{"Regex":"(a"})"), Code::unsupported,
                "pre-tokenizer pattern: missing closing parenthesis");
  CHECK_REFUSED(split(R"("pattern":{"Foo":"a"})"), Code::invalid,
                R"(pre_tokenizer.pattern {"Foo":"a"} must hold a String or a Regex)");
  CHECK_REFUSED(split(R"("pattern":{"String":"a"},"behavior":"Sideways")"), Code::unsupported,
                R"(pre_tokenizer.behavior "Sideways")");
  CHECK_REFUSED(split(R"("pattern":{"String":"a"},"invert":3)"), Code::invalid,
                "pre_tokenizer.invert must be a boolean");
  CHECK(split(R"("pattern":{"String":"a"})").what == "accepted");
  CHECK_REFUSED(
      with("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
      Code::unsupported, R"(after ByteLevel "Digits")");
  CHECK_REFUSED(with("pre_tokenizer", R"({"type":"Sequence"})"), Code::invalid,
                "pre_tokenizer.pretokenizers must be an array");
  CHECK_REFUSED(with("pre_tokenizer", "7"), Code::invalid, "pre_tokenizer must be an object with a type");
  CHECK_REFUSED(with("post_processor", R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"q"}}]})"),
                Code::invalid, "special_tokens does not define");
  CHECK_REFUSED(with("post_processor", R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]})"),
                Code::unsupported, "post_processor.single");
  CHECK_REFUSED(with("post_processor",
                     R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"q"}},{"Sequence":{"id":"A"}}],
                     "special_tokens":{"q":{"ids":[70000]}}})"),
                Code::invalid, "post_processor adds id 70000, which no token has");
}

TEST_CASE("text/tokenizer_file: the configuration files add tokens, names and the chat template") {
  const Json spec = test::small_tokenizer_json({}, {{.content = "<s>"}});
  const auto opened = Tokenizer::parse({.tokenizer = spec.dump(),
                                        .config =
                                            R"({"bos_token":"<s>",
                     "added_tokens_decoder":{"256":{"content":"<s>"},"300":{"content":"<t>","special":true}},
                     "chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})",
                                        .special_tokens_map = R"({"eos_token":"</s>","pad_token":"<s>"})"});
  REQUIRE_OK(opened);
  CHECK(opened->bos_id() == 256);
  CHECK_FALSE(opened->eos_id().has_value());  // named, but no such token
  CHECK(opened->is_special(256));
  CHECK(opened->is_special(300));
  CHECK(opened->vocab_size() == 301);
  CHECK(opened->config().chat_template == "D");
  const auto jinja =
      Tokenizer::parse({.tokenizer = spec.dump(), .config = R"({"chat_template":"old"})", .chat_template = "new"});
  REQUIRE_OK(jinja);
  CHECK(jinja->config().chat_template == "new");
  const std::string plain = spec.dump();
  CHECK_REFUSED(open_text(plain, "{"), Code::invalid, "tokenizer_config.json: ");
  CHECK_REFUSED(open_text(plain, R"({"chat_template":5})"), Code::invalid, "chat_template must be a string");
  CHECK_REFUSED(open_text(plain, R"({"chat_template":[]})"), Code::unsupported, "without one named");
  CHECK_REFUSED(open_text(plain, R"({"added_tokens_decoder":{"x":{"content":"<y>"}}})"), Code::invalid,
                "tokenizer_config.json: added_tokens_decoder.x");
  CHECK_REFUSED(open_text(plain, R"({"added_tokens_decoder":{"97":{"content":"<y>"}}})"), Code::invalid,
                "id 97 is <y>");
}

TEST_CASE("text/tokenizer_file: a decoder that makes far more text than the file holds is refused") {
  Json spec = test::small_tokenizer_json();
  Json vocab = spec["model"]["vocab"], model = spec["model"];
  for (int i = 0; i < 20'000; ++i) vocab.set("~" + std::to_string(i), 256 + i);
  model.set("vocab", std::move(vocab));
  spec.set("model", std::move(model));
  const auto replace = [](const char* pattern) {
    return Json::object({{"type", "Replace"},
                         {"pattern", Json::object({{"String", pattern}})},
                         {"content", std::string(kTokenBytesMax - 5, 'x')}});
  };
  spec.set("decoder", replace("no token has this"));
  CHECK(open_text(spec.dump()).what == "accepted");
  spec.set("decoder", replace("~"));
  const auto refused = open_text(spec.dump());
  CHECK_REFUSED(refused, Code::invalid,
                "tokenizer.json: decoder makes texts of more than 67108864 bytes of model.vocab");
  CHECK(refused.mc == 3002);
}
