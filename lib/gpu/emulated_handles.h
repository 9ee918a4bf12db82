// The context, handles and captures of an emulated host, and what CUDA refuses about them: a call from a thread where
// another context is current, a handle that was destroyed or is of another kind, and a call that a capture forbids.
// The statuses are those of the CUDA driver API 13.0 (context, stream, event and graph management). Where CUDA leaves a
// wrong call undefined, or does it to another context, the emulated host refuses it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "gpu/driver.h"
#include "gpu/emu/streams.h"

namespace mc::gpu {

/// The primary context of one emulated GPU. Which context is current is a fact of a thread.
class EmulatedContext {
 public:
  EmulatedContext();
  void retain() { ++holders_; }
  void release();
  /// Makes this context current on the calling thread. Status::invalid_context when nobody holds it.
  Status enter() const;
  /// Status::invalid_context when another context, or none, is current on the calling thread.
  Status current() const;
  /// Leaves the calling thread without a context, as other code of the process may do.
  static void leave();

 private:
  uint64_t number_;  // never given twice in a process, as an address may be
  int holders_ = 0;
};

/// Streams, events and graphs by handle. No handle is given twice.
class EmulatedHandles {
 public:
  using Works = std::vector<emu::StreamWork>;

  Handle add_stream(uint32_t queue);
  Handle add_event(uint32_t number);
  Handle add_graph(Works works);
  /// Status::invalid_handle when the handle is not that of a living stream or event.
  Status stream(Handle handle, uint32_t* queue) const;
  Status event(Handle handle, uint32_t* number) const;
  /// Null when the handle is not that of a living graph.
  const Works* graph(Handle handle) const;
  size_t graphs() const { return graphs_.size(); }
  void remove(Handle handle);

  /// Status::invalid_value when the stream captures already.
  Status capture_begin(Handle stream);
  /// Status::capture_invalidated when a call that is forbidden in a capture came meanwhile.
  Status capture_end(Handle stream, Handle* graph);
  bool captures(Handle stream) const { return captures_.contains(stream); }
  Status note(Handle stream, emu::StreamWork work);
  /// Status::capture_unsupported when a stream captures, and its capture is invalid from here on: the answer to calls
  /// that wait, allocate or free.
  Status refuse_in_capture();

 private:
  struct Capture {
    Works works;
    bool invalid = false;
  };
  Handle next();

  std::map<Handle, uint32_t> streams_, events_;
  std::map<Handle, Works> graphs_;
  std::map<Handle, Capture> captures_;  // by stream
  uintptr_t given_ = 0;
};

}  // namespace mc::gpu
