// Profiles as TOML (base/toml.h). One table of keys serves reading, range checks and writing, so a written profile can
// be read back. An unknown key is an error, because a misspelt key must not become a silent default.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/toml.h"
#include "base/units.h"
#include "sched/profile.h"

namespace mc::sched {
namespace {

constexpr std::array<std::string_view, 3> kKinds = {"fitted", "analytic", "measured"};  // in the order of Profile::Kind
constexpr size_t kPointsMax = 10'000;
constexpr size_t kSpreadMax = 1024;
constexpr double kHuge = 1e18;

enum class In : uint8_t { every, fitted, analytic };  // the kinds of profile that have the key

struct Number {
  std::string_view table, key;
  In in;
  double low, high;
  double* (*real)(Profile&);
  uint64_t* (*whole)(Profile&);
};

#define MC_REAL(table, key, in, low, high, member)                               \
  {                                                                              \
    table, key, In::in, low, high, [](Profile& p) { return &p.member; }, nullptr \
  }
#define MC_WHOLE(table, key, low, high, member)                                     \
  {                                                                                 \
    table, key, In::every, low, high, nullptr, [](Profile& p) { return &p.member; } \
  }

constexpr Number kNumbers[] = {
    MC_WHOLE("node", "layers", 1, 4096, layers),
    MC_WHOLE("node", "kv_bytes_per_token", 0, 1e9, kv_bytes_per_token),
    MC_WHOLE("node", "activation_bytes_per_token", 0, 1e9, activation_bytes_per_token),
    MC_WHOLE("node", "context_tokens", 1, 1e9, context_tokens),
    MC_WHOLE("node", "chunk_tokens", 1, 1e9, chunk_tokens),
    MC_WHOLE("node", "kv_capacity_tokens", 0, 1e12, capacity.kv_tokens),
    MC_WHOLE("node", "dram_bytes", 0, 1e15, capacity.dram_bytes),
    MC_WHOLE("node", "ssd_bytes", 0, 1e15, capacity.ssd_bytes),
    MC_REAL("paths.net", "bytes_per_s", every, 1, kHuge, paths.net.bytes_per_s),
    MC_REAL("paths.net", "latency_s", every, 0, 1e3, paths.net.latency_s),
    MC_REAL("paths.load", "bytes_per_s", every, 1, kHuge, paths.load.bytes_per_s),
    MC_REAL("paths.load", "latency_s", every, 0, 1e3, paths.load.latency_s),
    MC_REAL("paths.store", "bytes_per_s", every, 1, kHuge, paths.store.bytes_per_s),
    MC_REAL("paths.store", "latency_s", every, 0, 1e3, paths.store.latency_s),
    MC_REAL("paths.ssd_read", "bytes_per_s", every, 1, kHuge, paths.ssd_read.bytes_per_s),
    MC_REAL("paths.ssd_read", "latency_s", every, 0, 1e3, paths.ssd_read.latency_s),
    MC_REAL("paths.ssd_write", "bytes_per_s", every, 1, kHuge, paths.ssd_write.bytes_per_s),
    MC_REAL("paths.ssd_write", "latency_s", every, 0, 1e3, paths.ssd_write.latency_s),
    MC_REAL("prefill", "fixed_s", fitted, 0, 1e6, cost.prefill_s),
    MC_REAL("prefill", "s_per_token", fitted, 0, 1e3, cost.prefill_s_per_token),
    MC_REAL("prefill", "s_per_token2", fitted, 0, 1, cost.prefill_s_per_token2),
    MC_REAL("prefill", "s_per_reused_token", every, 0, 1e3, reused_s_per_token),
    MC_REAL("prefill", "chunk_s", every, 0, 1e3, chunk_s),
    MC_REAL("decode", "fixed_s", fitted, 0, 1e6, cost.decode_s),
    MC_REAL("decode", "s_per_row", fitted, 0, 1e3, cost.decode_s_per_row),
    MC_REAL("decode", "s_per_kv_token", fitted, 0, 1, cost.decode_s_per_kv_token),
    MC_REAL("decode", "join_s", every, 0, 1e3, join_s),
    MC_REAL("roofline", "flops", analytic, 1, kHuge, roofline.flops),
    MC_REAL("roofline", "memory_bytes_per_s", analytic, 1, kHuge, roofline.memory_bytes_per_s),
    MC_REAL("roofline", "memory_bytes", analytic, 1, kHuge, roofline.memory_bytes),
    MC_REAL("roofline", "allreduce_bytes_per_s", analytic, 0, kHuge, roofline.allreduce_bytes_per_s),
    MC_REAL("roofline", "hidden", analytic, 1, 1e7, roofline.hidden),
    MC_REAL("roofline", "intermediate", analytic, 1, 1e7, roofline.intermediate),
    MC_REAL("roofline", "heads", analytic, 1, 1e5, roofline.heads),
    MC_REAL("roofline", "kv_heads", analytic, 1, 1e5, roofline.kv_heads),
    MC_REAL("roofline", "head_dim", analytic, 1, 1e5, roofline.head_dim),
    MC_REAL("roofline", "vocab", analytic, 1, 1e9, roofline.vocab),
    MC_REAL("roofline", "element_bytes", analytic, 0.25, 8, roofline.element_bytes),
    MC_REAL("roofline", "kv_element_bytes", analytic, 0, 8, roofline.kv_element_bytes),
    MC_REAL("roofline", "gemm_efficiency", analytic, 1e-4, 1, roofline.gemm_efficiency),
    MC_REAL("roofline", "attention_efficiency", analytic, 1e-4, 1, roofline.attention_efficiency),
    MC_REAL("roofline", "memory_efficiency", analytic, 1e-4, 1, roofline.memory_efficiency),
    MC_REAL("roofline", "fixed_s", analytic, 0, 1e6, roofline.fixed_s),
    MC_REAL("roofline", "layer_s", analytic, 0, 1e3, roofline.layer_s),
    MC_REAL("roofline", "row_s", analytic, 0, 1e3, roofline.row_s),
    MC_REAL("error", "prefill_mape", every, 0, kHuge, error.prefill_mape),
    MC_REAL("error", "step_mape", every, 0, kHuge, error.step_mape),
    MC_REAL("error", "net_mape", every, 0, kHuge, error.net_mape),
};
#undef MC_REAL
#undef MC_WHOLE

struct Text {
  std::string_view key;
  std::string Profile::*member;
};
constexpr Text kTexts[] = {{"name", &Profile::name}, {"hardware", &Profile::hardware}, {"model", &Profile::model}};

bool belongs(const Number& n, Profile::Kind kind) {
  return n.in == In::every || (n.in == In::fitted && kind == Profile::Kind::fitted) ||
         (n.in == In::analytic && kind == Profile::Kind::analytic);
}

std::string_view to_text(Profile::Kind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

struct Reader {
  std::string_view source;
  Profile profile;
  int points_line = 1;  // line of the last table of points, for errors that complete() finds

  Error bad(const TomlEntry& e, const std::string& what) const {
    const std::string path = e.table.empty() ? e.key : e.key.empty() ? e.table : e.table + "." + e.key;
    return toml_error(source, e.line, "'" + path + "' " + what);
  }

  // Reads kind and base first, because they decide the meaning of the other keys.
  Result<void> head(const std::vector<TomlEntry>& entries) {
    for (const TomlEntry& e : entries) {
      if (!e.table.empty() || e.key != "extends") continue;
      if (!e.value.is_string()) return bad(e, "is not text");
      auto base = builtin_profile(e.value.as_string());
      if (!base) return toml_error(source, e.line, base.error().what);
      profile = *std::move(base);
    }
    for (const TomlEntry& e : entries) {
      if (!e.table.empty() || e.key != "kind") continue;
      const auto kind = std::find(kKinds.begin(), kKinds.end(), e.value.as_string());
      if (kind == kKinds.end()) return bad(e, "is not \"fitted\", \"analytic\" or \"measured\"");
      profile.kind = static_cast<Profile::Kind>(kind - kKinds.begin());
    }
    return {};
  }

  Result<void> number(const TomlEntry& e, const Number& n) {
    if (!belongs(n, profile.kind))
      return bad(e, "does not belong in a profile of kind \"" + std::string(to_text(profile.kind)) + "\"");
    if (!e.value.is_number()) return bad(e, "is not a number");
    const double value = e.value.as_double();
    if (!std::isfinite(value) || value < n.low || value > n.high)
      return bad(e, "is not in " + format_f64(n.low) + ".." + format_f64(n.high));
    if (n.real != nullptr) {
      *n.real(profile) = value;
      return {};
    }
    if (value != std::floor(value)) return bad(e, "is not a whole number");
    *n.whole(profile) = static_cast<uint64_t>(value);
    return {};
  }

  Result<void> spread(const TomlEntry& e) {
    if (!e.value.is_array() || e.value.size() > kSpreadMax)
      return bad(e, "is not an array of at most " + std::to_string(kSpreadMax) + " numbers");
    points_line = e.line;
    profile.step_spread.clear();
    for (const Json& value : e.value.items()) {
      if (!value.is_number() || !(value.as_double() >= 0 && value.as_double() <= 1e6))
        return bad(e, "has a value that is no number from 0 to 1000000");
      profile.step_spread.push_back(value.as_double());
    }
    return {};
  }

  Result<void> points(const TomlEntry& e) {
    if (profile.kind != Profile::Kind::measured)
      return bad(e, "does not belong in a profile of kind \"" + std::string(to_text(profile.kind)) + "\"");
    if (!e.value.is_array() || e.value.size() == 0 || e.value.size() > kPointsMax)
      return bad(e, "is not an array of 1.." + std::to_string(kPointsMax) + " points");
    points_line = e.line;
    const bool prefill = e.table == "prefill";
    (prefill ? profile.points.prefill.clear() : profile.points.steps.clear());
    for (const Json& item : e.value.items()) {
      double v[3] = {};
      bool ok = item.size() == 3;
      for (size_t i = 0; ok && i < 3; ++i) {
        v[i] = item[i].as_double(-1);
        ok = item[i].is_number() && std::isfinite(v[i]) && v[i] >= 0 && v[i] <= 1e12;
      }
      // [tokens, reused, seconds] with reused < tokens; [rows, kv_tokens, seconds] with rows > 0.
      if (!ok || v[2] <= 0 || v[0] <= 0 || (prefill && v[1] >= v[0]))
        return bad(e, prefill ? "has a point that is not [tokens, reused, seconds]"
                              : "has a point that is not [rows, kv_tokens, seconds]");
      if (prefill)
        profile.points.prefill.push_back({v[0], v[1], v[2]});
      else
        profile.points.steps.push_back({v[0], v[1], v[2]});
    }
    return {};
  }

  Result<void> entry(const TomlEntry& e) {
    if (e.key.empty()) {
      const auto known = [&](const Number& n) {
        return n.table == e.table || (n.table.starts_with(e.table) && n.table[e.table.size()] == '.');
      };
      if (std::none_of(std::begin(kNumbers), std::end(kNumbers), known)) return bad(e, "is not a table of a profile");
      return {};
    }
    if (e.table.empty()) {
      if (e.key == "kind" || e.key == "extends") return {};
      for (const Text& t : kTexts) {
        if (e.key != t.key) continue;
        if (!e.value.is_string()) return bad(e, "is not text");
        profile.*t.member = std::string(e.value.as_string());
        return {};
      }
    }
    if (e.key == "spread" && e.table == "decode") return spread(e);
    if (e.key == "points" && (e.table == "prefill" || e.table == "decode")) return points(e);
    for (const Number& n : kNumbers)
      if (n.table == e.table && n.key == e.key) return number(e, n);
    return bad(e, "is not a key of a profile");
  }
};

void append_points(std::string& out, std::string_view key, const auto& points, auto&& three) {
  out += std::string(key) + " = [\n";
  for (const auto& point : points) {
    const std::array<double, 3> v = three(point);
    out += "  [" + format_f64(v[0]) + ", " + format_f64(v[1]) + ", " + format_f64(v[2]) + "],\n";
  }
  out += "]\n";
}

}  // namespace

Result<Profile> parse_profile(std::string_view text, std::string_view source) {
  MC_TRY(entries, parse_toml(text, source));
  Reader reader{source, {}};
  MC_CHECK(reader.head(entries));
  for (const TomlEntry& e : entries) MC_CHECK(reader.entry(e));
  if (auto done = reader.profile.complete(); !done) return toml_error(source, reader.points_line, done.error().what);
  return std::move(reader.profile);
}

std::string format_profile(const Profile& profile) {
  Profile p = profile;
  std::string out;
  for (const Text& t : kTexts) {
    out += std::string(t.key) + " = ";
    append_json_string(out, p.*t.member);
    out += "\n";
  }
  out += "kind = \"" + std::string(to_text(p.kind)) + "\"\n";
  std::string_view table;
  for (const Number& n : kNumbers) {
    if (!belongs(n, p.kind)) continue;
    if (n.table != table) {
      table = n.table;
      out += "\n[" + std::string(table) + "]\n";
      if (p.kind == Profile::Kind::measured && table == "prefill")
        append_points(out, "points", p.points.prefill, [](const PrefillSample& s) {
          return std::array{s.tokens, s.reused, s.seconds};
        });
      if (p.kind == Profile::Kind::measured && table == "decode")
        append_points(out, "points", p.points.steps, [](const StepSample& s) {
          return std::array{s.rows, s.kv_tokens, s.seconds};
        });
      if (table == "decode" && !p.step_spread.empty()) {
        out += "spread = [";
        for (size_t i = 0; i < p.step_spread.size(); ++i) out += (i ? ", " : "") + format_f64(p.step_spread[i]);
        out += "]\n";
      }
    }
    out += std::string(n.key) + " = ";
    out += n.real != nullptr ? format_f64(*n.real(p)) : std::to_string(*n.whole(p));
    out += "\n";
  }
  return out;
}

}  // namespace mc::sched
