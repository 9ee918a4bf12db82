// `mc-bench doctor`: what this machine and its peers can carry, and what to do about the rest. Exit 0 when
// everything asked for works, 1 when something here must be changed first, 3 when only a peer is out of reach.
#include "verbs/doctor.h"

#include <algorithm>
#include <cstdlib>

#include "base/errors.h"
#include "ctl/ctl.h"
#include "host/choice_flags.h"
#include "host/key_file.h"
#include "print.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kDoctorTransports{.name = "transport",
                                 .kind = FlagKind::list,
                                 .value = "T,T",
                                 .fallback = "auto",
                                 .help = "transports that must work, here and to each peer; auto is any",
                                 .choices = "auto",
                                 .table = flags::transport_names};
constexpr Flag kDoctorMemory{.name = "memory",
                             .kind = FlagKind::bytes,
                             .value = "SIZE",
                             .fallback = "auto",
                             .help = "memory to register, like --kv-mem of a node; auto is 80 % of the free memory",
                             .choices = "auto"};
constexpr Flag kDoctorPort{.name = "port",
                           .kind = FlagKind::count,
                           .value = "N",
                           .fallback = "7790",
                           .help = "tcp port of a PEER given as a host"};
constexpr Flag kDoctorTimeout{.name = "timeout",
                              .kind = FlagKind::duration,
                              .value = "T",
                              .fallback = "5s",
                              .help = "longest wait for one connection"};

constexpr Flag kDoctorDevice = with_default(
    flags::kDevice, "auto", "GPU whose copies to the host are timed, as cuda:N, cuda:0-3 or emu; auto: none");

// The engines it opens for a moment report what the findings say better.
constexpr Flag kDoctorLogLevel = with_default(flags::kLogLevel, "warn");
constexpr Flag kDoctorInsecure = with_default(flags::kInsecure, "", "data allows peers on other hosts without keys");

constexpr const Flag* kDoctorFlagTable[] = {&kDoctorTransports, &kDoctorMemory,      &kDoctorDevice,   &kDoctorPort,
                                            &kDoctorTimeout,    &flags::kAuth,       &kDoctorInsecure, &flags::kJson,
                                            &flags::kOutput,    &flags::kQuiet,      &flags::kConfig,  &kDoctorLogLevel,
                                            &flags::kLogFormat, &flags::kPrintConfig};

Result<verbs::DoctorPlan> plan_of(const cli::Args& args) {
  verbs::DoctorPlan plan;
  plan.options.name = "doctor";
  plan.options.transport.clear();
  for (const std::string& transport : args.list(kDoctorTransports)) {
    plan.options.transport += (plan.options.transport.empty() ? "" : ",") + transport;
  }
  if (args.present(kDoctorMemory)) plan.memory_bytes = args.bytes(kDoctorMemory);
  if (args.count(kDoctorPort) < 1 || args.count(kDoctorPort) > 65535)
    return out_of_range(kDoctorPort, args.count(kDoctorPort), 1, 65535);
  plan.port = static_cast<uint16_t>(args.count(kDoctorPort));
  plan.timeout = args.duration(kDoctorTimeout);
  if (plan.timeout <= Duration(0))
    return user_error(err::kBadValue, "--timeout is 0", "--timeout", "give the longest wait, like 5s");
  MC_TRY(devices, gpu::parse_devices(args.text(kDoctorDevice)));
  plan.devices = std::move(devices);
  plan.peers = args.positional("PEER");
  MC_TRY(run_dir, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  MC_TRY(keys, host::KeyFile::of(args, run_dir));
  keys.apply(plan.options);
  plan.options.shm_folder = run_dir;
  return plan;
}

}  // namespace

const cli::FlagList kDoctorFlags = kDoctorFlagTable;

Result<int> doctor(const cli::Args& args) {
  MC_TRY(plan, plan_of(args));
  MC_TRY(sink, Sink::open(args));
  const verbs::Diagnosis diagnosis = verbs::diagnose(plan);
  for (const verbs::Finding& finding : diagnosis.findings) MC_CHECK(sink.line(verbs::to_json(finding)));
  Json result = result_head("mc.bench.doctor.v1", args);
  verbs::describe(diagnosis, result);
  MC_CHECK(sink.line(result));
  MC_CHECK(sink.text(verbs::findings_text(diagnosis.findings)));
  MC_CHECK(sink.finish());
  size_t here = 0, there = 0;
  std::string first, first_step;
  for (const verbs::Finding& finding : diagnosis.findings) {
    if (finding.verdict != verbs::Verdict::fix) continue;
    (finding.area == verbs::Area::peer ? there : here) += 1;
    if (!first.empty()) continue;
    first = std::string(to_string(finding.area)) + " " + finding.name + ": " + finding.what;
    first_step = finding.next;
  }
  if (here > 0) return user_error(err::kNotReady, std::to_string(here + there) + " to fix; first: " + first);
  if (there > 0) return user_error(err::kPeerUnreachable, first, {}, first_step);
  return 0;
}

}  // namespace mc::bench
