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

const std::string kSmall = "node_config: {InstanceType: m5.large}";

TEST_CASE("an absent head_node_type is Ray's default, where there is such a type") {
  const auto head = [](const std::string& provider, const std::string& types) {
    return cluster("provider: {type: " + provider + "}\navailable_node_types: " + types)
        .head_node_type;
  };
  CHECK(head("aws", "{ray.head.default: {" + kSmall + "}, w: {" + kSmall + "}}") ==
        "ray.head.default");
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
  CHECK(problem("gcp", "{h: {max_workers: 0}, w: {}}").ends_with("[write head_node_type: h]"));
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
      workers("max_workers: 4\navailable_node_types: {a: {min_workers: 3}, b: {min_workers: 1}}") ==
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
  const ClusterSpec old = cluster(
      "provider: {type: aws}\nhead_node: {InstanceType: t, KeyName: a, UserData: null, KeyName: "
      "b}");
  CHECK(old.node_types.at(0).node_config["KeyName"] == "b");
  // A key beside a merge is no second one.
  CHECK(warnings("provider: {type: aws}\nhead_node: &h {InstanceType: t, KeyName: "
                 "a}\nworker_nodes: {<<: *h, KeyName: b}")
            .empty());
}

TEST_CASE("more workers than there can be are as many as there can be") {
  const std::string text =
      "provider: {type: gcp}\nmax_workers: 999999\nhead_node_type: h\n"
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

TEST_CASE("more workers that stand ready than there may be") {
  const auto problem = [](const std::string& provider, const std::string& text) {
    const Lines all = cluster_problems("provider: {type: " + provider + "}\n" + text);
    CHECK(all.size() == 1);
    const std::string first = all.empty() ? "" : all.front();
    return first.substr(0, first.find(" ["));
  };
  const std::string old =
      "head_node: {InstanceType: m5.large}\nworker_nodes: {InstanceType: m5.large}\n";
  const std::string types = "head_node_type: h\navailable_node_types:\n  h: ";
  CHECK(problem("aws", types + "{" + kSmall + "}\n  g: {min_workers: 3, " + kSmall + "}") ==
        "5:20 available_node_types.g.min_workers: is 3, more than max_workers, which is 2");
  CHECK(problem("aws", types + "{" + kSmall + "}\n  g: {min_workers: 3, max_workers: 2, " + kSmall +
                           "}\nmax_workers: 9") ==
        "5:20 available_node_types.g.min_workers: is 3, more than max_workers, which is 2");
  CHECK(problem("aws", types + "{min_workers: 1, " + kSmall + "}") ==
        "4:20 available_node_types.h.min_workers: is 1, more than max_workers, which is 0");
  CHECK(problem("aws", types + "{" + kSmall + "}\n  f: {min_workers: 2, " + kSmall +
                           "}\n  g: {min_workers: 1, " + kSmall + "}") ==
        "6:20 available_node_types.g.min_workers: makes it 3 of all types, more than max_workers "
        "of the cluster, which is 2");
  CHECK(problem("slurm", "available_node_types: {g: {min_workers: 3}}\nmax_workers: 2") ==
        "2:41 available_node_types.g.min_workers: is 3, more than max_workers, which is 2");
  CHECK(problem("aws", old + "min_workers: 3") ==
        "4:14 min_workers: is 3, more than max_workers, which is 2");
  CHECK(problem("aws", "min_workers: 3") ==
        "2:14 min_workers: is 3, more than max_workers, which is 2");
  CHECK(cluster("provider: {type: aws}\n" + old + "initial_workers: 3\nmin_workers: 2")
            .promised_nodes() == 3);
  CHECK(cluster("provider: {type: aws}\n" + old + "min_workers: 3\nmax_workers: 3")
            .promised_nodes() == 4);
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
      "available_node_types:\n  h: {idle_timeout_s: 90.5, priority: -2, node_config: "
      "{InstanceType: m5.large}}\n";
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
  const ClusterSpec types = cluster(
      "provider: {type: slurm}\navailable_node_types:\n  cpu: {}\n  gpu:\n    min_workers: 2\n");
  CHECK(types.node_types.at(0).location.line == 3);
  CHECK(types.node_types.at(1).location.line == 4);
}

TEST_CASE("a node_config of aws is what RunInstances takes") {
  const std::string text = R"(
provider:
  type: aws
  security_group:
    GroupName: mine
    IpPermissions:
      - {IpProtocol: tcp, FromPort: 22, ToPort: 22, IpRanges: [{CidrIp: 0.0.0.0/0}]}
  key_pair: {key_name: me}
head_node_type: h
available_node_types:
  h:
    node_config:
      InstanceType: p3.2xlarge
      ImageId: latest_dlami
      SubnetIds: [subnet-1, subnet-2]
      MaxCount: 4
      BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: "100", Encrypted: true}}]
      InstanceMarketOptions: {MarketType: spot, SpotOptions: {MaxPrice: "1.50"}}
      TagSpecifications: [{ResourceType: instance, Tags: [{Key: number, Value: 12}, {Key: "007", Value: 007}]}]
      NetworkInterfaces: [{DeviceIndex: 0, Groups: [sg-1]}]
      CpuOptions: null
)";
  CHECK(cluster_problems(text).empty());
  CHECK(warnings(text) == Lines{"16:17 available_node_types.h.node_config.MaxCount: has no effect: "
                                "min_workers and max_workers say how many there are"});
  const std::string wrong = R"(provider:
  type: aws
  security_group: {GroupName: [a], IpPermissions: [{IpProtocoll: tcp}, x, {IpProtocol: tcp, UserIdGroupPairs: [{GroupId: sg-1}, {GroupName: a}]}], Other: 1}
  key_pair: {KeyName: me}
