#include <doctest/doctest.h>

#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using Lines = std::vector<std::string>;

// Forms of cluster YAMLs that Ray takes, and what they mean here.

namespace {

Lines warnings(std::string_view text) {
  Lines out;
  for (const Warning& each : parse_cluster_yaml(text, "c.yaml", environment()).warnings) {
    out.push_back(std::to_string(each.location.line) + ":" + std::to_string(each.location.column) +
                  " " + each.message);
  }
  return out;
}

}  // namespace

TEST_CASE("an absent head_node_type is Ray's default, where there is such a type") {
  const auto head = [](const std::string& provider, const std::string& types) {
    return cluster("provider: {type: " + provider + "}\navailable_node_types: " + types)
        .head_node_type;
  };
  CHECK(head("aws", "{ray.head.default: {}, w: {}}") == "ray.head.default");
  CHECK(head("azure", "{w: {}, ray.head.default: {}}") == "ray.head.default");
  CHECK(head("gcp", "{ray_head_default: {}, w: {}}") == "ray_head_default");
  CHECK(head("kubernetes", "{head_node: {}, worker_node: {}}") == "head_node");
  const auto problem = [](const std::string& provider, const std::string& types) {
    const Lines all =
        cluster_problems("provider: {type: " + provider + "}\navailable_node_types: " + types);
    return all.size() == 1 ? all.front() : std::to_string(all.size()) + " problems";
  };
  CHECK(problem("gcp", "{ray.head.default: {}, w: {}}")
            .ends_with("[head_node_type is one of: ray.head.default, w]"));
  CHECK(problem("aws", "{h: {max_workers: 0}, w: {}}").ends_with("[write head_node_type: h]"));
  // Its head is on the login node, and of no type; all that are asked for may be.
  CHECK(head("slurm", "{h: {}}").empty());
  // Which is then on the login node; else where it goes on is on storage that all share.
  const std::string slurm =
      "available_node_types: {h: {}, g: {min_workers: 2}}\nprovider: {type: slurm";
  const ClusterSpec login = cluster(slurm + "}");
  CHECK(login.promised() == std::vector<PromisedNode>{{NodeId(kLoginNode), ""}});
  CHECK(login.provider.root.empty());
  const ClusterSpec moves = cluster("head_node_type: h\n" + slurm + "}");
  CHECK(moves.promised() == std::vector<PromisedNode>{{NodeId(kHeadNode), "h"}});
  CHECK(moves.provider.root == "~/.dtrain");
  CHECK(moves.workers()[0].most == 0);
  CHECK(moves.max_workers == 2);
  CHECK(cluster("head_node_type: h\n" + slurm + ", shared_folder: /scratch/x}").provider.root ==
        "/scratch/x");
  CHECK(cluster("head_node_type: h\n" + slurm + ", root: /r}").provider.root == "/r");
  CHECK_FALSE(cluster("head_node: {}\nworker_nodes: {}\nprovider: {type: slurm}").head_moves());
  CHECK(cluster("provider: {type: slurm}\navailable_node_types: {a: {min_workers: 3}, b: "
                "{min_workers: 1, max_workers: 4}}")
            .max_workers == 7);
  // (type, those that stand ready, those that there may be)
  const auto workers = [&](const std::string& types) {
    std::vector<std::string> rows;
    for (const ClusterSpec::Workers& each :
         cluster("provider: {type: slurm}\n" + types).workers()) {
      rows.push_back(each.type + " " + std::to_string(each.count) + " " +
                     std::to_string(each.most));
    }
    return rows;
  };
  CHECK(workers("available_node_types: {a: {min_workers: 3}, b: {min_workers: 1}}") ==
        Lines{"a 3 3", "b 1 1"});
  CHECK(workers("available_node_types: {a: {min_workers: 3}, b: {}, c: {max_workers: 2}}") ==
        Lines{"a 3 3", "b 0 10000", "c 0 2"});
  CHECK(
      workers("max_workers: 4\navailable_node_types: {a: {min_workers: 3}, b: {min_workers: 2}}") ==
      Lines{"a 3 4", "b 1 4"});
}

TEST_CASE("kubernetes without node types has Ray's two") {
  const ClusterSpec spec = cluster("provider: {type: kubernetes, namespace: ray}\nmax_workers: 1");
  CHECK(spec.head_node_type == "head_node");
  CHECK(spec.node_types.size() == 2);
  CHECK(cluster("provider: {type: gcp}").head_node_type == "ray_head_default");
}

TEST_CASE("a key that stands twice: the last one in Ray's files, an error in ours") {
  const std::string twice =
      "provider: {type: aws}\nsetup_commands: [a]\nmax_workers: 3\nsetup_commands: [b]\n";
  CHECK(cluster_problems(twice) ==
        Lines{"4:1 setup_commands: is there twice in this mapping, first in line 2"});
  const std::string of_ray = twice + "head_start_ray_commands: []\n";
  CHECK(cluster(of_ray).setup_commands == std::vector<std::string>{"b"});
  CHECK(warnings(of_ray) == Lines{"4:1 setup_commands: is there twice: this one counts, as in Ray, "
                                  "and line 2 has no effect"});
  const ClusterSpec old = cluster("provider: {type: aws}\nhead_node: {A: 1, B: 2, A: 3}");
  CHECK(old.node_types.at(0).node_config["A"] == 3);
  // A key beside a merge is no second one.
  CHECK(warnings("provider: {type: aws}\nhead_node: &h {A: 1}\nworker_nodes: {<<: *h, A: 2}")
            .empty());
}

