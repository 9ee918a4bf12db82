#include "attn/attn.h"
#include "base/parallel.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;

TEST_CASE("attn/dispatch: auto finds a variant that runs here, the same one every time") {
  auto first = find_variant("auto"), second = find_variant("");
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  CHECK(*first == *second);
  CHECK(lacking(**first).empty());
}

TEST_CASE("attn/dispatch: a variant forced by name is found, or refused with what the CPU lacks") {
  for (const Variant* variant : variants()) {
    auto found = find_variant(name_of(*variant));
    if (lacking(*variant).empty()) {
      REQUIRE_OK(found);
      CHECK(*found == variant);
    } else {
      CHECK(found.error().code == Code::unsupported);
      CHECK(found.error().what.find(lacking(*variant)) != std::string::npos);
    }
  }
}

TEST_CASE("attn/dispatch: an unknown name is refused with the names there are") {
  Parallel pool(1);
  auto attention = Attention::open(pool, "mmx");
  REQUIRE_FALSE(attention);
  for (const Variant* variant : variants())
    CHECK(attention.error().what.find(std::string(name_of(*variant))) != std::string::npos);
}

TEST_CASE("attn/dispatch: calls without rows or sequences do nothing") {
  Parallel pool(1);
  for (const Variant* variant : variants()) {
    if (!lacking(*variant).empty()) continue;
    auto attention = Attention::open(pool, name_of(*variant));
    REQUIRE_OK(attention);
    const ExtentLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 64};
    CHECK(attention->prefill({.layout = layout, .q_heads = 1}).has_value());
    CHECK(attention->decode({.layout = layout, .q_heads = 1}).has_value());
  }
}
