// A handler that keeps requests for the test's thread to answer.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "http/server.h"
#include "unit/http/raw_client.h"

namespace mc::test {

class Inbox {
 public:
  struct Item {
    http::Request request;
    http::Responder out;
  };
  void push(http::Request request, http::Responder out) {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(request), std::move(out)});
    arrived_.notify_all();
  }
  Item pop() {
    std::unique_lock lock(mutex_);
    REQUIRE(arrived_.wait_until(lock, patience(), [&] { return !items_.empty(); }));
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return items_.empty();
  }
  http::Server::Handler handler() {
    return [this](http::Request request, http::Responder out) { push(std::move(request), std::move(out)); };
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Item> items_;
};

}  // namespace mc::test
