"""launcher/provider/aws/provider.hpp: what EC2 is asked for by a cluster YAML, and what is refused before that.

  python3 provider.py [TEST...]     with DTRAIN_AWS_TOOL, the built aws_tool
"""

import json
import tempfile
import unittest
from pathlib import Path

from fake_cloud import CloudCase, aws_lab

HEAD = {"InstanceType": "m5.large", "ImageId": "latest_ubuntu"}
GPU = {"InstanceType": "p3.2xlarge", "ImageId": "latest_dlami"}


class ProviderCase(CloudCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.addCleanup(lambda: self.assertEqual(self.cloud.problems, []))

    def op(self, op, gpu=None, head=None, provider=None, nodes=None, machines=None, code=0, env=None, **more):
        """Of a cluster, `lab`: its head, and `gpu` (a node type, or a node_config)."""
        types = {"head": {"node_config": head or HEAD}}
        if gpu:
            types["gpu"] = gpu if "node_config" in gpu else {"node_config": gpu}
        # A type a line: JSON is YAML.
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in types.items())
        top = {"cluster_name": "lab", "provider": {"type": "aws", "region": "us-west-2", **(provider or {})},
               "head_node_type": "head", "max_workers": 8, **more}
        text = "{" + json.dumps(top)[1:-1] + ', "available_node_types": {\n' + lines + "}}\n"
        return self.tool("provider", f"{self.folder}/{top['cluster_name']}", code=code, env=env, given={
            "op": op, "yaml": text, "machines": machines or {}, "nodes": nodes or {"node-0": "head", **({"node-1": "gpu"} if gpu else {})}})

    def tool(self, *words, env=None, **more):
        return super().tool(*words, **more, **{"HOME": self.folder, **(env or {})})

    def sent(self, action="RunInstances", **wanted):
        """The parameters of the last such request of these values."""
        return [form for each, form, _ in self.cloud.asked if each == action and all(
            form.get(name) == value for name, value in wanted.items())][-1]


class Refused(ProviderCase):
    def assert_refused(self, *words, at="c.yaml:3:", **what):
        said = self.op("create", code=1, **what)
        for each in words:
            self.assertIn(each, said["error"])
        self.assertTrue(said["at"].startswith(at), said)
        self.assertEqual((self.cloud.instances(), self.cloud.count("RunInstances")), ([], 0))

    def test_what_a_worker_cannot_have_before_the_head_costs(self):
        self.assert_refused("p3.2xlagre", gpu={"InstanceType": "p3.2xlagre"})
        self.assert_refused("efa: m5.large has no Elastic Fabric Adapter", "preparing machines of type gpu",
                            gpu={"node_config": {"InstanceType": "m5.large"}, "efa": True})
        self.assert_refused("there is no subnet subnet-1 in us-west-2", gpu={**GPU, "SubnetIds": ["subnet-1"]})
        self.assert_refused("m5.lagre", gpu={"node_config": GPU, "fallback_instance_types": ["m5.lagre"]})

    def test_what_the_head_cannot_have(self):
        self.assert_refused("m5.lagre", at="c.yaml:2:", head={"InstanceType": "m5.lagre"})
        self.assert_refused("there is no subnet in us-west-2z", at="c.yaml:2:", provider={"availability_zone": "us-west-2z"})

    def test_a_template_that_asks_for_persistent_spot_requests(self):
        def options(kind):
            return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": kind}}}

        def named(**more):
            return {"LaunchTemplate": {"LaunchTemplateName": "theirs", **more}}
        data = {"InstanceType": "p3.2xlarge", "ImageId": self.cloud.image}
        self.assert_refused("does not exist", gpu=named())
        template = self.cloud.backend.create_launch_template("theirs", "", {**data, **options("persistent")}, {})
        template.create_version({**data, **options("one-time")}, "")
        for more in ({}, {"Version": "$Default"}, {"Version": 1}):
            self.assert_refused("version 1 of theirs has the SpotInstanceType persistent", gpu=named(**more))
        # Machines are of the version that was looked at, whatever is the latest later.
        self.op("create", gpu=named(Version="$Latest"))
        self.assertEqual(self.sent(**{"LaunchTemplate.LaunchTemplateName": "theirs"})["LaunchTemplate.Version"], "2")
        self.cloud.fault("DescribeLaunchTemplateVersions", "UnauthorizedOperation", times=9)
        said = "".join(self.op("create", gpu=named(Version="2"))["warnings"])
        self.assertIn("node type gpu: nobody sees whether its LaunchTemplate asks for persistent spot requests", said)

    def test_who_may_not_ask_about_types_goes_on_without(self):
        self.cloud.fault("DescribeInstanceTypes", "UnauthorizedOperation", times=9)
        self.op("create", gpu=GPU)
        self.assertEqual(len(self.cloud.instances()), 2)


