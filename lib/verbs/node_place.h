// Where the HTTP pages of a node are: verbs that ask a node take its name in mc-conductor ps, or its address.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "http/client.h"

namespace mc::verbs {

/// The JSON at a path of a server. MC2101 with the advice `next` when nothing answers there.
Result<Json> get_json(const std::string& place, const std::string& path, const http::Headers& headers,
                      std::string_view next);
/// A URL, ADDR:PORT, "unix:PATH" and the path of a socket need no conductor. For the name of a node: its socket in this
/// run directory, else the HTTP address that the node announced to the conductor. Any member can announce any address,
/// so MC2113 where the address was announced and `has_key`: a key goes to addresses that the operator named, and to
/// sockets. An announced address is given only when the node itself answers there; else MC2101, because the loopback of
/// another host leads to a node of this one.
Result<std::string> place_of(const std::string& node, bool has_key);

/// The places of the cache nodes that this run directory's conductor lists, but for `node`. Only sockets when a key is
/// sent, as for place_of(). Empty when no conductor answers, or `node` is an address.
std::vector<std::string> other_caches(const std::string& node, bool has_key);

/// MC4007 when `node` is the name of a node of another role, which has no store of values. The next step names the
/// cache nodes. Says nothing against an address, or when no conductor answers.
Result<void> check_is_cache(const std::string& node);

}  // namespace mc::verbs
