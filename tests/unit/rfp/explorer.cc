#include "unit/rfp/explorer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_map>

#include "base/hash.h"

namespace mc::rfp::test {
namespace {

constexpr uint64_t kPiece = 32;
constexpr uint64_t kCallsMax = 8;
constexpr uint32_t kRequestPayload = 8;
using Words = std::vector<uint64_t>;

std::byte* at(Words& words, uint64_t offset) {
  return reinterpret_cast<std::byte*>(words.data()) + offset;
}

std::span<std::byte> bytes_of(Words& words) {
  return {reinterpret_cast<std::byte*>(words.data()), words.size() * 8};
}

struct Moving {
  bool push = false;
  Transfer transfer;    // of the client
  Server::Push pushed;  // of the server
  uint64_t sequence = 0;  // of the response that is pushed
  uint32_t pieces = 0;  // pieces that have not moved yet, a bit for each
  bool lost = false;
};

struct Scene {
  Client client;
  Server server;
  Words local, pushed, requests, responses;
  std::vector<Moving> moving;
  std::vector<uint64_t> running;  // requests whose handler runs
  uint64_t calls = 0, ended = 0;
  std::array<uint8_t, kCallsMax + 1> runs{}, ends{}, pushes{};
  std::array<uint64_t, 8> stored{};  // sequence of the response in each slot; 0 = its next request was taken
  uint32_t losses = 0;
};

class Explorer {
 public:
  Explorer(const Bounds& bounds, Fault fault) : bounds_(bounds) {
    geometry_ = {.slots = bounds.slots, .request_bytes = 64, .response_bytes = 128};
    client_ = {.geometry = geometry_, .epoch = 5, .instance = 6, .retries_max = 1};
    client_.first_after_max = client_.retry_after = client_.slow_retry_after = client_.push_wait = 0ns;
    client_.fault = fault;
    client_.fetches = bounds.fetches;
    server_ = {.geometry = geometry_, .epoch = 5, .instance = 6, .bad_looks_max = 0, .fault = fault};
    server_.always_push = !bounds.fetches;
  }

  Explored run() {
    Scene first{.client = Client(client_), .server = Server(server_)};
    first.local.resize(client_bytes(geometry_) / 8);
    first.pushed.resize(geometry_.responses_bytes() / 8);
    first.requests.resize(geometry_.requests_bytes() / 8);
    first.responses.resize(geometry_.responses_bytes() / 8);
    reach(first);
    while (!open_.empty() && out_.violation.empty() && out_.states < bounds_.states_max) {
      from_ = open_.back().first;
      const Scene scene = std::move(open_.back().second);
      open_.pop_back();
      expand(scene);
    }
    if (out_.violation.empty() && !open_.empty()) violation("more states than the test allows");
    if (out_.violation.empty()) check_ends();
    return out_;
  }

 private:
  ClientMemory client_memory(Scene& scene) { return {bytes_of(scene.local), bytes_of(scene.pushed)}; }
  ServerMemory server_memory(Scene& scene) { return {bytes_of(scene.requests), bytes_of(scene.responses)}; }
  uint64_t argument(uint64_t sequence) const { return sequence * 0x9e3779b97f4a7c15; }
  std::vector<uint64_t> response(uint64_t sequence) const {
    const bool is_long = bounds_.long_responses && sequence % 2 == 0;
    std::vector<uint64_t> out(is_long ? 5 : 1);
    for (uint64_t& word : out) word = argument(sequence) + static_cast<uint64_t>(&word - out.data());
    return out;
  }

  void violation(const std::string& what) {
    if (out_.violation.empty()) out_.violation = what;
  }

  void expand(const Scene& scene) {
    if (scene.calls < bounds_.calls && scene.client.free()) start_call(scene);
    post(scene);
    for (size_t i = 0; i < scene.moving.size(); ++i) move(scene, i);
    look(scene);
    serve(scene);
    for (size_t i = 0; i < scene.running.size(); ++i)
      for (const Duration time : {Duration(0), Duration(100us)}) publish(scene, i, time);
    push(scene);
  }

  void start_call(Scene scene) {
    const uint64_t argument_word = argument(scene.calls + 1);
    auto sequence = scene.client.call(client_memory(scene), 1, std::as_bytes(std::span(&argument_word, 1)), 64, {},
                                      kNever);
    if (!sequence || *sequence != ++scene.calls) return violation("a call does not start");
    reach(scene);
  }

  void post(Scene scene) {
    const auto transfer = scene.client.next(client_memory(scene), {});
    if (!transfer) return;
    scene.moving.push_back({.transfer = *transfer, .pieces = pieces_of(transfer->bytes)});
    reach(scene);
  }

