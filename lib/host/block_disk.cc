#include "host/block_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread_limit.h"
#include "base/units.h"
#include "host/value_disk.h"
#include "node/disk_block.h"

namespace mc::host {
namespace {

constexpr size_t kFoundAtOnce = 256;                     // blocks of one DiskFound: 1 MiB of fronts
constexpr size_t kQueueMax = 4096;                       // the machine bounds what is under way far below this
constexpr uint64_t kBatchBytesMax = uint64_t{64} << 20;  // memory for values of each thread, or one value
// Segments of a new store: 16 of a small one. Each is an open file, so a large store has larger ones, not more of them.
constexpr uint64_t kSegmentLeast = uint64_t{1} << 20, kSegmentUsual = uint64_t{64} << 20;
constexpr uint64_t kSegmentMost = uint64_t{1} << 30, kSegmentsUsual = 1024;
constexpr uint64_t kFilesBeside = 16;  // directory, lock, superblocks, rings, and a segment that is being made

struct alignas(store::kPageBytes) Page {
  std::byte bytes[store::kPageBytes];
};
static_assert(sizeof(Page) == node::kDiskFrontBytes);

/// Memory of one value, aligned for direct I/O.
class Value {
 public:
  explicit Value(const ExtentLayout& layout) : pages_(node::disk_value_bytes(layout) / sizeof(Page)) {}
  std::span<std::byte> bytes() { return {pages_.front().bytes, pages_.size() * sizeof(Page)}; }
  std::span<std::byte> front() { return bytes().first(node::kDiskFrontBytes); }
  std::span<std::byte> page() { return bytes().subspan(node::kDiskFrontBytes); }

 private:
  std::vector<Page> pages_;
};

const ExtentLayout& layout_of(const node::DiskWrite& write) {
  return write.block.layout;
}
const ExtentLayout& layout_of(const node::DiskLoad& load) {
  return load.layout;
}

/// Text of an operation that found no memory for the block's value.
template <class T>
std::string no_memory(const T& operation) {
  return "no memory for the " + format_bytes(node::disk_value_bytes(layout_of(operation))) + " of a block";
}

/// Calls `work` with one part of the batch after the other, each of values that fit into kBatchBytesMax together.
template <class T, class Work>
void in_parts(std::span<const T> batch, const Work& work) {
  size_t count = 0;
  uint64_t bytes = 0;
  for (; !batch.empty(); batch = batch.subspan(count), count = 0, bytes = 0) {
    for (; count < batch.size(); ++count) {
      bytes += node::disk_value_bytes(layout_of(batch[count].action));
      if (count > 0 && bytes > kBatchBytesMax) break;
    }
    work(batch.first(count));
  }
}

/// Copies a page layer by layer. False when the bytes of a layer fail their checksum.
bool copy_checked(std::span<std::byte> to, std::span<const std::byte> from, const ExtentLayout& layout,
                  std::span<const uint32_t> crcs) {
  MC_ASSERT_EQ(to.size(), from.size());
  MC_ASSERT_EQ(crcs.size(), layout.layers);
  bool sound = true;
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    const size_t at = layout.layer_offset(layer);
    MC_ASSERT_LE(at + layout.layer_bytes(), to.size());
    sound &= copy_crc32c(to.data() + at, from.data() + at, layout.layer_bytes()) == crcs[layer];
  }
  const size_t end = layout.layers * layout.layer_bytes();
  std::memset(to.data() + end, 0, to.size() - end);
  return sound;
}

/// Calls `visit` with each entry of the directory; with none when it cannot be read.
template <class Visit>
void for_files(const std::string& directory, const Visit& visit) {
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(directory, error); it != end(it); it.increment(error)) visit(*it);
}

bool is_segment(const std::filesystem::directory_entry& entry) {
  return entry.path().filename().string().starts_with("seg.");
}

/// Bytes of a segment; 0 for another file, and for one that is gone.
uint64_t segment_bytes_of(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  const uint64_t bytes = is_segment(entry) ? entry.file_size(error) : 0;
  return error ? 0 : bytes;
}

