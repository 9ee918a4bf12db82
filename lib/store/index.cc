#include "store/index.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::store {

void Index::reserve(size_t blocks) {
  const std::lock_guard lock(mutex_);
  slots_.reserve(blocks);
}

void Index::put(const Id128& id, const Place& place) {
  Slot& slot = slots_[id];
  live_bytes_ += place.bytes;
  live_bytes_ -= slot.place.bytes;
  slot = {place, false};
}

void Index::erase(std::unordered_map<Id128, Slot, Id128Hash>::iterator at) {
  live_bytes_ -= at->second.place.bytes;
  slots_.erase(at);
}

void Index::apply(std::span<Item* const> items) {
  const std::lock_guard lock(mutex_);
  for (const Item* item : items) apply_one(item->entry, item->file);
}

void Index::apply_one(const wire::StoreEntry& entry, FileId file) {
  if (entry.kind == wire::StoreKind::put) return put(entry.id, {file, entry.page, entry.bytes, entry.crc});
  if (const auto at = slots_.find(entry.id); at != slots_.end()) erase(at);
}

void Index::hold(std::span<const Id128> ids, std::span<std::optional<Place>> places, bool mark) {
  MC_ASSERT_EQ(ids.size(), places.size());
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto at = slots_.find(ids[i]);
    places[i].reset();
    if (at == slots_.end()) continue;
    at->second.read = at->second.read || mark;
    places[i] = at->second.place;
    ++holds_[at->second.place.file];
  }
}

void Index::release(std::span<const std::optional<Place>> places) {
  const std::lock_guard lock(mutex_);
  for (const std::optional<Place>& place : places) {
    if (!place) continue;
    const auto at = holds_.find(place->file);
    MC_ASSERT(at != holds_.end());
    if (--at->second > 0) continue;
    holds_.erase(at);
    unread_.notify_all();
  }
}

std::optional<Place> Index::find(const Id128& id) const {
  const std::lock_guard lock(mutex_);
  const auto at = slots_.find(id);
  if (at == slots_.end()) return std::nullopt;
  return at->second.place;
}

Index::Use Index::take_use(const Id128& id, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto at = slots_.find(id);
  if (at == slots_.end() || at->second.place != place) return Use::elsewhere;
  return std::exchange(at->second.read, false) ? Use::read : Use::unread;
}

bool Index::move(const Id128& id, const Place& from, const Place& to) {
  const std::lock_guard lock(mutex_);
  const auto at = slots_.find(id);
  if (at == slots_.end() || at->second.place != from) return false;
  MC_ASSERT_EQ(from.bytes, to.bytes);
  at->second.place = to;
  return true;
}

bool Index::forget(const Id128& id, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto at = slots_.find(id);
  if (at == slots_.end() || at->second.place != place) return false;
  if (keeps_forgotten_) forgotten_.push_back(id);
  erase(at);
  return true;
}

uint64_t Index::forget_file(FileId file) {
  const std::lock_guard lock(mutex_);
  const size_t before = slots_.size();
  for (auto at = slots_.begin(); at != slots_.end();) {
    const auto next = std::next(at);
    if (at->second.place.file == file) {
      if (keeps_forgotten_) forgotten_.push_back(at->first);
      erase(at);
    }
    at = next;
  }
  return before - slots_.size();
}

void Index::keep_forgotten() {
  const std::lock_guard lock(mutex_);
  keeps_forgotten_ = true;
}

std::vector<Id128> Index::take_forgotten() {
  const std::lock_guard lock(mutex_);
  std::vector<Id128> out;
  for (const Id128& id : forgotten_)
    if (!slots_.contains(id)) out.push_back(id);
  forgotten_.clear();
  std::sort(out.begin(), out.end());  // the order of the hash table differs from one standard library to another
  return out;
}

void Index::wait_unread(FileId file) {
  std::unique_lock lock(mutex_);
  unread_.wait(lock, [&] { return !holds_.contains(file); });
}

void Index::for_each(const std::function<void(const Id128&, uint32_t)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, slot] : slots_) visit(id, slot.place.bytes);
}

uint64_t Index::count() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

uint64_t Index::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

}  // namespace mc::store
