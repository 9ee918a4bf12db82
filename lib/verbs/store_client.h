// A C++ client of the store of values on a cache node, over its HTTP door (door/store_request.h). One client has one
// connection at a time, and one thread uses it. Values are summed here when they leave and when they arrive, so a value
// that was damaged anywhere between is an error and never other bytes.
//
//   MC_TRY(place, place_of("c0", false));
//   MC_TRY(store, StoreClient::open(place));
//   MC_CHECK(store->put("models/a/notes", text, {.ttl = 10min}));
//   MC_TRY(text, store->get("models/a/notes"));
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/result.h"
#include "door/store_request.h"
#include "http/client.h"
#include "node/value_store.h"

namespace mc::verbs {

class StoreClient {
 public:
  struct Options {
    http::Headers headers;   // of every request: the API key
    std::string tenant;      // "" = the key's own, or the default tenant
    Duration timeout = 30s;  // of a call
    /// Finds other cache nodes when the node of the client does not answer a get or exist: a value with replicas is
    /// read through any of them. The client calls it once, and stays with the first node that answers. Empty: there are
    /// none.
    std::function<std::vector<std::string>()> find_others = {};
  };
  /// A member of a group.
  struct Member {
    std::string name, value;
  };
  /// One operation of a batch: a put of `value`, a get that fills it, or another one on the key.
  struct Item {
    std::string key;
    std::string value;
    std::optional<uint64_t> bytes = {};        // exist_all() sets it for a value that is there
    std::optional<door::ValueTier> tier = {};  // of a get; nullopt: no value, or a node that sends no tier
    std::optional<Error> error = {};
  };
  static constexpr size_t kItemsMax = 1024;

  /// `place`: see place_of(). MC2101 when the name has no address; nothing is sent yet.
  static Result<std::unique_ptr<StoreClient>> open(std::string place, Options options);

  using PutResult = node::ValueStore::PutResult;
  /// Errors keep the number and the next step that the node sent.
  Result<PutResult> put(std::string_view key, std::string_view value, const node::ValueTerms& terms);
  Result<std::string> get(std::string_view key, Duration lease = {});
  /// Fills value and tier of the item, whose `error` stays as it was.
  Result<void> get(Item& item);
  /// Puts all members under one key, as one value (wire/value_group.h): they appear, are evicted and are removed
  /// together, and everything here that takes a key takes that of a group. MC4002: no group can be made of them.
  Result<PutResult> put_group(std::string_view key, const std::vector<Member>& members, const node::ValueTerms& terms);
  /// All members, in the order of their names. MC4002: the value is no group.
  Result<std::vector<Member>> get_group(std::string_view key, Duration lease = {});
  /// One member. MC4007: there is no such group, or no such member in it.
  Result<std::string> get_member(std::string_view key, std::string_view name, Duration lease = {});
  /// "members", as GET /v1/store/KEY?members=true answers.
  Result<Json> list_members(std::string_view key);
  /// Size of the value; nothing when there is none.
  Result<std::optional<uint64_t>> exist(std::string_view key);
  Result<PutResult> copy(std::string_view from, std::string_view to, bool replaces);
  Result<PutResult> move(std::string_view from, std::string_view to, bool replaces);
  /// One page of keys: "values", "more", "last" and totals, as GET /v1/store answers.
  Result<Json> list(std::string_view prefix, std::string_view after, size_t limit);
  /// One round trip for all items, at most kItemsMax; each has an error of its own, MC4007 where there is no value.
  /// Fails only when the batch was not answered.
  Result<void> put_all(std::vector<Item>& items, const node::ValueTerms& terms);
  Result<void> get_all(std::vector<Item>& items);
  /// Sets the sizes. A key without a value is no error here.
  Result<void> exist_all(std::vector<Item>& items);
  /// `forced`: holders of replicas that are away do not stop it.
  Result<void> remove_all(std::vector<Item>& items, bool forced = false);
  Result<void> pin_all(std::vector<Item>& items, Duration time);
  Result<void> unpin_all(std::vector<Item>& items);

 private:
  using Query = std::vector<std::pair<std::string_view, std::string>>;

  StoreClient(std::string place, Options options, std::unique_ptr<http::Client> client)
      : place_(std::move(place)), options_(std::move(options)), client_(std::move(client)) {}
  Result<http::ClientOutcome> call(http::Method method, std::string_view key, const Query& query, std::string body,
                                   http::Headers headers = {}, std::string_view lent = {});
  bool leave_place();
  Result<PutResult> put_as(std::string_view key, std::string_view value, const node::ValueTerms& terms, Query query);
  Result<http::ClientOutcome> get_anywhere(std::string_view key, const Query& query);
  Result<std::string> get_summed(std::string_view key, const Query& query, std::optional<door::ValueTier>* tier = {});
  Result<std::optional<uint64_t>> exist_here(std::string_view key);
  Result<PutResult> relocate(std::string_view op, std::string_view from, std::string_view to, bool replaces);
  Result<std::vector<Json>> batch(std::vector<Item>& items, Json ops, std::string values, std::string& answered);
  Result<std::vector<Json>> do_all(std::vector<Item>& items, const Json& op);
  Error told(const Json& error, int status, const std::string& target) const;

  std::string place_;
  Options options_;
  std::vector<std::string> others_;  // that find_others() gave, not tried yet
  std::unique_ptr<http::Client> client_;
};

}  // namespace mc::verbs
