// links: model text
// Configuration, tensors and tokenizer of a hostile GGUF file. Whatever is accepted must be consistent, and a text must
// become ids of the vocabulary.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/assert.h"
#include "fuzz_target.h"
#include "model/runner.h"
#include "text/text.h"

namespace mc::gguf_model_fuzz {
namespace {

/// A file in memory that has a path.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("gguf", MFD_CLOEXEC)) {
    MC_ASSERT(fd_ >= 0);
    size_t written = 0;
    while (written < size) {
      const ssize_t count = ::write(fd_, data + written, size - written);
      MC_ASSERT(count > 0);
      written += static_cast<size_t>(count);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

FUZZ_TARGET(gguf_model) {
  if (size < 4 || std::string(data, data + 4) != "GGUF") return 0;  // another format
  const MemoryFile file(data, size);
  if (const auto config = model::read_config(file.path())) {
    MC_ASSERT(config->layers > 0 && config->hidden > 0 && config->vocab > 0);
    MC_ASSERT_EQ(config->heads % config->kv_heads, 0u);
    for (uint32_t id : config->special.eos) MC_ASSERT_LT(id, config->vocab);
    const auto files = model::WeightFiles::open(file.path());
    if (files)
      for (const model::Tensor& tensor : files->tensors()) MC_ASSERT(files->find(tensor.entry.name) == &tensor);
    const auto plan = model::plan_model(file.path(), {});
    MC_ASSERT(plan || !plan.error().what.empty());
  } else {
    MC_ASSERT(config.error().mc != 0 && !config.error().what.empty());
  }
  const auto tokenizer = text::Tokenizer::open(file.path());
  if (!tokenizer) {
    MC_ASSERT(tokenizer.error().mc != 0 && !tokenizer.error().what.empty());
    return 0;
  }
  const auto ids = tokenizer->encode("ab a <s> 12 \u4e2d");
  MC_ASSERT(ids.has_value());
  for (uint32_t id : *ids) MC_ASSERT_LT(id, tokenizer->vocab_size());
  (void)tokenizer->decode(*ids);
  return 0;
}

}  // namespace mc::gguf_model_fuzz
