// The bytes of values that a cache node lends to other nodes (door/replicas.h). A reader reads them in parts, under the
// number of the loan. All loans together are bounded. A loan lasts as long as its object; a loan that was left to its
// reader is over after a time, if the reader does not end it before.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "node/value_store.h"

namespace mc::door {

/// Any thread may call anything.
class LentValues {
 public:
  static constexpr Duration kLentFor = 60s;  // a reader that comes later begins again
  static constexpr uint64_t kBytesMax = uint64_t{256} << 20;

  /// A loan, which ends with the object unless keep() leaves it to its reader for kLentFor. The values must outlive it.
  class Loan {
   public:
    Loan(LentValues& values, uint64_t number) : values_(&values), number_(number) {}
    Loan(Loan&& other) noexcept : values_(std::exchange(other.values_, nullptr)), number_(other.number_) {}
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (values_ != nullptr) values_->end(number_);
    }
    uint64_t number() const { return number_; }
    uint64_t keep() && {
      std::exchange(values_, nullptr)->leave(number_);
      return number_;
    }

   private:
    LentValues* values_;  // null: the loan is another object's, or its reader's
    uint64_t number_;
  };

  /// `clock` outlives it.
  explicit LentValues(const Clock& clock) : clock_(clock) {}
  /// MC4011: the loans would exceed kBytesMax. A value that is the only loan may be larger.
  Result<Loan> lend(node::SharedValue value);
  /// null: nothing is lent under this number.
  node::SharedValue find(uint64_t number) const;
  void end(uint64_t number);
  /// Ends the loans that are over.
  void expire();

 private:
  struct Lent {
    node::SharedValue value;
    TimePoint until = kNever;
  };
  void leave(uint64_t number);
  void expire_locked();

  const Clock& clock_;
  mutable std::mutex mutex_;  // of the members below
  std::map<uint64_t, Lent> lent_;
  uint64_t bytes_ = 0, last_number_ = 0;
};

}  // namespace mc::door
