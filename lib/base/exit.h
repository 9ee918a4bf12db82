// Exit codes of every program. No program returns another one on purpose. The table of base/errors.h maps each MC####
// error to one of them.
#pragma once

namespace mc {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;  // cannot reach a peer, or the handshake failed
inline constexpr int kExitGoalMissed = 4;   // --fail-if or an SLO was not met
inline constexpr int kExitInterrupted = 130;

}  // namespace mc
