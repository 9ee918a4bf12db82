#include "sched/transfer_costs.h"

#include <cmath>

#include "base/assert.h"

namespace mc::sched {
namespace {

constexpr double kAgree = 2;        // rates within this factor say the same
constexpr double kSizesDiffer = 2;  // reads whose sizes differ by this factor tell the fixed part from the rate
constexpr size_t kSlopesMin = 3;
constexpr double kFixedMost = 16;  // most that the fixed part may lower the rate

/// The middle value; of an even number of values the mean of the two in the middle. `values` is not empty.
double median(std::vector<double>& values) {
  MC_ASSERT(!values.empty());
  const auto upper = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), upper, values.end());
  if (values.size() % 2 == 1) return *upper;
  return (*std::max_element(values.begin(), upper) + *upper) / 2;
}

/// The same over positive values, with the geometric mean.
double middle_ratio(std::vector<double> values) {
  for (double& value : values) value = std::log(value);
  return std::exp(median(values));
}

bool is_positive(double value) {
  return std::isfinite(value) && value > 0;
}

}  // namespace

void TransferCosts::set_members(std::span<const Member> members) {
  std::vector<Reader> readers;
  for (const Member& member : members) {
    if (readers.size() <= member.slot) readers.resize(member.slot + size_t{1});
    Reader& reader = readers[member.slot];
    MC_ASSERT(!reader.here && is_positive(member.s_per_byte));
    if (member.slot < readers_.size()) reader.sources = std::move(readers_[member.slot].sources);
    reader.here = true, reader.readable = member.readable, reader.s_per_byte = member.s_per_byte;
  }
  pairs_ = 0;
  for (Reader& reader : readers) {
    std::erase_if(reader.sources, [&](const Source& source) {
      return !reader.here || source.slot >= readers.size() || !readers[source.slot].here;
    });
    pairs_ += reader.sources.size();
  }
  readers_ = std::move(readers);
}

/// The entry of the source. A new one replaces the source that was read longest ago when there are too many.
TransferCosts::Source& TransferCosts::source_of(Reader& reader, uint32_t slot) {
  for (Source& source : reader.sources)
    if (source.slot == slot) return source;
  if (reader.sources.size() < kSourcesMax) return reader.sources.emplace_back(Source{slot, {}, {}});
  const auto oldest = std::min_element(reader.sources.begin(), reader.sources.end(), [](const auto& a, const auto& b) {
    const TimePoint at = a.samples.back().at, other = b.samples.back().at;
    return at != other ? at < other : a.slot < b.slot;
  });
  *oldest = Source{slot, {}, {}};
  return *oldest;
}

void TransferCosts::add(uint32_t source, uint32_t reader, const FinishedRead& read, TimePoint now) {
  if (source == reader || !reader_at(source) || !reader_at(reader)) return;
  if (!is_positive(read.bytes) || !is_positive(read.seconds)) return;
  Reader& at = readers_[reader];
  if (!at.readable) return;  // a node that cannot be read announces no rate (NodeCosts::cost)
  Sample sample{read, now};
  const double announced_s = read.bytes * at.s_per_byte;
  sample.read.seconds = std::clamp(read.seconds, announced_s / kFactorMax, announced_s * kFactorMax);
  const double rate = sample.rate();
  if (!is_positive(rate)) return;  // the size is at an end of what a double holds
  pairs_ -= at.sources.size();
  Source& from = source_of(at, source);
  pairs_ += at.sources.size();
  std::erase_if(from.samples, [&](const Sample& old) {
    const double ratio = old.rate() / rate;
    return now - old.at > kHalfLife && (ratio > kAgree || ratio < 1 / kAgree);
  });
  if (from.samples.size() == kReadsKept) from.samples.erase(from.samples.begin());
  from.samples.push_back(sample);
  learn(from, at.s_per_byte);
}

