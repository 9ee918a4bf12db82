// The streamed answer of `mc-conductor ask`: its text goes to stdout as it arrives, its reasoning to stderr.
// The caller builds the request, because only it knows the flags. An error of the server keeps its number.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/result.h"
#include "http/client.h"

namespace mc::verbs {

/// How much longer than the deadline of a request its client waits: the error of the server comes first, also from a
/// busy host. A server that ends is known at once.
inline constexpr Duration kAnswerSlack = std::chrono::seconds(10);

/// The error that the body of an HTTP answer with this status tells.
Error told_error(const Json& body, int status, const std::string& url);

/// The error of a call that reached no conductor at this place.
Error unreachable(const std::string& place, const std::string& path, Error error);

/// Posts the body, with stream set, to the path of the conductor and writes the answer. Errors are those of
/// told_error() and of the connection.
Result<void> stream_answer(const std::string& place, const std::string& path, http::Headers headers, Json body,
                           TimePoint deadline);

}  // namespace mc::verbs
