#include "verbs/store_verbs.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "base/units.h"
#include "door/store_request.h"
#include "verbs/cache_list.h"
#include "verbs/node_place.h"
#include "verbs/store_client.h"
#include "verbs/text_input.h"

namespace mc {

Result<void> flags::check_time(std::string_view value, Duration most) {
  MC_TRY(time, parse_duration(value));
  if (time >= 1ms && time <= most) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 1ms to " + format_duration(most)};
}

}  // namespace mc

namespace mc::verbs {
namespace {

constexpr size_t kFileMax = size_t{64} << 20;

Result<std::unique_ptr<StoreClient>> open_store(const cli::Args& args, bool reads = false) {
  StoreClient::Options options;
  MC_TRY(headers, key_headers(args));
  const std::string node = args.positional_one("NODE");
  auto place = place_of(node, !headers.empty());
  // A value with replicas is read through any cache node, also when NODE has left the cluster.
  if (reads) options.find_others = [node, has_key = !headers.empty()] { return other_caches(node, has_key); };
  if (!place && place.error().mc == err::kNotFound && reads) {
    const std::vector<std::string> others = options.find_others();
    if (others.empty()) return std::move(place).error();
    log_warn("the node is not in the cluster; another cache node is asked", {{"node", node}});
    place = others.front();
  }
  if (!place) return std::move(place).error();
  options.headers = std::move(headers);
  if (args.present(flags::kTenant)) options.tenant = args.text(flags::kTenant);
  return StoreClient::open(std::move(*place), std::move(options));
}

/// An empty key would name all keys. The node refuses what is longer.
Result<void> check_keys(const cli::Args& args) {
  for (const char* name : {"KEY", "TO"})
    for (const std::string& key : args.positional(name)) {
      MC_CHECK(check_text(key, name));
      if (key.empty())
        return user_error(err::kBadValue, "the key is empty", name,
                          "a key is 1 to 1024 bytes of text, such as notes/today; mc-cache ls NODE --keys lists them");
    }
  return {};
}

/// The duration of a flag that may be "none".
Duration time_or(const cli::Args& args, const Flag& flag, Duration none) {
  return args.present(flag) ? args.duration(flag) : none;
}

/// One line: the key and an outcome.
Result<void> say(const cli::Args& args, const std::string& key, std::string_view outcome) {
  if (args.on(flags::kJson)) return write_all(1, Json::object({{"key", key}, {"outcome", outcome}}).dump() + "\n");
  return write_foreign(1, key + " " + std::string(outcome) + "\n");
}

std::string name_of(StoreClient::PutResult outcome) {
  return std::string(door::kPutResultNames[static_cast<size_t>(outcome)]);
}

Result<std::string> read_value(const std::string& path) {
  auto value = read_file(path, kFileMax);
  if (value) return value;
  Error error = as_user_error(err::kFileAccess, std::move(value).error());
  if (error.mc == err::kInputTooLarge)
    error.where = "FILE", error.next = "a value has at most " + format_bytes(kFileMax) + "; put it in parts";
  return error;
}

node::ValueTerms terms_of(const cli::Args& args) {
  return {.ttl = time_or(args, flags::kTimeToLive, Duration::max()),
          .pin = time_or(args, flags::kPutPin, {}),
          .replaces = args.on(flags::kReplace),
          .durability = choice_of(args, flags::kDurability),
          .copies = static_cast<uint32_t>(std::min<uint64_t>(args.count(flags::kReplicas), UINT32_MAX))};
}

/// The files as members of a group. Nothing is sent before all of them are read.
Result<int> put_group_in(const cli::Args& args, StoreClient& store) {
  std::vector<StoreClient::Member> members;
  size_t bytes = 0;
  for (const std::string& path : args.positional("FILE")) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (path == "-" || name.empty())
      return user_error(err::kBadValue, "'" + path + "' names no file, and members have the names of their files",
                        "FILE");
    MC_TRY(value, read_value(path));
    bytes += value.size();
    if (bytes > kFileMax)
      return user_error(err::kInputTooLarge, "the members have more than " + format_bytes(kFileMax), "FILE",
                        "put them in several groups");
    members.push_back({name, std::move(value)});
  }
  const std::string key = args.positional_one("KEY");
  MC_TRY(outcome, store.put_group(key, members, terms_of(args)));
  MC_CHECK(
      say(args, key,
          name_of(outcome) + " " + std::to_string(members.size()) + " members, " + std::to_string(bytes) + " bytes"));
  return 0;
}

Result<int> put_in(const cli::Args& args, StoreClient& store) {
  if (args.on(flags::kGroup)) return put_group_in(args, store);
  if (args.positional("FILE").size() > 1)
    return user_error(err::kUsage, "a key has one value, and several files are given", "FILE",
                      "give --group to put them as the members of one group");
  MC_TRY(value, read_value(args.positional("FILE").front()));
  const std::string key = args.positional_one("KEY");
  MC_TRY(outcome, store.put(key, value, terms_of(args)));
  MC_CHECK(say(args, key, name_of(outcome) + " " + std::to_string(value.size()) + " bytes"));
  return 0;
}

/// Names of members come from other programs. One that is a path could be written anywhere, and one with control
/// characters would reach the terminal.
Result<void> check_file_name(const std::string& name) {
  const bool is_plain = name != "." && name != ".." && name.find('/') == std::string::npos;
  if (is_plain && node::check_value_key(name)) return {};
  return user_error(err::kBadValue, "the name of member \"" + show_controls(name) + "\" is no name of a file", "--into",
                    "get it with --member, into a file that you name");
}

Result<int> get_into(const cli::Args& args, StoreClient& store) {
  const std::string folder = args.text(flags::kInto);
  MC_TRY(members, store.get_group(args.positional_one("KEY"), time_or(args, flags::kLease, {})));
  for (const StoreClient::Member& member : members) MC_CHECK(check_file_name(member.name));
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return user_error(err::kFileAccess, folder + ": " + failed.message(), "--into");
  for (const StoreClient::Member& member : members) {
    const std::string path = folder + "/" + member.name;
    if (auto written = write_file_atomic(path, member.value); !written)
      return as_user_error(err::kFileAccess, std::move(written).error());
    MC_CHECK(say(args, path, std::to_string(member.value.size()) + " bytes"));
  }
  return 0;
}

Result<int> list_members_of(const cli::Args& args, StoreClient& store) {
  MC_TRY(answer, store.list_members(args.positional_one("KEY")));
  std::string out;
  for (const Json& member : answer["members"].items()) {
    if (args.on(flags::kJson)) {
      out += member.dump() + "\n";
      continue;
    }
    char line[64];
    std::snprintf(line, sizeof line, "%11lld  %8.8s  ", static_cast<long long>(member["bytes"].as_int()),
                  std::string(member["crc32c"].as_string()).c_str());
    const std::string name(member["name"].as_string());
    out += line + (node::check_value_key(name) ? name : Json(name).dump()) + "\n";  // a name may have line feeds
  }
  MC_CHECK(write_foreign(1, out));
  return 0;
}

Result<int> get_from(const cli::Args& args, StoreClient& store) {
  const std::string key = args.positional_one("KEY");
  const Duration lease = time_or(args, flags::kLease, {});
  const bool into = args.present(flags::kInto), one = args.present(flags::kMember), all = args.on(flags::kMembers);
  if (into + one + all > 1)
    return user_error(err::kUsage, "--member, --members and --into exclude each other", "--member");
  if (into) return get_into(args, store);
  if (all) return list_members_of(args, store);
  MC_TRY(value, one ? store.get_member(key, args.text(flags::kMember), lease) : store.get(key, lease));
  MC_CHECK(write_foreign(1, value));
  return 0;
}

Result<int> exist_in(const cli::Args& args, StoreClient& store) {
  int exit_code = 0;
  for (const std::string& key : args.positional("KEY")) {
    MC_TRY(bytes, store.exist(key));
    if (!bytes && std::exchange(exit_code, kExitFailed) == 0) MC_CHECK(check_is_cache(args.positional_one("NODE")));
    MC_CHECK(say(args, key, bytes ? std::to_string(*bytes) + " bytes" : "absent"));
  }
  return exit_code;
}

/// Changes the values of all keys, many in one round trip. Keys without a value do not stop it: MC4007 at the end names
/// the first of them. Another error ends it with the first key that it met; later keys of its round trip may be
/// changed.
template <class Change>
Result<int> change_all(const cli::Args& args, const std::string& outcome, const Change& change) {
  std::optional<Error> first;
  size_t absent = 0;
  const std::span<const std::string> keys = args.positional("KEY");
  for (size_t begin = 0; begin < keys.size(); begin += StoreClient::kItemsMax) {
    std::vector<StoreClient::Item> items;
    for (const std::string& key : keys.subspan(begin, std::min(keys.size() - begin, StoreClient::kItemsMax)))
      items.push_back({key, {}});
    MC_CHECK(change(items));
    for (StoreClient::Item& item : items) {
      if (item.error && item.error->mc != err::kNotFound) return std::move(*item.error);
      MC_CHECK(say(args, item.key, item.error ? "absent" : outcome));
      if (item.error && ++absent == 1) first = std::move(*item.error);
    }
  }
  if (!first) return 0;
  if (absent > 1)
    first->what += "; " + std::to_string(absent) + " of " + std::to_string(keys.size()) + " keys have none";
  return std::move(*first);
}

Result<int> remove_from(const cli::Args& args, StoreClient& store) {
  return change_all(args, "removed", [&](auto& items) { return store.remove_all(items, args.on(flags::kForce)); });
}

Result<int> pin_in(const cli::Args& args, StoreClient& store) {
  const Duration time = args.duration(flags::kPinFor);
  return change_all(args, "pinned for " + format_duration(time),
                    [&](auto& items) { return store.pin_all(items, time); });
}

Result<int> unpin_in(const cli::Args& args, StoreClient& store) {
  return change_all(args, "unpinned", [&](auto& items) { return store.unpin_all(items); });
}

/// One line about the key TO. `done`: what the verb did with the value.
Result<void> say_done(const cli::Args& args, const std::string& done, StoreClient::PutResult outcome) {
  const std::string to = args.positional_one("TO");
  if (args.on(flags::kJson)) return say(args, to, name_of(outcome));
  return say(args, to, outcome == StoreClient::PutResult::created ? done : done + ", " + name_of(outcome));
}

Result<int> copy_in(const cli::Args& args, StoreClient& store) {
  MC_TRY(outcome, store.copy(args.positional_one("KEY"), args.positional_one("TO"), args.on(flags::kReplace)));
  MC_CHECK(say_done(args, "copied", outcome));
  return 0;
}

Result<int> move_in(const cli::Args& args, StoreClient& store) {
  MC_TRY(outcome, store.move(args.positional_one("KEY"), args.positional_one("TO"), args.on(flags::kReplace)));
  MC_CHECK(say_done(args, "moved", outcome));
  return 0;
}

/// Calls `body` with the store of NODE.
Result<int> use_values(const cli::Args& args, Result<int> (*body)(const cli::Args& args, StoreClient& store),
                       bool reads = false) {
  MC_ASSERT(body != nullptr);
  MC_CHECK(check_keys(args));
  MC_TRY(store, open_store(args, reads));
  auto done = body(args, *store);
  if (!done && done.error().mc == err::kNotFound) MC_CHECK(check_is_cache(args.positional_one("NODE")));
  return done ? done : Result<int>(with_key_advice(args, std::move(done).error()));
}

std::string row_text(const Json& value) {
  const auto time = [&](const char* name) {
    return value.has(name) ? human_time(from_seconds(value[name].as_double() / 1e3)) : std::string("-");
  };
  char line[140];
  const std::string pin = value["pinned"].as_bool() && !value.has("pin_ms") ? "forever" : time("pin_ms");
  // Replicas that are there, of those that were asked for.
  const int64_t copies = value["replicas"].as_int();
  const std::string replicas =
      value.has("replicas") ? std::to_string(copies - value["missing"].as_int()) + "/" + std::to_string(copies) : "-";
  const char* durable = value["durable"].as_bool() ? "yes" : "-";
  std::snprintf(line, sizeof line, "%11lld  %8s  %5lld  %8s  %8s  %-7s  %-8s  ",
                static_cast<long long>(value["bytes"].as_int()), std::string(value["crc32c"].as_string()).c_str(),
                static_cast<long long>(value["uses"].as_int()), time("ttl_ms").c_str(), pin.c_str(), durable,
                replicas.c_str());
  return line + std::string(value["key"].as_string()) + "\n";
}

}  // namespace

