// Restarts: groups that other lives, other stores and failed calls left in the files are not taken for the own ones.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "test.h"
#include "unit/store/faults.h"
#include "wire/store_format.h"

namespace store_faults {

TEST_CASE("store: a group that an earlier life left behind does not follow a new one, even in the same epoch") {
  for (const bool same_epoch : {false, true}) {
    CAPTURE(same_epoch);
    Faults first, second, third;
    REQUIRE_OK(open_image({}, &first));
    auto store = open_image(first.image, &second);
    REQUIRE_OK(store);
    for (uint64_t n = 1; n <= 3; ++n) REQUIRE_OK(put_one(**store, n, Level::written));  // three groups of three pages
    DiskImage image = second.image;  // the power fails now, and tears the value of the second group
    for (auto& [name, bytes] : image) {
      const auto value = value_of(2);
      const auto at = std::search(bytes.begin(), bytes.end(), value.begin(), value.end());
      if (at != bytes.end()) *at ^= std::byte{1};
    }
    if (same_epoch) image.at("super.b")[0] ^= std::byte{1};  // the newer one
    auto again = open_image(image, &third);
    REQUIRE_OK(again);
    CHECK((*again)->restart().blocks == 1);
    REQUIRE_OK(put_one(**again, 4));  // in the place of the second group
    auto last = open_image(third.image);
    REQUIRE_OK(last);
    CHECK(get_one(**last, 1) == Code::ok);
    CHECK(get_one(**last, 4) == Code::ok);
    CHECK(get_one(**last, 3) == Code::not_found);
  }
}

/// Encodes the group at `page` again, with `change` in its header.
void forge(std::vector<std::byte>& segment, size_t page, const std::function<void(wire::StoreGroup&)>& change) {
  const auto bytes = wire::StorePage(segment.data() + page * kPageBytes, kPageBytes);
  std::vector<wire::StoreEntry> entries;
  auto group = parse_store_group(bytes, static_cast<uint32_t>(page), kSegment / kPageBytes, entries);
  REQUIRE_OK(group);
  change(*group);
  encode(*group, entries, bytes);
}

struct Forgery {
  const char* what;
  std::function<void(wire::StoreGroup&)> change;
};

TEST_CASE("store: every field of a header decides whether its group follows the one before it") {
  Faults first, second;
  REQUIRE_OK(open_image({}, &first));
  auto store = open_image(first.image, &second);  // epoch 2
  REQUIRE_OK(store);
  for (uint64_t n = 1; n <= 2; ++n) REQUIRE_OK(put_one(**store, n));  // two groups of three pages
  const Forgery forgeries[] = {
      {"nothing", [](wire::StoreGroup&) {}},
      {"another store", [](wire::StoreGroup& g) { g.store ^= 1; }},
      {"another segment", [](wire::StoreGroup& g) { ++g.sequence; }},
      {"a number is left out", [](wire::StoreGroup& g) { ++g.number; }},
      {"an earlier epoch", [](wire::StoreGroup& g) { --g.epoch; }},
      {"an epoch of the future", [](wire::StoreGroup& g) { g.epoch = 1000; }},
      {"another predecessor", [](wire::StoreGroup& g) { g.previous_crc ^= 1; }},
  };
  for (const auto& [what, change] : forgeries) {
    CAPTURE(what);
    DiskImage image = second.image;
    forge(image.at("seg.000000"), 3, change);
    auto again = open_image(image);
    REQUIRE_OK(again);
    CHECK(get_one(**again, 1) == Code::ok);
    CHECK((get_one(**again, 2) == Code::ok) == (what == std::string_view("nothing")));
  }
}

TEST_CASE("store: a segment that is none of this store takes nothing from the segments before it") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 1; n <= 2; ++n) REQUIRE_OK(put_one(**store, n));
  const Forgery forgeries[] = {
      {"another store", [](wire::StoreGroup& g) { g.store ^= 1; }},
      {"an epoch of the future", [](wire::StoreGroup& g) { g.epoch = 1000; }},
      {"a group that follows another", [](wire::StoreGroup& g) { g.previous_crc = 1; }},
  };
  for (const auto& [what, change] : forgeries) {
    CAPTURE(what);
    DiskImage image = faults.image;
    auto& stranger = image.at("seg.000001");
    stranger = image.at("seg.000000");
    forge(stranger, 0, [&](wire::StoreGroup& group) {
      ++group.sequence;
      change(group);
    });
    auto again = open_image(image);
    REQUIRE_OK(again);
    for (uint64_t n = 1; n <= 2; ++n) CHECK(get_one(**again, n) == Code::ok);
  }
}

TEST_CASE("store: a put that failed because no flush succeeded is not there after a restart") {
  for (const bool wipes : {true, false}) {  // whether the failed group's header could be overwritten
    CAPTURE(wipes);
    Faults faults;
    auto store = open_image({}, &faults);
    REQUIRE_OK(store);
    for (uint64_t n = 1; n <= 2; ++n) REQUIRE_OK(put_one(**store, n));
    std::vector<std::string> failed;
    faults.fail = [&](const Io& io, const std::string& name) {
      if (io.op == Io::Op::flush) failed.push_back(name);
      const bool given_up = std::count(failed.begin(), failed.end(), name) > 0;
      return io.op == Io::Op::flush || (io.op == Io::Op::write && given_up && !wipes) ? EIO : 0;
    };
    CHECK_FALSE(put_one(**store, 3).has_value());
    REQUIRE(failed.size() == 2);
    faults.fail = nullptr;
    if (!wipes) REQUIRE_OK(put_one(**store, 4));  // its group has the number of the failed one
    auto again = open_image(faults.image);  // the process was killed, and all its writes are there
    REQUIRE_OK(again);
    for (uint64_t n = 1; n <= 2; ++n) CHECK(get_one(**again, n) == Code::ok);
    CHECK(get_one(**again, 3) == Code::not_found);
    CHECK(get_one(**again, 4) == (wipes ? Code::not_found : Code::ok));
  }
}

TEST_CASE("store: a segment whose first group is torn is erased by the restart, so that it cannot come back later") {
  Faults first, second;
  auto store = open_image({}, &first);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 4; ++n) REQUIRE_OK(put_one(**store, n));  // the first segment is full
  REQUIRE_OK(put_one(**store, 4, Level::written));
  DiskImage image = first.image;  // the power fails now, and tears the value
  CHECK(image.at("seg.000001")[0] != std::byte{0});
  image.at("seg.000001")[kPageBytes] ^= std::byte{1};
  auto again = open_image(image, &second);
  REQUIRE_OK(again);
  CHECK(get_one(**again, 3) == Code::ok);
  CHECK(get_one(**again, 4) == Code::not_found);
  CHECK((*again)->restart().damaged.empty());
  const auto& page = second.image.at("seg.000001");
  CHECK(std::all_of(page.begin(), page.begin() + kPageBytes, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace store_faults