/// Refuses a directory with files of something else: a store would grow between them.
Result<void> check_directory(const std::string& directory) {
  std::string other;
  for_files(directory, [&](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename();
    if (name != "lock" && name != "lost+found" && name != kValuesFolder) other = name;  // ext4 makes lost+found
  });
  if (other.empty() || has_store(directory)) return {};  // new, empty, or not there: the store makes it
  return user_error(err::kFileAccess, directory + " is not a block store and has other files, such as " + other,
                    "--ssd", "name an empty directory, or one that does not exist yet");
}

/// The store makes its directory with all folders above. A mistyped path is seen in the log.
void log_new_folders(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const auto above = std::filesystem::path(directory).parent_path();
  std::error_code error;
  if (!above.empty() && !std::filesystem::exists(above, error))
    log_info("folders are made for --ssd", {{"folders", above.string()}});
}

/// The directory, or the nearest one above it that exists.
std::filesystem::path existing_folder(const std::string& directory) {
  std::error_code error;
  auto folder = std::filesystem::absolute(directory, error);
  while (folder.has_relative_path() && !std::filesystem::exists(folder, error)) folder = folder.parent_path();
  return folder;
}

/// Returns an error that names `wanted` if this process lacks one of the rights (faccessat(2)) on the file.
Result<void> check_rights(const std::string& file, int rights, const std::string& wanted) {
  if (::faccessat(AT_FDCWD, file.c_str(), rights, AT_EACCESS) == 0) return {};
  return as_user_error(err::kFileAccess, errno_error(wanted));
}

uint64_t new_segment_bytes(uint64_t capacity_bytes) {
  const uint64_t small = std::clamp(capacity_bytes / 16, kSegmentLeast, kSegmentUsual);
  return std::clamp(capacity_bytes / kSegmentsUsual, small, kSegmentMost) / store::kPageBytes * store::kPageBytes;
}

/// The error of a store that cannot be opened, with its directory.
Error open_error(const std::string& directory, Error cause) {
  Error error = within(directory, std::move(cause));
  if (error.mc == err::kStoreCorrupt)
    error.next = "remove its files seg.* and super.*, and keep its folder " + std::string(kValuesFolder) +
                 ": KV blocks are computed again, and nothing else has durable values";
  return as_user_error(error.code == Code::no_space ? err::kDiskFull : err::kFileAccess, std::move(error));
}

/// Code::ok for a success.
template <class T>
Error error_of(const Result<T>& result) {
  return result ? Error{Code::ok, ""} : result.error();
}

}  // namespace

bool has_store(const std::string& directory) {
  bool found = false;
  for_files(directory, [&](const std::filesystem::directory_entry& entry) {
    found = found || is_segment(entry) || entry.path().filename().string().starts_with("super.");
  });
  return found;
}

uint64_t present_bytes(const std::string& directory) {
  uint64_t bytes = 0;
  for_files(directory, [&](const std::filesystem::directory_entry& entry) { bytes += segment_bytes_of(entry); });
  return bytes;
}

uint64_t block_disk_room(const std::string& directory) {
  std::error_code error;
  const auto space = std::filesystem::space(existing_folder(directory), error);
  const uint64_t free = error ? UINT64_MAX / 2 : space.available;
  return free + present_bytes(directory) + present_bytes(directory + "/" + std::string(kValuesFolder));
}

uint64_t block_disk_files(const std::string& directory, uint64_t capacity_bytes) {
  uint64_t segments = 0, segment_bytes = 0;
  for_files(directory, [&](const std::filesystem::directory_entry& entry) {
    segments += is_segment(entry);
    // The largest: one that was cut short is removed when the store is opened.
    segment_bytes = std::max(segment_bytes, segment_bytes_of(entry));
  });
  if (segment_bytes == 0) segment_bytes = new_segment_bytes(capacity_bytes);
  return std::max(segments, capacity_bytes / segment_bytes) + kFilesBeside;
}

