// The tokens of one answer, in order. Decode may be faster than the first token's way through another socket: tokens
// that come early wait for those before them.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "node/reason.h"
#include "wire/messages.h"

namespace mc::node {

class AnswerTokens {
 public:
  struct Token {
    uint32_t index = 0, token = 0;
    wire::TokenLogprobs logprobs;
  };

  /// Tokens that the client has been given.
  const std::vector<uint32_t>& given() const { return given_; }
  bool empty() const { return given_.empty(); }
  size_t size() const { return given_.size(); }
  /// A token as it came; the last one of the answer says how it ends. One that was given already is passed over.
  void put(Token token, Finish finish);
  /// The next token for the client, which has been given it then. `first_with_second`: the first one waits for the
  /// second, unless it ends the answer.
  std::optional<Token> take(bool first_with_second);
  /// How the answer ended, once its last token was given; none before.
  Finish ended() const { return given_.size() > last_index_ ? finish_ : Finish::none; }
  /// A new attempt goes on after what was given: what came early is forgotten.
  void restart();

 private:
  std::vector<uint32_t> given_;
  std::map<uint32_t, Token> early_;  // by index
  Finish finish_ = Finish::none;     // set when known
  uint32_t last_index_ = 0;
};

}  // namespace mc::node
