// Chains of blocks that a verb fetches from a node.

#include "verbs/block_chain.h"

#include <cctype>

#include "base/errors.h"
#include "base/hash.h"
#include "host/block_stream.h"
#include "http/server.h"
#include "test.h"
#include "unit/node/bench.h"
#include "verbs/ask.h"
#include "verbs/block_verbs.h"
#include "verbs/warm.h"

namespace block_chain_test {

using namespace mc;
using namespace mc::verbs;

namespace {

/// A node that gives a chain of two blocks of zeros.
struct Node {
  Node() {
    const kv::Namespace kv = node::bench::namespace_of(layout);
    const std::vector<uint32_t> ids(2 * layout.block_tokens, 7);
    hashes = kv::chain(kv.id(), ids, layout.block_tokens);
    node::BlockRun run{.layout = layout, .name_space = kv.id(), .kv_namespace = kv.text(), .model = "m"};
    run.chain_blocks = 2, run.pages = {0, 1};
    const std::span<const std::byte> page(memory);
    for (uint32_t i = 0; i < 2; ++i) {
      kv::BlockMeta block{hashes[i], i == 0 ? BlockHash{} : hashes[0], kv.id(), i * layout.block_tokens, {}};
      block.tokens.assign(layout.block_tokens, 7);
      for (uint32_t layer = 0; layer < layout.layers; ++layer)
        block.layer_crcs.push_back(crc32c(page.subspan(layout.layer_offset(layer), layout.layer_bytes())));
      run.blocks.push_back(std::move(block));
    }
    const auto part = host::write_part(run, "test", [this](uint32_t, kv::PageIndex) { return memory.data(); });
    REQUIRE_OK(part);
    auto opened = http::Server::open({}, [body = *part](const http::Request&, const http::Responder& out) {
      out.respond({.status = 200, .headers = {{std::string(host::kChainBlocksHeader), "2"}}, .body = body});
    });
    REQUIRE_OK(opened);
    server = std::move(*opened);
    door = {"http://127.0.0.1:" + std::to_string(server->port()), {}, 10s};
  }

  ExtentLayout layout = node::bench::layout_of(2);
  std::vector<std::byte> memory = std::vector<std::byte>(layout.page_bytes());
  std::vector<BlockHash> hashes;
  std::unique_ptr<http::Server> server;
  BlockDoor door;
};

}  // namespace

TEST_CASE("verbs/block_chain: a chain is fetched by the id of its last block, in capital digits too") {
  Node node;
  std::string capital = node.hashes[1].hex();
  for (char& c : capital) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto chain = fetch_chain(node.door, BlockHash{*Id128::from_hex(capital)});
  REQUIRE_OK(chain);
  CHECK(chain->blocks.size() == 2);
  CHECK(chain->last() == node.hashes[1]);
  const auto other = fetch_chain(node.door, node.hashes[0]);
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().mc == err::kPeerGarbage);
}

TEST_CASE("verbs/block_chain: an error of the node keeps its number, its text and its own next step") {
  auto server = http::Server::open({}, [](const http::Request& request, const http::Responder& out) {
    const bool is_foreign = request.path == "/foreign";
    out.respond(http::operators_error(
        user_error(is_foreign ? err::kKvFileForeign : err::kNotFound, "no such block", "prefix", "look at ls")));
  });
  REQUIRE_OK(server);
  const BlockDoor door{"http://127.0.0.1:" + std::to_string((*server)->port()), {}, 10s};
  for (const auto& [path, number] : {std::pair("/other", err::kNotFound), std::pair("/foreign", err::kKvFileForeign)}) {
    const auto refused = door.call(http::Method::post, path, "");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().mc == number);
    CHECK(refused.error().what == "no such block");
    CHECK(refused.error().next == "look at ls");
  }
  for (const ErrorInfo& row : error_table()) {  // several numbers share a code
    if (row.http_status == 0) continue;
    const auto body = Json::parse(http::error_response(static_cast<err::Number>(row.number), "no").body);
    REQUIRE_OK(body);
    CHECK((*body)["error"]["number"].as_string() == "MC" + std::to_string(row.number));
    CHECK(told_error(*body, row.http_status, "/x").mc == row.number);
  }
}

TEST_CASE("verbs/block_chain: a time beyond what the node takes is refused by the verb, with the range") {
  for (const mc::Flag* flag : {&flags::kEvictOlder, &flags::kWarmPin, &flags::kBlocksTimeout, &flags::kPinFor}) {
    REQUIRE(bool{flag->check != nullptr});
    CHECK(flag->check("30m").has_value());
    for (const char* wrong : {"0s", "-1s", "9000h"}) CHECK_FALSE(flag->check(wrong).has_value());
  }
  CHECK(flags::kEvictOlder.check("9000h").error().what == "'9000h' is not from 1ms to 8784h");
}

}  // namespace block_chain_test
