#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/spec/mapping.hpp"

// What both readers share.
namespace dtrain::spec {

// Reports what validate() would, at its places in the file, but for what is already known.
// `moved` says where the key of a problem stands in the file.
void report_problems(const std::vector<Problem>& problems, const Document& document, Report& report,
                     const std::function<Path(const Path&)>& moved = nullptr);

// Keys that stand twice: problems, or, in a file of Ray's, warnings, since Ray takes the last one.
void report_repeated(const Document& document, Report& report, bool of_ray);

// Runs `read`; an Error that it throws is a problem of that value. Absent when it throws.
template <typename Body>
auto reported(Report& report, const Path& path, Place place, Body&& read)
    -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    report.problem(path, place, error.message(), error.hint());
    return std::nullopt;
  }
}

// A special key that is one scalar, given to `parse`.
template <typename Parse>
auto scalar_value(Mapping& mapping, const char* name, Report& report, Parse parse)
    -> std::optional<decltype(parse(std::string_view{}))> {
  const Node* node = mapping.special(name);
  if (node == nullptr) return std::nullopt;
  const auto text = mapping.word(*node, mapping.path_of(name), false);
  if (!text) return std::nullopt;
  return reported(report, mapping.path_of(name), node->place, [&] { return parse(*text); });
}

// The keys of a job, at the top of a file whose table has those of job_table(), and perhaps more.
JobSpec read_job_keys(Mapping& top, Source source);
// A hint for a key that is not known; or nothing.
std::string explain_job_key(const std::string& key);

// The text of a file, as read_job_yaml() takes it.
std::string read_text(const std::string& path);

// Ray's names of the node types that its old form is rewritten to.
inline constexpr const char* kLegacyHead = "ray-legacy-head-node-type";
inline constexpr const char* kLegacyWorker = "ray-legacy-worker-node-type";

// `provider` with all its hosts, and max_workers where hosts decide it. `host_paths`: where in the
// file each of spec.provider.hosts stands.
void read_provider(Mapping& top, const Document& document, Source source, ClusterSpec& spec,
                   std::vector<Path>& host_paths);
// All keys of a cluster YAML that are about node types; after provider and the commands.
void read_node_types(Mapping& top, const Document& document, Source source, ClusterSpec& spec);
// Adds the key file that mapping's key `name` names, if any, to what must be on this machine.
void note_local_path(const Mapping& mapping, const char* name, const std::string& path,
                     const Document& document, Source source, ClusterSpec& spec,
                     LocalPath::What what = LocalPath::What::key);
// For machines that exist: the key `name` asks for more workers than there are.
void warn_of_few_hosts(const char* name, int wanted, int there, const Document& document,
                       Report& report);
// Warns about an image; everything else of `docker` says nothing.
void read_docker(Mapping docker, const Document& document, Report& report);

}  // namespace dtrain::spec