Result<std::unique_ptr<store::Disk>> look_at_store(const std::string& directory, const std::string& io) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(directory, error))) {
    const std::string folder = existing_folder(directory);
    MC_CHECK(check_rights(folder, W_OK | X_OK, folder));
    return std::unique_ptr<store::Disk>();
  }
  auto disk = store::open_disk(io, directory, store::Access::read_only);
  if (!disk) return as_user_error(err::kFileAccess, std::move(disk).error());
  for (const char* name : {"lock", "super.a", "super.b"}) {
    const std::string file = directory + "/" + name;
    const bool exists = std::filesystem::exists(file, error);
    MC_CHECK(check_rights(exists ? file : directory, exists ? W_OK : W_OK | X_OK, file));
  }
  return has_store(directory) ? std::move(disk->disk) : nullptr;
}

Result<uint64_t> BlockDisk::check(const BlockDiskOptions& options) {
  MC_CHECK(check_directory(options.directory));
  MC_TRY(disk, look_at_store(options.directory, options.io));
  const uint64_t segment_bytes = new_segment_bytes(options.capacity_bytes);
  if (!disk) return segment_bytes - 3 * store::kPageBytes;  // the header and the end of a segment take three pages
  auto opened = store::Store::open(
      std::move(disk),
      {.capacity_bytes = options.capacity_bytes, .segment_bytes = segment_bytes, .access = store::Access::read_only});
  if (!opened) return open_error(options.directory, std::move(opened).error());
  return (*opened)->value_bytes_max();
}

Result<std::unique_ptr<BlockDisk>> BlockDisk::open(const BlockDiskOptions& options) {
  MC_CHECK(check_directory(options.directory));
  log_new_folders(options.directory);
  auto disk = store::open_disk(options.io, options.directory);
  if (!disk) return as_user_error(err::kFileAccess, std::move(disk).error());
  store::Options settings;
  settings.capacity_bytes = options.capacity_bytes;
  settings.segment_bytes = new_segment_bytes(options.capacity_bytes);
  settings.report_evictions = true;
  auto opened = store::Store::open(std::move(disk->disk), settings);
  if (!opened) return open_error(options.directory, std::move(opened).error());
  MC_TRY(ready, EventFd::open());
  std::unique_ptr<BlockDisk> out(new BlockDisk(std::move(*opened), disk->kind, std::move(ready)));
  MC_CHECK(out->start());
  return out;
}

BlockDisk::BlockDisk(std::unique_ptr<store::Store> store, std::string kind, EventFd ready)
    : store_(std::move(store)), kind_(std::move(kind)), ready_fd_(std::move(ready)) {}

Result<void> BlockDisk::start() {
  try {
    writer_ = std::thread([this] { write_all(); });
    reader_ = std::thread([this] { read_all(); });
  } catch (const std::system_error& error) {
    return thread_limit_error(error.code().value());  // the destructor ends the one that runs
  }
  return {};
}

BlockDisk::~BlockDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_writer_.notify_all();
  wake_reader_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
}

// ---- the loop's side -------------------------------------------------------------------------

void BlockDisk::write(const node::DiskWrite& write, std::span<const std::byte> page) {
  MC_ASSERT_EQ(page.size(), write.block.layout.page_bytes());
  {
    const std::lock_guard lock(mutex_);
    MC_ASSERT_LT(writes_.size(), kQueueMax);
    std::erase(drops_, write.block.hash);  // older than this write, and would follow it
    writes_.push_back({write, page});
  }
  wake_writer_.notify_one();
}

void BlockDisk::load(const node::DiskLoad& load, std::span<std::byte> page) {
  MC_ASSERT_EQ(page.size(), load.layout.page_bytes());
  {
    const std::lock_guard lock(mutex_);
    MC_ASSERT_LT(loads_.size(), kQueueMax);
    loads_.push_back({load, page});
  }
  wake_reader_.notify_one();
}

void BlockDisk::drop(const node::DiskDrop& drop) {
  {
    const std::lock_guard lock(mutex_);
    drops_.insert(drops_.end(), drop.hashes.begin(), drop.hashes.end());
  }
  wake_writer_.notify_one();
}

std::optional<node::Event> BlockDisk::next() {
  const std::lock_guard lock(mutex_);
  if (ready_next_ == ready_.size()) {
    ready_.clear();
    ready_next_ = 0;
    ready_fd_.drain();
    return std::nullopt;
  }
  return std::move(ready_[ready_next_++]);
}

