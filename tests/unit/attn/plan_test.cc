#include "attn/plan.h"

#include "test.h"

using namespace mc;
using namespace mc::attn;

namespace {

std::string resolved(const char* asked, const char* declared, int32_t layers = 32, int32_t block_tokens = 64) {
  auto text = parse_plan(asked);
  REQUIRE_OK(text);
  std::optional<PlanText> model;
  if (declared != nullptr) {
    auto parsed = parse_plan(declared);
    REQUIRE_OK(parsed);
    model = *parsed;
  }
  auto plan = resolve(*text, model, layers, block_tokens);
  return plan ? to_string(*plan) : "error: " + plan.error().what;
}

std::string refused(const char* text) {
  auto plan = parse_plan(text);
  return plan ? "accepted" : plan.error().what;
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("attn/plan: auto is what the model declares, and never MoBA when it declares nothing") {
  CHECK(resolved("auto", nullptr) == "full");
  CHECK(resolved("auto", "full") == "full");
  CHECK(resolved("auto", "moba:block=64,top_k=3,full_last=1") == "moba:block=64,top_k=3,full_last=1");
}

TEST_CASE("attn/plan: parameters left out come from the model, else from the defaults, in canonical order") {
  CHECK(resolved("moba", nullptr) == "moba:block=128,top_k=3,full_last=1");
  CHECK(resolved("moba:top_k=8,block=256", nullptr) == "moba:block=256,top_k=8,full_last=1");
  CHECK(resolved("moba:top_k=5", "moba:block=64,top_k=3,full_last=2") == "moba:block=64,top_k=5,full_last=2");
  CHECK(resolved("moba:full_last=0", nullptr) == "moba:block=128,top_k=3,full_last=0");
  CHECK(resolved("full", "moba:block=64") == "full");
}

TEST_CASE("attn/plan: a window is in every layer unless some are kept full, and a model may declare it") {
  CHECK(resolved("window", nullptr) == "window:tokens=4096,full_last=0");
  CHECK(resolved("window:full_last=2,tokens=100", nullptr) == "window:tokens=100,full_last=2");
  CHECK(resolved("auto", "window:tokens=512") == "window:tokens=512,full_last=0");
  CHECK(resolved("window", "window:tokens=512") == "window:tokens=512,full_last=0");
  CHECK(resolved("full", "window:tokens=512") == "full");
  CHECK(has(refused("window:tokens=0"), "tokens must be a whole number in 1..16777216"));
  CHECK(has(refused("window:block=64"), "window has no parameter 'block'; it has tokens, full_last"));
}

TEST_CASE("attn/plan: all layers kept full is full attention, however it is spelt") {
  CHECK(resolved("moba:full_last=32", nullptr) == "full");
  CHECK(resolved("moba", nullptr, 1) == "full");
}

TEST_CASE("attn/plan: the last layers are full, the others run the mode") {
  auto plan = resolve(*parse_plan("moba:block=64,top_k=2,full_last=3"), std::nullopt, 8, 64);
  REQUIRE_OK(plan);
  for (int layer = 0; layer < 8; ++layer)
    CHECK(plan->layer(layer) == (layer < 5 ? Mode{ModeKind::moba, 64, 2} : Mode{}));
}

TEST_CASE(
    "attn/plan: a block that is no multiple of the KV block, or too many full layers, is refused with both numbers") {
  CHECK(has(resolved("moba:block=96", nullptr), "block 96 is not a multiple of the KV block of 64 tokens"));
  CHECK(has(resolved("moba:full_last=33", nullptr), "keeps the last 33 layers full, but the model has 32"));
  CHECK(has(resolved("auto", "auto"), "declares attention 'auto'"));
}

TEST_CASE("attn/plan: text that is no plan is refused, naming what is wrong and what there is") {
  CHECK(has(refused(""), "no mode ''; there are auto, full, moba"));
  CHECK(has(refused("sparse"), "no mode 'sparse'"));
  CHECK(has(refused("full:block=64"), "full takes no parameters"));
  CHECK(has(refused("moba:"), "'' is not name=value"));
  CHECK(has(refused("moba:block"), "'block' is not name=value"));
  CHECK(has(refused("moba:size=3"), "moba has no parameter 'size'; it has block, top_k, full_last"));
  CHECK(has(refused("moba:block=0"), "block must be a whole number in 1..1048576, not '0'"));
  CHECK(has(refused("moba:top_k=-1"), "top_k must be a whole number in 1..1024"));
  CHECK(has(refused("moba:top_k=1e3"), "top_k must be"));
  CHECK(has(refused("moba:top_k=2,top_k=3"), "top_k is given twice"));
  CHECK(has(refused("moba:full_last=1,full_last=1"), "full_last is given twice"));
  CHECK(has(refused("moba:block=64,"), "'' is not name=value"));
  CHECK(has(refused(std::string(100000, 'x').c_str()), "is 100000 bytes long"));
}
