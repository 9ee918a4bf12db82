// Reads fields of one JSON file of a model directory. Errors name file, field and value. Used inside lib/model only.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/result.h"
#include "ops/rope.h"

namespace mc::model {

inline std::string quoted(const Json& value) {
  return value.dump().substr(0, 120);
}

/// The JSON must outlive the reader.
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const Json& operator[](const char* field) const { return json_[field]; }
  bool given(const char* field) const { return json_.has(field) && !json_[field].is_null(); }

  Error invalid(const std::string& field, const std::string& what) const {
    return user_error(err::kConfigInvalid, path_ + ": " + field + " " + what);
  }
  Error unsupported(err::Number number, const std::string& field, const std::string& value,
                    const std::string& allowed) const {
    return user_error(number, path_ + ": " + field + " is " + value + "; supported: " + allowed);
  }

  Result<uint32_t> size(const char* field, uint32_t high) const {
    const Json& value = json_[field];
    const int64_t number = value.as_int(-1);
    if (!json_.has(field)) return invalid(field, "is missing");
    if (number < 1 || number > high)
      return invalid(field, "is " + quoted(value) + "; it must be a whole number from 1 to " + std::to_string(high));
    return static_cast<uint32_t>(number);
  }
  Result<bool> flag(const char* field) const {
    if (!given(field)) return false;
    if (!json_[field].is_bool()) return invalid(field, "is " + quoted(json_[field]) + "; it must be true or false");
    return json_[field].as_bool();
  }
  /// Reads a field of `object`, a part of the file. `where` is the path of the object, for messages.
  Result<double> positive(const Json& object, const std::string& where) const {
    const std::string field = where.substr(where.rfind('.') + 1);
    const Json& value = object[field];
    const double number = value.as_double(0);
    if (!value.is_number() || !(number > 0) || !std::isfinite(number))
      return invalid(where, "is " + quoted(value) + "; it must be a positive number");
    return number;
  }
  const std::string& path() const { return path_; }

 private:
  const Json& json_;
  std::string path_;
};

/// Reads RoPE in both spellings: rope_theta + rope_scaling, or rope_parameters. `positions` is max_position_embeddings;
/// the scaling may change it. See config_rope.cc.
Result<ops::RopeConfig> read_rope(const Reader& reader, uint32_t& positions);

}  // namespace mc::model