TEST_CASE("more workers than there can be are as many as there can be") {
  const std::string text =
      "provider: {type: aws}\nmax_workers: 999999\nhead_node_type: h\n"
      "available_node_types:\n  h: {max_workers: 999999}\n";
  const ClusterSpec spec = cluster(text);
  CHECK(spec.max_workers == 10000);
  CHECK(spec.node_types.at(0).max_workers == 10000);
  CHECK(
      warnings(text) ==
      Lines{"2:14 max_workers: is more than there can be: 10000 is taken",
            "5:20 available_node_types.h.max_workers: is more than there can be: 10000 is taken"});
  CHECK(contains(cluster_problems("provider: {type: aws}\nmax_workers: -1"), "must be a whole"));
  CHECK(
      contains(cluster_problems("provider: {type: aws}\nmin_workers: 999999"), "must be a whole"));
}

TEST_CASE("the file that Ray writes for machines that exist") {
  const std::string hosts = "provider: {type: local, head_ip: a, worker_ips: [b, c]}\n";
  const std::string type =
      hosts + "head_node_type: local.cluster.node\navailable_node_types:\n  local.cluster.node: ";
  const ClusterSpec spec =
      cluster(type + "{node_config: {}, resources: {}, min_workers: 2, max_workers: 2}\n");
  CHECK(spec.node_types.empty());
  CHECK(spec.head_node_type.empty());
  CHECK(spec.promised_nodes() == 3);
  CHECK(warnings(type + "{resources: {CPU: 4}}\n").size() == 1);
  CHECK(contains(cluster_problems(hosts + "available_node_types: {other: {}}"),
                 "is not for provider"));
}

TEST_CASE("more workers wanted than hosts: a warning, as in Ray") {
  const std::string hosts = "provider: {type: local, head_ip: a, worker_ips: [b, c]}\n";
  CHECK(warnings(hosts + "min_workers: 5\nmax_workers: 7\n") ==
        Lines{"2:14 min_workers: is 5, and there are 2 workers: no more can be",
              "3:14 max_workers: is 7, and there are 2 workers: no more can be"});
  CHECK(warnings(hosts + "min_workers: 2\nmax_workers: 2\n").empty());
  CHECK(warnings("provider: {type: local, nodes: 2}\nmin_workers: 3\n") ==
        Lines{"2:14 min_workers: is 3, and there is 1 worker: no more can be"});
}

TEST_CASE("keys of newer and older Ray") {
  const std::string text =
      "provider: {type: aws, aws_credentials: {aws_access_key_id: x}}\n"
      "auth: {ssh_proxy_use_node_id: true}\nterminate_failed_nodes: true\nhead_node_type: h\n"
      "available_node_types:\n  h: {idle_timeout_s: 90.5, priority: -2}\n";
  const ClusterSpec spec = cluster(text);
  CHECK(spec.node_types.at(0).idle_timeout_s == 90.5);
  CHECK(spec.node_types.at(0).priority == -2);
  CHECK(to_json(spec)["available_node_types"]["h"]["priority"] == -2);
  CHECK_FALSE(spec.provider.other.contains("aws_credentials"));
  CHECK(warnings(text) ==
        Lines{"1:23 provider.aws_credentials: only makes sense for Ray; it has no effect here",
              "2:8 auth.ssh_proxy_use_node_id: only makes sense for Ray; it has no effect here",
              "3:1 terminate_failed_nodes: has no effect; Ray itself has given it up"});
  // What says the default says nothing.
  CHECK(warnings("provider: {type: local, disable_node_updaters: false}\n"
                 "auth: {ssh_proxy_use_node_id: False}")
            .empty());
  CHECK(cluster("provider: {type: azure, subnet_mask: 10.1.0.0/16, unique_id: ab}")
            .provider.other["unique_id"] == "ab");
}

TEST_CASE("long names of clusters and hosts") {
  const std::string name(60, 'n');
  CHECK(cluster("cluster_name: " + name + "\nprovider: {type: local}").cluster_name == name);
  CHECK(contains(
      cluster_problems("cluster_name: " + std::string(256, 'n') + "\nprovider: {type: local}"),
      "1 to 255 of"));
  const std::string host(50, 'h');
  const ClusterSpec spec = cluster("provider: {type: ssh, hosts: [" + host + "1, " + host + "2]}");
  CHECK(spec.provider.hosts.at(0).node != spec.provider.hosts.at(1).node);
}

TEST_CASE("what the YAML names on this machine is listed with its place") {
  const ClusterSpec spec = cluster(
      "provider:\n  type: ssh\n  hosts: [a, {host: b, ssh_private_key: k}]\n"
      "auth: {ssh_private_key: ~/key}\nfile_mounts:\n  ~/data: ./data\n");
  REQUIRE(spec.local_paths.size() == 3);
  CHECK(spec.local_paths[0].key == "provider.hosts[1].ssh_private_key");
  CHECK(spec.local_paths[1].key == "auth.ssh_private_key");
  CHECK(spec.local_paths[1].path == "/home/me/key");
  CHECK(spec.local_paths[2].key == "file_mounts.~/data");
  CHECK(spec.local_paths[2].path == "/work/data");
  CHECK(spec.local_paths[2].location.str() == "/work/cluster.yaml:6:11");
  CHECK(spec.provider.location.line == 2);
}