  uint32_t pieces_of(uint64_t bytes) const { return (1u << (bytes + kPiece - 1) / kPiece) - 1; }

  void move(const Scene& scene, size_t index) {
    const Moving& moving = scene.moving[index];
    if (moving.pieces == 0) return complete(scene, index);
    for (uint32_t piece = 0; piece < 32; ++piece)
      if (moving.pieces >> piece & 1) move_piece(scene, index, piece);
    if (!moving.push || moving.lost || scene.losses == bounds_.lost_pushes) return;
    Scene next = scene;
    ++next.losses;
    next.moving[index].lost = true;
    next.moving[index].pieces = 0;
    reach(next);
  }

  void move_piece(Scene scene, size_t index, uint32_t piece) {
    Moving& moving = scene.moving[index];
    moving.pieces &= ~(1u << piece);
    const uint64_t offset = piece * kPiece;
    const auto copy = [&](std::byte* to, const std::byte* from, uint64_t whole) {
      std::memcpy(to + offset, from + offset, std::min(kPiece, (whole + 7) / 8 * 8 - offset));
    };
    const Transfer& transfer = moving.transfer;
    if (moving.push)
      copy(at(scene.pushed, moving.pushed.at), at(scene.responses, moving.pushed.at), moving.pushed.bytes);
    else if (transfer.kind == Transfer::Kind::read)
      copy(at(scene.local, transfer.local), at(scene.responses, transfer.remote), transfer.bytes);
    else
      copy(at(scene.requests, transfer.remote), at(scene.local, transfer.local), transfer.bytes);
    reach(scene);
  }

  void complete(Scene scene, size_t index) {
    const Moving moving = scene.moving[index];
    scene.moving.erase(scene.moving.begin() + static_cast<ptrdiff_t>(index));
    const bool fails = moving.lost && bounds_.lost_pushes_fail;
    if (fails && scene.stored[moving.pushed.slot] == moving.sequence) --scene.pushes[moving.sequence];
    if (moving.push)
      scene.server.pushed(moving.pushed.slot, fails ? Code::timeout : Code::ok);
    else
      scene.client.done(client_memory(scene), moving.transfer, Code::ok, {});
    end_calls(scene);
    reach(scene);
  }

  void look(Scene scene) {
    scene.client.look(client_memory(scene));
    end_calls(scene);
    reach(scene);
  }

  void end_calls(Scene& scene) {
    while (const auto answer = scene.client.take(client_memory(scene))) {
      const uint64_t sequence = answer->sequence;
      if (answer->code != Code::ok) return violation("a call failed");
      if (sequence == 0 || sequence > scene.calls || scene.ends[sequence]++ > 0) return violation("a call ended twice");
      const auto wanted = response(sequence);
      if (answer->payload.size() != wanted.size() * 8 ||
          std::memcmp(answer->payload.data(), wanted.data(), answer->payload.size()) != 0 || answer->status != sequence)
        return violation("a call got a wrong response");
      out_.pushed_ends += answer->pushed;
      out_.fetched_after_push += !answer->pushed && scene.client.pushes() && answer->retries > client_.retries_max;
      ++scene.ended;
      scene.client.finish(sequence);
    }
    out_.switched_back += !scene.client.pushes() && scene.ended >= 3 && scene.pushes[scene.ended] > 0;
  }

  void serve(Scene scene) {
    std::array<uint64_t, 4> payload{};
    const auto request = scene.server.poll(server_memory(scene), std::as_writable_bytes(std::span(payload)), {});
    if (!request) return reach(scene);
    if (request->sequence == 0 || request->sequence > scene.calls)
      return violation("the server takes what no call wrote");
    if (scene.runs[request->sequence]++ > 0) return violation("a handler runs twice");
    if (request->size != kRequestPayload || payload[0] != argument(request->sequence) || request->method != 1)
      return violation("a handler gets wrong arguments");
    scene.stored[geometry_.slot_of(request->sequence)] = 0;
    scene.running.push_back(request->sequence);
    reach(scene);
  }

  void publish(Scene scene, size_t index, Duration time) {
    const uint64_t sequence = scene.running[index];
    scene.running.erase(scene.running.begin() + static_cast<ptrdiff_t>(index));
    const auto words = response(sequence);
    scene.server.publish(server_memory(scene), sequence, static_cast<uint16_t>(sequence),
                         std::as_bytes(std::span(words)), TimePoint{} + time);
    scene.stored[geometry_.slot_of(sequence)] = sequence;
    reach(scene);
  }

