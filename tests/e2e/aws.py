"""Clusters on AWS: up from nothing to real agents, jobs there, and down until nothing costs."""

import random
import shutil

from aws_harness import *

MLP = BUILD / "examples" / "mnist_mlp" / "mnist_mlp"
SEED = """\
cluster_name: ml

provider:
 type: aws
 region: us-west-2
 availability_zone: us-west-2a,us-west-2b

auth:
 ssh_user: ubuntu

head_node:
 InstanceType: p3.8xlarge
 ImageId: latest_dlami

 BlockDeviceMappings:
 - DeviceName: /dev/sda1
 Ebs:
 VolumeSize: 100
worker_nodes:
 InstanceType: p3.2xlarge
 ImageId: latest_dlami

file_mounts: {
 "/path1/on/remote/machine": "/path1/on/local/machine",
}

setup_commands:
 - pip install -U ray-lightning
""".replace(" Ebs:\n VolumeSize", "   Ebs:\n     VolumeSize")


def two_types(count, **more):
    return {"head": {"node_config": {"InstanceType": "m5.large", "ImageId": "latest_ubuntu"}},
            "gpu": {"min_workers": count, "max_workers": count,
                    "node_config": {"InstanceType": "p3.2xlarge", "ImageId": "latest_dlami"}, **more}}


class Keys(AwsCase):
    """Who answers is known before anybody logs in."""

    def test_another_machine_in_its_place(self):
        def keeps_its_own(machine):
            machine.take_host_key = lambda keys: None
        self.machines.prepare = keeps_its_own
        said = self.refused("up", "-y", self.write())
        self.assertIn("the host key of i-", said)
        self.assertIn("has changed", said)
        (head,) = self.machines
        self.assertNotIn("Accepted publickey", head.console(None))
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_another_laptop_was_there_first(self):
        """One that could not log in goes on by what the tag says now, and the first key is of no use to anybody."""
        self.write()
        self.machines.prepare = lambda machine: self.stop_at(machine, "ssh-keygen")
        self.run_dtrain("up", "-y", self.yaml)  # reached, and nothing made anew
        other = {"XDG_STATE_HOME": str(self.folder / "other")}
        key = self.root() / "ssh_key"
        said = f'auth: {{"ssh_user": "ubuntu", "ssh_private_key": "{self.folder}/key"}}\n'
        (self.folder / "key").write_bytes(key.read_bytes())
        (self.folder / "key").chmod(0o600)
        there = self.folder / "there.yaml"
        there.write_text(self.yaml.read_text() + said)
        (machine,) = self.machines
        machine.path("/usr/local/bin/sudo").unlink()
        self.ok("up", "-y", there, env=other)
        own = machine.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
        self.ok("up", "-y", self.yaml)
        known = [line.split() for line in (self.root() / "known_hosts").read_text().splitlines()]
        self.assertEqual(known, [[machine.name, "ssh-ed25519", own]])
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_killed_while_it_has_its_own_made(self):
        """At each step of it another `up` goes on."""
        self.write()
        for step in ("ssh-keygen", "kill -HUP", "CreateTags"):
            with self.subTest(step):
                self.machines.prepare = lambda machine, step=step: self.stop_at(machine, step)
                if step == "CreateTags":
                    self.cloud.fault("CreateTags", "UnauthorizedOperation")
                first = self.run_dtrain("up", "-y", self.yaml)
                self.assertIn("keeps the host key of its boot data", first.stderr)
                (machine,) = self.machines
                machine.path("/usr/local/bin/sudo").unlink(missing_ok=True)
                self.assertNotIn("boot data", self.run_dtrain("up", "-y", self.yaml).stderr)
                (head,) = self.by_node().values()
                tags = {tag["key"]: tag["value"] for tag in head.get_tags()}
                own = machine.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
                self.assertEqual(tags["dtrain-host-key"], own)
                self.assertNotIn(own, machine.user_data.decode("latin-1"))
                known = (self.root() / "known_hosts").read_text().splitlines()
                self.assertEqual([line.split() for line in known], [[head.id, "ssh-ed25519", own]])
                self.assertEqual(self.json("status")["nodes"][0]["state"], "ready")
                self.ok("down", "-y")
                self.assert_nothing_left()

    @staticmethod
    def stop_at(machine, step):
        sudo = machine.path("/usr/local/bin/sudo")
        sudo.write_text(f'#!/bin/sh\ncase "$*" in *"{step}"*) exit 1 ;; esac\nexec /usr/bin/sudo "$@"\n')
        sudo.chmod(0o755)


