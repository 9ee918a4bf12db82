// links: door
// Requests of the store API. The first line is a query, and the rest is the body of a put or of a batch. Whatever
// parses keeps its bounds: values lie inside the body and do not overlap, and keys are keys.
#include <cstdlib>
#include <string>
#include <string_view>

#include "door/store_request.h"
#include "fuzz_target.h"

namespace mc::store_request_fuzz {
namespace {

void check(const mc::door::StoreOp& op) {
  using mc::door::StoreVerb;
  if (!mc::node::check_value_key(op.key)) std::abort();
  const bool relocates = op.verb == StoreVerb::copy || op.verb == StoreVerb::move;
  if (relocates && !mc::node::check_value_key(op.to)) std::abort();
  if (op.terms.ttl <= mc::Duration{} || op.terms.pin < mc::Duration{} || op.lease < mc::Duration{}) std::abort();
  if (!op.member.empty() && (op.verb != StoreVerb::get || op.lists_members)) std::abort();
  if (op.verb == StoreVerb::pin && op.pin <= mc::Duration{}) std::abort();
}

}  // namespace

FUZZ_TARGET(store_request) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view query = text.substr(0, text.find('\n'));
  const std::string_view body = text.substr(std::min(text.size(), query.size() + 1));
  for (const http::Method method : {http::Method::get, http::Method::put, http::Method::post, http::Method::del}) {
    http::Request request;
    request.method = method;
    request.query = query;
    if (method == http::Method::put) request.body = std::string(body);
    if (const auto op = door::parse_store_op(request, "key")) check(*op);
  }
  (void)door::store_tenant(query);
  if (const auto listing = door::parse_store_listing(query))
    if (listing->limit < 1 || listing->limit > door::kStoreListMax) std::abort();
  const auto ops = door::parse_store_batch(body);
  if (!ops) return 0;
  if (ops->empty() || ops->size() > door::kStoreBatchMax) std::abort();
  size_t values = 0;
  for (const door::StoreOp& op : *ops) {
    check(op);
    values += op.value.size();
    if (!op.value.empty() && (op.value.data() < body.data() || op.value.data() + op.value.size() > body.data() + size))
      std::abort();
  }
  if (values != body.size() - body.find('\n') - 1) std::abort();
  return 0;
}

}  // namespace mc::store_request_fuzz
