#include "xfer/receive_stage.h"

#include <string>

#include "test.h"

namespace receive_stage_test {

using namespace mc;
using namespace mc::xfer;

namespace {

void receive(ReceiveStage& stage, const std::string& text) {
  const auto room = stage.room(stage.capacity());
  REQUIRE(text.size() <= room.size());
  std::memcpy(room.data(), text.data(), text.size());
  stage.filled(text.size());
}

std::string text_of(const ReceiveStage& stage) {
  return {reinterpret_cast<const char*>(stage.bytes().data()), stage.bytes().size()};
}

}  // namespace

TEST_CASE("xfer/receive_stage: bytes are parsed from the front, and the rest stays in order behind a move") {
  ReceiveStage stage(8);
  receive(stage, "headbody");
  CHECK(stage.room(8).empty());
  stage.drop(6);
  CHECK(text_of(stage) == "dy");
  stage.compact();
  CHECK(text_of(stage) == "dy");
  CHECK(stage.room(8).size() == 6);
  receive(stage, "next");
  CHECK(text_of(stage) == "dynext");
}

TEST_CASE("xfer/receive_stage: the room can be bounded to the rest of a header") {
  ReceiveStage stage(64);
  receive(stage, "abc");
  CHECK(stage.room(16).size() == 13);
  CHECK(stage.room(3).empty());
}

TEST_CASE("xfer/receive_stage: a cleared stage has no bytes and gives its whole memory") {
  ReceiveStage stage(8);
  receive(stage, "abcdef");
  stage.drop(2);
  stage.clear();
  CHECK(stage.size() == 0);
  CHECK(stage.scratch().size() == 8);
  stage.compact();
  CHECK(stage.room(8).size() == 8);
}

}  // namespace receive_stage_test
