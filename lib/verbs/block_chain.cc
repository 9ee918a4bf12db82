#include "verbs/block_chain.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/units.h"
#include "host/block_stream.h"
#include "kv/kv.h"
#include "verbs/ask.h"
#include "verbs/client_key.h"
#include "verbs/node_place.h"

namespace mc::verbs {

// ---- spool -----------------------------------------------------------------------------------

Result<Spool> Spool::open() {
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder && *folder ? folder : "/tmp") + "/mc-cache-XXXXXX";
  Fd file(::mkstemp(path.data()));
  if (!file) return as_user_error(err::kFileAccess, errno_error("make a temporary file " + path));
  ::unlink(path.c_str());
  return Spool(std::move(file));
}

Result<void> Spool::append(std::span<const std::byte> page) {
  MC_ASSERT(!page.empty());
  if (auto written = write_all(file_.get(), page); !written)
    return as_user_error(err::kDiskFull, within("the temporary file", std::move(written).error()));
  return {};
}

Result<void> Spool::rewind() {
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) return as_user_error(err::kFileAccess, errno_error("rewind"));
  return {};
}

Result<void> Spool::read(std::span<std::byte> page) {
  MC_ASSERT(!page.empty());
  return read_all(file_.get(), page);
}

// ---- chain -----------------------------------------------------------------------------------

Result<void> BlockChain::append(wire::KvReader& reader) {
  const wire::KvPrologue& read = reader.prologue();
  const uint32_t bt = reader.layout().block_tokens;
  std::vector<std::byte> page(page_bytes());
  for (size_t at = 0;; at += bt) {
    MC_TRY(header, reader.next());
    if (!header) return {};
    if (header->header.is_tail()) {
      while (reader.extents_left() > 0) MC_CHECK(reader.skip_extent());
      continue;  // only full blocks are shared
    }
    const auto ids = std::span(read.ids).subspan(at, bt);
    if (kv::chain_next(last(), read.ns, ids) != BlockHash{header->header.id})
      return Error{Code::corrupt, "block " + std::to_string(blocks.size()) + " is not the block of its token ids"};
    MC_CHECK(reader.read_page(page));
    MC_CHECK(spool.append(page));
    blocks.push_back({BlockHash{header->header.id}, header->extent_crcs});
    prologue.ids.insert(prologue.ids.end(), ids.begin(), ids.end());
  }
}

Result<void> BlockChain::write(const wire::WriteBytes& write) {
  std::vector<std::byte> page(page_bytes());
  MC_CHECK(spool.rewind());
  MC_TRY(writer, wire::KvWriter::open(write, prologue));
  for (const Block& block : blocks) {
    MC_CHECK(spool.read(page));
    MC_CHECK(writer.add(block.hash, page, block.crcs));
  }
  return writer.finish();
}

// ---- nodes -----------------------------------------------------------------------------------

namespace {

wire::ReadBytes reader_of(const std::string& bytes) {
  return [&bytes, at = size_t{0}](std::span<std::byte> out) mutable -> Result<void> {
    MC_ASSERT_LE(at, bytes.size());
    if (bytes.size() - at < out.size()) return Error{Code::corrupt, "it ends after " + std::to_string(at) + " bytes"};
    std::memcpy(out.data(), bytes.data() + at, out.size());
    at += out.size();
    return {};
  };
}

Error garbage(const std::string& place, std::string what) {
  return user_error(err::kPeerGarbage, std::move(what), place, "compare the versions of the node and of this program");
}

}  // namespace

Result<BlockDoor> BlockDoor::open(const cli::Args& args, const std::string& node, Duration time) {
  BlockDoor door;
  MC_TRY(headers, key_headers(args));
  MC_TRY(place, place_of(node, !headers.empty()));
  door.place = std::move(place), door.headers = std::move(headers), door.time = time;
  door.headers.push_back({"x-mc-deadline-ms", std::to_string(std::max<int64_t>(1, time / 1ms))});
  return door;
}

Result<http::Response> BlockDoor::call(http::Method method, const std::string& path, std::string body) const {
  MC_ASSERT(!place.empty() && path.starts_with('/'));
  const TimePoint deadline = SystemClock::instance().now() + time + kAnswerSlack;
  auto response = http::fetch(method, place, path, headers, std::move(body), deadline);
  if (!response) return user_error(err::kPeerUnreachable, "no answer: " + response.error().what, place, next);
  if (response->status < 300) return response;
  const auto json = Json::parse(response->body);
  if (!json) return garbage(place + path, "the answer is not JSON: " + json.error().what);
  Error error = told_error(*json, response->status, place);
  if (error.mc == err::kNotEnoughMemory && (*json)["error"]["next"].as_string().empty())
    error.next = "unpin or evict blocks (mc-cache ls shows them), retry, or start the node with more memory";
  return error;
}

