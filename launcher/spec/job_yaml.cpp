#include <utility>

#include "launcher/spec/limits.hpp"
#include "launcher/spec/readers.hpp"
#include "launcher/spec/values.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain {
namespace spec {
namespace {

// In a search's YAML, {lr} without quotes: YAML takes that for a mapping.
std::optional<std::string> parameter_in(const Mapping& from, const Node& node) {
  const bool is_one = from.table().find("space") != nullptr && node.kind == Node::Kind::mapping &&
                      node.entries.size() == 1 &&
                      node.entries.front().value->kind == Node::Kind::null;
  return is_one ? std::optional("{" + node.entries.front().key + "}") : std::nullopt;
}

// 3 and true are words here, as they are written.
std::vector<std::string> words_of(Mapping& from, const char* name, const Node& list) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const Path path = with(from.path_of(name), "[" + std::to_string(i) + "]");
    if (auto parameter = parameter_in(from, *list.items[i])) {
      words.push_back(std::move(*parameter));
    } else if (auto word = from.word(*list.items[i], path, false)) {
      words.push_back(std::move(*word));
    }
  }
  return words;
}

std::vector<std::string> read_words(Mapping& from, const char* name) {
  const Node* node = from.special(name);
  if (node == nullptr) return {};
  if (node->kind == Node::Kind::sequence) return words_of(from, name, *node);
  from.problem(name, "must be a " + from.table().find(name)->shape.in_words(),
               "for example: " + from.table().find(name)->example);
  return {};
}

void read_command(Mapping& top, JobSpec& spec) {
  const Node* node = top.special("command");
  if (node == nullptr) return;
  if (node->kind == Node::Kind::scalar) {
    spec.shell = true;
    spec.command = {node->text};
  } else if (node->kind == Node::Kind::sequence) {
    spec.command = words_of(top, "command", *node);
  } else {
    top.problem("command", "must be a list of words, or a text for a shell",
                "for example: command: [./train, --epochs, 3]");
  }
}

void read_env(Mapping& top, JobSpec& spec) {
  for (const Entry& entry : top.entries("env")) {
    const Path path = with(top.path_of("env"), entry.key);
    if (auto parameter = parameter_in(top, *entry.value)) {
      spec.env[entry.key] = std::move(*parameter);
    } else if (auto value = top.word(*entry.value, path, true, "env: {NAME: value}")) {
      spec.env[entry.key] = std::move(*value);
    }
  }
}

class SecretsReader {
 public:
  SecretsReader(Mapping& top, JobSpec& spec, Source source)
      : top_(top), spec_(spec), source_(source) {}

  void read() {
    const Node* node = top_.special("secrets");
    if (node == nullptr) return;
    if (node->kind == Node::Kind::mapping) {
      for (const Entry& entry : node->entries) read_entry(entry);
    } else if (node->kind == Node::Kind::sequence) {
      for (const Node* item : node->items) read_item(*item);
    } else {
      problem({"secrets"}, node->place, "must be a list of names, or NAME: {file: PATH}");
    }
  }

 private:
  static constexpr const char* kHow =
      "secrets: [NAME] takes the value from the environment of dtrain submit; secrets: {NAME: "
      "{file: PATH}} from a file";

  void problem(const Path& path, Place place, const std::string& message) {
    source_.report.problem(path, place, message, kHow);
  }

  void read_item(const Node& item) {
    if (item.kind == Node::Kind::mapping && item.entries.size() == 1) {
      read_entry(item.entries.front());
    } else if (item.kind != Node::Kind::scalar) {
      problem({"secrets"}, item.place, "must be a name, not " + item.kind_name());
    } else if (!valid_environment_name(item.text)) {
      // Perhaps NAME=value: not repeated.
      problem({"secrets"}, item.place,
              item.text.find('=') != std::string::npos
                  ? "a secret's value does not belong into the file"
                  : "this is no name of an environment variable");
    } else {
      spec_.secrets.push_back({item.text, std::nullopt});
    }
  }

  void read_entry(const Entry& entry) {
    const Node& value = *entry.value;
    if (!valid_environment_name(entry.key)) {
      problem({"secrets"}, entry.place, "this is no name of an environment variable");
      return;
    }
    const Path path{"secrets", entry.key};
    if (value.kind == Node::Kind::null) {
      spec_.secrets.push_back({entry.key, std::nullopt});
      return;
    }
    if (value.kind != Node::Kind::mapping) {
      problem(path, value.place, "a secret's value does not belong into the file");
      return;
    }
    const Node* file = value.find("file");
    if (file == nullptr || value.entries.size() != 1) {
      problem(path, value.place, "must have the key file, and no other");
      return;
    }
    if (file->kind != Node::Kind::scalar || file->text.empty()) {
      problem(with(path, "file"), file->place, "must be the path of a file");
      return;
    }
    const auto absolute = reported(source_.report, with(path, "file"), file->place,
                                   [&] { return source_.expander.path(file->text); });
    if (absolute) spec_.secrets.push_back({entry.key, *absolute});
  }

  Mapping& top_;
  JobSpec& spec_;
  Source source_;
};

