#include "sim/batch.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

// The same batching, one step at a time over every row.
struct Plain {
  struct Row {
    uint32_t request;
    uint64_t context, left;
    double token_s;  // when its client had one last
    std::vector<double> gaps;
  };
  const sched::Profile& profile;
  std::vector<Row> rows, waiting;
  double end_s = -1;
  std::map<uint32_t, std::pair<double, std::vector<double>>> ended;

  void begin(double now_s) {
    rows.insert(rows.end(), waiting.begin(), waiting.end());
    waiting.clear();
    uint64_t context = 0;
    for (const Row& row : rows) context += row.context;
    step_s = profile.step_s(static_cast<double>(rows.size()), static_cast<double>(context));
    end_s = rows.empty() ? -1 : now_s + step_s;
  }
  void advance(double now_s) {
    while (end_s >= 0 && end_s <= now_s) {
      for (Row& row : rows) {
        row.gaps.push_back(end_s - row.token_s);
        row.token_s = end_s;
        ++row.context;
        if (--row.left == 0) ended[row.request] = {end_s, row.gaps};
      }
      std::erase_if(rows, [](const Row& row) { return row.left == 0; });
      begin(end_s);
    }
  }
  double step_s = 0;
};

sched::Profile profile() {
  auto out = sched::builtin_profile("a800-llama3-70b");
  REQUIRE(out);
  return *out;
}

double longest(std::vector<double> gaps) {
  std::sort(gaps.rbegin(), gaps.rend());
  double sum = 0;
  const size_t count = (gaps.size() + 9) / 10;
  for (size_t i = 0; i < count; ++i) sum += gaps[i];
  return sum / static_cast<double>(count);
}

}  // namespace

