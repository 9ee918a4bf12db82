// The emulated host refuses what CUDA refuses about contexts, handles and captures.
#include "gpu/emulated_handles.h"

#include <atomic>
#include <utility>

#include "base/assert.h"

namespace mc::gpu {
namespace {

std::atomic<uint64_t> contexts_made = 0;
thread_local uint64_t current_context = 0;  // 0: none

Status look_up(const std::map<Handle, uint32_t>& known, Handle handle, uint32_t* out) {
  const auto found = known.find(handle);
  if (found == known.end()) return Status::invalid_handle;
  *out = found->second;
  return Status::ok;
}

}  // namespace

// ---- the context ----

EmulatedContext::EmulatedContext() : number_(++contexts_made) {}

void EmulatedContext::release() {
  MC_ASSERT_LT(0, holders_);
  --holders_;
}

Status EmulatedContext::enter() const {
  if (holders_ == 0) return Status::invalid_context;
  current_context = number_;
  return Status::ok;
}

Status EmulatedContext::current() const {
  return holders_ > 0 && current_context == number_ ? Status::ok : Status::invalid_context;
}

void EmulatedContext::leave() {
  current_context = 0;
}

// ---- handles ----

Handle EmulatedHandles::next() {
  return reinterpret_cast<Handle>(++given_);
}

Handle EmulatedHandles::add_stream(uint32_t queue) {
  return streams_.emplace(next(), queue).first->first;
}

Handle EmulatedHandles::add_event(uint32_t number) {
  return events_.emplace(next(), number).first->first;
}

Handle EmulatedHandles::add_graph(Works works) {
  return graphs_.emplace(next(), std::move(works)).first->first;
}

Status EmulatedHandles::stream(Handle handle, uint32_t* queue) const {
  return look_up(streams_, handle, queue);
}

Status EmulatedHandles::event(Handle handle, uint32_t* number) const {
  return look_up(events_, handle, number);
}

const EmulatedHandles::Works* EmulatedHandles::graph(Handle handle) const {
  const auto found = graphs_.find(handle);
  return found == graphs_.end() ? nullptr : &found->second;
}

void EmulatedHandles::remove(Handle handle) {
  streams_.erase(handle);
  events_.erase(handle);
  graphs_.erase(handle);
  captures_.erase(handle);
}

// ---- captures ----

Status EmulatedHandles::capture_begin(Handle stream) {
  return captures_.try_emplace(stream).second ? Status::ok : Status::invalid_value;
}

Status EmulatedHandles::capture_end(Handle stream, Handle* graph) {
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return Status::invalid_value;
  Capture capture = std::move(found->second);
  captures_.erase(found);
  if (capture.invalid) return Status::capture_invalidated;
  *graph = add_graph(std::move(capture.works));
  return Status::ok;
}

Status EmulatedHandles::note(Handle stream, emu::StreamWork work) {
  Capture& capture = captures_.at(stream);
  if (capture.invalid) return Status::capture_invalidated;
  capture.works.push_back(std::move(work));
  return Status::ok;
}

Status EmulatedHandles::refuse_in_capture() {
  if (captures_.empty()) return Status::ok;
  for (auto& [stream, capture] : captures_) capture.invalid = true;
  return Status::capture_unsupported;
}

}  // namespace mc::gpu
