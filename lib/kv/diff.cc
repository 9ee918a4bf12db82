// Value by value comparison of two .mckv streams (kv/inspect.h). One extent of each side is in memory
// at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/e4m3.h"
#include "base/errors.h"
#include "kv/inspect.h"

namespace mc::kv {
namespace {

/// A reader of a stream whose errors name the stream and the offset of what it read last.
class Side {
 public:
  static Result<Side> open(const Stream& stream) {
    Side side;
    side.name_ = stream.name;
    auto reader = wire::KvReader::open([read = stream.read, last = side.last_](std::span<std::byte> out) {
      last->begin = std::exchange(last->end, last->end + out.size());
      return read(out);
    });
    if (!reader) return side.named(std::move(reader).error());
    side.reader_ = std::move(*reader);
    return side;
  }

  const std::string& name() const { return name_; }
  const wire::KvPrologue& prologue() const { return reader_->prologue(); }
  const ExtentLayout& layout() const { return reader_->layout(); }
  Result<std::optional<wire::ParsedBlockHeader>> next() {
    auto header = reader_->next();
    if (!header) return named(std::move(header).error());
    return header;
  }
  Result<void> read_extent(std::span<std::byte> out) {
    auto read = reader_->read_extent(out);
    if (!read) return named(std::move(read).error());
    return read;
  }

 private:
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  Error named(Error error) const { return within(name_ + ": byte " + std::to_string(last_->begin), std::move(error)); }

  std::string name_;
  std::shared_ptr<Range> last_ = std::make_shared<Range>();
  std::optional<wire::KvReader> reader_;
};

class Comparer {
 public:
  Comparer(const ExtentLayout& layout, Difference& out)
      : layout_(layout), out_(out), left_(layout.layer_bytes()), right_(layout.layer_bytes()) {
    out_.abs_max_by_layer.assign(layout.layers, 0);
  }

  Result<void> block(Side& left, Side& right, const wire::BlockHeader& header, uint32_t rows) {
    for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
      MC_CHECK(left.read_extent(left_));
      MC_CHECK(right.read_extent(right_));
      if (left_ == right_ && rows == header.token_count) {
        out_.value_count += uint64_t{layout_.kv_heads} * (2ull * rows + 2) * layout_.head_dim;
        continue;
      }
      for (uint32_t head = 0; head < layout_.kv_heads; ++head) head_record(layer, head, header, rows);
    }
    return {};
  }

 private:
  void head_record(uint32_t layer, uint32_t head, const wire::BlockHeader& header, uint32_t rows) {
    const size_t base = head * layout_.head_bytes();
    const Scales k = scales(base, 0), v = scales(base, 1);
    Difference::Place place{.layer = layer, .kv_head = head};
    for (uint32_t row = 0; row < rows; ++row) {
      place.position = header.first_position + row;
      place.part = 'k';
      values(place, base + layout_.k_offset() + row * layout_.row_bytes(), layout_.dtype, k);
      place.part = 'v';
      values(place, base + layout_.v_offset() + row * layout_.row_bytes(), layout_.dtype, v);
    }
    if (rows != header.token_count) return;  // ksum and kmean over different rows may differ
    place.part = 's';
    values(place, base + layout_.ksum_offset(), Dtype::f32, {});
    place.part = 'm';
    values(place, base + layout_.kmean_offset(), Dtype::bf16, {});
  }

  /// The factors of a head's codes on both sides, as exponents of two; 0 without codes.
  struct Scales {
    int left = 0, right = 0;
  };
  Scales scales(size_t base, size_t part) const {
    if (!layout_.has_scales()) return {};
    const size_t at = base + layout_.scale_offset() + part * sizeof(float);
    float left, right;
    std::memcpy(&left, left_.data() + at, 4);
    std::memcpy(&right, right_.data() + at, 4);
    return {e4m3_exponent_of(left), e4m3_exponent_of(right)};
  }

  static double value(const std::byte* at, Dtype dtype) {
    if (dtype == Dtype::f8_e4m3) return e4m3_to_f32(static_cast<uint8_t>(*at));
    if (dtype == Dtype::f32) {
      float f;
      std::memcpy(&f, at, 4);
      return f;
    }
    bf16_t half;
    std::memcpy(&half, at, 2);
    return bf16_to_f32(half);
  }

  void values(Difference::Place place, size_t offset, Dtype dtype, Scales scale) {
    const size_t width = dtype_bytes(dtype);
    out_.value_count += layout_.head_dim;
    for (uint32_t i = 0; i < layout_.head_dim; ++i) {
      const std::byte* a = left_.data() + offset + i * width;
      const std::byte* b = right_.data() + offset + i * width;
      const bool same_scale = scale.left == scale.right;
      if (std::memcmp(a, b, width) == 0 && same_scale) continue;
      place.index = i;
      place.left = std::ldexp(value(a, dtype), scale.left);
      place.right = std::ldexp(value(b, dtype), scale.right);
      const bool both_nan = std::isnan(place.left) && std::isnan(place.right);
      if (!same_scale && (both_nan || place.left == place.right)) continue;
      note(place);
    }
  }