void TransferCosts::learn(Source& source, double announced) {
  const std::vector<Sample>& samples = source.samples;
  std::vector<double> rates, slopes, fixed;
  double leaving = 0;
  for (const Sample& sample : samples) rates.push_back(sample.rate()), leaving += sample.read.leaving;
  if (samples.size() < 3) rates.push_back(announced);
  source.cost = {0, middle_ratio(std::move(rates)), leaving / static_cast<double>(samples.size()),
                 static_cast<uint32_t>(samples.size())};
  for (size_t i = 0; i < samples.size(); ++i)
    for (size_t j = i + 1; j < samples.size(); ++j) {
      const FinishedRead &a = samples[i].read, &b = samples[j].read;
      if (std::max(a.bytes, b.bytes) >= kSizesDiffer * std::min(a.bytes, b.bytes))
        slopes.push_back((b.seconds - a.seconds) / (b.bytes - a.bytes));
    }
  if (slopes.size() < kSlopesMin) return;
  const double slope = std::clamp(median(slopes), source.cost.s_per_byte / kFixedMost, source.cost.s_per_byte);
  for (const Sample& sample : samples) fixed.push_back(sample.read.seconds - slope * sample.read.bytes);
  source.cost.fixed_s = std::max(0.0, median(fixed));
  source.cost.s_per_byte = slope;
}

TransferCost TransferCosts::faded(const Source& source, double announced, TimePoint now) {
  const double half_lives = std::max(0.0, to_seconds(now - source.samples.back().at) / to_seconds(kHalfLife));
  const double left = std::exp2(-half_lives);
  TransferCost out = source.cost;
  out.fixed_s *= left;
  out.s_per_byte = announced * std::pow(out.s_per_byte / announced, left);
  return out;
}

std::optional<TransferCost> TransferCosts::find(uint32_t source, uint32_t reader, TimePoint now) const {
  const Reader *at = reader_at(reader), *there = reader_at(source);
  if (!at || !there || !at->readable || !there->readable) return std::nullopt;
  for (const Source& from : at->sources)
    if (from.slot == source) return faded(from, at->s_per_byte, now);
  return std::nullopt;
}

double TransferCosts::seconds(uint32_t source, uint32_t reader, double bytes, TimePoint now) const {
  const auto learnt = find(source, reader, now);
  return learnt ? learnt->seconds(bytes, 0) : bytes * s_per_byte(reader, now);
}

double TransferCosts::s_per_byte(uint32_t reader, TimePoint now) const {
  const Reader* at = reader_at(reader);
  MC_ASSERT(at != nullptr);
  if (!at->readable || at->sources.empty()) return at->s_per_byte;
  std::vector<double> rates = {at->s_per_byte};
  for (const Source& from : at->sources) rates.push_back(faded(from, at->s_per_byte, now).s_per_byte);
  const auto lower = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), lower, rates.end());
  return *lower;
}

double TransferCosts::least_s_per_byte(uint32_t reader, TimePoint now) const {
  const Reader* at = reader_at(reader);
  MC_ASSERT(at != nullptr);
  double least = s_per_byte(reader, now);
  if (!at->readable) return least;
  for (const Source& from : at->sources) least = std::min(least, faded(from, at->s_per_byte, now).s_per_byte);
  return least;
}

std::vector<TransferCosts::Pair> TransferCosts::pairs(TimePoint now) const {
  std::vector<Pair> out;
  for (uint32_t slot = 0; slot < readers_.size(); ++slot) {
    const Reader& reader = readers_[slot];
    if (reader.sources.empty()) continue;
    const size_t first = out.size();
    const double usual = s_per_byte(slot, now);
    for (const Source& from : reader.sources)
      out.push_back({from.slot, slot, faded(from, reader.s_per_byte, now), usual, now - from.samples.back().at});
    std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
              [](const Pair& a, const Pair& b) { return a.source < b.source; });
  }
  return out;
}

void TransferCosts::check() const {
  size_t pairs = 0;
  for (const Reader& reader : readers_) {
    MC_ASSERT(reader.here || reader.sources.empty());
    MC_ASSERT_LE(reader.sources.size(), kSourcesMax);
    pairs += reader.sources.size();
    for (const Source& from : reader.sources) {
      MC_ASSERT(reader_at(from.slot) != nullptr);
      MC_ASSERT(!from.samples.empty() && from.samples.size() <= kReadsKept);
      MC_ASSERT(from.cost.fixed_s >= 0 && from.cost.s_per_byte > 0);
    }
  }
  MC_ASSERT_EQ(pairs, pairs_);
}

}  // namespace mc::sched