void BlockDisk::give(node::Event event) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(event));
  }
  ready_fd_.signal();
}

// ---- the writer ------------------------------------------------------------------------------

void BlockDisk::write_all() {
  for (;;) {
    std::vector<Write> batch;
    std::vector<BlockHash> drops;
    {
      std::unique_lock lock(mutex_);
      wake_writer_.wait(lock, [&] { return stopping_ || !writes_.empty() || !drops_.empty(); });
      batch.swap(writes_);
      drops.swap(drops_);
      if (stopping_) batch.clear();
      if (batch.empty() && drops.empty()) return;
    }
    in_parts(std::span<const Write>(batch), [this](std::span<const Write> part) {
      if (!is_stopping()) write_part(part);
    });
    const std::vector<Id128> ids(drops.begin(), drops.end());
    // Behind the writes: each of these drops was ordered after the writes of its block, for write() takes out older
    // ones. A lost drop only means a block that comes back.
    using Work = node::DiskUpkeepFailed::Work;
    if (!ids.empty()) report_upkeep(Work::drop, error_of(store_->drop(ids, store::Level::written)));
    make_room();
    report_evictions();
  }
}

bool BlockDisk::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

/// Makes space ahead, while nothing waits for it.
void BlockDisk::make_room() {
  for (int round = 0; round < 2; ++round) {
    const auto more = store_->maintain();
    report_upkeep(node::DiskUpkeepFailed::Work::maintain, error_of(more));
    if (!more || !*more) return;
  }
}

/// Each failure is counted. The log has the first one, and the success that ends them, because work is tried again with
/// every batch.
void BlockDisk::report_upkeep(node::DiskUpkeepFailed::Work work, const Error& outcome) {
  const bool is_drop = work == node::DiskUpkeepFailed::Work::drop;
  const char* operation = is_drop ? "drop" : "maintain";
  const bool failed_before = std::exchange(upkeep_fails_[is_drop], outcome.code != Code::ok);
  if (outcome.code == Code::ok) {
    if (failed_before) log_info("disk upkeep works again", {{"operation", operation}});
    return;
  }
  if (!failed_before) log_warn("disk upkeep failed", {{"operation", operation}, {"why", outcome.what}});
  give(node::DiskUpkeepFailed{
      work, (is_drop ? "forgetting blocks failed: " : "freeing disk space in advance failed: ") + outcome.what});
}

void BlockDisk::write_part(std::span<const Write> part) {
  std::vector<node::DiskWritten> done;
  try {
    done = write_batch(part);
  } catch (const std::bad_alloc&) {
    done.clear();
    for (const Write& write : part) done.push_back({write.action.op, Code::no_space, no_memory(write.action)});
  }
  // The node takes a block for durable when its write has ended. So it learns first which blocks the disk has given up
  // for these. A block of these that was given up at once was not written.
  report_evictions();
  for (size_t i = 0; i < part.size(); ++i) {
    const bool is_gone = done[i].code == Code::ok && !store_->find(part[i].action.block.hash);
    if (is_gone) done[i].code = Code::no_space, done[i].what = "the disk gave the block up for others at once";
    give(std::move(done[i]));
  }
}

std::vector<node::DiskWritten> BlockDisk::write_batch(std::span<const Write> batch) {
  std::vector<node::DiskWritten> out;
  std::vector<Value> values;
  std::vector<store::Put> puts;
  std::vector<Code> codes(batch.size(), Code::ok);
  values.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const node::DiskBlock& block = batch[i].action.block;
    values.emplace_back(block.layout);
    if (!copy_checked(values[i].page(), batch[i].page, block.layout, block.layer_crcs)) {
      codes[i] = Code::corrupt;
      continue;
    }
    node::encode_disk_front(block, values[i].front());
    puts.push_back({.id = block.hash, .bytes = values[i].bytes()});
  }
  const Result<void> done = store_->put(puts, store::Level::durable);
  for (size_t i = 0; i < batch.size(); ++i) {
    const bool failed = codes[i] == Code::ok && !done;
    out.push_back({batch[i].action.op, failed ? done.error().code : codes[i], failed ? done.error().what : ""});
  }
  return out;
}

