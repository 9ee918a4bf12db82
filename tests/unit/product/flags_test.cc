#include "product/flags.h"

#include "test.h"

namespace flags_test {

using namespace mc;

TEST_CASE("product/flags: tokens of a block are a power of two from 16 to 512") {
  for (const char* good : {"16", "64", "512"}) CHECK(flags::check_block_tokens(good).has_value());
  for (const char* bad : {"8", "65", "1024", "0", "many"}) CHECK_FALSE(flags::check_block_tokens(bad).has_value());
}

TEST_CASE("product/flags: a label without a key or without a value's sign is refused") {
  for (const char* good : {"a=1", "a=1,b=2", "a="}) CHECK(flags::check_labels(good).has_value());
  for (const char* bad : {"novalue", "=1", "a=1,b"}) CHECK_FALSE(flags::check_labels(bad).has_value());
}

TEST_CASE("product/flags: a node's name has 1 to 64 letters, digits, dots, dashes and underscores") {
  CHECK(flags::check_name("p-0.a_B").has_value());
  CHECK(flags::check_name(std::string(64, 'a')).has_value());
  CHECK_FALSE(flags::check_name("").has_value());
  CHECK_FALSE(flags::check_name(std::string(65, 'a')).has_value());
  CHECK_FALSE(flags::check_name("a b").has_value());
}

TEST_CASE("product/flags: a cooldown of rdma paths rises, from 1ms to 1h") {
  for (const char* good : {"5s", "1s-1m", "1ms-1h"}) CHECK(flags::check_rdma_cooldown(good).has_value());
  for (const char* bad : {"0s", "1m-1s", "1s-2h", "soon"}) CHECK_FALSE(flags::check_rdma_cooldown(bad).has_value());
}

}  // namespace flags_test
