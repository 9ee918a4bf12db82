#include "wire/mckv.h"

#include "unit/wire/golden.h"
#include "unit/wire/sample_mckv.h"

namespace mckv_test {

using namespace mc;
using namespace mc::wire;
using test::SampleMckv;

namespace {

// Reads all of it; "" or the first error.
std::string read_all_of(const std::vector<std::byte>& bytes, std::vector<std::vector<std::byte>>* pages = nullptr) {
  auto reader = KvReader::open(test::read_from(bytes));
  if (!reader) return reader.error().what;
  for (;;) {
    const auto block = reader->next();
    if (!block) return block.error().what;
    if (!*block) return "";
    std::vector<std::byte> page(reader->layout().page_bytes());
    if (const auto read = reader->read_page(page); !read) return read.error().what;
    page.resize(reader->layout().layers * reader->layout().layer_bytes());
    if (pages) pages->push_back(page);
  }
}

// Rebuilds the first block's header after a change, with a right checksum, so that the place is what is wrong.
std::string error_after(void (*change)(BlockHeader&)) {
  const SampleMckv sample;
  auto bytes = sample.bytes();
  uint32_t body_bytes;
  std::memcpy(&body_bytes, bytes.data() + 8, 4);
  const size_t at = 16 + body_bytes;
  BlockHeader header;
  std::memcpy(&header, bytes.data() + at, sizeof header);
  change(header);
  const auto head = encode_block_header(header, sample.crcs(0));
  std::memcpy(bytes.data() + at, head.data(), head.size());
  return read_all_of(bytes);
}

}  // namespace

TEST_CASE("wire/mckv: the bytes of a stream are those of the golden file") {
  SampleMckv sample(17);
  sample.layout.layers = 1;
  sample.reshape();
  test::check_golden("mckv.txt", test::hex(sample.bytes()) + "\n");
}

TEST_CASE("wire/mckv: prologue, blocks and tail survive a round trip") {
  for (const uint32_t tokens : {1u, 15u, 16u, 17u, 37u, 48u}) {
    CAPTURE(tokens);
    const SampleMckv sample(tokens);
    const auto bytes = sample.bytes();
    auto reader = KvReader::open(test::read_from(bytes));
    REQUIRE_OK(reader);
    CHECK(reader->prologue() == sample.prologue);
    CHECK(reader->layout() == sample.layout);
    std::vector<std::vector<std::byte>> pages;
    CHECK(read_all_of(bytes, &pages) == "");
    CHECK(pages == sample.pages);
  }
}

TEST_CASE("wire/mckv: headers follow from the prologue, and the tail has no id") {
  const SampleMckv sample;
  const auto bytes = sample.bytes();
  auto reader = KvReader::open(test::read_from(bytes));
  REQUIRE_OK(reader);
  for (uint32_t block = 0; block < 3; ++block) {
    const auto next = reader->next();
    REQUIRE_OK(next);
    REQUIRE(next->has_value());
    const BlockHeader& header = (*next)->header;
    CHECK(header.first_position == 16 * block);
    CHECK(header.token_count == (block < 2 ? 16 : 5));
    CHECK(header.parent == (block == 0 ? Id128{} : Id128(sample.ids[block - 1])));
    CHECK(header.id == (block < 2 ? Id128(sample.ids[block]) : Id128{}));
    while (reader->extents_left() > 0) REQUIRE_OK(reader->skip_extent());
  }
  CHECK_FALSE(reader->next()->has_value());
  CHECK_FALSE(reader->next()->has_value());
}

TEST_CASE("wire/mckv: every truncation is an error that names where") {
  const auto bytes = SampleMckv().bytes();
  for (size_t length = 0; length < bytes.size(); length += 1 + length / 97)
    REQUIRE_FALSE(read_all_of({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}).empty());
  auto cut = bytes;
  cut.resize(bytes.size() - 32);
  CHECK(read_all_of(cut) == "mckv: trailer: end of file after 0 of 32 bytes");
  cut.resize(cut.size() - 1);
  CHECK(read_all_of(cut) == "mckv: block 2 (positions 32..36) layer 1: end of file after 255 of 256 bytes");
}

TEST_CASE("wire/mckv: flipping any bit is noticed") {
  const auto bytes = SampleMckv().bytes();
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 1 + bit % 5) {
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    CAPTURE(bit);
    REQUIRE_FALSE(read_all_of(damaged).empty());
  }
}

