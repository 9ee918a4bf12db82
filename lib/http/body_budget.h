// The memory that the bodies of all requests of one server share while they are read (private to lib/http). Not
// thread-safe: it belongs to the server's thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mc::http::detail {

class BodyBudget {
 public:
  enum class Room : uint8_t { taken, none, short_of_memory };

  explicit BodyBudget(size_t bytes_max) : bytes_max_(bytes_max) {}
  /// Reserves `more` bytes for a body that then takes `whole` bytes. Fails while all bodies together are at their
  /// limit. Large bodies leave a quarter of it to those of at most 64 KiB, so that slow large ones do not stop small
  /// requests. While the process is short of memory the limits are much lower.
  Room reserve(size_t more, size_t whole);
  void release(size_t bytes);
  size_t bytes() const { return bytes_; }

  /// Whether a body of this size may be processed now. A large one may not while the process is short of memory.
  static bool admits(size_t whole);

 private:
  size_t bytes_max_;
  size_t bytes_ = 0;  // reserved now
};

}  // namespace mc::http::detail
