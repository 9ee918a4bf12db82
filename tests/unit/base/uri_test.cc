#include "base/uri.h"

#include "test.h"

using namespace mc;

TEST_CASE("base/uri: every form of a place survives a round trip") {
  for (const char* text :
       {"tcp://127.0.0.1:41327", "tcp://[::1]:7700", "ipc:///run/mc.sock", "ipc://@abstract", "shm://p0",
        "rdma://mlx5_0:1", "file:///a/b", "sim:x", "null:", "http://127.0.0.1:8000/v1"}) {
    INFO(text);
    auto uri = parse_uri(text);
    REQUIRE_OK(uri);
    CHECK(uri->text() == text);
  }
  CHECK(parse_uri("tcp://host:0")->port == 0);
}

TEST_CASE("base/uri: what is not a place is refused with its text") {
  for (const char* text : {"", "tcp", "tcp:", "tcp://", "tcp://host", "tcp://host:", "tcp://host:65536", "tcp://host:x",
                           "tcp://::1:80", "tcp://[::1:80", "tcp://[[JJJ]:7700", "tcp://[name]:1", "tcp://a]:1",
                           "ipc://relative", "file://x", "shm://", "shm://a/b", "ftp://x:1", "tcp://a b:1"}) {
    INFO(text);
    CHECK_FALSE(parse_uri(text));
  }
}

TEST_CASE("base/uri: host and port with defaults") {
  CHECK(parse_host_port(":8100")->text() == "127.0.0.1:8100");
  CHECK(parse_host_port("8100")->text() == "127.0.0.1:8100");
  CHECK(parse_host_port("0.0.0.0:80")->host == "0.0.0.0");
  CHECK(parse_host_port("[::1]:80")->text() == "[::1]:80");
  for (const char* text : {"", ":", "host", "host:", "::1:80", "[::1]", "host:70000"})
    CHECK_FALSE(parse_host_port(text));
}

TEST_CASE("base/uri: only true loopback addresses count as loopback") {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) CHECK(is_loopback(host));
  for (const char* host : {"", "*", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.com", "128.0.0.1"})
    CHECK_FALSE(is_loopback(host));
  CHECK(is_local(*parse_uri("ipc:///run/x")));
  CHECK_FALSE(is_local(*parse_uri("tcp://10.0.0.1:7700")));
}