TEST_CASE("wire/mckv: a block at the wrong place is refused by what is wrong") {
  CHECK(error_after([](BlockHeader&) {}).empty());
  CHECK(error_after([](BlockHeader& h) { h.first_position = 16, h.parent = h.id; }) ==
        "mckv: block 0: parent is 3da2892d, the block before is 00000000");
  CHECK(error_after([](BlockHeader& h) { h.token_count = 5, h.id = {}; }) ==
        "mckv: block 0: holds 5 tokens from 0, expected 16 from 0");
  CHECK(error_after([](BlockHeader& h) { h.name_space.bytes[0] ^= 1; }) ==
        "mckv: block 0: namespace is not the prologue's");
  CHECK(error_after([](BlockHeader& h) { h.first_layer = 3; }) == "mckv: block 0: first_layer is 3, must be 0");
  CHECK(error_after([](BlockHeader& h) { h.generation = 1; }) != "");  // the trailer vouches for every header
}

TEST_CASE("wire/mckv: a foreign or newer stream is told from a damaged one") {
  const auto bytes = SampleMckv().bytes();
  auto foreign = bytes;
  foreign[0] = std::byte{'P'};
  CHECK(read_all_of(foreign) == "mckv: does not start with \"MCKV\": not a KV stream");
  auto newer = bytes;
  newer[4] = std::byte{2};
  CHECK(KvReader::open(test::read_from(newer)).error().code == Code::unsupported);
  auto huge = bytes;
  std::memset(huge.data() + 8, 0xff, 4);
  CHECK(read_all_of(huge).find("at most 16 MiB") != std::string::npos);
  CHECK(read_all_of({}) == "mckv: prologue: end of file after 0 of 16 bytes");
}

TEST_CASE("wire/mckv: a prologue that contradicts itself is refused before anything is written") {
  std::vector<std::byte> out;
  SampleMckv sample;
  sample.prologue.kv_dtype = "f64";
  CHECK(KvWriter::open(test::write_to(out), sample.prologue).error().what ==
        "mckv: kv_dtype is \"f64\", only f32, bf16 and fp8_e4m3 exist");
  sample.prologue.kv_dtype = "f32";
  sample.prologue.block_tokens = 17;
  CHECK(KvWriter::open(test::write_to(out), sample.prologue).error().what ==
        "mckv prologue: block: block_tokens is 17, must be a power of two in 16..512");
  sample.prologue.block_tokens = 16;
  sample.prologue.ids.clear();
  CHECK_FALSE(KvWriter::open(test::write_to(out), sample.prologue));
  CHECK(out.empty());
}

TEST_CASE("wire/mckv: a part of a stream begins behind its parent, and every other place in it is refused") {
  SampleMckv sample(48);
  sample.prologue.prefix_only = true;
  CHECK(read_all_of(sample.bytes()) == "");
  sample.prologue.first_position = 32, sample.prologue.parent = sample.ids[2];
  std::vector<std::vector<std::byte>> pages;
  CHECK(read_all_of(sample.bytes(), &pages) == "");
  CHECK(pages == sample.pages);
  std::vector<std::byte> out;
  const auto refused = [&](auto change) {
    KvPrologue prologue = sample.prologue;
    change(prologue);
    CHECK(KvWriter::open(test::write_to(out), prologue).error().code == Code::corrupt);
  };
  refused([](KvPrologue& p) { p.first_position = 33; });
  refused([](KvPrologue& p) { p.first_position = 0; });
  refused([](KvPrologue& p) { p.parent = {}; });
  refused([](KvPrologue& p) { p.ids.pop_back(); });
  refused([](KvPrologue& p) { p.first_position = 4'294'967'280u; });
  refused([](KvPrologue& p) { p.first_position = 0, p.prefix_only = false; });
  CHECK(out.empty());
}

}  // namespace mckv_test