class Place(ProviderCase):
    """In which account and region a cluster's machines are."""

    HERE = {"region": "us-west-2", "account": "123456789012"}

    def setUp(self):
        super().setUp()
        self.place = Path(self.folder) / "lab" / "account.json"

    def test_it_is_noted_of_machines_that_another_laptop_has_made(self):
        self.op("create")
        self.place.unlink()
        self.op("list")
        self.assertFalse(self.place.exists(), "whoever only looks writes nothing")
        known = self.place.parent / "cluster.json"
        known.write_text('{"id": "lab-fedcba"}')
        self.op("list")
        self.assertFalse(self.place.exists(), "another cluster of that name")
        known.write_text('{"id": "lab-abcdef"}')
        self.assertEqual([row["node"] for row in self.op("list")["outcomes"]], ["node-0"])
        self.assertEqual(json.loads(self.place.read_text()), self.HERE)
        self.place.write_text(json.dumps({**self.HERE, "account": "999999999999"}))
        self.assertIn("has machines in account 999999999999", self.op("list", code=1)["error"])

    def test_where_there_are_none_nothing_is_noted(self):
        self.place.parent.mkdir()
        (self.place.parent / "cluster.json").write_text('{"id": "lab-abcdef"}')
        self.assertEqual(self.op("list")["outcomes"], [])
        self.assertFalse(self.place.exists())

    def test_what_is_not_known_is_gone_where_it_was_made_alone(self):
        machines = {"node-0": "i-0123456789abcdef0", "node-1": "i-0123456789abcdef1"}
        for row in self.op("release", machines=machines)["outcomes"]:
            self.assertIn("EC2 does not know it in us-west-2 by these credentials", row["error"])
            self.assertNotEqual(row["state"], "gone")
        self.place.parent.mkdir()
        self.place.write_text(json.dumps(self.HERE))
        for row in self.op("release", machines=machines)["outcomes"]:
            self.assertEqual((row.get("error"), row["state"]), (None, "gone"))


class Inside(ProviderCase):
    """use_internal_ips: nobody comes from outside of the VPC."""

    def test_ssh_is_open_to_the_vpc_alone(self):
        for zone in self.cloud.backend.subnets.values():
            for subnet in zone.values():
                subnet.map_public_ip_on_launch = False
        said = self.op("create", code=1)
        self.assertIn("gives its instances public addresses", said["error"])
        self.op("create", provider={"use_internal_ips": True})
        (group,) = [each for groups in self.cloud.backend.groups.values() for each in groups.values() if each.name == "dtrain-lab"]
        ranges = [rule.ip_range["CidrIp"] for rule in group.ingress_rules if rule.ip_range]
        self.assertEqual(ranges, [self.cloud.backend.get_default_vpc().cidr_block])
        self.assertEqual(self.sent()["SecurityGroupId.1"], group.id)


class Pairs(ProviderCase):
    def end(self, cluster):
        """All its machines, and then what it has besides: what became of its key pair, {} where it has none."""
        there = self.ec2.describe_instances(Filters=[{"Name": "tag:dtrain-cluster", "Values": [cluster]}])
        self.ec2.terminate_instances(InstanceIds=[each for one in there["Reservations"] for each in self.ids(one)])
        rows = self.op("clear_up", cluster_name=cluster)["outcomes"]
        return next(({"gone": row["gone"], "kept": row["kept"], "note": row["note"]} for row in rows if row["what"] == "key pair"), {})

    def test_one_by_which_another_cluster_launches_stays(self):
        team = {"key_pair": {"key_name": "team"}}
        for name in ("lab", "other"):
            self.op("create", provider=team, cluster_name=name)
        self.assertEqual(self.cloud.count("ImportKeyPair"), 1)
        self.assertEqual(self.end("lab"), {"gone": False, "kept": True, "note": "cluster other launches by it"})
        (made,) = self.op("create", provider=team, cluster_name="other", gpu=GPU, nodes={"node-1": "gpu"})["outcomes"]
        self.assertNotIn("error", made)
        self.assertEqual(self.sent()["KeyName"], "team")
        self.assertEqual(self.end("other"), {})  # it is not of its making
        self.assertEqual(self.end("lab"), {"gone": True, "kept": False, "note": ""})
        self.assertEqual(self.cloud.instances(), [])


if __name__ == "__main__":
    aws_lab.enter()
    unittest.main(verbosity=2)