  void note(const Difference::Place& place) {
    ++out_.differing_count;
    if (!out_.first || place.key() < out_.first->key()) out_.first = place;
    double error = std::fabs(place.left - place.right);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    const double size = std::max(std::fabs(place.left), std::fabs(place.right));
    out_.abs_max = std::max(out_.abs_max, error);
    out_.abs_max_by_layer[place.layer] = std::max(out_.abs_max_by_layer[place.layer], error);
    out_.rel_max = std::max(out_.rel_max, error == 0 ? 0 : std::isfinite(error) ? error / size : error);
  }

  ExtentLayout layout_;
  Difference& out_;
  std::vector<std::byte> left_, right_;
};

Result<void> same_layout(const Side& a, const Side& b) {
  const wire::KvPrologue &left = a.prologue(), &right = b.prologue();
  const struct {
    std::string_view name;
    std::string left, right;
  } fields[] = {{"layers", std::to_string(left.layers), std::to_string(right.layers)},
                {"kv_heads", std::to_string(left.kv_heads), std::to_string(right.kv_heads)},
                {"head_dim", std::to_string(left.head_dim), std::to_string(right.head_dim)},
                {"block_tokens", std::to_string(left.block_tokens), std::to_string(right.block_tokens)},
                {"kv_dtype", left.kv_dtype, right.kv_dtype}};
  for (const auto& field : fields)
    if (field.left != field.right)
      return user_error(err::kKvFileForeign,
                        "diff-kv: " + std::string(field.name) + " is " + field.left + " in " + a.name() + " and " +
                            field.right + " in " + b.name() + ": nothing to compare",
                        "field " + std::string(field.name),
                        "make both streams from one model with the same --dtype, --kv-dtype and --block-tokens");
  return {};
}

void compare_prompts(const wire::KvPrologue& left, const wire::KvPrologue& right, Difference& out) {
  const auto [a, b] = std::mismatch(left.ids.begin(), left.ids.end(), right.ids.begin(), right.ids.end());
  if (a != left.ids.end() || b != right.ids.end()) out.first_token = static_cast<uint32_t>(a - left.ids.begin());
  out.answer_differs = left.first_token != right.first_token;
}

std::string_view part_name(char part) {
  switch (part) {
    case 'k': return "K";
    case 'v': return "V";
    case 's': return "ksum";
    default: return "kmean";
  }
}

}  // namespace

Result<Difference> diff(const Stream& left, const Stream& right) {
  MC_TRY(a, Side::open(left));
  MC_TRY(b, Side::open(right));
  MC_CHECK(same_layout(a, b));
  Difference out;
  compare_prompts(a.prologue(), b.prologue(), out);
  Comparer comparer(a.layout(), out);
  for (;;) {
    MC_TRY(x, a.next());
    MC_TRY(y, b.next());
    if (!x || !y) return out;
    const uint32_t rows = std::min(x->header.token_count, y->header.token_count);
    const wire::BlockHeader& longer = x->header.token_count >= y->header.token_count ? x->header : y->header;
    MC_CHECK(comparer.block(a, b, longer, rows));
    ++out.blocks_compared;
  }
}

std::string Difference::text() const {
  auto real = [](double value) { return std::isfinite(value) ? Json(value).dump() : std::string("not finite"); };
  std::string out;
  if (first_token) out += "prompts differ from token " + std::to_string(*first_token) + "\n";
  if (answer_differs) out += "the first answer token differs\n";
  if (first) {
    out += "first difference  layer " + std::to_string(first->layer) + " token " + std::to_string(first->position) +
           " kv head " + std::to_string(first->kv_head) + " " + std::string(part_name(first->part)) + "[" +
           std::to_string(first->index) + "]: " + real(first->left) + " | " + real(first->right) + "\n";
    out += "max abs error     " + real(abs_max) + "\nmax rel error     " + real(rel_max) + "\n";
    out += "LAYER  MAX ABS ERROR\n";
    for (size_t layer = 0; layer < abs_max_by_layer.size(); ++layer) {
      const std::string ordinal = std::to_string(layer);
      out += std::string(5 - std::min<size_t>(5, ordinal.size()), ' ') + ordinal + "  " +
             real(abs_max_by_layer[layer]) + "\n";
    }
  }
  out += std::to_string(differing_count) + " of " + std::to_string(value_count) + " values differ in " +
         std::to_string(blocks_compared) + " blocks\n";
  return out;
}

Json Difference::json() const {
  Json place;
  if (first)
    place = Json::object({{"layer", first->layer},
                          {"position", first->position},
                          {"kv_head", first->kv_head},
                          {"part", part_name(first->part)},
                          {"index", first->index},
                          {"left", first->left},
                          {"right", first->right}});
  Json layers = Json::array();
  for (const double value : abs_max_by_layer) layers.push(value);
  Json out = Json::object({{"type", "diff_kv"},
                           {"equal", equal()},
                           {"first_differing_token", first_token ? Json(*first_token) : Json(nullptr)},
                           {"first_answer_token_differs", answer_differs},
                           {"first", std::move(place)},
                           {"abs_error_max", abs_max},
                           {"rel_error_max", rel_max},
                           {"values", value_count},
                           {"values_differing", differing_count},
                           {"blocks", blocks_compared}});
  out.set("abs_error_max_by_layer", std::move(layers));
  return out;
}

}  // namespace mc::kv
