// The verbs of mc-cache on the values of a cache node: put, get, exist, rm, pin, unpin, copy, move, and ls --keys. A
// group of values is one value, so put and get alone have flags for its members.
#pragma once

#include "base/choice.h"
#include "base/cli_flags.h"
#include "node/value_store.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs/client_key.h"

namespace mc::flags {

inline constexpr Flag kListKeys{
    .name = "keys", .kind = FlagKind::boolean, .help = "list the values of a cache node", .one_shot = true};
inline constexpr Flag kKeyPrefix{
    .name = "prefix", .value = "P", .help = "only keys that begin with P", .one_shot = true};
inline constexpr Flag kTenant{
    .name = "tenant", .value = "T", .help = "tenant whose values these are; needs the admin key or the socket"};
/// A time from 1ms to `most`.
Result<void> check_time(std::string_view value, Duration most);
template <int64_t kHours>
Result<void> check_time(std::string_view value) {
  return check_time(value, std::chrono::hours(kHours));
}

inline constexpr Flag kTimeToLive{.name = "ttl",
                                  .kind = FlagKind::duration,
                                  .value = "T",
                                  .fallback = "none",
                                  .help = "time after which the value is removed, pinned or not",
                                  .choices = "none",
                                  .check = check_time<366 * 24>,
                                  .one_shot = true};
inline constexpr Flag kPutPin{.name = "pin",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "none",
                              .help = "time in which the value is not evicted",
                              .choices = "none",
                              .check = check_time<366 * 24>,
                              .one_shot = true};
inline constexpr Flag kReplace{.name = "replace",
                               .kind = FlagKind::boolean,
                               .help = "replace the value that the key has already",
                               .one_shot = true};
inline constexpr FlagWord<node::Durability> kDurabilities[] = {{"d0", node::Durability::d0},
                                                               {"d1", node::Durability::d1},
                                                               {"d2", node::Durability::d2},
                                                               {"d3", node::Durability::d3}};
inline constexpr ChoiceFlag kDurability =
    with_choices<kDurabilities>({.name = "durability",
                                 .kind = FlagKind::choice,
                                 .value = "LEVEL",
                                 .fallback = "d0",
                                 .help = "d0 = in memory, d1 = soon on disk, d2 = on disk when it is acknowledged, "
                                         "d3 = d2 on two nodes",
                                 .one_shot = true});
inline constexpr Flag kReplicas{.name = "replicas",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "1",
                                .help = "cache nodes that hold the value when it is acknowledged, at most 8",
                                .check = check_between<1, wire::kReplicasMax>,
                                .one_shot = true};
inline constexpr Flag kForce{.name = "force",
                             .kind = FlagKind::boolean,
                             .help =
                                 "remove also values with replicas on nodes that are away, which may bring them "
                                 "back",
                             .one_shot = true};
inline constexpr Flag kLease{.name = "lease",
                             .kind = FlagKind::duration,
                             .value = "T",
                             .fallback = "none",
                             .help = "keep the value from eviction for T, at most the node's --lease-time",
                             .choices = "none",
                             .one_shot = true};
inline constexpr Flag kGroup{.name = "group",
                             .kind = FlagKind::boolean,
                             .help = "put the files as the members of one group, named as the files are",
                             .one_shot = true};
inline constexpr Flag kMember{.name = "member", .value = "NAME", .help = "one member of a group", .one_shot = true};
inline constexpr Flag kMembers{
    .name = "members", .kind = FlagKind::boolean, .help = "list the members of a group", .one_shot = true};
inline constexpr Flag kInto{
    .name = "into", .value = "DIR", .help = "write the members of a group as files of their names", .one_shot = true};
inline constexpr Flag kPinFor{.name = "for",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "1h",
                              .help = "time in which the values, or blocks at most 30 days, are not evicted",
                              .check = check_time<366 * 24>,
                              .one_shot = true};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kKeyFlags[] = {&flags::kTenant, &flags::kAdminKeyFile, &flags::kApiKeyFile,
                                            &flags::kApiKey, &flags::kJson};
inline constexpr const Flag* kRemoveFlags[] = {&flags::kForce,      &flags::kTenant, &flags::kAdminKeyFile,
                                               &flags::kApiKeyFile, &flags::kApiKey, &flags::kJson};
inline constexpr const Flag* kPutFlags[] = {&flags::kGroup,   &flags::kTimeToLive,   &flags::kPutPin,
                                            &flags::kReplace, &flags::kDurability,   &flags::kReplicas,
                                            &flags::kTenant,  &flags::kAdminKeyFile, &flags::kApiKeyFile,
                                            &flags::kApiKey,  &flags::kJson};
inline constexpr const Flag* kGetFlags[] = {&flags::kMember,     &flags::kMembers, &flags::kInto,
                                            &flags::kLease,      &flags::kTenant,  &flags::kAdminKeyFile,
                                            &flags::kApiKeyFile, &flags::kApiKey,  &flags::kJson};
inline constexpr const Flag* kMoveFlags[] = {&flags::kReplace,    &flags::kTenant, &flags::kAdminKeyFile,
                                             &flags::kApiKeyFile, &flags::kApiKey, &flags::kJson};

// One verb of mc-cache each, on the values of NODE. Exit 1 when a key has no value.
Result<int> put_value(const cli::Args& args);
Result<int> get_value(const cli::Args& args);
Result<int> exist_values(const cli::Args& args);
Result<int> remove_values(const cli::Args& args);
Result<int> pin_values(const cli::Args& args);
Result<int> unpin_values(const cli::Args& args);
Result<int> copy_value(const cli::Args& args);
Result<int> move_value(const cli::Args& args);
/// mc-cache ls NODE --keys.
Result<int> list_values(const cli::Args& args);

}  // namespace mc::verbs
