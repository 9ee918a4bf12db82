// Tokens of an answer that come out of order.
#include "node/answer_tokens.h"

#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

std::vector<uint32_t> taken(AnswerTokens& answer, bool first_with_second = false) {
  std::vector<uint32_t> out;
  while (const auto token = answer.take(first_with_second)) out.push_back(token->token);
  return out;
}

}  // namespace

TEST_CASE("node/answer_tokens: tokens leave in order, once, and the end is the last one's") {
  AnswerTokens answer;
  answer.put({2, 12, {}}, Finish::length);
  CHECK(taken(answer).empty());
  CHECK(answer.ended() == Finish::none);
  answer.put({0, 10, {}}, Finish::none);
  CHECK(taken(answer) == std::vector<uint32_t>{10});
  answer.put({0, 99, {}}, Finish::none);  // given already
  answer.put({1, 11, {}}, Finish::none);
  CHECK(taken(answer) == std::vector<uint32_t>{11, 12});
  CHECK(answer.ended() == Finish::length);
}

TEST_CASE("node/answer_tokens: a new attempt forgets what came early and the end that came with it") {
  AnswerTokens answer;
  answer.put({0, 10, {}}, Finish::none);
  answer.put({2, 12, {}}, Finish::stop);
  CHECK(taken(answer).size() == 1);
  answer.restart();
  answer.put({1, 21, {}}, Finish::none);
  CHECK(taken(answer) == std::vector<uint32_t>{21});
  CHECK(answer.ended() == Finish::none);
  CHECK(answer.given() == std::vector<uint32_t>{10, 21});
}

TEST_CASE("node/answer_tokens: the first token waits for the second, unless it is the only one") {
  AnswerTokens two, one;
  two.put({0, 10, {}}, Finish::none);
  CHECK(taken(two, true).empty());
  two.put({1, 11, {}}, Finish::none);
  CHECK(taken(two, true).size() == 2);
  one.put({0, 10, {}}, Finish::stop);
  CHECK(taken(one, true).size() == 1);
  CHECK(one.ended() == Finish::stop);
}