namespace {

/// One part of the chain, behind those that are there. Returns the number of blocks of the whole chain.
Result<uint64_t> fetch_part(const BlockDoor& node, const std::string& prefix, BlockChain& chain) {
  const std::string path = "/blocks/export?prefix=" + prefix + "&first=" + std::to_string(chain.blocks.size());
  MC_TRY(response, node.call(http::Method::get, path, ""));
  const auto all = parse_u64(http::find_header(response.headers, host::kChainBlocksHeader), 1);
  if (!all) return garbage(node.place, "the part of the stream came without the length of the chain");
  auto opened = wire::KvReader::open(reader_of(response.body));
  if (!opened) return garbage(node.place, opened.error().what);
  const wire::KvPrologue& part = opened->prologue();
  if (chain.blocks.empty()) {
    chain.prologue = part, chain.layout = opened->layout();
    chain.prologue.ids.clear();
  }
  const bool follows = part.prefix_only && part.first_position == chain.prologue.ids.size() &&
                       part.parent == chain.last() && part.ns == chain.prologue.ns &&
                       part.kv_namespace == chain.prologue.kv_namespace && opened->layout() == chain.layout;
  if (!follows) return garbage(node.place, "the part of the stream does not follow the one before it");
  if (auto read = chain.append(*opened); !read)
    return read.error().mc != 0 ? read.error() : garbage(node.place, read.error().what);
  return *all;
}

}  // namespace

Result<BlockChain> fetch_chain(const BlockDoor& node, const BlockHash& last) {
  const std::string prefix = last.hex();
  MC_TRY(spool, Spool::open());
  BlockChain chain{{}, {}, {}, std::move(spool)};
  for (uint64_t all = 1; chain.blocks.size() < all;) {
    const size_t before = chain.blocks.size();
    MC_TRY(blocks, fetch_part(node, prefix, chain));
    if (chain.blocks.size() == before) return garbage(node.place, "a part of the stream has no block");
    all = blocks;
  }
  if (chain.last() != last) return garbage(node.place, "the chain ends with another block: " + chain.last().hex());
  MC_ASSERT_EQ(chain.prologue.ids.size(), chain.blocks.size() * chain.layout.block_tokens);
  chain.prologue.first_position = 0, chain.prologue.parent = {};
  return chain;
}

Result<Imported> send_chain(const BlockDoor& node, BlockChain& chain) {
  Imported sum;
  MC_CHECK(chain.spool.rewind());
  const uint32_t bt = chain.layout.block_tokens;
  MC_ASSERT_EQ(chain.prologue.ids.size(), chain.blocks.size() * bt);
  const size_t each = std::max<size_t>(1, host::kStreamPartBytes / chain.layout.page_bytes());
  std::vector<std::byte> page(chain.page_bytes());
  for (size_t first = 0; first < chain.blocks.size() && sum.omitted == 0; first += each) {
    const size_t count = std::min(each, chain.blocks.size() - first);
    wire::KvPrologue part = chain.prologue;
    part.prefix_only = true, part.first_token = 0, part.finish_reason.clear();
    part.first_position = static_cast<uint32_t>(first * bt);
    part.parent = first == 0 ? BlockHash{} : chain.blocks[first - 1].hash;
    const auto begin = chain.prologue.ids.begin() + static_cast<std::ptrdiff_t>(first * bt);
    part.ids.assign(begin, begin + static_cast<std::ptrdiff_t>(count * bt));
    std::string body;
    const auto append = [&](std::span<const std::byte> bytes) -> Result<void> {
      body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
    MC_TRY(writer, wire::KvWriter::open(append, part));
    for (size_t i = first; i < first + count; ++i) {
      MC_CHECK(chain.spool.read(page));
      MC_CHECK(writer.add(chain.blocks[i].hash, page, chain.blocks[i].crcs));
    }
    MC_CHECK(writer.finish());
    MC_TRY(response, node.call(http::Method::post, "/blocks/import", std::move(body)));
    const auto json = Json::parse(response.body);
    if (!json) return garbage(node.place, "the answer is not JSON: " + json.error().what);
    const auto number = [&](const char* field) {
      return static_cast<uint64_t>(std::max<int64_t>(0, (*json)[field].as_int()));
    };
    sum.stored += number("stored"), sum.known += number("known"), sum.omitted += number("omitted");
    sum.node = std::string((*json)["node"].as_string());
    sum.attention = std::string((*json)["attention"].as_string());
    sum.node_attention = std::string((*json)["node_attention"].as_string());
    if (number("stored") + number("known") + number("omitted") != count)
      return garbage(node.place, "the answer does not count the blocks of the part");
  }
  sum.omitted = chain.blocks.size() - std::min<uint64_t>(chain.blocks.size(), sum.stored + sum.known);
  MC_ASSERT_LE(sum.omitted, chain.blocks.size());
  return sum;
}

}  // namespace mc::verbs
