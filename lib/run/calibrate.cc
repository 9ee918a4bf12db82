#include "run/calibrate.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/errors.h"
#include "base/fd.h"
#include "model/generate.h"

namespace mc::run {
namespace {

struct Field {
  const char* name;
  double sched::Cost::*value;
};
constexpr Field kFields[] = {
    {"prefill_s", &sched::Cost::prefill_s},
    {"prefill_s_per_token", &sched::Cost::prefill_s_per_token},
    {"prefill_s_per_token2", &sched::Cost::prefill_s_per_token2},
    {"decode_s", &sched::Cost::decode_s},
    {"decode_s_per_row", &sched::Cost::decode_s_per_row},
    {"decode_s_per_kv_token", &sched::Cost::decode_s_per_kv_token},
    {"read_bytes_per_s", &sched::Cost::read_bytes_per_s},
};

}  // namespace

Result<sched::Cost> measure_cost(model::Runner& runner, Duration budget) {
  sched::Cost cost;
  const Clock& clock = SystemClock::instance();
  const TimePoint end = clock.now() + budget;
  const auto& config = runner.model().config();
  const int64_t longest = std::min<int64_t>({256, runner.options().max_chunk_tokens, config.max_positions - 8});
  MC_TRY(pages, model::LocalPages::allocate(runner.layout(), longest + 8));
  MC_TRY(plan, attn::resolve(attn::PlanText{.automatic = false}, config.attention, static_cast<int32_t>(config.layers),
                             static_cast<int32_t>(runner.options().block_tokens)));
  std::vector<uint32_t> tokens(static_cast<size_t>(longest));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>((i * 7919 + 3) % config.vocab);
  std::vector<sched::PrefillSample> prefills;
  for (int64_t length : {int64_t{64}, longest, int64_t{64}, longest}) {
    if (length > longest || (clock.now() > end && prefills.size() >= 2)) continue;
    const TimePoint began = clock.now();
    model::PrefillChunk chunk;
    chunk.tokens = std::span(tokens).first(static_cast<size_t>(length));
    chunk.pages = pages.pages();
    chunk.plan = &plan;
    MC_CHECK(runner.prefill(chunk));
    prefills.push_back({static_cast<double>(length), 0, to_seconds(clock.now() - began)});
  }
  // The first pass of each length pays for cold caches; the best of each is what counts.
  std::sort(prefills.begin(), prefills.end(),
            [](auto& a, auto& b) { return a.tokens != b.tokens ? a.tokens < b.tokens : a.seconds < b.seconds; });
  prefills.erase(std::unique(prefills.begin(), prefills.end(), [](auto& a, auto& b) { return a.tokens == b.tokens; }),
                 prefills.end());
  sched::fit_prefill(prefills, cost);
  std::vector<float> logits(2 * size_t{config.vocab});
  double best_s = 1e9;
  for (int i = 0; i < 4; ++i) {
    const model::DecodeRow row{tokens[0], longest + i, pages.pages(), &plan};
    const TimePoint began = clock.now();
    MC_CHECK(runner.decode({&row, 1}, std::span(logits).first(config.vocab)));
    best_s = std::min(best_s, to_seconds(clock.now() - began));
    if (clock.now() > end) break;
  }
  // One point cannot tell a step's constant part from its rows; online observation corrects the sum.
  cost.decode_s = 0.8 * best_s;
  cost.decode_s_per_row = 0.2 * best_s;
  return cost;
}

std::string format_cost(const sched::Cost& cost) {
  std::ostringstream out;
  out << "# cost model of one worker, seconds and bytes/s (mc-bench model --save-cost)\n";
  out.precision(9);
  for (const auto& field : kFields) out << field.name << " = " << cost.*field.value << "\n";
  return out.str();
}

Result<sched::Cost> load_cost(const std::string& path) {
  MC_TRY(text, read_file(path, 1 << 16));
  sched::Cost cost;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = path + ":" + std::to_string(number);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const std::string key = line.substr(0, line.find_last_not_of(" \t", equals == 0 ? 0 : equals - 1) + 1);
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields), [&](auto& f) { return key == f.name; });
    if (equals == std::string::npos || field == std::end(kFields))
      return user_error(err::kConfigFile, "unknown key " + key + " in a cost model", where);
    const size_t start = line.find_first_not_of(" \t", equals + 1);
    double value = -1;
    const auto parsed = std::from_chars(line.data() + std::min(start, line.size()), line.data() + line.size(), value);
    if (parsed.ec != std::errc() || !(value >= 0))
      return user_error(err::kConfigFile, key + " is not a number of 0 or more", where);
    cost.*(field->value) = value;
  }
  return cost;
}

}  // namespace mc::run
