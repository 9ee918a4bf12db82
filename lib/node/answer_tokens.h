// The tokens of one answer, in order. The prefill node sends the first token and the decode node sends the others, each
// over its own connection. A token that arrives before its predecessors is kept until they have arrived.
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

  /// Tokens that the client has received.
  const std::vector<uint32_t>& given() const { return given_; }
  bool empty() const { return given_.empty(); }
  size_t size() const { return given_.size(); }
  /// Stores a token. The last token of the answer carries the finish reason. A token that the client has received
  /// already is ignored.
  void put(Token token, Finish finish);
  /// Returns the next token for the client and counts it as given. With `first_with_second` the first token is kept
  /// back until the second has arrived, unless the answer ends with the first.
  std::optional<Token> take(bool first_with_second);
  /// The finish reason, once the last token was given; none before.
  Finish ended() const { return given_.size() > last_index_ ? finish_ : Finish::none; }
  /// Begins a new attempt after the last token that was given. Tokens that arrived early from the old attempt are
  /// dropped.
  void restart();

 private:
  std::vector<uint32_t> given_;
  std::map<uint32_t, Token> early_;  // by index
  Finish finish_ = Finish::none;     // none until the last token has arrived
  uint32_t last_index_ = 0;
};

}  // namespace mc::node