Result<int> put_value(const cli::Args& args) {
  return use_values(args, put_in);
}

Result<int> get_value(const cli::Args& args) {
  return use_values(args, get_from, true);
}

Result<int> exist_values(const cli::Args& args) {
  return use_values(args, exist_in, true);
}

Result<int> remove_values(const cli::Args& args) {
  return use_values(args, remove_from);
}

Result<int> pin_values(const cli::Args& args) {
  return use_values(args, pin_in);
}

Result<int> unpin_values(const cli::Args& args) {
  return use_values(args, unpin_in);
}

Result<int> copy_value(const cli::Args& args) {
  return use_values(args, copy_in);
}

Result<int> move_value(const cli::Args& args) {
  return use_values(args, move_in);
}

Result<int> list_values(const cli::Args& args) {
  constexpr size_t kPage = 1000;  // keys that the node lists at once
  MC_TRY(store, open_store(args));
  const std::string prefix = args.present(flags::kKeyPrefix) ? args.text(flags::kKeyPrefix) : "";
  size_t left = static_cast<size_t>(args.count(flags::kListLimit)), listed = 0;
  std::string after;
  Json page;
  std::string out =
      args.on(flags::kJson) ? "" : "      BYTES  CRC32C     USES       TTL       PIN  DURABLE  REPLICAS  KEY\n";
  do {
    auto next = store->list(prefix, after, std::min(std::max<size_t>(left, 1), kPage));
    if (!next && next.error().mc == err::kNotFound) MC_CHECK(check_is_cache(args.positional_one("NODE")));
    if (!next) return with_key_advice(args, std::move(next).error());
    page = std::move(*next);
    // A page may hold no key and yet go on behind keys whose time to live is over.
    const std::string last(page["last"].as_string());
    if (page["more"].as_bool() && last <= after)
      return user_error(err::kPeerGarbage, "the node reports more keys after \"" + after + "\" but names none of them",
                        args.positional_one("NODE"), "compare the versions of the node and of this program");
    for (const Json& value : page["values"].items()) {
      if (left == 0) break;
      --left, ++listed;
      out += args.on(flags::kJson) ? value.dump() + "\n" : row_text(value);
    }
    after = last;
    MC_ASSERT_EQ(listed + left, static_cast<size_t>(args.count(flags::kListLimit)));
    MC_CHECK(write_foreign(1, out));
    out.clear();
  } while (page["more"].as_bool() && left > 0);
  if (args.on(flags::kJson)) {
    Json end = Json::object({{"type", "end"}, {"values", listed}, {"more", page["more"].as_bool()}});
    for (const char* name : {"tenant", "used_bytes", "held_bytes", "capacity_bytes"}) end.set(name, page[name]);
    MC_CHECK(write_all(1, end.dump() + "\n"));
    return 0;
  }
  const auto bytes = [&](const char* name) { return human_bytes(static_cast<uint64_t>(page[name].as_int())); };
  MC_CHECK(write_all(1, std::to_string(listed) + (listed == 1 ? " value" : " values") +
                            (page["more"].as_bool() ? ", more are there; " : "; ") + bytes("used_bytes") + " of " +
                            bytes("capacity_bytes") + " used by this tenant, " + bytes("held_bytes") +
                            " pinned or leased\n"));
  return 0;
}

}  // namespace mc::verbs
