// The KV namespace: the properties that two nodes must share before one may read the other's KV. The fields are
// written as canonical text, one `name=value` a line in a fixed order. The namespace id is the first 128 bits of
// SHA-256 of that text. The served model name is no field, because names get reused for other weights. The prefill
// attention plan is a field, because keys above layer 0 depend on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace mc::kv {

struct Namespace {
  std::string weights;       // digest of the weights, hex
  std::string config;        // digest of config.json fields that change KV, hex
  std::string dtype;         // compute dtype, e.g. "bf16"
  std::string weight_dtype;  // dtype of the weights as loaded
  std::string kv_dtype;
  std::string rope;       // canonical description, e.g. "default theta=10000"
  std::string attention;  // prefill plan, e.g. "moba:block=128,top_k=3,full_last=1"
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 0;
  uint32_t layout = 0;  // ExtentLayout::kVersion
  std::string salt;     // tenant salt; empty for the shared namespace

  bool operator==(const Namespace&) const = default;

  /// "mc-namespace 1\n" and one "name=value\n" a field; control characters and '%' as %XX.
  std::string text() const;
  NamespaceId id() const;
  /// This namespace with another tenant's salt. The conductor derives the namespaces of tenants from those that
  /// workers announce.
  Namespace with_salt(std::string_view new_salt) const;
  /// The fields that the handshake compares and prints, in text order. The salt is a secret and left out.
  std::vector<std::pair<std::string, std::string>> fields() const;
  /// Inverse of text(). Code::corrupt with the line number; refuses unknown, missing and repeated fields, because a
  /// side cannot check a field that it does not know.
  static Result<Namespace> parse(std::string_view text);
};

struct FieldDifference {
  std::string name, ours, theirs;
};

/// The fields() that differ, in order.
std::vector<FieldDifference> differences(const Namespace& ours, const Namespace& theirs);

}  // namespace mc::kv
