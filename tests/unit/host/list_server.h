// A node without blocks, whose list of blocks is served over HTTP. The test runs the tasks of the loop.
#pragma once

#include <memory>
#include <string>

#include "host/block_list.h"
#include "http/server.h"
#include "node/decode.h"
#include "test.h"
#include "unit/node/bench.h"

namespace mc::host {

template <class Loop>
struct ListServer {
  ListServer() {
    auto opened = http::Server::open(
        {}, [this](const http::Request& request, const http::Responder& out) { lister.answer(request, out); });
    REQUIRE_OK(opened);
    server = std::move(*opened);
  }
  uint16_t port() const { return server->port(); }

  const std::string get = "GET /blocks HTTP/1.1\r\nHost: localhost\r\n\r\n";
  node::bench::Bench<node::Decode, node::DecodeOptions> bench{wire::Role::decode, 4, {}};
  Loop loop;
  BlockLister lister{bench.machine, loop};
  std::unique_ptr<http::Server> server;
};

}  // namespace mc::host
