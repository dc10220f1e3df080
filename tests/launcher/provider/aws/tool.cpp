#include <iostream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/aws/form.hpp"
#include "launcher/provider/aws/head_role.hpp"
#include "launcher/provider/aws/instances.hpp"
#include "launcher/provider/aws/provider.hpp"
#include "launcher/provider/aws/signature.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/ec2_model.hpp"
#include "launcher/spec/yaml.hpp"

// What stands under launcher/provider/aws, by hand and for aws.py, which compares it with botocore:
// one question by arguments and JSON on stdin, one answer in JSON.
using namespace dtrain;
using nlohmann::json;

namespace {

json pairs(const std::vector<std::pair<std::string, std::string>>& from) {
  json out = json::array();
  for (const auto& [name, value] : from) out.push_back({name, value});
  return out;
}

std::vector<std::pair<std::string, std::string>> pairs(const json& from) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const json& each : from) out.emplace_back(each.at(0), each.at(1));
  return out;
}

json tree(const aws::Xml& element) {
  json children = json::array();
  for (const aws::Xml& child : element.children) children.push_back(tree(child));
  return {{"name", element.name}, {"text", element.text}, {"children", children}};
}

json told(const Machine& machine) {
  return {{"node", machine.node.str()},
          {"id", machine.id},
          {"state", to_string(machine.state)},
          {"type", machine.type},
          {"head", machine.head},
          {"zone", machine.zone},
          {"reason", machine.reason},
          {"address", machine.address}};
}

// Of cluster `c-000000`, whose notes are in the folder: {"op", "nodes", "type", "boot", "settings",
// "config", "places"}.
json instances(aws::Client& client, const std::string& folder, const json& input) {
  aws::Instances machines(client, "c", folder, [&](const Request&) {
    aws::Launch launch;
    launch.config = input.value("config", json::object());
    launch.settings = input.value("settings", "");
    for (const json& zone : input.value("zones", json::array())) {
      launch.places.push_back({zone, {{"Placement", {{"AvailabilityZone", zone}}}}});
    }
    return launch;
  });
  json out = json::array();
  const OutcomeSink tell = [&](const MachineOutcome& outcome) {
    json one = told(outcome.machine);
    if (outcome.error) one["error"] = outcome.error->what();
    out.push_back(one);
  };
  const BootScript boot = [&](const NodeId& node) {
    std::string script = input.value("boot", "#!/bin/sh\n");
    const std::size_t name = script.find("@NODE@");
    return name == std::string::npos ? script : script.replace(name, 6, node.str());
  };
  const std::string op = input.at("op");
  if (op == "create") {
    Request request;
    request.type = input.value("type", "gpu");
    for (const json& node : input.at("nodes")) request.nodes.emplace_back(node.get<std::string>());
    request.cluster = ClusterId("c-000000");
    request.boot = boot;
    machines.create({request}, tell);
  } else {
    const std::vector<Machine> there = machines.list();
    if (op == "list") {
      for (const Machine& machine : there) out.push_back(told(machine));
    } else if (op == "release") {
      machines.release(there, tell);
    } else if (op == "stop") {
      machines.stop(there, tell);
      for (const Machine& machine : machines.list()) out.push_back(told(machine));
    } else if (op == "start") {
      machines.start(there, input.contains("boot") ? boot : BootScript(), tell);
      for (const Machine& machine : machines.list()) out.push_back(told(machine));
    } else {
      machines.follow(there, tell, {});
    }
  }
  return out;
}

json told(const Orphan& each) {
  return {{"cluster", each.cluster}, {"what", each.thing.what}, {"id", each.thing.id},
          {"gone", each.thing.gone}, {"kept", each.thing.kept}, {"note", each.thing.note}};
}

// {"op": "ensure", "cluster", "instance", "profiles"}; "policy" of "roles"; "list" and "take_away"
// are of all that the cluster has, or all clusters.
json head_role(aws::Client& client, const json& input) {
  const std::string cluster = input.value("cluster", "");
  if (input.at("op") == "ensure") {
    aws::ensure_head_role(client, cluster, ClusterId(cluster + "-abcdef"), input.at("instance"),
                          input.value("profiles", std::vector<std::string>()));
    return json::array();
  }
  if (input.at("op") == "policy") {
    return aws::head_policy(client.region(), cluster, input.at("roles"));
  }
  aws::Prices prices(client, "/nonexistent/prices");
  json out = json::array();
  for (Orphan& each : aws::belongings(
           client, cluster.empty() ? aws::of_any_cluster() : aws::of_cluster(cluster), prices)) {
    if (input.at("op") == "take_away") aws::take_away(client, each);
    out.push_back(told(each));
  }
  return out;
}

