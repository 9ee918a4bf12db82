// The words of reasons, stages and ends are one table in both directions.
#include "node/reason.h"

#include <fstream>
#include <set>
#include <sstream>

#include "test.h"

using namespace mc;
using namespace mc::node;

TEST_CASE("node/reason: every reason has a word of its own that names it again, and an error that HTTP answers") {
  std::set<std::string_view> words;
  for (int i = 0; i <= static_cast<int>(kReasonLast); ++i) {
    const Reason reason = static_cast<Reason>(i);
    CAPTURE(to_string(reason));
    CHECK(reason_named(to_string(reason)) == reason);
    CHECK(words.insert(to_string(reason)).second);
    CHECK(find_error(number_of(reason))->http_status >= 400);
  }
  CHECK(reason_named("no such word") == Reason::internal);
}

TEST_CASE("node/reason: what a worker or a record says is read back as it was meant") {
  for (const auto stage : {RequestStage::queue, RequestStage::fetch, RequestStage::accept, RequestStage::prefill,
                           RequestStage::transfer, RequestStage::decode})
    CHECK(stage_named(to_string(stage)) == stage);
  CHECK(stage_named("no such stage") == RequestStage::unknown);
  for (const auto finish : {Finish::none, Finish::stop, Finish::length, Finish::abort})
    CHECK(finish_named(to_string(finish)) == finish);
  for (const Held& held : {Held{}, Held{Held::Kind::turn, ""}, Held{Held::Kind::prefix, "p0.1"}})
    CHECK(held_named(to_string(held)) == held);
}

TEST_CASE("node/reason: the end of a copy has the word of the code or the fallback that it comes from") {
  for (int i = 0; i <= static_cast<int>(Code::cancelled); ++i) {
    const Code code = static_cast<Code>(i);
    CHECK(wire::to_string(copy_end_of(code)) == (code == Code::ok ? "" : to_string(code)));
  }
  for (const wire::FallbackRow& row : wire::fallback_rows())
    CHECK(wire::to_string(copy_end_of(row.fallback)) == row.name);
}

TEST_CASE("node/reason: mc-conductor(1) lists each word with its meaning and the next step") {
  std::ifstream file(test::source_dir() + "/man/mc-conductor.1");
  std::stringstream page;
  page << file.rdbuf();
  std::string text = page.str();
  for (size_t at = 0; (at = text.find("\\-", at)) != std::string::npos;) text.erase(at, 1);
  for (const ReasonGroup& group : reason_groups()) {
    std::set<std::string_view> words;
    for (const ReasonWord& row : group.words) {
      CAPTURE(row.word);
      CHECK(words.insert(row.word).second);
      CHECK_FALSE(row.meaning.empty());
      const std::string item = ".It Cm " + std::string(row.word) + "\n" + std::string(row.meaning) + "\n";
      const size_t at = text.find(item, text.find(".Ss " + std::string(group.title) + "\n"));
      REQUIRE(at != std::string::npos);
      const size_t end = text.find("\n.It", at + item.size());
      if (!row.next.empty()) CHECK(text.find(row.next, at) < end);
    }
  }
}
