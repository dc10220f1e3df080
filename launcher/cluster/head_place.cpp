#include "launcher/cluster/head_place.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "launcher/cluster/door.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

// Who logs in to the head's machine; empty: nobody does, or as ~/.ssh/config says.
std::string user_of(const ClusterSpec& spec) {
  if (spec.provider.kind == ProviderKind::ssh) {
    return spec.provider.hosts.empty() ? "" : spec.provider.hosts.front().ssh_user;
  }
  const bool is_here =
      spec.provider.kind == ProviderKind::slurm && !spec.provider.other.contains("login_node");
  return is_here ? "" : spec.auth.ssh_user;
}

// Of hosts: the head's, as ssh from here knows it.
std::string host_of(const ClusterSpec& spec) {
  if (spec.provider.kind != ProviderKind::ssh || spec.provider.hosts.empty()) return "";
  const HostSpec& host = spec.provider.hosts.front();
  return host.host + (host.ssh_port ? ", port " + std::to_string(*host.ssh_port) : "");
}

// However it is written.
fs::path folder_of(const ClusterSpec& spec) {
  return (fs::path(spec.provider.root) / "").lexically_normal();
}

std::string changed(const std::string& what, const std::string& was, const std::string& now) {
  const auto word = [](const std::string& value) {
    return value.empty() ? "not given" : printable(value, false);
  };
  return what + " was " + word(was) + ", and is " + word(now);
}

// The head of that very cluster.
bool is_there(Machine machine, const ClusterId& cluster, const ClusterSpec& spec,
              Provider& provider, const fs::path& agent) {
  machine.cluster = cluster;
  try {
    return cluster_on(machine, spec, provider, agent).has_value();
  } catch (const Error&) {
    return false;
  }
}

// Whether the head of the `up` before, which was to be as `was` says, is there, and elsewhere.
bool stays_behind(const UpRun& run, const ClusterSpec& was) {
  if (was.head_moves() || run.spec.head_moves()) return true;  // it is on storage that stays
  const Machine& head = run.before->nodes.front();
  if (!head.id.empty()) {
    return std::any_of(run.there.begin(), run.there.end(), [&](const Machine& each) {
      return each.id == head.id && each.state != MachineState::gone;
    });
  }
  const ClusterId& id = run.before->id;
  const fs::path& agent = run.options.agent;
  const std::shared_ptr<Provider> before =
      run.options.provider
          ? run.options.provider
          : std::shared_ptr<Provider>(provider_of(*run.before, run.options.access));
  if (!is_there(head, id, was, *before, agent)) return false;
  // By another name it may be the same: with the same root it is found there too.
  const bool may_be_same = folder_of(was) == folder_of(run.spec) && !run.plan.nodes.empty();
  return !may_be_same ||
         !is_there(run.plan.nodes.front().machine, id, run.spec, *run.provider, agent);
}

}  // namespace

std::string another_place(const ClusterSpec& was, const ClusterSpec& now) {
  if (was.head_moves() != now.head_moves()) {
    return changed("head_node_type", was.head_node_type, now.head_node_type);
  }
  if (folder_of(was) != folder_of(now)) {
    return changed("provider.root", was.provider.root, now.provider.root);
  }
  const std::string user = user_of(was);
  const bool is_known = !user.empty() && !user_of(now).empty();
  if (user != user_of(now) && (is_known || now.provider.kind == ProviderKind::ssh)) {
    return changed("ssh_user", user, user_of(now));
  }
  if (host_of(was) != host_of(now)) return changed("the head", host_of(was), host_of(now));
  return "";
}

void refuse_second_head(const UpRun& run) {
  const ClusterSpec& now = run.spec;
  if (!run.before || !run.before->prepared || run.before->nodes.empty()) return;
  if (!run.before->spec.is_object() || traits_of(now.provider.kind).here) return;
  const ClusterSpec was = cluster_spec_from_json(run.before->spec);
  const std::string what = another_place(was, now);
  if (what.empty() || !stays_behind(run, was)) return;
  throw in_the_way(now.cluster_name, "the head of cluster " + now.cluster_name +
                                         " stays where it is while it is up: " + what);
}

}  // namespace dtrain
