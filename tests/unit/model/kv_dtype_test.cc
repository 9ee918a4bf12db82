// K and V in another type than the rest: which types there are, and what holds for pages of fp8_e4m3.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "golden.h"
#include "model/runner.h"

using namespace mc;
using namespace mc::model;

namespace {

ModelOptions fp8_options(const std::string& dtype = "auto") {
  return {.dtype = dtype, .kv_dtype = "fp8_e4m3"};
}

/// A sequence on a model whose pages are fp8_e4m3.
class Fp8Sequence {
 public:
  Fp8Sequence(test::Loaded& loaded, size_t tokens, const attn::Plan& plan) : loaded_(loaded), plan_(plan) {
    auto pages = LocalPages::allocate(loaded.runner.layout(), static_cast<int64_t>(tokens));
    REQUIRE_OK(pages);
    pages_ = std::move(*pages);
  }

  /// Logits of the last of tokens [from, end).
  std::vector<float> prefill(const std::vector<uint32_t>& ids, size_t from, size_t end, size_t chunk_tokens) {
    std::vector<float> logits(loaded_.model.config().vocab);
    for (size_t start = from; start < end; start += chunk_tokens) {
      PrefillChunk chunk;
      chunk.tokens = std::span(ids).subspan(start, std::min(chunk_tokens, end - start));
      chunk.start = static_cast<int64_t>(start);
      chunk.pages = pages_->pages();
      chunk.plan = &plan_;
      if (start + chunk.tokens.size() == end) chunk.logits = logits;
      REQUIRE_OK(loaded_.runner.prefill(chunk));
    }
    return logits;
  }

  DecodeRow row(const std::vector<uint32_t>& ids, size_t position) {
    return {ids[position], static_cast<int64_t>(position), pages_->pages(), &plan_};
  }

  /// The bytes of the first `count` pages.
  std::string bytes(size_t count) const {
    std::string out;
    for (size_t i = 0; i < count; ++i)
      out.append(reinterpret_cast<const char*>(pages_->page(i).data()), pages_->page(i).size());
    return out;
  }

 private:
  test::Loaded& loaded_;
  attn::Plan plan_;
  std::optional<LocalPages> pages_;
};

std::vector<uint32_t> drawn_ids(const Model& model, size_t count) {
  Rng rng(test::seed() + 41);
  std::vector<uint32_t> ids(count);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(model.config().vocab));
  return ids;
}

}  // namespace

TEST_CASE("model/kv_dtype: K and V have the compute type or fp8_e4m3, and other types are refused with both names") {
  const std::string directory = test::read_golden("mc-tiny").directory;
  const auto resolved = [&](const std::string& dtype, const std::string& kv) -> std::string {
    const auto plan = plan_model(directory, {.dtype = dtype, .kv_dtype = kv});
    return plan ? std::string(to_string(plan->kv_dtype)) : plan.error().what;
  };
  CHECK(resolved("auto", "auto") == "bf16");
  CHECK(resolved("auto", "bf16") == "bf16");
  CHECK(resolved("f32", "auto") == "f32");
  CHECK(resolved("f32", "fp8_e4m3") == "fp8_e4m3");
  CHECK(resolved("auto", "fp8_e4m3") == "fp8_e4m3");
  CHECK(resolved("f32", "bf16").find("K and V in 'bf16' beside the compute type f32") != std::string::npos);
  CHECK(resolved("auto", "f16").find("K and V in 'f16' beside the compute type bf16") != std::string::npos);
}

TEST_CASE("model/kv_dtype: fp8_e4m3 is another namespace, and its pages have 52 % of bf16's bytes") {
  const std::string directory = test::read_golden("mc-tiny").directory;
  const auto plain = test::Loaded::open(directory, "auto"), fp8 = test::Loaded::open(directory, fp8_options());
  const attn::Plan plan = test::full_plan(plain->model);
  CHECK(plain->model.kv_namespace(plan, 64).id() != fp8->model.kv_namespace(plan, 64).id());
  CHECK(fp8->model.kv_namespace(plan, 64).kv_dtype == "fp8_e4m3");
  CHECK(fp8->model.kv_namespace(plan, 64).dtype == "bf16");
  const ExtentLayout narrow = fp8->runner.layout(), wide = plain->runner.layout();
  CHECK(narrow.layer_bytes() == 2 * (2 * 64 * 64 + 256 + 128 + 64));
  CHECK(static_cast<double>(narrow.layer_bytes()) / static_cast<double>(wide.layer_bytes()) < 0.52);
}