  void push(Scene scene) {
    const auto pushed = scene.server.push(server_memory(scene));
    if (!pushed) return check_pushed(scene);
    const uint64_t sequence = scene.stored[pushed->slot];
    if (sequence == 0) return violation("the server pushes a response that is not stored");
    if (scene.pushes[sequence]++ > 0) return violation("a response is pushed twice");
    scene.moving.push_back(
        {.push = true, .pushed = *pushed, .sequence = sequence, .pieces = pieces_of(pushed->bytes)});
    reach(scene);
  }

  /// The server has looked and pushes nothing now.
  void check_pushed(Scene& scene) {
    for (uint32_t slot = 0; slot < geometry_.slots; ++slot) {
      const uint64_t sequence = scene.stored[slot];
      const bool busy = std::any_of(scene.moving.begin(), scene.moving.end(),
                                    [&](const Moving& moving) { return moving.push && moving.pushed.slot == slot; });
      const bool is_due = server_.always_push || wire::rfp_pushes(scene.requests[0], sequence);
      if (sequence != 0 && !busy && is_due && scene.pushes[sequence] == 0)
        return violation("a response that should be pushed is not");
    }
  }

  Id128 key(const Scene& scene) {
    words_.clear();
    scene.client.state(words_);
    scene.server.state(words_);
    for (const Words* words : {&scene.local, &scene.pushed, &scene.requests, &scene.responses, &scene.running})
      words_.insert(words_.end(), words->begin(), words->end());
    std::vector<std::array<uint64_t, 4>> moving;
    for (const Moving& m : scene.moving)
      moving.push_back({uint64_t{m.push} << 40 | uint64_t{m.lost} << 41 | m.pieces,
                        m.push ? m.pushed.at : m.transfer.remote, m.push ? m.pushed.bytes : m.transfer.bytes,
                        m.push ? 0 : uint64_t{1} + static_cast<uint8_t>(m.transfer.kind)});
    std::sort(moving.begin(), moving.end());
    for (const auto& row : moving) words_.insert(words_.end(), row.begin(), row.end());
    words_.insert(words_.end(), {~uint64_t{0}, scene.calls, scene.ended, scene.losses});
    for (uint64_t i = 0; i <= kCallsMax; ++i)
      words_.push_back(uint64_t{scene.runs[i]} | uint64_t{scene.ends[i]} << 8 | uint64_t{scene.pushes[i]} << 16);
    words_.insert(words_.end(), scene.stored.begin(), scene.stored.end());
    uint64_t a = 0x243f6a8885a308d3, b = 0x13198a2e03707344;
    for (const uint64_t word : words_) {
      a = (a ^ word) * 0x9e3779b97f4a7c15;
      a ^= a >> 29;
      b = (b + word) * 0xd6e8feb86659fd93;
      b ^= b >> 32;
    }
    Id128 out;
    std::memcpy(out.bytes.data(), &a, 8);
    std::memcpy(out.bytes.data() + 8, &b, 8);
    return out;
  }

  void reach(const Scene& scene) {
    ++out_.steps;
    const auto [where, fresh] = numbers_.emplace(key(scene), out_.states);
    const uint32_t number = where->second;
    if (fresh) {
      ++out_.states;
      before_.emplace_back();
      if (scene.ended == bounds_.calls) done_.push_back(number);
      open_.emplace_back(number, scene);
    }
    if (number != from_) before_[number].push_back(from_);
  }

  /// From every state a state is reachable in which all calls ended.
  void check_ends() {
    std::vector<bool> good(out_.states);
    std::vector<uint32_t> queue = done_;
    for (const uint32_t number : queue) good[number] = true;
    while (!queue.empty()) {
      const uint32_t number = queue.back();
      queue.pop_back();
      for (const uint32_t earlier : before_[number])
        if (!good[earlier]) good[earlier] = true, queue.push_back(earlier);
    }
    if (std::find(good.begin(), good.end(), false) != good.end()) violation("a call can no longer end");
  }

  struct Hash {
    size_t operator()(const Id128& id) const {
      size_t out;
      std::memcpy(&out, id.bytes.data(), sizeof out);
      return out;
    }
  };

  Bounds bounds_;
  wire::RfpGeometry geometry_;
  ClientOptions client_;
  ServerOptions server_;
  Explored out_;
  uint32_t from_ = 0;
  std::unordered_map<Id128, uint32_t, Hash> numbers_;
  std::vector<std::vector<uint32_t>> before_;
  std::vector<uint32_t> done_;
  std::vector<std::pair<uint32_t, Scene>> open_;
  std::vector<uint64_t> words_;
};

}  // namespace

Explored explore(const Bounds& bounds, Fault fault) {
  return Explorer(bounds, fault).run();
}

}  // namespace mc::rfp::test
