// The verbs of mc-bench, one file each, and their table (verbs.cc).
#pragma once

#include <span>

#include "base/cli.h"

namespace mc::bench {

std::span<const cli::Verb> verbs();
/// The refusal of a flag's value.
Error bad_value(const Flag& flag, const std::string& what);
/// Those that no verb is without.
extern const cli::FlagList kEveryVerbFlags;

extern const cli::FlagList kMkmodelFlags;
Result<int> mkmodel(const cli::Args& args);

extern const cli::FlagList kModelFlags;
Result<int> measure_model(const cli::Args& args);
/// `model inspect`: what the model at `asked` holds.
Result<int> inspect_model(const cli::Args& args, const std::string& asked);

extern const cli::FlagList kAttnFlags;
Result<int> measure_attention(const cli::Args& args);

extern const cli::FlagList kGpuFlags;
Result<int> check_gpu(const cli::Args& args);

extern const cli::FlagList kOpsFlags;
Result<int> measure_operators(const cli::Args& args);

extern const cli::FlagList kRecallFlags;
Result<int> measure_recall(const cli::Args& args);

extern const cli::FlagList kGrammarFlags;
Result<int> measure_grammars(const cli::Args& args);

extern const cli::FlagList kTokFlags;
Result<int> measure_tokenizer(const cli::Args& args);

extern const cli::FlagList kXferFlags;
Result<int> xfer(const cli::Args& args);

extern const cli::FlagList kRfpFlags;
Result<int> measure_fetching(const cli::Args& args);

extern const cli::FlagList kDiskFlags;
Result<int> measure_disk(const cli::Args& args);

extern const cli::FlagList kKvFlags;
Result<int> measure_values(const cli::Args& args);

extern const cli::FlagList kDoctorFlags;
Result<int> doctor(const cli::Args& args);

extern const cli::FlagList kServeFlags;
Result<int> serve(const cli::Args& args);

extern const cli::FlagList kReplayFlags;
Result<int> replay(const cli::Args& args);

extern const cli::FlagList kSimFlags;
Result<int> simulate(const cli::Args& args);
/// `sim --calibrate`: the flags of sim and its own; whether it was asked for; the fit.
cli::FlagList with_calibration(cli::FlagList sim_flags);
bool wants_calibration(const cli::Args& args);
Result<int> calibrate(const cli::Args& args);

extern const cli::FlagList kRouteFlags;
Result<int> route(const cli::Args& args);

extern const cli::FlagList kAdviseFlags;
Result<int> advise(const cli::Args& args);

extern const cli::FlagList kTraceFlags;
Result<int> trace(const cli::Args& args);

extern const cli::FlagList kPlotFlags;
Result<int> plot(const cli::Args& args);

}  // namespace mc::bench