// What `up` has of a provider whose notes are in the folder: {"op", "yaml", "nodes", "machines"};
// "create" asks for the head and such workers: {"node": its type}; "release" gives back machines
// that were made long ago: {"node": its id}.
json provider(const std::string& folder, const json& input) {
  json out = json::object({{"outcomes", json::array()}, {"warnings", json::array()}});
  const Read<ClusterSpec> file =
      parse_cluster_yaml(input.at("yaml").get<std::string>(), "c.yaml", process_environment());
  Access access;
  access.warn = [&](const std::string& text) { out["warnings"].push_back(text); };
  for (const Warning& each : file.warnings) access.warn(each.location.str() + ": " + each.message);
  const auto made = aws::make_provider(file.spec, folder, access);
  const OutcomeSink tell = [&](const MachineOutcome& outcome) {
    json one = told(outcome.machine);
    if (outcome.error) one["error"] = outcome.error->what();
    out["outcomes"].push_back(one);
  };
  const std::string op = input.at("op");
  if (op == "create") {
    std::vector<Request> requests;
    for (const auto& [node, type] : input.at("nodes").items()) {
      Request& request = requests.emplace_back();
      request.type = type;
      request.head = type == file.spec.head_node_type;
      request.nodes = {NodeId(node)};
      request.cluster = ClusterId(file.spec.cluster_name + "-abcdef");
    }
    made->prepare(requests);
    made->create(requests, tell);
  } else if (op == "list") {
    for (const Machine& machine : made->list()) tell({machine, std::nullopt});
  } else if (op == "release") {
    std::vector<Machine> machines;
    for (const auto& [node, id] : input.at("machines").items()) {
      Machine& machine = machines.emplace_back();
      machine.node = NodeId(node);
      machine.id = id;
    }
    made->release(machines, tell);
  } else if (op == "clear_up") {
    for (const Belonging& each : made->clear_up(ClusterId(file.spec.cluster_name + "-abcdef"))) {
      out["outcomes"].push_back(told(Orphan{file.spec.cluster_name, each}));
    }
  }
  return out;
}

json answer(const std::vector<std::string>& words, const json& input) {
  const std::string& what = words.at(0);
  if (what == "sign") {
    HttpRequest request;
    request.method = "POST";
    request.url = input.at("url");
    request.body = input.at("body");
    request.fields = pairs(input.at("fields"));
    aws::Credentials credentials{
        input.at("access_key"), input.at("secret_key"), input.at("token"), {}, ""};
    aws::sign(request, {input.at("region"), input.at("service")}, credentials,
              parse_rfc3339(input.at("time")));
    return pairs(request.fields);
  }
  if (what == "provider") return provider(words.at(1), input);
  if (what == "form") {
    aws::Form form;
    aws::flatten(input, words.at(1), "", form);
    return pairs(form);
  }
  aws::Config config(aws::process_variables());
  if (what == "config") {
    return {{"region", config.region().value_or("")},
            {"profile", config.profile()},
            {"ca_bundle", config.ca_bundle()}};
  }
  if (what == "endpoints") {
    json out = json::array();
    for (const json& each : input) {
      for (const auto service : {aws::Service::ec2, aws::Service::sts, aws::Service::ssm,
                                 aws::Service::iam, aws::Service::sso}) {
        if (aws::to_string(service) != each.at(0)) continue;
        const aws::Endpoint endpoint = aws::endpoint_of(service, each.at(1), config);
        out.push_back({endpoint.url, endpoint.scope.region});
      }
    }
    return out;
  }
  const auto http = make_http(config.ca_bundle());
  if (what == "get") {
    const HttpAnswer got = http->send({.url = words.at(1), .fields = {}, .body = {}});
    return {{"status", got.status}, {"body", got.body}, {"fields", pairs(got.fields)}};
  }
  aws::Client client(config, aws::real_world(*http), words.at(1));
  if (what == "credentials") {
    const aws::Credentials found = client.credentials();
    return {{"access_key", found.access_key},
            {"secret_key", found.secret_key},
            {"token", found.token},
            {"from", found.from},
            {"expires", found.expires ? json(rfc3339(*found.expires)) : json()}};
  }
  if (what == "head_role") return head_role(client, input);
  if (what == "instances") return instances(client, words.at(2), input);
  if (what == "ec2") return tree(client.ec2(words.at(2), pairs(input)));
  if (what == "iam") return tree(client.iam(words.at(2), pairs(input)));
  if (what == "sts") return tree(client.sts(words.at(2), pairs(input)));
  if (what == "ssm") return client.ssm(words.at(2), input);
  if (what == "pages") {
    json out = json::array();
    client.ec2_pages(words.at(2), pairs(input),
                     [&](const aws::Xml& page) { out.push_back(tree(page)); });
    return out;
  }
  throw Error(ErrorCode::usage, "what is " + what + "?");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  try {
    std::cout << answer(words, text.empty() ? json() : json::parse(text)).dump() << '\n';
    return 0;
  } catch (const aws::ApiError& error) {
    std::cout << json{{"error", error.what()},
                      {"hint", error.hint()},
                      {"code", to_string(error.code())},
                      {"aws_code", error.aws_code()},
                      {"at", error.location() ? error.location()->str() : ""}}
                     .dump()
              << '\n';
  } catch (const Error& error) {
    std::cout << json{{"error", error.what()},
                      {"hint", error.hint()},
                      {"code", to_string(error.code())},
                      {"at", error.location() ? error.location()->str() : ""}}
                     .dump()
              << '\n';
  }
  return 1;
}