class Kinds(AwsCase):
    """What a node type may say of its machines."""

    agents_on = "all"

    def test_spot_where_there_is_some(self):
        spot = {"InstanceType": "p3.2xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}
        types = two_types(2)
        types["gpu"].update(node_config=spot, on_demand_fallback=True)
        self.write(types, provider={"availability_zone": "us-west-2a,us-west-2b"})
        self.cloud.capacity.update({("us-west-2a", "p3.2xlarge", "spot"): 1, ("us-west-2b", "p3.2xlarge", "spot"): 0})
        self.up()
        tried = [(form.get("InstanceMarketOptions.MarketType"), error) for action, form, error in self.cloud.asked
                 if action == "RunInstances" and form["InstanceType"] == "p3.2xlarge"]
        none = "InsufficientInstanceCapacity"
        self.assertEqual(tried, [("spot", none), ("spot", none), (None, "")])
        self.assertAlmostEqual(self.json("status")["costs"]["per_hour"], 0.096 + 2 * 3.06)
        self.ok("down", "-y")
        self.cloud.capacity.clear()
        self.up()
        self.assertAlmostEqual(self.json("status")["costs"]["per_hour"], 0.096, places=4)  # spot is all but free here
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_the_next_instance_type_where_there_is_none(self):
        types = two_types(2)
        types["gpu"].update(fallback_instance_types=["p3.8xlarge", "g4dn.xlarge"])
        self.write(types, provider={"availability_zone": "us-west-2a,us-west-2b"})
        self.cloud.prices["g4dn.xlarge"] = 0.526
        zones = ("us-west-2a", "us-west-2b")
        self.cloud.capacity.update({(zone, "p3.2xlarge"): 1 for zone in zones})
        self.cloud.vcpus = 2 + 32 + 8  # one p3.8xlarge, not two
        out = self.up()
        tried = [(form["InstanceType"], error) for action, form, error in self.cloud.asked
                 if action == "RunInstances" and form["InstanceType"] != "m5.large"]
        none = "InsufficientInstanceCapacity"
        self.assertEqual(tried, [("p3.2xlarge", none)] * 2 + [("p3.8xlarge", "VcpuLimitExceeded"), ("g4dn.xlarge", "")], out)
        self.assertAlmostEqual(self.json("status")["costs"]["per_hour"], 0.096 + 2 * 0.526)
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        self.ok("down", "-y")
        self.cloud.capacity.update({(zone, "g4dn.xlarge"): 0 for zone in zones})
        said = self.refused("up", "-y", self.yaml)
        for part in ("us-west-2a, p3.2xlarge: " + none, "us-west-2a, p3.8xlarge: VcpuLimitExceeded", "us-west-2b, g4dn.xlarge: " + none):
            self.assertIn(part, said)
        types["gpu"].update(fallback_instance_types=["g4dn.huge"])
        self.write(types)
        self.assertIn("do not exist: [g4dn.huge]", self.refused("up", "-y", self.yaml, code=2))
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_a_spot_price_is_the_dearest_of_its_zones(self):
        types = two_types(1)
        types["gpu"]["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}
        self.cloud.spot_prices = {("us-west-2a", "p3.2xlarge"): 1, ("us-west-2b", "p3.2xlarge"): 2, ("us-west-2c", "p3.2xlarge"): 3}
        for zones, price in {"us-west-2a": 1, "us-west-2a, us-west-2b": 2}.items():
            self.write(types, provider={"availability_zone": zones})
            self.assertIn(f"${0.096 + price:.2f}", self.ok("up", "--dry-run", self.yaml))

    def test_what_is_made_for_them_goes_with_them(self):
        key = Path(self.env["HOME"]) / ".ssh" / "id_ed25519"
        types = two_types(1)
        types["gpu"].update(placement_group="cluster")
        types["gpu"]["node_config"].update(
            UserData="#!/bin/sh\necho theirs >/root/theirs\n",
            BlockDeviceMappings=[{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 50, "VolumeType": "gp3",
                                                                    "DeleteOnTermination": False}}])
        self.write(types, provider={"key_pair": {"key_name": "mine"}}, auth={"ssh_user": LOGIN, "ssh_private_key": str(key)})
        self.up()
        (gpu,) = [form for form in self.asked_for("RunInstances") if form["InstanceType"] == "p3.2xlarge"]
        self.assertEqual((gpu["KeyName"], gpu["MetadataOptions.HttpTokens"]), ("mine", "required"))
        self.assertEqual([gpu["Placement.GroupName"]], list(self.cloud._groups))
        machine = self.machines[self.by_node()["node-1"].id]
        eventually(machine.path("/root/theirs").exists, "the person's own boot data run too")
        aws_roles.make_role("dtrain-lab-abcdef", "/dtrain/us-west-2/lab/", "ec2:DescribeInstances")
        aws_roles.make_role("dtrain-lab-uvwxyz", "/dtrain/us-east-1/lab/")  # another region's is another cluster's
        down = self.json("down", "-y")
        self.assertTrue(down["complete"], down)
        rows = {row["what"]: row for row in down["rows"]}
        goes = ("security group", "placement group", "key pair", "instance role")
        self.assertEqual({what: rows[what]["now"] for what in (*goes, "volume")},
                         {**dict.fromkeys(goes, "gone"), "volume": "kept"})
        self.assertEqual([role.name for role in aws_roles.iam().get_roles()], ["dtrain-lab-uvwxyz"])
        self.assertIn("50 GiB of gp3, by DeleteOnTermination: false; $4.00 a month", rows["volume"]["note"])
        self.assert_nothing_left()

    def test_an_adapter_on_each_card(self):
        types = two_types(1)
        types["gpu"].update(efa=True, node_config={"InstanceType": "p4d.24xlarge", "ImageId": "latest_dlami"})
        self.write(types)
        self.up()
        (gpu,) = [form for form in self.asked_for("RunInstances") if form["InstanceType"] == "p4d.24xlarge"]
        for card in range(4):
            self.assertEqual([gpu[f"NetworkInterface.{card + 1}.{name}"] for name in ("NetworkCardIndex", "DeviceIndex", "InterfaceType")],
                             [str(card), str(min(card, 1)), "efa"])
        self.assertNotIn("NetworkInterface.5.DeviceIndex", gpu)
        self.assertEqual(self.cloud.count("AuthorizeSecurityGroupEgress"), 1)
        # It has no public address, and is reached through the head.
        head, node = (self.machines[self.by_node()[name].id] for name in ("node-0", "node-1"))
        came = set(re.findall(r"Accepted publickey for ubuntu from (\S+)", node.console(None)))
        self.assertEqual(came, {head.address})
        types["gpu"]["node_config"]["InstanceType"] = "m5.large"
        self.write(types)
        self.assertIn("efa: m5.large has no Elastic Fabric Adapter", self.refused("up", "-y", "--replace", self.yaml, code=2))
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_a_type_that_can_never_be_keeps_no_other(self):
        types = two_types(0)
        types["gpu"]["max_workers"] = 1
        types["other"] = {"max_workers": 1, "node_config": {"InstanceType": "p3.2xlagre", "ImageId": "latest_dlami"}}
        self.write(types)
        said = self.refused("up", "-y", self.yaml)
        self.assertRegex(said, r"\.yaml:\d+:\d+: node type other: .*InvalidInstanceType.*p3.2xlagre")
        self.assertIn("jobs get none of type other", said)
        out = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK")
        self.assertEqual(sorted(re.findall(r"rank \d", out)), ["rank 0", "rank 1"])
        # Where it is to stand ready nothing is made that costs.
        self.ok("down", "-y")
        types["other"]["min_workers"] = 1
        self.write(types)
        asked = self.cloud.count("RunInstances")
        self.assertIn("p3.2xlagre", self.refused("up", "-y", self.yaml, code=2))
        self.assertEqual(self.cloud.count("RunInstances"), asked)
        self.run_dtrain("down", "-y", self.yaml)
        self.assert_nothing_left()

    def test_another_launch_configuration(self):
        self.write(two_types(2))
        self.up()
        before = self.by_node()
        types = two_types(2)
        # What is null is as good as absent.
        types["gpu"]["node_config"].update(InstanceType="p3.8xlarge", UserData=None, InstanceMarketOptions=None, SubnetIds=None)
        self.write(types)
        self.assertIn("up --replace makes it anew", self.run_dtrain("up", "-y", self.yaml).stderr)
        self.assertEqual({each.id for each in self.by_node().values()}, {each.id for each in before.values()})
        self.up("--replace")
        now = self.by_node()
        self.assertEqual(now["node-0"].id, before["node-0"].id)
        self.assertEqual(sorted(instance.instance_type for instance in now.values()), ["m5.large", "p3.8xlarge", "p3.8xlarge"])
        self.assert_ready(*now)
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_prices_are_shown_before_anything_is_made(self):
        self.write(two_types(2))
        plan = self.ok("up", "--dry-run", self.yaml)
        self.assertIn("$6.22", plan)  # an hour of one m5.large and two p3.2xlarge
        self.assertEqual(self.cloud.count("RunInstances"), 0)
        asked = self.cloud.count("GetProducts")
        self.ok("up", "--dry-run", self.yaml)
        self.assertEqual(self.cloud.count("GetProducts"), asked)
        self.cloud.prices = None
        env = {"XDG_STATE_HOME": str(self.folder / "other")}
        done = self.run_dtrain("up", "--dry-run", self.yaml, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("what machines cost is not known", done.stderr)


class Said(AwsCase):
    """What node_config and provider may say of network, images and templates, and what EC2 is then asked for."""

    agents_on = "all"

    def private_subnets(self):
        """One of each zone; from now on none gives its machines public addresses."""
        subnets = [next(iter(self.cloud.backend.subnets[zone].values())) for zone in ("us-west-2a", "us-west-2b")]
        for zone in self.cloud.backend.subnets.values():
            for subnet in zone.values():
                subnet.map_public_ip_on_launch = False
        return [subnet.id for subnet in subnets]

    def group(self, name):
        return next((group for groups in self.cloud.backend.groups.values() for group in groups.values() if group.name == name), None)

    def by_kind(self):
        """The last granted request of each instance type."""
        return {form.get("InstanceType"): form for form in self.asked_for("RunInstances")}

    def test_what_node_config_may_say(self):
        first, second = self.private_subnets()
        vpc = self.cloud.backend.get_default_vpc().id
        theirs = self.cloud.backend.create_security_group("theirs", "of a person", vpc_id=vpc)
        own = self.cloud.backend.create_security_group("own", "of a type", vpc_id=vpc)
        self.cloud.parameters.update({"/my/image": self.cloud.old_image})
        self.cloud.backend.create_launch_template("mine", "", {"InstanceType": "c5.large", "ImageId": self.cloud.image,
                                                               "SecurityGroupIds": [own.id]}, {})
        # What may not be read is looked for among the images.
        self.cloud.fault("GetParameter", "AccessDeniedException", times=99)
        amazon = self.cloud.add_image("al2023-ami-2023.9.1-kernel-x86_64")
        ubuntu = self.cloud.add_image("ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20250610")
        kinds = {
            "m5.xlarge": {"SubnetIds": [second, first], "SecurityGroupIds": [own.id], "ImageId": "latest_amazon_linux"},
            "m5.2xlarge": {"SubnetId": second, "ImageId": "resolve:ssm:/my/image"},
            "c5.xlarge": {"ImageId": "latest_ubuntu", "NetworkInterfaces": [
                {"DeviceIndex": 0, "SubnetId": first, "Groups": [own.id], "DeleteOnTermination": True}]},
            "c5.2xlarge": {"ImageId": "latest_ubuntu", "CapacityReservationSpecification": {"CapacityReservationPreference": "open"}},
            "": {"LaunchTemplate": {"LaunchTemplateName": "mine", "Version": "1"}},
        }
        types = {"head": {"node_config": {"InstanceType": "m5.large", "ImageId": "latest_ubuntu"}},
                 **{f"type-{number}": {"min_workers": 1, "max_workers": 1,
                                       "node_config": {**({"InstanceType": kind} if kind else {}), **config}}
                    for number, (kind, config) in enumerate(kinds.items())}}
        group = {"GroupName": "theirs", "IpPermissions": [
            {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": "10.9.0.0/16"}]}]}
        self.write(types, provider={"use_internal_ips": True, "security_group": group, "availability_zone": "us-west-2a"})
        done = self.run_dtrain("up", "-y", self.yaml)
        self.assertEqual(done.returncode, 0, done.stderr)
        inside = [instance.nics[0].public_ip for instance in self.by_node().values() if instance.instance_type != "c5.large"]
        self.assertEqual(inside, [None] * 5)  # the template has its own network
        self.assertRegex(done.stderr, r"cluster\.yaml:\d+:\d+: IpPermissions have no effect: .*theirs, sg-")
        self.assert_ready(*(f"node-{i}" for i in range(6)))
        asked = self.by_kind()
        plain = {"SubnetId": first, "SecurityGroupId.1": theirs.id}
        wanted = {
            "m5.large": {**plain, "ImageId": ubuntu},
            "m5.xlarge": {"SubnetId": second, "SecurityGroupId.1": own.id, "ImageId": amazon},
            "m5.2xlarge": {"SubnetId": second, "SecurityGroupId.1": theirs.id, "ImageId": "resolve:ssm:/my/image"},
            "c5.xlarge": {"NetworkInterface.1.SubnetId": first, "NetworkInterface.1.SecurityGroupId.1": own.id,
                          "NetworkInterface.1.DeviceIndex": "0", "SubnetId": None, "SecurityGroupId.1": None},
            "c5.2xlarge": {**plain, "CapacityReservationSpecification.CapacityReservationPreference": "open"},
            None: {"LaunchTemplate.LaunchTemplateName": "mine", "LaunchTemplate.Version": "1", "ImageId": None,
                   "SubnetId": None, "SecurityGroupId.1": None},
        }
        for kind, values in wanted.items():
            self.assertEqual({name: asked[kind].get(name) for name in values}, values, kind)
        self.assertEqual((theirs.ingress_rules, own.ingress_rules), ([], []))
        self.assertTrue(self.json("down", "-y")["complete"])
        for each in (theirs, own):  # none of dtrain's
            self.assertIsNotNone(self.group(each.name))
            self.cloud.backend.delete_security_group(group_id=each.id)
        self.assert_nothing_left()

    def test_the_rules_of_its_own_group_follow_the_yaml(self):
        def rules():
            return sorted(rule.ip_range["CidrIp"] for rule in self.group("dtrain-lab").ingress_rules if rule.ip_range)

        def permissions(*ranges, workers=1):
            self.write(two_types(workers), provider={"security_group": {"IpPermissions": [
                {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": each} for each in ranges]}]}})
        many = [f"10.{i}.0.0/16" for i in range(20)]
        permissions(*many)
        self.up()
        here = "10.77.0.1/32"
        self.assertEqual(rules(), sorted([*many, here]))
        self.assertEqual(self.cloud.count("AuthorizeSecurityGroupIngress"), 2)
        # One that somebody else has put there stays.
        self.cloud.backend.authorize_security_group_ingress(self.group("dtrain-lab").id, "tcp", "443", "443", [{"CidrIp": "10.50.0.0/16"}])
        permissions("10.3.0.0/16", "10.60.0.0/16")
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        self.assertEqual(rules(), sorted(["10.3.0.0/16", "10.60.0.0/16", "10.50.0.0/16", here]))
        self.assertEqual((self.cloud.count("AuthorizeSecurityGroupIngress"), self.cloud.count("RevokeSecurityGroupIngress")), (3, 1))
        # And where a machine is made.
        permissions("10.3.0.0/16", workers=2)
        self.up()
        self.assertEqual(rules(), sorted(["10.3.0.0/16", "10.50.0.0/16", here]))
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_a_public_key_whose_private_half_an_agent_has(self):
        key = Path(self.env["HOME"]) / ".ssh" / "id_ed25519"
        public = self.folder / "shared.pub"
        public.write_text("no key\n")
        self.write(auth={"ssh_user": LOGIN, "ssh_public_key": str(public)})
        said = self.refused("up", "-y", self.yaml, code=2)
        self.assertRegex(said, r"cluster\.yaml:\d+:\d+: auth.ssh_public_key: .*shared.pub is no public key")
        public.write_bytes(key.with_suffix(".pub").read_bytes())
        # A head that asks for machines does it without what only this machine has.
        types = two_types(0)
        types["gpu"]["max_workers"] = 1
        bundle = self.folder / "bundle.pem"
        bundle.write_text("")
        self.write(types, auth={"ssh_user": LOGIN, "ssh_public_key": str(public)})
        done = self.run_dtrain("up", "-y", self.yaml, env={"AWS_CA_BUNDLE": str(bundle)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"the head asks {self.cloud.url} by itself, without what this machine has set: AWS_CA_BUNDLE", done.stderr)
        self.assertFalse((self.root() / "ssh_key").exists())
        self.assertEqual(self.cloud.count("ImportKeyPair"), 0)
        (head,) = self.machines
        self.assertIn(public.read_text().split()[1], head.path("~/.ssh/authorized_keys").read_text())
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_a_placement_group_for_each_strategy(self):
        types = two_types(1)
        for strategy in ("cluster", "spread"):
            types["gpu"].update(placement_group=strategy)
            self.write(types)
            self.up("--replace")
            (name,) = {form["Placement.GroupName"] for form in self.asked_for("RunInstances")
                       if form.get("Placement.GroupName", "").endswith(strategy)}
            self.assertEqual(self.cloud._groups[name][0], strategy)
            self.assertRegex(name, f"^dtrain-lab-[a-z0-9]+-gpu-{strategy}$")
        self.ok("down", "-y")
        self.assert_nothing_left()


class Killed(AwsCase):
    """Whatever is killed, nothing is made twice, and nothing stays."""

    agents_on = "all"

    def kill_after(self, process, requests):
        """Once the cloud has had so many requests more, or when it has ended by itself."""
        until = len(self.cloud.asked) + requests
        eventually(lambda: len(self.cloud.asked) >= until or process.poll() is not None, "it asks", pause=0.0005)
        process.kill()
        process.wait()
        self.cloud.settle()

    def test_up_and_down_at_random_points(self):
        random.seed(7)
        self.write(two_types(3))
        for _ in range(18):
            self.kill_after(self.start("up", "-y", self.yaml), random.randint(1, 14))
        self.up()
        self.assert_ready("node-0", "node-1", "node-2", "node-3")
        self.assertEqual(len(self.cloud.instances()), 4)
        for _ in range(12):
            self.kill_after(self.start("down", "-y", self.yaml), random.randint(1, 8))
        self.run_dtrain("down", "-y", self.yaml)
        self.assert_nothing_left()

    def test_down_while_nobody_knows_what_was_made(self):
        """EC2 has made it, the answer was lost, and it does not list it yet."""
        self.write()
        self.cloud.unknown_for = 12
        self.cloud.fault("RunInstances", "lose", times=9)
        up = self.start("up", "-y", self.yaml)
        eventually(lambda: self.cloud.count("RunInstances") > 1, "it has asked", pause=0.005)
        up.kill()
        up.wait()
        self.cloud.settle()
        self.assertEqual(len(self.cloud.instances()), 1)
        self.assertTrue(self.json("down", "-y", self.yaml)["complete"])
        self.assert_nothing_left()

    def test_asked_as_somebody_else(self):
        """Another account, another region: nothing there, which says nothing."""
        self.write()
        self.up()
        (head,) = self.cloud.instances()
        there = self.yaml.read_text()
        self.yaml.write_text(there.replace("us-west-2", "eu-west-1"))
        for verb in (("up", "-y", self.yaml), ("up", "-y", "--dry-run", self.yaml)):
            self.assertIn("has machines in us-west-2, and the YAML says eu-west-1", self.refused(*verb))
        self.yaml.write_text(there)
        noted = self.root() / "account.json"
        noted.write_text(noted.read_text().replace("123456789012", "999999999999"))
        self.assertIn("in account 999999999999, and these credentials are of 123456789012", self.refused("down", "-y"))
        self.assertEqual(self.cloud.instances(), [head])
        noted.write_text(noted.read_text().replace("999999999999", "123456789012"))
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_nobody_answers_for_aws(self):
        """What could not be asked is not complete; 4, of other verbs, says that a cluster is not up."""
        nobody = {"AWS_ENDPOINT_URL": "http://10.77.0.1:1"}
        said = self.refused("up", "-y", "--json", self.write(), env=nobody)
        self.assertIn('"code":"unreachable"', said)
        self.up()
        self.assertIn("cannot be reached", self.refused("down", "-y", env=nobody))
        self.assertEqual(len(self.cloud.instances()), 1)
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_notes_that_are_damaged_forget_nothing(self):
        self.write(two_types(1))
        self.up()
        notes = self.root() / "cluster.json"
        notes.write_text("{")
        self.assertIn("with that file removed, dtrain down CLUSTER.yaml finds them", self.refused("down", "-y", code=2))
        self.assertEqual(len(self.cloud.instances()), 2)
        notes.unlink()
        self.assertTrue(self.json("down", "-y", self.yaml)["complete"])
        self.assert_nothing_left()

    def test_machines_whose_tags_somebody_has_changed(self):
        """They carry the cluster's tag, and cost: with notes of them, without, and where no head is left."""
        self.write(two_types(2))
        orphans = ("down", "--all-orphans", "--region", "us-west-2", "-y")
        other = {"XDG_STATE_HOME": str(self.folder / "other")}
        for way, env in ((("down", "-y", self.yaml), {}), (("down", "-y", self.yaml), other), (orphans, other)):
            self.up()
            changed = self.by_node()[max(self.by_node())].id
            self.forget_node(changed)
            self.assertIn("there are no orphans", self.ok(*orphans))  # the cluster has a head
            if way == orphans:
                self.cloud.end(self.by_node()[self.json("status")["nodes"][0]["node"]].id)
            down = self.json(*way, env=env)
            self.assertTrue(down["complete"], down)
            gone = [row for row in down["rows"] if row["what"] == "machine" and row["now"] == "gone"]
            self.assertEqual(sum(changed in str(row) for row in gone), 1, gone)
            self.assert_nothing_left()

    def forget_node(self, instance):
        tags = self.cloud.backend.get_instance(instance).get_tags()
        gone = {tag["key"]: None for tag in tags if tag["key"].startswith(("dtrain-node", "dtrain-cluster-id"))}
        self.cloud.backend.delete_tags([instance], gone)

    def test_stopped_machines_are_given_back_from_anywhere(self):
        self.write(two_types(1))
        self.up()
        self.cloud.backend.stop_instances(self.cloud.instances())
        other = {"XDG_STATE_HOME": str(self.folder / "other")}
        self.assertTrue(self.json("down", "-y", self.yaml, env=other)["complete"])
        self.assert_nothing_left()

    def test_one_that_is_protected_keeps_no_other(self):
        self.write(two_types(2))
        self.up()
        self.cloud.backend.stop_instances([self.by_node()["node-2"].id])
        self.cloud.fault("TerminateInstances", "OperationNotPermitted", times=2)  # of all, and of the first
        down = json.loads(self.run_dtrain("down", "-y", "--json").stdout.strip().split("\n")[-1])
        self.assertFalse(down["complete"])
        self.assertEqual(len(self.cloud.instances()), 1)
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_nothing_left()

    def test_answers_that_are_lost(self):
        self.write(two_types(2))
        for action in ("RunInstances", "CreateSecurityGroup", "CreateTags", "DescribeInstances"):
            self.cloud.fault(action, "lose")
        self.cloud.fault("RunInstances", "throttle")
        self.up()
        self.assert_ready("node-0", "node-1", "node-2")
        self.assertEqual(len(self.cloud.instances()), 3)
        for action in ("TerminateInstances", "DeleteSecurityGroup"):
            self.cloud.fault(action, "lose")
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_nothing_left()


class Orphans(AwsCase):
    agents_on = "all"

    def test_what_has_no_head_is_found_and_given_back(self):
        types = two_types(2)
        types["gpu"]["node_config"]["BlockDeviceMappings"] = [
            {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 50, "VolumeType": "gp3", "DeleteOnTermination": False}}]
        self.write(types)
        self.up()
        other = self.folder / "other.yaml"
        other.write_text(self.yaml.read_text().replace('cluster_name: "lab"', 'cluster_name: "alive"'))
        self.ok("up", "-y", other)
        head = self.by_node_of("lab")["node-0"]
        self.cloud.end(head.id)
        self.cloud.backend.stop_instances([self.by_node_of("lab")["node-2"].id])
        shutil.rmtree(self.root())
        for name in ("lab", "alive"):
            aws_roles.make_role(f"dtrain-{name}-abcdef", f"/dtrain/us-west-2/{name}/")
        self.refused("down", "--all-orphans", "--region", "us-west-2", "--keep-files", code=2)
        listed = self.refused("down", "--all-orphans", "--region", "us-west-2")
        self.assertIn("4 orphans would be given back", listed)  # two machines, the group and the role
        self.assertEqual(len(self.cloud.instances()), 5)
        answer = self.json("down", "--all-orphans", "--region", "us-west-2", "-y")
        self.assertTrue(answer["complete"], answer)
        self.assertEqual(sorted((row["cluster"], row["what"], row["now"]) for row in answer["rows"]),
                         [("lab", "instance role", "gone"), ("lab", "machine", "gone"), ("lab", "machine", "gone"),
                          ("lab", "security group", "gone"), ("lab", "volume", "kept"), ("lab", "volume", "kept")])
        self.assertEqual(len(self.cloud.instances()), 3)
        self.assertNotIn("there", self.ok("down", "--all-orphans", "--region", "us-west-2"))
        self.assertEqual([role.name for role in aws_roles.iam().get_roles()], ["dtrain-alive-abcdef"])
        self.ok("down", "-y", other)
        self.assert_nothing_left()


class Page(AwsCase):
    agents_on = "all"

    def test_the_page_works_as_written(self):
        text = (SOURCE / "docs" / "aws.md").read_text()
        env = {**self.env, "PATH": f"{DTRAIN.parent}:{os.environ['PATH']}"}
        commands = 0
        for language, block in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text):
            if language == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", block)):
                (self.folder / name.group(1)).write_text(block)
            if language == "sh":
                for command in block.strip().split("\n"):
                    done = subprocess.run(["/bin/bash", "-c", command], cwd=self.folder, env=env, text=True,
                                          stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
                    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
                    commands += 1
        self.assertEqual(commands, 5)
        self.assert_nothing_left()


class RayForm(AwsCase):
    """A YAML of Ray's old form, as it stands in print."""

    options = {"disk": "2g"}
    agents_on = "all"

    def prepare(self, machine):
        super().prepare(machine)
        machine.path("/path1").mkdir()
        os.chown(machine.path("/path1"), 2001, 2001)
        pip = machine.path("/usr/local/bin/pip")
        pip.write_text("#!/bin/sh\necho pip \"$@\" >~/pip\n")
        pip.chmod(0o755)

    def name(self):
        return "ml"

    @unittest.skipUnless(MLP.exists(), "the examples are not built (trainer disabled)")
    def test_training_that_grows(self):
        """From the head alone to four nodes for a gang, and back; as printed there are two workers at most, as Ray has
        it."""
        images = first_images(4000, self.folder / "images")
        printed = SEED.replace("/path1/on/local/machine", str(images))
        train = ("--", MLP, "--limit", "4000", "--epochs", "1", "--batch-size-per-worker", "32", "--data", "/path1/on/remote/machine")
        self.yaml.write_text(printed)
        self.up()
        self.assertIn("can never run", self.refused("submit", "--nnodes", "4", *train))
        self.yaml.write_text(printed + "\nmax_workers: 3\nidle_timeout_minutes: 0.05\n")
        self.up()
        self.assertEqual(sorted(self.by_node()), ["node-0"])
        out = self.ok("submit", "--nnodes", "4", *train, deadline=5 * DEADLINE)
        self.assertIn("4 ranks", out)
        self.assertGreater(self.json("result")["metrics"]["accuracy"], 0.4)
        granted = [form for form in self.asked_for("RunInstances") if form["InstanceType"] == "p3.2xlarge"]
        self.assertEqual([(form["MinCount"], form["MaxCount"]) for form in granted], [("3", "3")])
        eventually(lambda: sorted(self.by_node()) == ["node-0"], "they are given back", deadline=2 * DEADLINE, pause=0.1)
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_nothing_left()

    def test_a_yaml_of_rays_old_form(self):
        mounted = self.folder / "machine"
        mounted.mkdir()
        (mounted / "train.py").write_text("print('hello')\n")
        self.yaml.write_text(SEED.replace("/path1/on/local/machine", str(mounted)))
        self.up()
        (head,) = self.by_node().values()
        self.assertEqual((head.instance_type, head._placement.zone, head.image_id),
                         ("p3.8xlarge", "us-west-2a", self.cloud.old_image))
        machine = self.machines[head.id]
        self.assertEqual(machine.path("~/pip").read_text(), "pip install -U ray-lightning\n")
        self.assertEqual(machine.path("/path1/on/remote/machine/train.py").read_text(), "print('hello')\n")
        self.assertIn("hello from 0 of 1", self.ok("submit", "--", "/bin/sh", "-c", "echo hello from $RANK of $WORLD_SIZE"))
        # Whoever has it from here on is let in by its own key, which nobody but it knows.
        tags = {tag["key"]: tag["value"] for tag in head.get_tags()}
        self.assertEqual(tags["dtrain-host-key"], machine.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1])
        self.assertNotIn(tags["dtrain-host-key"], machine.user_data.decode("latin-1"))
        # Only this machine, and they among each other.
        group = next(group for groups in self.cloud.backend.groups.values() for group in groups.values()
                     if group.name == "dtrain-ml")
        self.assertEqual(sorted((rule.ip_protocol, rule.from_port, rule.ip_range.get("CidrIp")) for rule in group.ingress_rules),
                         [("-1", None, None), ("tcp", 22, "10.77.0.1/32")])
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        down = self.json("down", "-y")
        self.assertTrue(down["complete"], down)
        self.assert_nothing_left()


class Up(AwsCase):
    def test_a_gang_beside_the_head(self):
        self.write(two_types(3))
        self.up()
        self.assert_ready("node-0", "node-1", "node-2", "node-3")
        self.assertEqual({node: instance.instance_type for node, instance in self.by_node().items()},
                         {"node-0": "m5.large", **{f"node-{i}": "p3.2xlarge" for i in (1, 2, 3)}})
        self.assertEqual(self.cloud.count("RunInstances"), 2)
        out = self.ok("submit", "--nnodes", "3", "--", "/bin/sh", "-c", "echo rank $RANK")
        self.assertEqual(sorted(re.findall(r"rank \d", out)), ["rank 0", "rank 1", "rank 2"])
        # Another laptop, which knows nothing but the YAML and has the account.
        other = {"XDG_STATE_HOME": str(self.folder / "other"),
                 "HOME": self.env["HOME"]}
        key = self.root() / "ssh_key"
        (self.folder / "shared_key").write_bytes(key.read_bytes())
        (self.folder / "shared_key").chmod(0o600)
        text = self.yaml.read_text()
        yaml = self.folder / "there.yaml"
        import yaml as parser
        said = parser.safe_load(text)
        said["auth"] = {"ssh_user": LOGIN, "ssh_private_key": str(self.folder / "shared_key")}
        yaml.write_text(json.dumps(said))
        asked = self.cloud.count("RunInstances")
        # Whose account it is is noted once the cluster is known there: as somebody else nothing is ended.
        self.run_dtrain("attach", yaml, env=other)  # there is no terminal
        noted = self.folder / "other" / "dtrain" / "clusters" / self.name() / "account.json"
        account = noted.read_text()
        noted.write_text(account.replace("123456789012", "999999999999"))
        self.assertIn("in account 999999999999, and these credentials are of 123456789012",
                      self.refused("down", "-y", "-c", self.name(), env=other))
        self.assert_ready("node-0", "node-1", "node-2", "node-3")
        noted.write_text(account)
        self.ok("up", "-y", yaml, env=other)
        self.assertEqual(self.cloud.count("RunInstances"), asked)
        down = self.json("down", "-y", yaml, env=other)
        self.assertTrue(down["complete"], down)
        self.assert_nothing_left()

    def test_without_a_head_nothing_is_asked_for(self):
        self.write(two_types(2))
        self.cloud.vcpus = 1
        said = self.refused("up", "-y", self.yaml)
        self.assertIn("VcpuLimitExceeded", said)
        self.assertIn('"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"', said)
        self.assertEqual(self.cloud.count("RunInstances"), 1)
        # Nothing was made: another account or region is as good the next time.
        self.assertFalse((self.root() / "account.json").exists())
        self.assertTrue(self.json("down", "-y", self.yaml)["complete"])
        self.assert_nothing_left()

    def test_no_room_for_a_gang(self):
        self.write(two_types(2), provider={"availability_zone": "us-west-2a,us-west-2b"})
        self.cloud.capacity["us-west-2a", "p3.2xlarge"] = 1
        self.up()
        self.assertEqual({instance._placement.zone for node, instance in self.by_node().items() if node != "node-0"},
                         {"us-west-2b"})
        self.ok("down", "-y")
        self.cloud.capacity["us-west-2b", "p3.2xlarge"] = 0
        said = self.refused("up", "-y", self.yaml)
        self.assertIn("us-west-2a: InsufficientInstanceCapacity; us-west-2b: InsufficientInstanceCapacity", said)
        self.assertEqual(sorted(self.by_node()), ["node-0"])
        self.ok("down", "-y")
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
