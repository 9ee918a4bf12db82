// Plain driver of the fuzz targets, for compilers without libFuzzer: replays a target's corpus, then mutates it
// for a fixed number of rounds (MC_FUZZ_ROUNDS, else --rounds, else 15000) under --seed. A crash, an assertion or a
// sanitizer report is the failure; the printed seed repeats it.
//   fuzz-targets NAME CORPUS_DIR [--rounds=N] [--seed=N]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fuzz_target.h"

namespace {

std::map<std::string, mc::FuzzTarget::Run>& targets() {
  static std::map<std::string, mc::FuzzTarget::Run> all;
  return all;
}

using Bytes = std::vector<uint8_t>;
constexpr size_t kInputMax = 1 << 16;

std::vector<Bytes> read_corpus(const std::string& folder) {
  std::vector<std::string> paths;
  if (std::filesystem::is_directory(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());  // the order of a directory is nobody's promise
  std::vector<Bytes> corpus = {{}};
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void mutate(Bytes& input, const std::vector<Bytes>& corpus, mc::Rng& rng) {
  static constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '}', '\n', 0x20};
  for (uint64_t i = 1 + rng.below(8); i > 0; --i) {
    const size_t at = input.empty() ? 0 : rng.below(input.size());
    switch (rng.below(6)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1u << rng.below(8));
        break;
      case 1:
        if (!input.empty()) input[at] = kEdges[rng.below(sizeof kEdges)];
        break;
      case 2: input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(rng.next())); break;
      case 3: input.resize(at); break;
      case 4: {  // a piece of another input
        const Bytes& other = corpus[rng.below(corpus.size())];
        if (other.empty()) break;
        const size_t from = rng.below(other.size()), count = 1 + rng.below(std::min<size_t>(other.size() - from, 64));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
        break;
      }
      default:  // a 32-bit length field gone wild
        for (size_t b = 0; b < 4 && at + b < input.size(); ++b)
          input[at + b] = rng.chance(0.5) ? 0xff : static_cast<uint8_t>(rng.next());
    }
  }
  if (input.size() > kInputMax) input.resize(kInputMax);
}

}  // namespace

mc::FuzzTarget::FuzzTarget(const char* name, Run run) { targets().emplace(name, run); }

int main(int argc, char** argv) {
  const auto target = targets().find(argc > 1 ? argv[1] : "");
  if (target == targets().end()) {
    for (const auto& [name, run] : targets()) std::printf("%s\n", name.c_str());
    std::fprintf(stderr, "the first argument is one of these targets\n");
    return 2;
  }
  uint64_t seed = 0, rounds = 15000;
  for (int i = 2; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) seed = std::strtoull(argv[i] + 7, nullptr, 10);
    if (std::strncmp(argv[i], "--rounds=", 9) == 0) rounds = std::strtoull(argv[i] + 9, nullptr, 10);
  }
  if (const char* text = std::getenv("MC_FUZZ_ROUNDS")) rounds = std::strtoull(text, nullptr, 10);
  const auto corpus = read_corpus(argc > 2 ? argv[2] : "");
  std::printf("seed %llu, corpus of %zu, %llu rounds\n", static_cast<unsigned long long>(seed), corpus.size(),
              static_cast<unsigned long long>(rounds));
  for (const auto& input : corpus) target->second(input.data(), input.size());
  mc::Rng rng(seed);
  for (uint64_t round = 0; round < rounds; ++round) {
    Bytes input = corpus[rng.below(corpus.size())];
    mutate(input, corpus, rng);
    target->second(input.data(), input.size());
  }
  return 0;
}