TEST_CASE("model/kv_dtype: with fp8_e4m3 KV bytes and logits do not depend on chunks or a resumed prefix") {
  for (const char* dtype : {"bf16", "f32"}) {
    const auto loaded = test::Loaded::open(test::read_golden("mc-tiny").directory, fp8_options(dtype), 2);
    const auto ids = drawn_ids(loaded->model, 460);
    for (const attn::Plan& plan : {test::full_plan(loaded->model), test::moba_plan(loaded->model, 64, 3, 1)}) {
      Fp8Sequence whole(*loaded, 460, plan), parts(*loaded, 460, plan), resumed(*loaded, 460, plan);
      const auto logits = whole.prefill(ids, 0, 460, 4096);
      CHECK(parts.prefill(ids, 0, 460, 64) == logits);
      CHECK(parts.bytes(8) == whole.bytes(8));
      resumed.prefill(ids, 0, 320, 192);
      CHECK(resumed.prefill(ids, 320, 460, 128) == logits);
      CHECK(resumed.bytes(8) == whole.bytes(8));
    }
  }
}

TEST_CASE("model/kv_dtype: with fp8_e4m3 a row decodes to the same bits alone and in a batch") {
  const auto loaded = test::Loaded::open(test::read_golden("mc-tiny").directory, fp8_options(), 2);
  const size_t vocab = loaded->model.config().vocab;
  const auto ids = drawn_ids(loaded->model, 300);
  const attn::Plan plans[] = {test::full_plan(loaded->model), test::moba_plan(loaded->model, 64, 2, 1)};
  const size_t lengths[] = {5, 64, 127, 250};
  std::vector<std::unique_ptr<Fp8Sequence>> alone, together;
  for (size_t i = 0; i < 4; ++i)
    for (auto* list : {&alone, &together}) {
      list->push_back(std::make_unique<Fp8Sequence>(*loaded, 300, plans[i % 2]));
      list->back()->prefill(ids, 0, lengths[i], 4096);
    }
  std::vector<float> batch(4 * vocab), one(vocab);
  for (size_t step = 0; step < 3; ++step) {
    std::vector<DecodeRow> rows;
    for (size_t i = 0; i < 4; ++i) rows.push_back(together[i]->row(ids, lengths[i] + step));
    REQUIRE_OK(loaded->runner.decode(rows, batch));
    for (size_t i = 0; i < 4; ++i) {
      const DecodeRow row = alone[i]->row(ids, lengths[i] + step);
      REQUIRE_OK(loaded->runner.decode({&row, 1}, one));
      INFO("row " << i << ", step " << step);
      CHECK(std::equal(one.begin(), one.end(), batch.begin() + static_cast<ptrdiff_t>(i * vocab)));
    }
  }
}

TEST_CASE("model/kv_dtype: fp8_e4m3 moves the logits, by less than a 25th of their range") {
  // A value of K or V moves by 2^-4 of itself at most, 2^-5.3 rms. Attention averages over keys and the residual stream
  // carries the rest unchanged, so the logits of mc-tiny move by 1 to 2 % of their range.
  const test::Golden golden = test::read_golden("mc-tiny");
  const auto plain = test::Loaded::open(golden.directory, "f32"),
             fp8 = test::Loaded::open(golden.directory, fp8_options("f32"));
  const auto& ids = golden.cases.front().prompt;
  const attn::Plan plan = test::full_plan(plain->model);
  const auto a = Fp8Sequence(*plain, ids.size(), plan).prefill(ids, 0, ids.size(), 4096);
  const auto b = Fp8Sequence(*fp8, ids.size(), plan).prefill(ids, 0, ids.size(), 4096);
  const auto [low, high] = std::minmax_element(a.begin(), a.end());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  INFO("largest difference " << worst / (*high - *low) << " of the range");
  CHECK(worst > 0);
  CHECK(worst <= (*high - *low) / 25);
}
