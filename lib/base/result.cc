#include "base/result.h"

namespace mc {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid: return "invalid";
    case Code::not_found: return "not_found";
    case Code::busy: return "busy";
    case Code::timeout: return "timeout";
    case Code::peer_lost: return "peer_lost";
    case Code::corrupt: return "corrupt";
    case Code::no_space: return "no_space";
    case Code::unsupported: return "unsupported";
    case Code::io: return "io";
    case Code::cancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace mc