void read_resources(Mapping resources, JobSpec& spec, Report& report) {
  spec.resources.cpu = resources.optional_number("CPU");
  spec.resources.gpu = scalar_value(resources, "GPU", report, parse_gpus);
  spec.resources.memory = scalar_value(resources, "memory", report, parse_bytes);
  for (const Entry& entry : resources.others()) {
    const Path at = resources.path_of(entry.key);
    if (const auto amount = resources.amount(*entry.value, at)) {
      spec.custom_resources[entry.key] = *amount;
    }
  }
  resources.finish();
}

void read_checkpoint(Mapping checkpoint, JobSpec& spec) {
  if (const auto kept = checkpoint.optional_whole("num_to_keep")) {
    spec.checkpoint.num_to_keep = static_cast<int>(*kept);
  }
  spec.checkpoint.score_attribute = checkpoint.optional_text("score_attribute");
  spec.checkpoint.score_order = parse_score_order(checkpoint.choice("score_order"));
  checkpoint.finish();
}

void read_restart(Mapping restart, JobSpec& spec) {
  std::vector<std::string> on = read_words(restart, "on");
  if (restart.has("on")) spec.restart.on = std::move(on);
  spec.restart.count = read_words(restart, "count");
  if (const auto window = restart.optional_whole("window_s")) {
    spec.restart.window = std::chrono::seconds(*window);
  }
  spec.restart.backoff = std::chrono::seconds(restart.whole("backoff_s"));
  spec.restart.same_failure = parse_same_failure(restart.choice("same_failure"));
  restart.finish();
}

}  // namespace

std::string explain_job_key(const std::string& key) {
  if (key == "provider" || key == "cluster_name") {
    return "this is a cluster YAML: give it to dtrain up";
  }
  if (key == "num_nodes") return "the number of nodes is nnodes";
  if (key == "envs") return "environment variables are env";
  if (key == "run" || key == "entrypoint") return "what to run is command";
  return "";
}

JobSpec read_job_keys(Mapping& top, Source source) {
  Report& report = source.report;
  JobSpec spec;
  read_command(top, spec);
  const auto name = top.optional_text("name");
  spec.name = name ? *name : default_job_name(spec);
  const std::string workdir = top.path_text("workdir");
  spec.workdir = workdir.empty() ? source.expander.folder() : workdir;
  read_env(top, spec);
  SecretsReader(top, spec, source).read();
  spec.setup = top.text("setup");
  spec.nnodes = scalar_value(top, "nnodes", report, parse_node_count).value_or(spec.nnodes);
  spec.nproc_per_node = scalar_value(top, "nproc_per_node", report, parse_procs_per_node)
                            .value_or(spec.nproc_per_node);
  spec.max_restarts = static_cast<int>(top.whole("max_restarts"));
  read_restart(top.mapping("restart"), spec);
  spec.spares = static_cast<int>(top.whole("spares"));
  spec.resources_given = top.has("resources");
  read_resources(top.mapping("resources"), spec, report);
  for (const Entry& entry : top.entries("label_selector")) {
    const Path at = with(top.path_of("label_selector"), entry.key);
    if (const auto rule = top.word(*entry.value, at, false)) spec.label_selector[entry.key] = *rule;
  }
  spec.storage_path = top.path_text("storage_path");
  read_checkpoint(top.mapping("checkpoint"), spec);
  spec.bundle = parse_bundle_mode(top.choice("bundle"));
  spec.on_head_lost = parse_on_head_lost(top.choice("on_head_lost"));
  spec.launcher = parse_launcher(top.choice("launcher"));
  spec.cpu_bind = parse_cpu_bind(top.choice("cpu_bind"));
  spec.stop_grace = std::chrono::seconds(top.whole("stop_grace_s"));
  if (const auto timeout = top.optional_whole("timeout_s")) {
    spec.timeout = std::chrono::seconds(*timeout);
  }
  if (const auto timeout = top.optional_whole("queue_timeout_s")) {
    spec.queue_timeout = std::chrono::seconds(*timeout);
  }
  if (const auto timeout = top.optional_whole("hang_timeout_s")) {
    spec.hang_timeout = std::chrono::seconds(*timeout);
  }
  spec.on_hang = parse_on_hang(top.choice("on_hang"));
  spec.log_limit = scalar_value(top, "log_limit", report, parse_bytes);
  spec.priority = static_cast<int>(top.whole("priority"));
  return spec;
}

}  // namespace spec

Read<JobSpec> parse_job_yaml(std::string_view text, const std::string& file,
                             const Environment& environment) {
  spec::Report report(file);
  const spec::Document document = spec::parse_document(text, report);
  spec::report_repeated(document, report, false);
  spec::Expander expander(environment, file);
  const spec::Source source{report, expander};
  spec::Mapping top(&document.root(), spec::job_table(), {}, source, spec::explain_job_key);
  JobSpec spec = spec::read_job_keys(top, source);
  top.finish();
  spec::report_problems(spec::problems_of(spec), document, report);
  report.finish();
  return {std::move(spec), report.take_warnings()};
}

}  // namespace dtrain
