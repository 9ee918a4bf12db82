// The flags of mc-conductor as settings of its parts.
#pragma once

#include <memory>

#include "base/cli.h"
#include "door/api_keys.h"
#include "door/request_reader.h"
#include "node/conductor.h"

namespace mc::host {

struct ConductorSettings {
  door::FrontendOptions front;  // without its lock
  node::ConductorOptions machine;
  std::shared_ptr<const door::ApiKeys> api_keys;  // replaced as a whole; the HTTP thread may still read the old keys
};

/// Reads the model's configuration and the file of API keys too. Errors name the flag.
Result<ConductorSettings> read_conductor_flags(const cli::Args& args);

}  // namespace mc::host
