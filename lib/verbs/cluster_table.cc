#include "verbs/cluster_table.h"

#include <cstdio>
#include <set>
#include <vector>

#include "base/table.h"
#include "base/units.h"
#include "base/uri.h"
#include "verbs/json_text.h"

namespace mc::verbs {
namespace {

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes >= 0x1p30 ? "%.1fG" : "%.0fM",
                bytes >= 0x1p30 ? bytes / 0x1p30 : bytes / 0x1p20);
  return text;
}

std::string or_dash(std::string text) {
  return text.empty() ? "-" : text;
}

/// The HTTP address of a node. A node of another host that listens on its loopback is shown as HOST (lo:PORT).
std::string address_of(const Json& node) {
  const std::string http = text_of(node["http"]);
  const auto place = parse_host_port(http);
  const auto control = parse_uri(node["control"].as_string());
  if (!place || !control || !is_loopback(place->host) || is_local(*control)) return http;
  return control->host + " (lo:" + std::to_string(place->port) + ")";
}

/// The model of a node, or the profile of its modelled times. "" for a cache node.
std::string model_of(const Json& node) {
  const Json* runner = node["labels"].find("runner");
  return text_of(runner ? *runner : node["model"]);
}

/// The bytes of KV in use and in all. A cache node has pages of several sizes, so it counts blocks.
std::string kv_of(const Json& node) {
  const double page = node["page_bytes"].as_double(), total = node["pages_total"].as_double();
  if (page <= 0) return std::to_string(node["pages_cached"].as_int()) + " blocks";
  return gib((total - node["pages_free"].as_double()) * page) + "/" + gib(total * page);
}

/// The use of a node's disk, or what became of it.
std::string disk_of(const Json& node) {
  const double capacity = node["disk_capacity_bytes"].as_double();
  if (capacity <= 0) return "-";
  return node["disk_lost"].as_bool() ? "lost" : gib(node["disk_bytes"].as_double()) + "/" + gib(capacity);
}

std::string hits_of(const Json& node) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f", 100 * node["hit_rate"].as_double());
  return text;
}

enum class Shown : uint8_t { always, where_models_differ, where_devices_differ, where_a_disk_is };

struct Column {
  const char* name;
  std::string (*cell)(const Json& node);
  bool is_left = false;
  Shown shown = Shown::always;
};

constexpr Column kColumns[] = {
    {"ID", [](const Json& node) { return text_of(node["id"]); }},
    {"ROLE", [](const Json& node) { return text_of(node["role"]); }, true},
    {"STATE", [](const Json& node) { return text_of(node["state"]); }, true},
    {"ADDR", [](const Json& node) { return or_dash(address_of(node)); }, true},
    {"MODEL", [](const Json& node) { return or_dash(model_of(node)); }, true, Shown::where_models_differ},
    {"DEVICE", [](const Json& node) { return or_dash(text_of(node["device"])); }, true, Shown::where_devices_differ},
    {"RUN", [](const Json& node) { return count(node["running"]); }},
    {"QUEUE", [](const Json& node) { return count(node["waiting"]); }},
    {"KV", kv_of},
    {"SSD", disk_of, false, Shown::where_a_disk_is},
    {"HIT%", hits_of},
    {"UP", [](const Json& node) { return human_time(from_seconds(node["up_s"].as_double())); }},
};

/// Models and devices that some node has.
struct Kinds {
  std::set<std::string> models, devices;
  bool has_disks = false;

  bool show(const Column& column) const {
    switch (column.shown) {
      case Shown::always: return true;
      case Shown::where_models_differ: return models.size() > 1;
      case Shown::where_devices_differ: return devices.size() > 1;
      case Shown::where_a_disk_is: return has_disks;
    }
    return true;
  }
};

Kinds kinds_of(const Json& cluster) {
  Kinds out;
  for (const Json& node : cluster["nodes"].items()) {
    if (const std::string model = model_of(node); !model.empty()) out.models.insert(model);
    if (const std::string device = text_of(node["device"]); !device.empty()) out.devices.insert(device);
    out.has_disks = out.has_disks || node["disk_capacity_bytes"].as_double() > 0;
  }
  return out;
}

std::string breakers_text(const Json& cluster) {
  std::string out;
  for (const Json& b : cluster["breakers"].items()) {
    const std::string prefill = text_of(b["prefill"]), decode = text_of(b["decode"]);
    out += prefill.empty()  ? "node " + decode
           : decode.empty() ? "node " + prefill
                            : "pair " + prefill + " -> " + decode;
    out += " is set aside: its last " + std::to_string(b["failures"].as_int()) + " requests failed; ";
    out += b["state"].as_string() == "open"
               ? "tried again in " + human_time(from_seconds(b["retry_in_ms"].as_double() / 1e3 + 1))
               : std::string("the next request tries it");
    out += "\n";
  }
  return out;
}

/// The links that are less than half as fast as usual.
std::string slow_links_text(const Json& cluster) {
  std::string out;
  for (const Json& t : cluster["transfers"].items()) {
    const double rate = t["bytes_per_s"].as_double(), usual = t["usual_bytes_per_s"].as_double();
    if (!(2 * rate < usual)) continue;
    out += "link " + text_of(t["from"]) + " -> " + text_of(t["to"]) +
           " is slow: " + human_bytes(static_cast<uint64_t>(rate)) + "/s, usual " +
           human_bytes(static_cast<uint64_t>(usual)) + "/s\n";
  }
  return out;
}

}  // namespace

std::string cluster_line(const Json& cluster) {
  const Kinds kinds = kinds_of(cluster);
  const size_t nodes = cluster["nodes"].size();
  const int64_t unfinished = cluster["requests_unfinished"].as_int();
  std::string out = kinds.models.size() == 1 ? *kinds.models.begin() : text_of(cluster["model"]);
  if (kinds.devices.size() == 1) out += " on " + *kinds.devices.begin();
  out += " at " + text_of(cluster["url"]) + ", " + std::to_string(nodes) + (nodes == 1 ? " node, " : " nodes, ");
  return out + std::to_string(unfinished) + (unfinished == 1 ? " request unfinished\n" : " requests unfinished\n");
}

std::string cluster_table(const Json& cluster, bool wide) {
  const Kinds kinds = kinds_of(cluster);
  std::vector<const Column*> columns;
  std::vector<std::string> head;
  std::vector<std::string_view> left;
  for (const Column& column : kColumns) {
    if (!wide && !kinds.show(column)) continue;
    columns.push_back(&column);
    head.emplace_back(column.name);
    if (column.is_left) left.emplace_back(column.name);
  }
  Table table(head);
  table.left(left);
  std::string notes;
  for (const Json& node : cluster["nodes"].items()) {
    std::vector<std::string> row;
    for (const Column* column : columns) row.push_back(column->cell(node));
    table.add(std::move(row));
    const std::string id = text_of(node["id"]), lacks = text_of(node["lacks"]), error = text_of(node["last_error"]);
    if (!lacks.empty()) notes += id + ": " + lacks + "\n";
    if (!error.empty()) notes += id + " last error: " + error + "\n";
  }
  return table.text() + notes + breakers_text(cluster) + slow_links_text(cluster);
}

}  // namespace mc::verbs
