// A handler that keeps requests for the test's thread to answer, and a value to wait for.
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

/// A value that another thread sets once.
template <class T>
class Promise {
 public:
  void set(T value) {
    const std::lock_guard lock(mutex_);
    value_ = value;
    ++times_;
    changed_.notify_all();
  }
  T get() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_until(lock, patience(), [&] { return times_ > 0; }));
    return value_;
  }
  int times() {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
  int times_ = 0;
};

}  // namespace mc::test