head_node:
  InstanceType: m5.large
  ImageIdd: ami-1
  SubnetIds: subnet-1
  DryRun: true
  BlockDeviceMappings:
    - DeviceName: /dev/sda1
      Ebs: {VolumeSise: 100, Encrypted: maybe}
    - Ebs: 100
  resources: {CPU: 1}
worker_nodes:
  InstanceType: m5.large
  SecurityGroupIds: sg-1
)";
  CHECK(
      cluster_problems(wrong) ==
      Lines{
          "3:20 provider.security_group.GroupName: must be a text",
          "3:66 provider.security_group.IpPermissions[0].IpProtocoll: is no key that EC2 has here "
          "[did you mean IpProtocol?]",
          "3:72 provider.security_group.IpPermissions[1]: must be a mapping",
          "3:129 provider.security_group.IpPermissions[2].UserIdGroupPairs[1]: must say its "
          "GroupId [aws ec2 describe-security-groups lists them]",
          "3:155 provider.security_group.Other: is no key here [there are: GroupName, "
          "IpPermissions]",
          "4:23 provider.key_pair.KeyName: is no key here [there are: key_name]",
          "7:13 head_node.ImageIdd: is no key that EC2 has here [did you mean ImageId?]",
          "8:14 head_node.SubnetIds: must be a list, each a text",
          "9:11 head_node.DryRun: is for dtrain to say",
          "12:25 head_node.BlockDeviceMappings[0].Ebs.VolumeSise: is no key that EC2 has here "
          "[did you mean VolumeSize?]",
          "12:41 head_node.BlockDeviceMappings[0].Ebs.Encrypted: must be true or false",
          "13:12 head_node.BlockDeviceMappings[1].Ebs: must be a mapping",
          "17:21 worker_nodes.SecurityGroupIds: must be a list, each a text"});
}

TEST_CASE("aws: what EC2 would not get as it was written is an error at its place") {
  const auto problems = [](const std::string& value) {
    return cluster_problems(
        "provider: {type: aws}\nhead_node_type: h\navailable_node_types:\n  h:\n    node_config:\n"
        "      InstanceType: m5.large\n      TagSpecifications:\n      - Tags: [{Key: k, Value: " +
        value + "}]\n");
  };
  for (const char* value : {"1.10", "NO", "on", "1234e5", "100000000000000000000"}) {
    CHECK_MESSAGE(problems(value) ==
                      Lines{"8:32 available_node_types.h.node_config.TagSpecifications[0].Tags[0]."
                            "Value: must be a text [put quotes around it]"},
                  value);
    CHECK_MESSAGE(problems("\"" + std::string(value) + "\"").empty(), value);
  }
  CHECK(problems("[1]") ==
        Lines{"8:25 available_node_types.h.node_config.TagSpecifications[0].Tags[0].Value: must be "
              "a text"});
}

TEST_CASE("aws: what a type may say besides, and what its machines start with") {
  const std::string types =
      "head_node_type: h\navailable_node_types:\n  h:\n    on_demand_fallback: true\n"
      "    placement_group: cluster\n    efa: true\n    node_config:\n      InstanceType: "
      "p4d.24xlarge\n";
  const std::string aws = "provider: {type: aws}\n" + types;
  const ClusterSpec spec = cluster(aws + "      UserData: |\n        #!/bin/sh\n        true\n");
  CHECK(spec.node_types.at(0).on_demand_fallback);
  CHECK(spec.node_types.at(0).placement_group == "cluster");
  CHECK(spec.node_types.at(0).efa);
  const std::string others =
      "head_node_type: h\navailable_node_types:\n  h:\n    fallback_instance_types: [g5.large]\n"
      "    node_config: {InstanceType: g5.xlarge}\n";
  CHECK(cluster("provider: {type: aws}\n" + others).node_types.at(0).fallback_instance_types ==
        Lines{"g5.large"});
  CHECK(warnings("provider: {type: gcp}\n" + others) ==
        Lines{"5:5 available_node_types.h.fallback_instance_types: has no effect with provider "
              "gcp"});
  CHECK(
      cluster_problems(aws + "      UserData: echo\n") ==
      Lines{"10:17 available_node_types.h.node_config.UserData: must begin with #!, #cloud-config "
            "or the like: it is one part of what the machine starts with"});
  CHECK(
      cluster_problems(aws + "      UserData: \"#cloud-config\\nssh_keys: {}\\n\"\n") ==
      Lines{"10:17 available_node_types.h.node_config.UserData: ssh_keys is for dtrain to say: by "
            "them it knows the machine"});
  CHECK(cluster_problems(aws + "      InstanceMarketOptions: {SpotOptions: {SpotInstanceType: "
                               "persistent}}\n      SecurityGroups: [mine]\n") ==
        Lines{"10:63 available_node_types.h.node_config.InstanceMarketOptions.SpotOptions."
              "SpotInstanceType: must be one-time: a persistent request makes a machine anew for "
              "each that is given back",
              "11:7 available_node_types.h.node_config.SecurityGroups: EC2 takes no names of "
              "groups in a VPC; SecurityGroupIds says them"});
  CHECK(cluster_problems(aws + "      NetworkInterfaces: [{DeviceIndex: 0}]\n") ==
        Lines{"7:10 available_node_types.h.efa: node_config has NetworkInterfaces: they say all of "
              "this"});
  CHECK(warnings("provider: {type: gcp}\n" + types + "      x: 1\n") ==
        Lines{"5:25 available_node_types.h.on_demand_fallback: has no effect with provider gcp",
              "6:22 available_node_types.h.placement_group: has no effect with provider gcp",
              "7:10 available_node_types.h.efa: has no effect with provider gcp"});
}

