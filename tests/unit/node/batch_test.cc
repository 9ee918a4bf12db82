// The continuous batch alone: what the compute is told of a sequence once, and what it is told a step.

#include "node/batch.h"

#include "bench.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

using Phase = DecodeRequest::Phase;

struct BatchBench {
  kv::EventLog log;
  Shelf shelf{layout_of(2), 16, 16, kv::kLruTail, log};
  Batch batch{{.rows_max = 3, .context_tokens = 4096, .page_count = 16}, shelf};
  uint64_t orders = 0, runs = 0;

  BatchBench() { shelf.slabs.push_back(0); }
  /// A running request of `tokens` prompt tokens with pages up to the first answer token.
  Batch::RequestPtr running(uint32_t tokens, uint32_t max_tokens = 100) {
    auto r =
        std::make_shared<DecodeRequest>(spec_of("r" + std::to_string(orders), std::vector<uint32_t>(tokens, 5)), 64);
    r->spec.stopping.max_tokens = max_tokens;
    r->order = ++orders;
    r->phase = Phase::running;
    r->position = tokens;
    r->chain.append(r->spec.ids);
    r->answer.push_back(9);
    REQUIRE_OK(r->pages.allocate(shelf.pool, tokens / 64 + 1));
    batch.join(r);
    return r;
  }
  Actions step() {
    Actions out;
    batch.clear_rows();
    for (const auto& r : batch.running())
      if (!batch.full()) batch.add(r);
    batch.start(++runs, out);
    return out;
  }
  /// The compute's answer: each row drew `token`. Books all rows.
  void done(const RunStep& run, uint32_t token) {
    run.rows->out.assign(run.rows->in.size(), {});
    for (size_t i = 0; i < run.rows->in.size(); ++i) {
      run.rows->out[i].sampled.token = token;
      if ((run.rows->in[i].position + 1) % 64 == 0) run.rows->out[i].sealed_crcs.assign(2, 0);
    }
    REQUIRE(batch.finish({run.run, Code::ok, "", run.rows, 1ms}));
    for (size_t i = 0; i < batch.rows().size(); ++i) {
      wire::TokenRow row;
      batch.book(*batch.rows()[i], run.rows->out[i], true, row);
    }
    batch.clear_rows();
  }
  void end(const Batch::RequestPtr& r, Actions& out) {
    r->phase = Phase::ended;
    batch.remove(r);
    if (r->in_step) return;
    batch.leave(*r, out);
    r->pages.release(shelf.pool);
  }
};

}  // namespace

TEST_CASE("node/batch: the compute is told of a sequence once, before its first row, and steps name no pages again") {
  BatchBench b;
  const auto r = b.running(100);
  const Actions first = b.step();
  REQUIRE(first.size() == 2);
  const auto& join = std::get<JoinBatch>(first[0]);
  CHECK(join.sequence == r->order);
  CHECK(join.position == 100);
  CHECK(join.tokens_max == 200);
  CHECK(join.pages == std::vector<uint32_t>(r->pages.all().begin(), r->pages.all().end()));
  auto step = std::get<RunStep>(first[1]);
  CHECK(step.rows->in[0].joined);
  CHECK(step.rows->in[0].token == 9);
  b.done(step, 4);
  const Actions second = b.step();
  REQUIRE(second.size() == 1);
  step = std::get<RunStep>(second[0]);
  CHECK_FALSE(step.rows->in[0].joined);
  CHECK(step.rows->in[0].token == 4);
  CHECK(step.rows->in[0].position == 101);
  CHECK(step.rows->in[0].page == RunRow::kNoPage);
  b.done(step, 4);
  Actions out;
  b.end(r, out);
  CHECK(all<LeaveBatch>(out).at(0).sequence == r->order);
}

TEST_CASE("node/batch: a page is named by the one step that first writes it") {
  BatchBench b;
  const auto r = b.running(126);
  std::vector<uint32_t> named;
  for (int i = 0; i < 70; ++i) {
    if (r->position / 64 >= r->pages.size()) REQUIRE_OK(r->pages.allocate(b.shelf.pool, 1));
    const auto run = all<RunStep>(b.step()).at(0);
    if (run.rows->in[0].page != RunRow::kNoPage) {
      CHECK(run.rows->in[0].position % 64 == 0);
      named.push_back(run.rows->in[0].page);
    }
    b.done(run, 4);
  }
  REQUIRE(named.size() == 2);
  CHECK(named[0] == r->pages[2]);
  CHECK(named[1] == r->pages[3]);
  Actions out;
  b.end(r, out);
}

TEST_CASE("node/batch: a sequence that never had a step does not leave, one that ends in a step leaves after it") {
  BatchBench b;
  const auto first = b.running(10), second = b.running(10), third = b.running(10), fourth = b.running(10);
  const Actions out = b.step();
  CHECK(all<JoinBatch>(out).size() == 3);
  Actions ended;
  b.end(fourth, ended);
  CHECK(ended.empty());
  b.end(first, ended);
  CHECK(all<LeaveBatch>(ended).empty());
  const auto run = all<RunStep>(out).at(0);
  run.rows->out.assign(3, {});
  REQUIRE(b.batch.finish({run.run, Code::ok, "", run.rows, 1ms}));
  b.end(first, ended);
  CHECK(all<LeaveBatch>(ended).size() == 1);
  b.end(second, ended), b.end(third, ended);
}

TEST_CASE("node/batch: a row that ended while the step was put together is left out of it") {
  BatchBench b;
  const auto first = b.running(10), second = b.running(10);
  Actions out;
  b.batch.add(first), b.batch.add(second);
  b.end(second, out);
  b.batch.start(7, out);
  REQUIRE(all<RunStep>(out).size() == 1);
  CHECK(all<RunStep>(out)[0].rows->in.size() == 1);
  CHECK(all<JoinBatch>(out).size() == 1);
  CHECK(b.batch.computing());
  CHECK_FALSE(b.batch.finish({8, Code::ok, "", nullptr, 1ms}));
  b.done(all<RunStep>(out)[0], 4);
  b.end(first, out);
}

TEST_CASE("node/batch: a step that failed gives its rows back without a token") {
  BatchBench b;
  const auto r = b.running(10);
  const auto run = all<RunStep>(b.step()).at(0);
  CHECK(r->in_step);
  REQUIRE(b.batch.finish({run.run, Code::no_space, "full", run.rows, 1ms}));
  CHECK_FALSE(r->in_step);
  CHECK(b.batch.step_s() == 0);
  CHECK(r->answer.size() == 1);
  Actions out;
  b.end(r, out);
}
