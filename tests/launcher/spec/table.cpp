#include "launcher/spec/table.hpp"

#include <doctest/doctest.h>

#include <set>

#include "launcher/spec/values.hpp"
#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using nlohmann::json;
using spec::Key;
using spec::Shape;
using spec::Table;

namespace {

// What a reader made of a key that the file does not have, against the table.
void check_defaults(const Table& table, const json& read) {
  for (const Key& key : table.keys) {
    CAPTURE(table.title);
    CAPTURE(key.name);
    if (key.fallback.is_null() || key.use != spec::Use::honoured) continue;
    REQUIRE(read.contains(key.name));
    CHECK(read[key.name] == key.fallback);
  }
}

// With what is left out at its default.
json whole(const JobSpec& spec) {
  json made = to_json(spec);
  CHECK_FALSE(made.contains("launcher"));
  made["launcher"] = to_string(spec.launcher);
  CHECK_FALSE(made.contains("on_hang"));
  made["on_hang"] = to_string(spec.on_hang);
  CHECK_FALSE(made.contains("cpu_bind"));
  made["cpu_bind"] = to_string(spec.cpu_bind);
  CHECK_FALSE(made.contains("spares"));
  made["spares"] = spec.spares;
  CHECK_FALSE(made.contains("label_selector"));
  made["label_selector"] = spec.label_selector;
  return made;
}

std::string shown_path(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// Each key refuses a list of a list, and the problem is that key's.
template <typename Problems>
void check_refusals(const Table& table, const std::string& prefix, const std::string& before,
                    const std::string& after, Problems problems) {
  for (const Key& key : table.keys) {
    if (key.name == "services") continue;  // a list of anything
    const std::string text = before + key.name + ": [[]]" + after;
    const auto found = problems(text);
    CAPTURE(text);
    CHECK(contains(found, " " + shown_path(prefix, key.name)));
    if (key.shape.kind == Shape::Kind::whole || key.shape.kind == Shape::Kind::number) {
      for (const char* wrong : {"1e300", "-1e300", ".nan", ".inf", "x", "true", "0x10", "1_0"}) {
        const std::string other = before + key.name + ": " + wrong + after;
        CAPTURE(other);
        CHECK(contains(problems(other), " " + shown_path(prefix, key.name)));
      }
    }
  }
}

}  // namespace

TEST_CASE("each default in the job's table is what an empty file yields") {
  const json read = whole(job("command: x"));
  check_defaults(spec::job_table(), read);
  check_defaults(spec::job_checkpoint_table(), read["checkpoint"]);
  // and what a JobSpec made by the program has
  check_defaults(spec::job_table(), whole(JobSpec{}));
  CHECK(read["resources"].empty());
  CHECK_FALSE(read.contains("timeout_s"));
}

TEST_CASE("each default in the cluster's tables is what an empty file yields") {
  json read = to_json(cluster("provider: {type: gcp}"));
  read["available_node_types"] = json::object();  // the cloud's own default
  check_defaults(spec::cluster_table(), read);
  check_defaults(spec::auth_table(), read["auth"]);
  json made = to_json(ClusterSpec{});
  check_defaults(spec::cluster_table(), made);
  check_defaults(spec::auth_table(), made["auth"]);
  for (const ProviderKind kind : kProviderKinds) {
    CAPTURE(to_string(kind));
    std::string text = std::string("provider: {type: ") + to_string(kind);
    if (kind == ProviderKind::ssh) text += ", head_ip: a";
    text += "}\n";
    if (kind == ProviderKind::kubernetes || kind == ProviderKind::slurm) {
      text += "head_node_type: h\navailable_node_types: {h: {}}\n";
    }
    json provider = to_json(cluster(text))["provider"];
    for (const auto& [name, value] : provider["other"].items()) provider[name] = value;
    for (const Key& key : spec::provider_table(kind).keys) {
      CAPTURE(key.name);
      if (key.fallback.is_null() || key.use != spec::Use::honoured) continue;
      if (key.fallback.empty()) {  // {} and [] may be left out
        CHECK(provider.value(key.name, key.fallback) == key.fallback);
      } else {
        CHECK(provider[key.name] == key.fallback);
      }
    }
  }
}

TEST_CASE("each default of a node type") {
  const ClusterSpec read =
      cluster("provider: {type: gcp}\nhead_node_type: h\navailable_node_types: {h: {}}");
  check_defaults(spec::node_type_table(), to_json(read)["available_node_types"]["h"]);
}

TEST_CASE("every key of a job refuses a value of the wrong type") {
  const auto problems = [](const std::string& text) { return job_problems(text); };
  check_refusals(spec::job_table(), "", "", "", problems);
  check_refusals(spec::job_resources_table(), "resources", "command: x\nresources: {", "}",
                 problems);
  check_refusals(spec::job_checkpoint_table(), "checkpoint", "command: x\ncheckpoint: {", "}",
                 problems);
}

TEST_CASE("every key of a cluster refuses a value of the wrong type") {
  const auto problems = [](const std::string& text) { return cluster_problems(text); };
  const std::string start = "provider: {type: aws}\n";
  for (const Key& key : spec::cluster_table().keys) {
    if (key.name == "provider") continue;
    const Table one{"one", {key}};
    check_refusals(one, "", start, "", problems);
  }
  check_refusals(spec::auth_table(), "auth", start + "auth: {", "}", problems);
  check_refusals(spec::docker_table(), "docker", start + "docker: {", "}", problems);
  const std::string type = start + "head_node_type: h\navailable_node_types: {h: {";
  check_refusals(spec::down_when_idle_table(), "down_when_idle", start + "down_when_idle: {", "}",
                 problems);
  check_refusals(spec::retention_table(), "retention", start + "retention: {", "}", problems);
  check_refusals(spec::node_type_table(), "available_node_types.h", type, "}}", problems);
  check_refusals(spec::node_type_docker_table(), "available_node_types.h.docker",
                 type + "docker: {", "}}}", problems);
  for (const ProviderKind kind : kProviderKinds) {
    for (const Key& key : spec::provider_table(kind).keys) {
      const Table one{"one", {key}};
      const std::string before = key.name == "type"
                                     ? "provider: {"
                                     : std::string("provider: {type: ") + to_string(kind) + ", ";
      check_refusals(one, "provider", before, "}", problems);
    }
  }
}

TEST_CASE("Ray's schema is known, key by key") {
  for (const char* name : {"cluster_name",
                           "max_workers",
                           "upscaling_speed",
                           "idle_timeout_minutes",
                           "provider",
                           "auth",
                           "docker",
                           "available_node_types",
                           "head_node_type",
                           "file_mounts",
                           "cluster_synced_files",
                           "file_mounts_sync_continuously",
                           "rsync_exclude",
                           "rsync_filter",
                           "metadata",
                           "no_restart",
                           "initialization_commands",
                           "setup_commands",
                           "head_setup_commands",
                           "worker_setup_commands",
                           "head_start_ray_commands",
                           "worker_start_ray_commands",
                           "head_node",
                           "worker_nodes",
                           "min_workers",
                           "initial_workers",
                           "autoscaling_mode",
                           "target_utilization_fraction",
                           "worker_default_node_type"}) {
    CAPTURE(name);
    CHECK(spec::cluster_table().find(name) != nullptr);
  }
}

TEST_CASE("no table has a key twice, and every key says what it is for") {
  const auto check = [](const Table& table) {
    std::set<std::string> seen;
    for (const Key& key : table.keys) {
      CAPTURE(table.title);
      CAPTURE(key.name);
      CHECK(seen.insert(key.name).second);
      CHECK_FALSE(key.doc.empty());
    }
  };
  for (const Table* table :
       {&spec::job_table(), &spec::job_resources_table(), &spec::job_checkpoint_table(),
        &spec::cluster_table(), &spec::auth_table(), &spec::node_type_table(),
        &spec::docker_table(), &spec::node_type_docker_table()}) {
    check(*table);
  }
  for (const ProviderKind kind : kProviderKinds) check(spec::provider_table(kind));
}
