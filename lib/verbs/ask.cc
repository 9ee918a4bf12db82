#include "verbs/ask.h"

#include <optional>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"

namespace mc::verbs {
namespace {

/// Writes the text that one event of the stream adds. Returns the error that the event contains, if any.
Result<void> write_event(std::string_view data, bool& ends_line) {
  if (data == "[DONE]") return {};
  const auto read = Json::parse(data);
  if (!read)
    return user_error(err::kPeerGarbage, "an event of the stream is not JSON: " + read.error().what, "the stream",
                      "read the log of the server");
  const Json& event = *read;
  if (const Json* error = event.find("error"))
    return told_error(event, 500, std::string((*error)["param"].as_string("the stream")));
  const Json& choice = event["choices"][0];
  const Json& delta = choice["delta"];
  MC_CHECK(write_foreign(2, delta["reasoning_content"].as_string()));
  const std::string_view text = delta.is_object() ? delta["content"].as_string() : choice["text"].as_string();
  if (!text.empty()) ends_line = text.ends_with('\n');
  return write_foreign(1, text);
}

}  // namespace

Error told_error(const Json& body, int status, const std::string& url) {
  const Json& error = body["error"];
  if (error["code"].as_string().empty() && status >= 500)  // the answer to a HEAD has no body
    return user_error(err::kPeerUnreachable, "the node answers HTTP " + std::to_string(status) + " and no reason", url,
                      "look into its log, or ask again: it may wait for another node");
  const std::string_view number = error["number"].as_string();
  const ErrorInfo* info = number.empty() ? nullptr : find_error(number);
  const bool is_named = info != nullptr;  // else the code selects one of the numbers that share it
  for (const auto& row : error_table())
    if (!is_named && row.openai_code == error["code"].as_string() && (row.http_status == status || !info)) info = &row;
  return user_error(info ? static_cast<err::Number>(info->number) : err::kInternal,
                    std::string(error["message"].as_string("HTTP " + std::to_string(status))), url,
                    std::string(error["next"].as_string()));
}

Error unreachable(const std::string& place, const std::string& path, Error error) {
  if (error.code == Code::timeout)
    return user_error(err::kPeerUnreachable, "the conductor has not answered in time: " + error.what, place + path,
                      "read its log: it is stopped, or has no processor time");
  if (place.starts_with("unix:"))
    return user_error(err::kPeerUnreachable, "no conductor answers: " + error.what, place,
                      "start one, or set MCT_RUN_DIR to its run directory; elsewhere --url http://HOST:8000 and "
                      "--admin-key-file FILE reach it");
  return as_user_error(err::kPeerUnreachable, within(place + path, std::move(error)));
}

Result<void> stream_answer(const std::string& place, const std::string& path, http::Headers headers, Json body,
                           TimePoint deadline) {
  MC_ASSERT(path.starts_with('/') && deadline != kNever);
  MC_TRY(client, http::Client::open(place));
  headers.push_back({"Content-Type", "application/json"});
  std::optional<Error> fault;
  std::optional<http::ClientOutcome> outcome;
  bool is_done = false, ends_line = false;
  const auto event = [&](std::string_view data, TimePoint) {
    is_done = is_done || data == "[DONE]";
    if (fault) return;
    if (auto written = write_event(data, ends_line); !written) fault = std::move(written).error();
  };
  const auto done = [&](http::ClientOutcome&& ended) { outcome = std::move(ended); };
  client->start({http::Method::post, path, std::move(headers), body.set("stream", true).dump(), deadline},
                {{}, event, done});
  client->run();
  MC_ASSERT(outcome.has_value());  // run() returns when every call has ended
  if (fault) return std::move(*fault);
  if (!outcome->status) return unreachable(place, path, std::move(outcome->status).error());
  if (outcome->http_status >= 300) {
    const auto told = Json::parse(outcome->body);
    return told_error(told ? *told : Json(), outcome->http_status, place + path);
  }
  if (!is_done) return user_error(err::kPeerGarbage, "the stream ended without [DONE]", place + path);
  return ends_line ? Result<void>{} : write_all(1, "\n");
}

}  // namespace mc::verbs
