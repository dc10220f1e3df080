#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/context.hpp"
#include "launcher/spec/job_spec.hpp"

// A job, or what is made of one, on its way to the head.
namespace dtrain::cli {

// The current folder.
std::string here();

struct Sending {
  std::string target;
  std::chrono::milliseconds limit;  // for each answer
  // The body, with the job as it is sent: asked again for each try.
  std::function<nlohmann::json(const JobSpec&)> request;
  std::stop_token stop = {};  // the client's too: then what is under way ends by an Error
};
// Posts it, after the job's files where the cluster is elsewhere; gives the head's answer. A head
// that does not answer is asked again for a minute, over a new way: the request's submission_id
// makes repeats harmless. What `context` gave before may lead nowhere then.
nlohmann::json send_job(const Context& context, wire::ApiClient client, JobSpec spec,
                        const Sending& sending);

// What send_job would say of the workdir and the program, as far as that can be told before the
// cluster of this YAML is up. Throws Error.
void check_before_up(const JobSpec& spec, const std::string& cluster_yaml);

// What the head said to `dry_run`; gives the exit code.
int show_plan(const Context& context, const std::string& name, const nlohmann::json& plan);

// The built-in cluster of this machine. Current only when nothing else is: somebody's big cluster
// stays the one that is meant.
void use_local(Context& context);

}  // namespace dtrain::cli