TEST_CASE("aws: what could never be a machine is an error at its line") {
  const auto problems = [](const std::string& config) {
    return cluster_problems(
        "provider: {type: aws}\nhead_node_type: h\navailable_node_types:\n  h:\n" + config);
  };
  const std::string at = "available_node_types.h.node_config.";
  CHECK(problems("    node_config: {InstanceType: t, ImageId: latest_dlmai}\n") ==
        Lines{"5:45 " + at +
              "ImageId: 'latest_dlmai' is no image [ami-…, resolve:ssm:NAME, or one of "
              "latest_dlami, latest_ubuntu, latest_amazon_linux]"});
  for (const char* image : {"ami-0abc", "resolve:ssm:/a/b:3", "latest_amazon_linux", "null"}) {
    CHECK(problems(std::string("    node_config: {InstanceType: t, ImageId: \"") + image + "\"}\n")
              .size() == (image == std::string("null") ? 1 : 0));
  }
  const std::string none = at +
                           "InstanceType: is missing: what kind of machine it is "
                           "[for example: m5.large]";
  CHECK(problems("    min_workers: 0\n") == Lines{"4:3 " + none});
  CHECK(problems("    node_config: {ImageId: ami-1, InstanceType: null}\n") ==
        Lines{"5:35 " + none});
  CHECK(problems("    node_config: {LaunchTemplate: {LaunchTemplateName: mine}}\n").empty());
  CHECK(
      problems("    node_config: {InstanceType: t, MetadataOptions: {HttpEndpoint: disabled}}\n") ==
      Lines{"5:68 " + at +
            "MetadataOptions.HttpEndpoint: must be enabled: the machine learns by it whom to let "
            "in, and what it starts with"});
  CHECK(problems("    node_config: {InstanceType: t, MetadataOptions: {HttpEndpoint: enabled}}\n")
            .empty());
  // Ray's old form: who names no workers has none, and each is told where it stands.
  const ClusterSpec old = cluster("provider: {type: aws}\nhead_node: {InstanceType: t}\n");
  CHECK(old.node_types.at(1).max_workers == 0);
  CHECK(old.node_types.at(0).location.line == 2);
  CHECK(cluster_problems("provider: {type: aws}\nhead_node: {InstanceType: t}\n"
                         "worker_nodes: {}\n") ==
        Lines{"3:1 worker_nodes.InstanceType: is missing: what kind of machine it is "
              "[for example: m5.large]"});
}

TEST_CASE("max_cost_per_hour: of providers that have prices") {
  const std::string aws =
      "provider: {type: aws}\nhead_node_type: h\navailable_node_types:\n  h:\n"
      "    node_config: {InstanceType: m5.large}\n";
  CHECK(!cluster(aws).max_cost_per_hour);
  const ClusterSpec spec = cluster(aws + "max_cost_per_hour: 20.5\n");
  CHECK(spec.max_cost_per_hour == 20.5);
  CHECK(spec.max_cost_location.line == 6);
  CHECK(warnings(aws + "max_cost_per_hour: 20.5\n").empty());
  CHECK(warnings("provider: {type: local}\nmax_cost_per_hour: 20\n") ==
        Lines{"2:20 max_cost_per_hour: has no effect with provider local: no prices are known of "
              "it"});
  CHECK(cluster_problems(aws + "max_cost_per_hour: 0\n") ==
        Lines{"6:20 max_cost_per_hour: must be a number of 0.01 to 1000000000, not 0 [for example: "
              "max_cost_per_hour: 50]"});
  CHECK(cluster_problems(aws + "max_cost_per_hour: $20\n").size() == 1);
}
