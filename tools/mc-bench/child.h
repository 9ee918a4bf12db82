// A program that a verb starts and listens to: the reference of a comparison, gnuplot. It never outlives
// the object, and every wait for it has a deadline.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace mc::bench {

class Child {
 public:
  /// Starts command[0], looked for in PATH. It reads `input` and then the end of its stdin; what it writes to
  /// stdout and stderr is collected together. unsupported: it cannot be started, with the system's reason.
  static Result<Child> start(const std::vector<std::string>& command, std::string_view input = {});
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills it

  /// Kills every running child; a program that ends without destroying its objects calls it.
  static void kill_all();

  /// Collects its output until it ends: its exit status (128 + N when signal N ended it). timeout: at the
  /// deadline it still ran; invalid: it wrote more than 64 MiB.
  Result<int> finish(TimePoint deadline);
  /// Waits a moment; true when it said something or ended meanwhile.
  bool stirred(Duration moment) const;
  /// The output of the child, as far as finish() collected it.
  const std::string& text() const { return text_; }

 private:
  Child() = default;
  void reap(int* status);
  pid_t pid_ = -1;
  Fd output_;
  std::string text_;
};

/// The end of what a program said, on one line: for error texts.
std::string last_words(const std::string& text);

}  // namespace mc::bench