void BlockDisk::report_evictions() {
  const std::lock_guard lock(evictions_mutex_);
  node::DiskEvicted evicted;
  for (const Id128& id : store_->take_evicted()) evicted.hashes.push_back(BlockHash{id});
  if (!evicted.hashes.empty()) give(std::move(evicted));
}

// ---- the reader ------------------------------------------------------------------------------

void BlockDisk::read_all() {
  std::vector<Id128> found;
  store_->for_each([&](const Id128& id, uint32_t) { found.push_back(id); });
  std::sort(found.begin(), found.end());
  size_t next = 0;
  bool listed = false;
  for (;;) {
    std::vector<Load> batch;
    {
      std::unique_lock lock(mutex_);
      wake_reader_.wait(lock, [&] { return stopping_ || !loads_.empty() || !listed; });
      batch.swap(loads_);
      if (stopping_ && batch.empty()) return;
    }
    in_parts(std::span<const Load>(batch), [this](std::span<const Load> part) { load_part(part); });
    if (listed) continue;
    const size_t end = std::min(found.size(), next + kFoundAtOnce);
    listed = end == found.size();
    give(find_some(std::span(found).subspan(next, end - next), listed));
    next = end;
  }
}

node::DiskFound BlockDisk::find_some(std::span<const Id128> ids, bool last) {
  node::DiskFound found;
  found.last = last;
  std::vector<Page> fronts(ids.size());
  std::vector<store::Get> gets;
  for (size_t i = 0; i < ids.size(); ++i) gets.push_back({.id = ids[i], .room = fronts[i].bytes});
  store_->peek(gets);
  for (const store::Get& get : gets) {
    if (get.code != Code::ok) continue;
    auto block = node::parse_disk_front(get.room);
    // A value of another kind, or a front that was damaged: nobody finds it, and its space is reused in time.
    if (block && block->hash == get.id && node::disk_value_bytes(block->layout) == get.bytes)
      found.blocks.push_back(std::move(*block));
  }
  return found;
}

void BlockDisk::load_part(std::span<const Load> part) {
  std::vector<node::DiskLoaded> done;
  try {
    done = load_batch(part);
  } catch (const std::bad_alloc&) {
    done.clear();
    for (const Load& load : part) done.push_back({load.action.op, Code::no_space, no_memory(load.action), {}});
  }
  for (node::DiskLoaded& loaded : done) give(std::move(loaded));
  report_evictions();  // blocks whose bytes were wrong
}

std::vector<node::DiskLoaded> BlockDisk::load_batch(std::span<const Load> batch) {
  std::vector<node::DiskLoaded> out;
  std::vector<Value> values;
  std::vector<store::Get> gets;
  values.reserve(batch.size());
  for (const Load& load : batch) {
    values.emplace_back(load.action.layout);
    gets.push_back({.id = load.action.hash, .room = values.back().bytes()});
  }
  store_->get(gets);
  for (size_t i = 0; i < batch.size(); ++i) {
    node::DiskLoaded done{batch[i].action.op, gets[i].code, "", {}, {}};
    bool useless = false;  // the store has the value, which no load can ever use
    // A value of another size is not this block.
    if (done.code == Code::no_space) done.code = Code::corrupt, useless = true;
    if (done.code == Code::io) done.what = "reading block " + batch[i].action.hash.short_hex() + " failed";
    if (done.code == Code::ok) {
      auto block = node::parse_disk_front(values[i].front());
      const bool same = block && block->hash == batch[i].action.hash && block->layout == batch[i].action.layout &&
                        block->name_space == batch[i].action.name_space;
      if (same && copy_checked(batch[i].page, values[i].page(), block->layout, block->layer_crcs)) {
        done.layer_crcs = std::move(block->layer_crcs);
        done.tokens = std::move(block->tokens);
      } else {
        done.code = Code::corrupt, useless = true;
      }
    }
    if (useless) drop({{batch[i].action.hash}});  // before the answer, which may lead to a new write of the block
    out.push_back(std::move(done));
  }
  return out;
}

}  // namespace mc::host
