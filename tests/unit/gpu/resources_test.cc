// The table of what kernels may use of a multiprocessor (lib/gpu/kernels/resources.txt), which the build checks against
// ptxas, beside the threads and the shared memory that launches ask for.
#include <fstream>
#include <map>
#include <sstream>

#include "gpu/kernels/attention.h"
#include "gpu/kernels/decode.h"
#include "gpu/kernels/draw.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/gate.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/layer.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace {

struct Resources {
  uint32_t threads = 0, ctas = 0, shared = 0;
};

std::map<std::string, Resources> resources() {
  std::ifstream file(test::source_dir() + "/lib/gpu/kernels/resources.txt");
  std::map<std::string, Resources> out;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string kernel;
    Resources row;
    words >> kernel >> row.threads >> row.ctas >> row.shared;
    REQUIRE_MESSAGE((!words.fail() && out.emplace(kernel, row).second), line);
  }
  return out;
}

}  // namespace

TEST_CASE("gpu/resources: the table has each kernel once, with the threads of its launch") {
  const auto table = resources();
  CHECK(table.size() == emulated_kernels().size());
  for (const emu::Kernel& kernel : emulated_kernels()) {
    const std::string name(kernel.name);
    REQUIRE_MESSAGE(table.contains(name), name);
    CHECK_MESSAGE(table.at(name).threads == kernel.threads_max, name);
    CHECK_MESSAGE(table.at(name).ctas > 0, name);
  }
}

TEST_CASE("gpu/resources: the shared memory of the table is that of the launches") {
  auto table = resources();
  for (const uint32_t dim : {64u, 128u}) {
    const std::string d = "_d" + std::to_string(dim);
    CHECK(table.at("attention_prefill" + d).shared == attention_shared(64, dim));
    CHECK(table.at("attention_decode" + d).shared == attention_shared(16, dim));
    CHECK(table.at("moba_routed" + d).shared == routed_shared(dim));
    CHECK(table.at("moba_merge" + d).shared == attention_shared(64, dim));
    for (const char* kernel : {"attention_hopper", "moba_wide", "moba_merge_hopper"})
      CHECK(table.at(kernel + d).shared == hopper_shared(dim));
    CHECK(table.at("moba_stationary" + d).shared == stationary_shared(dim));
    CHECK(table.at("moba_transposed" + d).shared == transposed_shared(dim));
    CHECK(table.at("moba_gate" + d).shared == gate_shared(dim));
    CHECK(table.at("moba_scores" + d).shared == scores_shared(dim));
    CHECK(table.at("moba_choose" + d).shared == kChooseShared);
    CHECK(table.at("attention_cluster" + d).shared == cluster_shared(dim));
  }
  CHECK(table.at("attention_combine").shared == kCombineShared);
  CHECK(table.at("moba_unite").shared == kUniteShared);
  CHECK(table.at("moba_count").shared == count_shared());
  CHECK(table.at("moba_offsets").shared == kOffsetsShared);
  CHECK(table.at("moba_lists").shared == lists_shared());
  CHECK(table.at("product_64").shared == product_shared(64));
  CHECK(table.at("product_16").shared == product_shared(16));
  CHECK(table.at("expert_product_64").shared == product_shared(64));
  CHECK(table.at("expert_product_16").shared == product_shared(16));
  CHECK(table.at("group_rows").shared == group_shared(kExpertsMax));
  CHECK(table.at("checksum_extents").shared == kChecksumShared);
  CHECK(table.at("draw_rows").shared == kDrawShared);
}
