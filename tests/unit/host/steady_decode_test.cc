// The decode machine and the compute with a real model, hand in hand: what a step costs beside the forward pass.

#include <new>
#include <vector>

#include "counting_memory.h"
#include "decode_node.h"
#include "model/find.h"

using namespace mc;
using namespace mc::host;
using mc::host::bench::DecodeNode;

TEST_CASE("host/steady_decode: every form of operator new is counted, and its operator delete frees the memory") {
  constexpr std::align_val_t kLine{64};
  const long before = test::g_allocations;
  ::operator delete(::operator new(100));
  ::operator delete(::operator new(100, std::nothrow));
  ::operator delete(::operator new(100, kLine), kLine);
  ::operator delete(::operator new(100, kLine, std::nothrow), kLine);
  ::operator delete[](::operator new[](100));
  ::operator delete[](::operator new[](100, std::nothrow));
  ::operator delete[](::operator new[](100, kLine), kLine);
  ::operator delete[](::operator new[](100, kLine, std::nothrow), kLine);
  CHECK_EQ(test::g_allocations - before, 8);
}

TEST_CASE("host/steady_decode: a step in which no block fills allocates nothing, in machine and compute") {
  for (const bool penalties : {false, true}) {
    CAPTURE(penalties);
    DecodeNode node({.model = model::find_model("mc-tiny").value()});
    wire::Sampling sampling;
    sampling.seed = 7;
    if (penalties) sampling.presence_penalty = 0.5;
    for (int row = 0; row < 4; ++row) node.join("request_of_this_test_" + std::to_string(row), 65, sampling, 60);
    node.tokens.reserve(1000);
    for (int i = 0; i < 16; ++i) node.step();  // buffers and scratch have grown
    const size_t told = node.tokens.size();
    const long before = test::g_allocations;
    for (int i = 0; i < 32; ++i) node.step();
    CHECK_EQ(test::g_allocations - before, 0);
    CHECK_EQ(node.tokens.size() - told, 32u * 4);
    CHECK_EQ(node.failed_steps, 0);
  }
}
