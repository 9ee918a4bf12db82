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
  Numbers numbers;
  DeviceTier device{0, layout_of(2), kv::kLruTail, log, numbers};
  Batch batch;
  uint64_t orders = 0, runs = 0;

  explicit BatchBench(uint32_t steps_max = 1)
      : batch({.rows_max = 3, .context_tokens = 4096, .page_count = 16, .steps_max = steps_max}, shelf, device) {
    shelf.slabs.push_back(0);
  }
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
      if (!batch.full() && batch.goes_on(*r)) batch.add(r);
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
    for (size_t i = 0; i < batch.finished().size(); ++i) {
      wire::TokenRow row;
      batch.book(*batch.finished()[i], run.rows->out[i], true, row);
    }
    batch.clear_finished();
  }
  void end(const Batch::RequestPtr& r, Actions& out) {
    r->phase = Phase::ended;
    batch.remove(r);
    if (r->in_steps > 0) return;
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
  CHECK(r->in_steps == 1);
  REQUIRE(b.batch.finish({run.run, Code::no_space, "full", run.rows, 1ms}));
  CHECK(r->in_steps == 0);
  CHECK(b.batch.step_s() == 0);
  CHECK(r->answer.size() == 1);
  Actions out;
  b.end(r, out);
}

TEST_CASE("node/batch: a step behind another one takes the tokens that the first draws, and its pages go on") {
  BatchBench b(2);
  const auto r = b.running(63);
  REQUIRE_OK(r->pages.allocate(b.shelf.pool, 1));
  const auto first = all<RunStep>(b.step()).at(0);
  CHECK(first.is_followed);
  CHECK(b.batch.may_start());
  const auto second = all<RunStep>(b.step()).at(0);
  CHECK_FALSE(b.batch.may_start());
  const RunRow& row = second.rows->in[0];
  CHECK(row.token == RunRow::kFed);
  CHECK(row.position == 64);
  CHECK(row.page == r->pages[1]);
  CHECK_FALSE(row.joined);
  CHECK_FALSE(b.batch.finish({second.run, Code::ok, "", second.rows, 1ms}));  // steps end in their order
  b.done(first, 4);
  CHECK(r->in_steps == 1);
  const auto third = all<RunStep>(b.step()).at(0);
  CHECK(third.rows->in[0].token == RunRow::kFed);
  CHECK(third.rows->in[0].position == 65);
  b.done(second, 5);
  b.done(third, 6);
  CHECK(r->answer == std::vector<uint32_t>{9, 4, 5, 6});
  const auto fourth = all<RunStep>(b.step()).at(0);
  CHECK(fourth.rows->in[0].token == 6);  // no step is under way
  b.done(fourth, 7);
  Actions out;
  b.end(r, out);
}

TEST_CASE("node/batch: a request whose last token is under way has no row in the next step") {
  BatchBench b(2);
  const auto ends = b.running(10, 2), goes_on = b.running(10);
  const auto first = all<RunStep>(b.step()).at(0);
  CHECK(first.rows->in.size() == 2);
  CHECK_FALSE(b.batch.goes_on(*ends));
  const auto second = all<RunStep>(b.step()).at(0);
  REQUIRE(second.rows->in.size() == 1);
  CHECK(second.rows->in[0].sequence == goes_on->order);
  b.done(first, 4);
  b.done(second, 4);
  Actions out;
  b.end(ends, out), b.end(goes_on, out);
}

TEST_CASE("node/batch: the compute is told once that no step follows, and only when it may wait for one") {
  const auto told = [](BatchBench& b) {
    Actions out;
    b.batch.collect(out);
    return all<CollectSteps>(out).size();
  };
  BatchBench alone(1);
  const auto r = alone.running(10);
  CHECK_FALSE(all<RunStep>(alone.step()).at(0).is_followed);
  CHECK(told(alone) == 0);

  BatchBench b(2);
  CHECK(told(b) == 0);
  const auto s = b.running(10);
  const auto first = all<RunStep>(b.step()).at(0);
  CHECK(told(b) == 1);
  CHECK(told(b) == 0);
  const auto second = all<RunStep>(b.step()).at(0);
  CHECK(told(b) == 0);  // the second tells the compute to report the first
  b.done(first, 4);
  CHECK(told(b) == 1);
  b.done(second, 4);
  CHECK(told(b) == 0);
}