TEST_CASE("sim/batch: stretches give the times and gaps of single steps") {
  const sched::Profile p = profile();
  Rng rng(test::seed());
  for (int round = 0; round < 30; ++round) {
    Batch batch(&p, p.capacity.kv_tokens);
    Plain plain{p};
    std::map<uint32_t, double> ended;
    std::vector<Batch::Done> done;
    double now_s = 0;
    const auto settle = [&](double to_s) {
      while (batch.next_s() <= to_s) batch.advance(batch.next_s(), done);
      batch.advance(to_s, done);
    };
    for (uint32_t r = 0; r < 40; ++r) {
      now_s += rng.chance(0.3) ? 0 : rng.uniform() * 2;
      settle(now_s);
      plain.advance(now_s);
      const uint64_t context = 1 + rng.below(30'000), steps = 1 + rng.below(rng.chance(0.5) ? 5 : 300);
      const double token_s = now_s - (rng.chance(0.5) ? 0 : rng.uniform());
      batch.add(now_s, r, context, steps, token_s);
      plain.waiting.push_back({r, context, steps, token_s, {}});
      if (plain.end_s < 0) plain.begin(now_s);
    }
    settle(1e6);
    plain.advance(1e6);
    REQUIRE(done.size() == 40);
    for (const Batch::Done& d : done) {
      const auto& [end_s, gaps] = plain.ended.at(d.request);
      CHECK(d.at_s == doctest::Approx(end_s).epsilon(1e-9));
      const Gaps got = batch.history().take_gaps(d.request, 0);
      CHECK(got.count == gaps.size());
      CHECK(got.heard_s == doctest::Approx(longest(gaps)).epsilon(1e-9));
      CHECK(got.longest_s <= got.heard_s * (1 + 1e-12));
    }
    CHECK(batch.rows() == 0);
    CHECK(batch.context() == 0);
  }
}

TEST_CASE("sim/batch: a hole lengthens the gap of those who were there and of who waits for its end") {
  const sched::Profile p = profile();
  Batch batch(&p, p.capacity.kv_tokens);
  std::vector<Batch::Done> done;
  batch.add(0, 1, 1000, 3, 0);
  const double first_s = batch.next_s();
  batch.stop_at_boundary();
  batch.advance(batch.next_s(), done);
  const double boundary_s = first_s > 0 ? p.step_s(1, 1000) : 0;
  batch.hold(boundary_s);
  CHECK(batch.next_s() == Batch::kNever);
  batch.add(boundary_s + 4, 2, 1000, 2, boundary_s + 3);
  batch.release(boundary_s + 5);
  batch.add(boundary_s + 5, 3, 1000, 1, boundary_s + 5);
  while (batch.next_s() < Batch::kNever) batch.advance(batch.next_s(), done);
  REQUIRE(done.size() == 3);
  const double longest_s = batch.history().take_gaps(1, 0).heard_s;
  CHECK(longest_s > 5);
  CHECK(batch.history().take_gaps(2, 0).heard_s == doctest::Approx(longest_s - 3));
  CHECK(batch.history().take_gaps(3, 0).heard_s < 0.1);
}

TEST_CASE("sim/batch: the wait for a step to end is heard but not promised; the wait for the KV is both") {
  const sched::Profile p = profile();
  Batch batch(&p, p.capacity.kv_tokens);
  std::vector<Batch::Done> done;
  batch.add(0, 1, 1000, 10, 0);
  const double step_s = p.step_s(1, 1000), rest_s = step_s * 0.75, handoff_s = 0.01;
  batch.add(step_s - rest_s, 2, 1000, 5, step_s - rest_s - handoff_s);
  while (batch.next_s() < Batch::kNever) batch.advance(batch.next_s(), done);
  const Gaps gaps = batch.history().take_gaps(2, 0);
  const double joined_s = p.step_s(2, 2001);
  CHECK(gaps.longest_s == doctest::Approx(joined_s + handoff_s));
  CHECK(gaps.heard_s == doctest::Approx(joined_s + handoff_s + rest_s));
}

TEST_CASE("sim/batch: the first gap can be told apart from the others, and may be the only one") {
  const sched::Profile p = profile();
  Batch batch(&p, p.capacity.kv_tokens);
  std::vector<Batch::Done> done;
  const double handoff_s = 0.01;
  batch.add(handoff_s, 1, 1000, 3, 0);
  batch.add(handoff_s, 2, 1000, 1, 0);
  while (batch.next_s() < Batch::kNever) batch.advance(batch.next_s(), done);
  const Gaps gaps = batch.history().take_gaps(1, 0, true);
  CHECK(gaps.first_s > handoff_s);
  CHECK(gaps.count == 2);
  CHECK(gaps.heard_s == doctest::Approx(p.step_s(1, 1002)).epsilon(0.01));
  const Gaps only = batch.history().take_gaps(2, 0, true);
  CHECK(only.first_s > handoff_s);
  CHECK(only.count == 0);
  CHECK(only.heard_s == 0);
}

TEST_CASE(
    "sim/batch: steps that scatter change the gaps that clients see, alike for all rows, and not when all is over") {
  sched::Profile even = profile(), scattered = even;
  scattered.step_spread = {0.5, 0.75, 0.75, 2};
  REQUIRE(scattered.complete());
  const auto run = [](const sched::Profile& p) {
    Batch batch(&p, p.capacity.kv_tokens, 7);
    std::vector<Batch::Done> done;
    batch.add(0, 1, 1000, 400, 0);
    batch.add(0, 2, 1000, 400, 0);
    while (batch.next_s() < Batch::kNever) batch.advance(batch.next_s(), done);
    REQUIRE(done.size() == 2);
    return std::array{done[1].at_s, batch.history().take_gaps(1, 0).longest_s,
                      batch.history().take_gaps(2, 0).longest_s};
  };
  const auto a = run(even), b = run(scattered);
  CHECK(a[0] == b[0]);
  CHECK(b[1] > 1.7 * a[1]);
  CHECK(b[1] < 2.1 * a[1]);
  CHECK(b[2] > 1.7 * a[2]);
}

TEST_CASE("sim/batch: rows that outgrow the memory make the newest wait, and all end") {
  const sched::Profile p = profile();
  Batch batch(&p, 1200);
  std::vector<Batch::Done> done;
  batch.add(0, 1, 500, 400, 0);
  batch.add(0, 2, 500, 400, 0);
  batch.add(0, 3, 500, 10, 0);
  while (batch.next_s() < Batch::kNever) batch.advance(batch.next_s(), done);
  REQUIRE(done.size() == 3);
  CHECK(batch.preempted() > 0);
  for (const Batch::Done& d : done) {  // every token has its gap, and the gaps fill the time
    const Gaps gaps = batch.history().take_gaps(d.request, 0);
    CHECK(gaps.count == (d.request == 3 ? 10u : 400u));
    CHECK(gaps.total_s == doctest::Approx(d.at_s));
  }
}

TEST_CASE("sim/batch: a node that fails tells what rows had made before memory made them wait, once") {
  const sched::Profile p = profile();
  Batch batch(&p, 1200);
  std::vector<Batch::Done> done;
  batch.add(0, 1, 500, 400, 0);
  batch.add(0, 2, 500, 400, 0);
  const auto made = [&] {
    std::map<uint32_t, uint64_t> out;
    Batch copy = batch;
    copy.clear([&](uint32_t r, uint64_t tokens) { CHECK(out.emplace(r, tokens).second); });
    return out;
  };
  while (batch.preempted() == 0) batch.advance(batch.next_s(), done);
  REQUIRE(batch.waiting() == 1);
  const uint64_t before = made().at(2);
  CHECK(before + 1 == made().at(1));  // it joined one step later
  CHECK(before > 90);
  while (batch.waiting() > 0) batch.advance(batch.next_s(), done);
  REQUIRE(batch.running().size() == 1);
  CHECK(made().at(2) == before);
  batch.add(batch.next_s(), 3, 100, 50, batch.next_s());
  const double boundary_s = batch.next_s();
  batch.advance(boundary_s, done);
  CHECK(made() == std::map<uint32_t, uint64_t>{{2, before + 1}, {3, 0}});
  uint64_t context = 0;
  for (const Batch::Row& row : batch.running()) context += batch.context(row);
  CHECK(context == batch.context());
  batch.clear([](uint32_t, uint64_t) {});
  CHECK(batch.rows() + batch.waiting() + batch.context() + batch.waiting_context() == 0);
}
