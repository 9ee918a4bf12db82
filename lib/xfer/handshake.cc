#include "xfer/handshake.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "xfer/stream.h"

namespace mc::xfer {

using wire::FrameType;
using wire::SealSetting;

namespace {

std::string_view meaning(SealSetting setting) {
  switch (setting) {
    case SealSetting::never: return "tcp_seal off";
    case SealSetting::may: return "tcp_seal auto on loopback";
    case SealSetting::must: return "tcp_seal on, or auto off loopback";
  }
  return "unknown";
}

/// Whether the stream is sealed. None: one side requires sealing and the other forbids it.
std::optional<bool> settle(SealSetting a, SealSetting b) {
  if (a != SealSetting::must && b != SealSetting::must) return false;
  if (a != SealSetting::never && b != SealSetting::never) return true;
  return std::nullopt;
}

/// The words of Options::tcp_seal, and their meaning where a secret is shared.
struct SealWord {
  std::string_view word;
  SealSetting on_loopback, off_loopback;
};
constexpr SealWord kSealWords[] = {
    {"auto", SealSetting::may, SealSetting::must},
    {"off", SealSetting::never, SealSetting::never},
    {"on", SealSetting::must, SealSetting::must},
};

/// "auto, off, on"
std::string listed_seal_words() {
  std::string out;
  for (const SealWord& seal : kSealWords) (out += out.empty() ? "" : ", ") += seal.word;
  return out;
}

const SealWord* find_seal_word(std::string_view word) {
  const auto at = std::ranges::find(kSealWords, word, &SealWord::word);
  return at == std::end(kSealWords) ? nullptr : at;
}

}  // namespace

std::vector<std::string_view> seal_names() {
  std::vector<std::string_view> out;
  for (const SealWord& seal : kSealWords) out.push_back(seal.word);
  return out;
}

Result<void> check_seal(const Options& options) {
  const SealWord* seal = find_seal_word(options.tcp_seal);
  if (seal == nullptr)
    return Error{Code::invalid,
                 "xfer: tcp_seal '" + options.tcp_seal + "' is unknown; there are: " + listed_seal_words()};
  if (seal->on_loopback == SealSetting::must && options.secret.empty())
    return Error{
        Code::invalid,
        "xfer: tcp_seal on needs a secret, which authenticates the keys: share one (mc-conductor keygen), or use auto",
        err::kBadValue};
  return {};
}

SealSetting seal_setting(const Options& options, bool loopback) {
  const SealWord* seal = find_seal_word(options.tcp_seal);
  MC_ASSERT(seal != nullptr);
  if (options.secret.empty()) return SealSetting::never;
  return loopback ? seal->on_loopback : seal->off_loopback;
}

namespace {

std::string_view text_of(const wire::Ticket& ticket) {
  return {reinterpret_cast<const char*>(ticket.data()), ticket.size()};
}

}  // namespace

OutFrame control_frame(FrameType type, std::vector<std::byte> payload) {
  OutFrame frame;
  frame.header.type = static_cast<uint8_t>(type);
  frame.header.length = payload.size();
  frame.payload = std::move(payload);
  return frame;
}

OutFrame refusal(Code code, std::string_view text, wire::Mismatch mismatch) {
  text = text.substr(0, wire::kReasonBytesMax);
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  OutFrame frame = control_frame(FrameType::refuse, {p, p + text.size()});
  frame.header.status = static_cast<uint32_t>(code);
  frame.header.id = static_cast<uint64_t>(mismatch);
  return frame;
}

OutFrame goodbye(std::string_view why) {
  why = why.substr(0, wire::kReasonBytesMax);
  const auto* p = reinterpret_cast<const std::byte*>(why.data());
  return control_frame(FrameType::goodbye, {p, p + why.size()});
}

Handshake Handshake::dial(const Services& services, const InstanceId& wanted, const Id128& connection, uint16_t lane,
                          uint16_t lane_count, SealSetting seal, const wire::Ticket& ticket) {
  Handshake handshake(services, seal);
  handshake.dialled_ = true;
  handshake.ticket_ = ticket;
  handshake.state_ = State::challenge;
  handshake.hello_ = {.instance = services.instance,
                      .wanted = wanted,
                      .connection = connection,
                      .lane = lane,
                      .lane_count = lane_count,
                      .secured = !services.options->secret.empty(),
                      .seal = seal,
                      .nonce = random_nonce(),
                      .name = services.options->name};
  if (seal != SealSetting::never) handshake.hello_.share = handshake.key_.emplace().share();
  return handshake;
}

Handshake Handshake::listen(const Services& services, SealSetting seal) {
  return Handshake(services, seal);
}

OutFrame Handshake::opening() const {
  return control_frame(FrameType::hello, wire::encode(hello_));
}

Handshake::Step Handshake::fail(const char* reason, Code code, std::string text, wire::Mismatch mismatch) {
  Step step;
  step.reason = reason;
  step.mismatch = mismatch;
  step.send = refusal(code, text, mismatch);
  step.failed = Error{code, "xfer: handshake: " + std::move(text)};
  return step;
}

Handshake::Step Handshake::disagree(SealSetting theirs) const {
  return fail("handshake: sealed on one side only", Code::invalid,
              "node '" + services_->options->name + "' has " + std::string(meaning(seal_)) + ", its peer has " +
                  std::string(meaning(theirs)),
              wire::Mismatch::seal);
}

/// Requires the settings of both sides.
bool Handshake::seals() const {
  return settle(hello_.seal, challenge_.seal).value_or(false);
}

/// Derives the keys. False: the share of the peer is invalid.
bool Handshake::agree(const wire::KeyShare& theirs, Step& step) {
  const auto exchanged = key_->agree(theirs);
  key_.reset();
  if (!exchanged) {
    step = fail("handshake: bad key share", Code::corrupt, "the peer's key share gives no secret");
    return false;
  }
  step.seal = seal_secrets(*exchanged, services_->options->secret, hello_, challenge_, dialled_);
  return true;
}

Handshake::Step Handshake::take(const wire::FrameHeader& header, std::span<const std::byte> payload,
                                FrameStream& stream) {
  Step step = take(header, payload);
  if (step.seal && dialled_) stream.seal(*step.seal);
  if (step.send) stream.push(step.send->header, std::move(step.send->payload));
  if (step.seal && !dialled_) stream.seal(*step.seal);
  return step;
}

Handshake::Step Handshake::take(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (header.kind() == FrameType::refuse) {
    const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
    Step step;
    step.reason = "handshake: the peer refused";
    const Code code = header.code() == Code::ok ? Code::invalid : header.code();
    step.failed = Error{code, "xfer: the peer refused: " + text};
    step.gone = code == Code::peer_lost;
    if (header.id <= static_cast<uint64_t>(wire::kMismatchLast)) step.mismatch = static_cast<wire::Mismatch>(header.id);
    return step;
  }
  if (state_ == State::hello && header.kind() == FrameType::hello) return on_hello(payload);
  if (state_ == State::challenge && header.kind() == FrameType::challenge) return on_challenge(payload);
  if (state_ == State::proof && header.kind() == FrameType::proof) return on_proof(payload);
  if (state_ == State::ready && header.kind() == FrameType::ready) return on_ready(payload);
  return fail("handshake: frame out of order", Code::corrupt,
              "unexpected frame '" + std::string(to_string(header.kind())) + "'");
}

Handshake::Step Handshake::on_hello(std::span<const std::byte> payload) {
  auto hello = wire::decode_hello(payload);
  if (!hello) return fail("handshake: malformed hello", hello.error().code, hello.error().what);
  hello_ = std::move(*hello);
  const std::string& own = services_->options->name;
  if (!hello_.wanted.is_zero() && hello_.wanted != services_->instance)
    return fail("handshake: stale instance wanted", Code::peer_lost,
                "instance " + hello_.wanted.short_hex() + " is gone; node '" + own + "' here is instance " +
                    services_->instance.short_hex() + " (restarted?)");
  if (hello_.instance == services_->instance)
    return fail("handshake: own instance", Code::invalid, "the dialler is this process");
  const bool secured = !services_->options->secret.empty();
  if (hello_.secured != secured)
    return fail("handshake: secret on one side only", Code::invalid,
                std::string("node '") + own +
                    (secured ? "' requires the cluster secret, the peer has none"
                             : "' has no cluster secret, the peer has one"),
                wire::Mismatch::secret);
  if (!settle(seal_, hello_.seal)) return disagree(hello_.seal);
  challenge_ = {
      .instance = services_->instance, .secured = secured, .seal = seal_, .nonce = random_nonce(), .name = own};
  if (seals()) challenge_.share = key_.emplace().share();
  if (secured) challenge_.proof = prove(services_->options->secret, "listener", hello_, challenge_);
  Step step;
  if (seals() && !agree(hello_.share, step)) return step;
  state_ = State::proof;
  step.send = control_frame(FrameType::challenge, wire::encode(challenge_));
  return step;
}

Handshake::Step Handshake::on_challenge(std::span<const std::byte> payload) {
  auto challenge = wire::decode_challenge(payload);
  if (!challenge) return fail("handshake: malformed challenge", challenge.error().code, challenge.error().what);
  challenge_ = std::move(*challenge);
  if (!hello_.wanted.is_zero() && challenge_.instance != hello_.wanted) {
    Step step = fail("handshake: other instance found", Code::peer_lost,
                     "wanted instance " + hello_.wanted.short_hex() + ", found " + challenge_.instance.short_hex() +
                         " of node '" + challenge_.name + "' (restarted?)");
    step.gone = true;
    return step;
  }
  const std::string& secret = services_->options->secret;
  wire::Proof proof{};
  if (!secret.empty()) {
    if (!challenge_.secured || !same(challenge_.proof, prove(secret, "listener", hello_, challenge_)))
      return fail(
          "handshake: wrong secret", Code::invalid,
          "node '" + challenge_.name + "' does not hold this cluster's secret, or the handshake was changed on its way",
          wire::Mismatch::secret);
    proof = prove(secret, "dialler", hello_, challenge_);
    proven_ = true;
  } else if (ticket_ != wire::Ticket{}) {
    proof = prove(text_of(ticket_), "ticket", hello_, challenge_);
  }
  if (!settle(seal_, challenge_.seal)) return disagree(challenge_.seal);
  Step step;
  if (seals() && !agree(challenge_.share, step)) return step;
  key_.reset();
  std::vector<std::byte> out(proof.size());
  std::memcpy(out.data(), proof.data(), proof.size());
  if (hello_.lane == 0) {
    const auto descriptor = wire::encode(*services_->describe());
    out.insert(out.end(), descriptor.begin(), descriptor.end());
  }
  state_ = State::ready;
  step.send = control_frame(FrameType::proof, std::move(out));
  return step;
}

Handshake::Step Handshake::on_proof(std::span<const std::byte> payload) {
  wire::Proof proof;
  if (payload.size() < proof.size()) return fail("handshake: malformed proof", Code::corrupt, "short proof");
  std::memcpy(proof.data(), payload.data(), proof.size());
  const std::string& secret = services_->options->secret;
  if (!secret.empty() && !same(proof, prove(secret, "dialler", hello_, challenge_)))
    return fail("handshake: wrong secret", Code::invalid, "the peer does not hold this cluster's secret",
                wire::Mismatch::secret);
  const bool ticketed = services_->ticket != wire::Ticket{} &&
                        same(proof, prove(text_of(services_->ticket), "ticket", hello_, challenge_));
  proven_ = !secret.empty() || ticketed;
  if (Step step = take_descriptor(payload.subspan(proof.size())); step.failed) return step;
  std::vector<std::byte> out;
  if (hello_.lane == 0) out = wire::encode(*services_->describe());
  state_ = State::complete;
  Step step;
  step.send = control_frame(FrameType::ready, std::move(out));
  return step;
}

Handshake::Step Handshake::on_ready(std::span<const std::byte> payload) {
  Step step = take_descriptor(payload);
  if (!step.failed) state_ = State::complete;
  return step;
}

Handshake::Step Handshake::take_descriptor(std::span<const std::byte> payload) {
  if (hello_.lane != 0) {
    if (payload.empty()) return {};
    return fail("handshake: descriptor on a data lane", Code::corrupt, "descriptor on a data lane");
  }
  auto descriptor = wire::decode_descriptor(payload);
  if (!descriptor) return fail("handshake: malformed descriptor", descriptor.error().code, descriptor.error().what);
  if (descriptor->instance != peer_instance())
    return fail("handshake: foreign descriptor", Code::corrupt, "descriptor of another instance");
  descriptor_ = std::make_shared<const Descriptor>(std::move(*descriptor));
  return {};
}

}  // namespace mc::xfer
