#include "wire/store_format.h"

#include <array>
#include <cstring>
#include <functional>

#include "base/hash.h"
#include "base/rng.h"
#include "unit/wire/golden.h"

using namespace mc;
using namespace mc::wire;

namespace {

using Page = std::array<std::byte, kStorePageBytes>;
constexpr uint32_t kPages = 64;  // of a segment

StoreSuper super_sample() {
  StoreSuper super{.segment_bytes = kPages * kStorePageBytes, .epoch = 7};
  super.store = Sha256().update("store").finish128();
  return super;
}

StoreGroup group_sample() {
  return {.store = 0x1122334455667788,
          .sequence = 3,
          .number = 41,
          .durable = 40,
          .epoch = 7,
          .pages = 6,
          .previous_crc = 0xaabbccdd};
}

std::vector<StoreEntry> entries_sample() {
  const Id128 a = Sha256().update("a").finish128(), b = Sha256().update("b").finish128();
  return {{.id = a, .bytes = 4097, .crc = 1, .page = 11},
          {.id = b, .kind = StoreKind::drop},
          {.id = b, .bytes = 3 * kStorePageBytes, .crc = 2, .page = 13}};
}

std::string error_of(const Result<StoreGroup>& result) {
  return result ? "accepted" : result.error().what;
}

/// The sample with one change, sealed again, so that the field's own check is what refuses it.
std::string group_error(const std::function<void(StoreGroup&, std::vector<StoreEntry>&)>& change, uint32_t at = 10) {
  StoreGroup group = group_sample();
  auto entries = entries_sample();
  change(group, entries);
  Page page;
  encode(group, entries, page);
  std::vector<StoreEntry> out;
  return error_of(parse_store_group(page, at, kPages, out));
}

}  // namespace

TEST_CASE("wire/store_format: the pages' bytes are those of the golden file") {
  Page page;
  encode(super_sample(), page);
  std::string text = "super " + test::hex(std::span<const std::byte>(page).first(64)) + "\n";
  encode(group_sample(), entries_sample(), page);
  text += "group " + test::hex(std::span<const std::byte>(page).first(64 + 3 * 32)) + "\n";
  std::array<std::byte, 2 * kStorePageBytes> table;
  encode(StoreTail{.store = 5, .sequence = 3, .first = 40, .last = 41}, entries_sample(), table);
  text += "table " + test::hex(std::span<const std::byte>(table).first(96)) + "\n";
  text += "tail " + test::hex(std::span<const std::byte>(table).subspan(kStorePageBytes, 64)) + "\n";
  test::check_golden("store_format.txt", text);
}

TEST_CASE("wire/store_format: all pages survive a round trip") {
  Page page;
  encode(super_sample(), page);
  const auto super = parse_store_super(page);
  REQUIRE_OK(super);
  CHECK(super->store == super_sample().store);
  CHECK(super->epoch == 7);
  const uint32_t crc = encode(group_sample(), entries_sample(), page);
  std::vector<StoreEntry> entries;
  const auto group = parse_store_group(page, 10, kPages, entries);
  REQUIRE_OK(group);
  CHECK(group->crc == crc);
  CHECK(group->number == 41);
  CHECK(entries == entries_sample());
  std::array<std::byte, 2 * kStorePageBytes> table;
  encode(StoreTail{.store = 5, .sequence = 3, .first = 40, .last = 41}, entries_sample(), table);
  const auto tail = parse_store_tail(ConstStorePage(table.data() + kStorePageBytes, kStorePageBytes), kPages);
  REQUIRE_OK(tail);
  CHECK(tail->pages == 1);
  std::vector<StoreEntry> again;
  REQUIRE_OK(parse_store_table(*tail, std::span(table).first(kStorePageBytes), kPages, again));
  CHECK(again == entries_sample());
}

TEST_CASE("wire/store_format: any flipped bit of a page is refused") {
  Rng rng(test::seed());
  for (int kind = 0; kind < 3; ++kind)
    for (int round = 0; round < 400; ++round) {
      std::array<std::byte, 2 * kStorePageBytes> bytes{};
      const auto first = StorePage(bytes.data(), kStorePageBytes);
      if (kind == 0) encode(super_sample(), first);
      if (kind == 1) encode(group_sample(), entries_sample(), first);
      if (kind == 2) encode(StoreTail{.store = 5, .sequence = 3, .first = 40, .last = 41}, entries_sample(), bytes);
      const size_t size = kind == 2 ? bytes.size() : kStorePageBytes;
      const size_t bit = round < 200 ? rng.below(160 * 8) : rng.below(size * 8);
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      INFO("kind ", kind, " bit ", bit, " seed ", test::seed());
      std::vector<StoreEntry> entries;
      if (kind == 0) CHECK_FALSE(parse_store_super(first).has_value());
      if (kind == 1) CHECK_FALSE(parse_store_group(first, 10, kPages, entries).has_value());
      if (kind != 2) continue;
      const auto tail = parse_store_tail(ConstStorePage(bytes.data() + kStorePageBytes, kStorePageBytes), kPages);
      const bool sound =
          tail && parse_store_table(*tail, std::span(bytes).first(kStorePageBytes), kPages, entries).has_value();
      CHECK_FALSE(sound);
      CHECK(entries.empty());
    }
}

TEST_CASE("wire/store_format: a sealed page with a wrong field is refused") {
  const auto none = [](StoreGroup&, std::vector<StoreEntry>&) {};
  CHECK(group_error(none) == "accepted");
  CHECK(group_error(none, 11) == "group: an entry does not lie in it");
  CHECK(group_error(none, kPages - 6) == "group: ends behind its segment");
  CHECK(group_error([](auto& g, auto&) { g.version = 2; }) == "group: format version 2, this build has 1");
  CHECK(group_error([](auto& g, auto&) { g.pages = 5; }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto& g, auto&) { g.pages = 7; }) == "group: its entries do not fill it");
  CHECK(group_error([](auto& g, auto&) { g.pages = 0xffffffff; }) == "group: ends behind its segment");
  CHECK(group_error([](auto& g, auto&) { g.pages = 0; }) == "group: ends behind its segment");
  CHECK(group_error([](auto& g, auto&) { g.durable = 41; }) == "group: wrong numbers");
  CHECK(group_error([](auto&, auto& e) { e[0].page = 12; }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto&, auto& e) { e[0].bytes = 0; }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto&, auto& e) { e[2].bytes = 0xffffffff; }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto&, auto& e) { e[1].bytes = 1; }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto&, auto& e) { e[1].kind = StoreKind(3); }) == "group: an entry does not lie in it");
  CHECK(group_error([](auto&, auto& e) { e[1].reserved[2] = 1; }) == "group: an entry does not lie in it");
}

TEST_CASE("wire/store_format: a superblock with an impossible segment size is refused") {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{4096}, kStoreSegmentBytesMax + 4096, uint64_t{65537}, ~uint64_t{0}}) {
    StoreSuper super = super_sample();
    super.segment_bytes = bytes;
    Page page;
    encode(super, page);
    CHECK_FALSE(parse_store_super(page).has_value());
  }
}
