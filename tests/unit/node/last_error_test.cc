#include "node/last_error.h"

#include "test.h"

using namespace mc::node;

TEST_CASE("node/last_error: an error is gone when the node has served since, and one that lasts is not") {
  LastError error;
  CHECK(error.text() == "");
  error.note("decode node d0 was lost");
  CHECK(error.text() == "decode node d0 was lost");
  error.served();
  CHECK(error.text() == "");
  error.keep("the disk is lost");
  error.note("late");
  CHECK(error.text() == "late");
  error.served();
  CHECK(error.text() == "the disk is lost");
}

TEST_CASE("node/last_error: an error that lasts takes the place of the failures that led to it") {
  LastError error;
  error.note("reading a block failed");
  error.keep("the disk is lost");
  CHECK(error.text() == "the disk is lost");
}

TEST_CASE("node/last_error: a long error is cut between two characters") {
  LastError error;
  error.note(std::string(LastError::kBytesMax, 'x'));
  CHECK(error.text().size() == LastError::kBytesMax);
  for (size_t ahead = 0; ahead < 4; ++ahead) {
    CAPTURE(ahead);
    std::string text(ahead, 'x');
    while (text.size() < 1000) text += "\xe2\x82\xac";  // a character of three bytes
    error.note(text);
    CHECK(error.text().size() <= LastError::kBytesMax);
    CHECK(error.text().size() > LastError::kBytesMax - 3);
    CHECK(error.text().ends_with("..."));
    CHECK((error.text().size() - 3 - ahead) % 3 == 0);
  }
}
