// `mc-bench model inspect FILE` prints the content of a model file, and the plan that this build makes of it.
#include <map>

#include "base/errors.h"
#include "gguf/gguf.h"
#include "model/find.h"
#include "model/runner.h"
#include "print.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr size_t kValueColumns = 40;  // of the table; --json has more

/// Tensors of one type, added up.
struct TypeSum {
  uint64_t tensors = 0, weights = 0, bytes = 0;
};

std::string bits_per_weight(const TypeSum& sum) {
  return sum.weights == 0 ? "-" : fixed(8.0 * static_cast<double>(sum.bytes) / static_cast<double>(sum.weights), 2);
}

Json shape_json(const std::vector<uint64_t>& shape) {
  Json list = Json::array();
  for (uint64_t size : shape) list.push(Json(static_cast<int64_t>(size)));
  return list;
}

/// The metadata of a GGUF file, as a table and as an object.
Result<void> show_metadata(const gguf::File& file, Sink& sink, Json& result) {
  Table table({"key", "value"});
  Json object = Json::object();
  for (const gguf::Pair& pair : file.header().pairs) {
    const std::string shown = pair.value.shown();
    table.add({pair.key, shown.size() > kValueColumns ? shown.substr(0, kValueColumns) + "..." : shown});
    object.set(pair.key, pair.value.shown());
  }
  result.set("version", file.header().version).set("metadata", std::move(object));
  Json paths = Json::array();
  for (const std::string& path : file.paths()) {
    paths.push(path);
    MC_CHECK(sink.text(path + "\n"));
  }
  result.set("files", std::move(paths)).set("bytes", static_cast<int64_t>(file.bytes()));
  MC_CHECK(sink.text("GGUF version " + std::to_string(file.header().version) + ", " + thousands(file.bytes()) +
                     " bytes, " + std::to_string(file.tensors().size()) + " tensors\n\n"));
  return sink.table(table);
}

/// The plan of a run with the default flags, or the reason that there is none.
std::string plan_text(const std::string& place, Json& result) {
  const auto plan = model::plan_model(place, {});
  if (!plan) {
    result.set("error", one_line(plan.error()));
    return "cannot be run: " + one_line(plan.error());
  }
  const model::ModelConfig& c = plan->config;
  result.set("architecture", model::to_string(c.architecture)).set("dtype", to_string(plan->dtype));
  result.set("weight_dtype", plan->weight_dtype()).set("weight_bytes", static_cast<int64_t>(plan->weight_bytes));
  return std::string(model::to_string(c.architecture)) + ", " + std::to_string(c.layers) + " layers, hidden " +
         std::to_string(c.hidden) + ", " + std::to_string(c.heads) + " heads, " + std::to_string(c.kv_heads) +
         " KV heads, vocabulary " + thousands(c.vocab) + ", context " + thousands(c.max_positions) +
         "\nin memory: " + thousands(plan->weight_bytes) + " bytes of weights in " + std::string(plan->weight_dtype()) +
         ", compute and KV in " + std::string(to_string(plan->dtype));
}

}  // namespace

Result<int> inspect_model(const cli::Args& args, const std::string& asked) {
  const auto by = args.positional("FILE").empty() ? model::NamedBy::flag : model::NamedBy::argument;
  MC_TRY(place, model::find_model(asked, by));
  MC_TRY(sink, Sink::open(args));
  Json result = result_head("mc.bench.inspect.v1", args), tensors = Json::array();
  result.set("model", place);
  std::map<std::string, TypeSum> types;
  const auto count = [&](const std::string& name, const std::string& type, const std::vector<uint64_t>& shape,
                         uint64_t weights, uint64_t bytes) {
    TypeSum& sum = types[type];
    ++sum.tensors;
    sum.weights += weights;
    sum.bytes += bytes;
    tensors.push(Json::object({{"name", name}, {"type", type}, {"bytes", static_cast<int64_t>(bytes)}})
                     .set("shape", shape_json(shape)));
  };
  if (gguf::is_gguf(place)) {
    MC_TRY(file, gguf::File::open(place));
    MC_CHECK(show_metadata(file, sink, result));
    for (const gguf::Tensor& tensor : file.tensors())
      count(tensor.info.name, std::string(gguf::info(tensor.info.type).name), tensor.info.shape, tensor.info.elements(),
            tensor.info.bytes);
  } else {
    MC_TRY(files, model::WeightFiles::open(place));
    MC_CHECK(sink.text(place + ": safetensors, " + thousands(files.total_bytes()) + " bytes of weights, " +
                       std::to_string(files.tensors().size()) + " tensors\n"));
    for (const model::Tensor& tensor : files.tensors())
      count(tensor.entry.name, tensor.entry.dtype_name, tensor.entry.shape, tensor.entry.elements(), tensor.bytes());
  }
  Table table({"type", "tensors", "weights", "bytes", "bits/weight"});
  for (const auto& [type, sum] : types)
    table.add({type, std::to_string(sum.tensors), thousands(sum.weights), thousands(sum.bytes), bits_per_weight(sum)});
  MC_CHECK(sink.text("\n"));
  MC_CHECK(sink.table(table));
  MC_CHECK(sink.text("\n" + plan_text(place, result) + "\n"));
  MC_CHECK(sink.line(result.set("tensors", std::move(tensors))));
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench
