"""tests/support/aws_cloud.py, by which the provider is tried: that AWS's own client and ours find there what AWS does.

  python3 fake_cloud.py [TEST...]     with DTRAIN_AWS_TOOL, the built aws_tool
"""

import base64
import functools
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(SOURCE / "tests" / "support"))
import aws_lab  # noqa: E402

TOOL = os.environ["DTRAIN_AWS_TOOL"]
DEADLINE = 120


@functools.cache
def session():
    import boto3
    return boto3.Session()  # which reads EC2's model once


class CloudCase(unittest.TestCase):
    def setUp(self):
        import aws_cloud
        from botocore.config import Config
        self.cloud = self.enterContext(aws_cloud.Cloud())
        self.ec2 = session().client("ec2", region_name="us-west-2", endpoint_url=self.cloud.url, aws_access_key_id=aws_cloud.KEY,
                                aws_secret_access_key=aws_cloud.SECRET,
                                config=Config(retries={"total_max_attempts": 1}, parameter_validation=False))
        self.few = {"ImageId": self.cloud.image, "InstanceType": "p3.2xlarge", "MinCount": 2, "MaxCount": 2}

    def tool(self, *words, given=None, code=0, **env):
        result = subprocess.run([TOOL, *words], input="" if given is None else json.dumps(given), text=True,
                                capture_output=True, timeout=DEADLINE, check=False,
                                env={"HOME": "/nonexistent", **self.cloud.environment(), **env})
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return json.loads(result.stdout)

    def ours(self, **parameters):
        """RunInstances by our own client."""
        return self.tool("ec2", "us-west-2", "RunInstances",
                         given=self.tool("form", "RunInstancesRequest", given={**self.few, **parameters}))

    def refusal(self, call, **parameters):
        from botocore.exceptions import ClientError
        with self.assertRaises(ClientError) as caught:
            call(**parameters)
        return caught.exception.response["Error"]["Code"]

    def ids(self, answer):
        return sorted(instance["InstanceId"] for instance in answer["Instances"])


class Tokens(CloudCase):
    def test_the_same_token_is_the_same_instances(self):
        first = self.ids(self.ec2.run_instances(**self.few, ClientToken="a"))
        self.assertEqual(self.ids(self.ec2.run_instances(**self.few, ClientToken="a")), first)
        self.assertEqual(len(self.ids(self.ec2.run_instances(**self.few, ClientToken="b"))), 2)
        self.assertEqual(len(self.cloud.instances()), 4)
        self.assertEqual(self.refusal(self.ec2.run_instances, **{**self.few, "MaxCount": 3}, ClientToken="a"),
                         "IdempotentParameterMismatch")
        found = self.ec2.describe_instances(Filters=[{"Name": "client-token", "Values": ["a"]}])
        self.assertEqual(sorted(each for one in found["Reservations"] for each in self.ids(one)), first)
        self.ec2.terminate_instances(InstanceIds=first)
        self.assertEqual(self.refusal(self.ec2.run_instances, **self.few, ClientToken="a"), "IdempotentInstanceTerminated")
        self.assertEqual(self.cloud.problems, [])

    def test_a_lost_answer_makes_nothing_twice(self):
        self.cloud.fault("RunInstances", "lose")
        self.ours(ClientToken="t")
        self.assertEqual(self.cloud.count("RunInstances"), 2)
        self.assertEqual(len(self.cloud.instances()), 2)
        # Without a token there are others.
        self.cloud.fault("RunInstances", "lose")
        self.ours()
        self.assertEqual(len(self.cloud.instances()), 6)

    def test_a_request_that_never_arrived(self):
        self.cloud.fault("RunInstances", "drop", times=2)
        self.ours(ClientToken="t")
        self.assertEqual(len(self.cloud.instances()), 2)


class Bounds(CloudCase):
    def test_capacity_by_zone_and_type(self):
        self.cloud.capacity.update({("us-west-2a", "p3.2xlarge"): 1, ("us-west-2b", "p3.2xlarge"): 2})
        there = {"Placement": {"AvailabilityZone": "us-west-2a"}}
        self.assertEqual(self.refusal(self.ec2.run_instances, **self.few, **there), "InsufficientInstanceCapacity")
        self.assertEqual(self.cloud.instances(), [])
        made = self.ec2.run_instances(**{**self.few, "MinCount": 1, "MaxCount": 5}, **there)
        self.assertEqual(len(made["Instances"]), 1)
        self.ours(Placement={"AvailabilityZone": "us-west-2b"})
        said = self.tool("ec2", "us-west-2", "RunInstances", code=1, given=self.tool("form", "RunInstancesRequest", given={
            **self.few, "Placement": {"AvailabilityZone": "us-west-2b"}}))
        self.assertEqual((said["aws_code"], said["code"]), ("InsufficientInstanceCapacity", "exhausted"))
        self.assertEqual(self.cloud.count("RunInstances"), 4)  # ours asked once, though it came as a 500
        # Another type has its own; without a zone it is one that has room.
        self.ec2.run_instances(**{**self.few, "InstanceType": "p3.8xlarge"}, **there)
        zone = self.ec2.run_instances(**self.few)["Instances"][0]["Placement"]["AvailabilityZone"]
        self.assertNotIn(zone, ("us-west-2a", "us-west-2b"))

    def test_a_quota(self):
        self.cloud.vcpus = 20
        self.ours()
        said = self.tool("ec2", "us-west-2", "RunInstances", code=1,
                         given=self.tool("form", "RunInstancesRequest", given=self.few))
        self.assertEqual(said["aws_code"], "VcpuLimitExceeded")
        self.assertIn("Running On-Demand P instances", said["hint"])

    def test_user_data_and_counts(self):
        from moto.ec2.models.instance_types import INSTANCE_TYPES
        self.assertIn("p3.2xlarge", INSTANCE_TYPES)
        data = lambda size: base64.b64encode(b"x" * size).decode()
        self.ours(UserData=data(16384))
        self.assertEqual(self.refusal(self.ec2.run_instances, **self.few, UserData="x" * 16385), "InvalidParameterValue")
        self.assertEqual(self.refusal(self.ec2.run_instances, **{**self.few, "MinCount": 3}), "InvalidParameterCombination")
        for wrong, code in (({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
                            ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
                            ({"InstanceType": "p9.huge"}, "InvalidInstanceType.NotFound"),
                            ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown")):
            self.assertEqual(self.refusal(self.ec2.run_instances, **{**self.few, **wrong}), code)

    def test_placement_groups(self):
        self.ec2.create_placement_group(GroupName="g", Strategy="cluster")
        self.assertEqual(self.refusal(self.ec2.create_placement_group, GroupName="g"), "InvalidPlacementGroup.Duplicate")
        self.ours(Placement={"GroupName": "g"})
        self.assertEqual([each["GroupName"] for each in self.ec2.describe_placement_groups()["PlacementGroups"]], ["g"])
        self.ec2.delete_placement_group(GroupName="g")
        self.assertEqual(self.refusal(self.ec2.delete_placement_group, GroupName="g"), "InvalidPlacementGroup.Unknown")


class Time(CloudCase):
    def test_new_instances_are_not_known_at_once(self):
        self.cloud.unknown_for = 2
        made = self.ids(self.ec2.run_instances(**self.few))
        self.assertEqual(self.ec2.describe_instances()["Reservations"], [])
        self.assertEqual(self.refusal(self.ec2.describe_instances, InstanceIds=made[:1]), "InvalidInstanceID.NotFound")
        self.assertEqual([instance["InstanceId"] for one in self.ec2.describe_instances()["Reservations"]
                          for instance in one["Instances"]], made[:1])  # of the other it takes one more
        self.assertEqual(len(self.ec2.describe_instances(InstanceIds=made)["Reservations"][0]["Instances"]), 2)

    def test_pending_ones(self):
        self.cloud.hold_pending = True
        made = self.ids(self.ec2.run_instances(**self.few))
        states = lambda: sorted(instance["State"]["Name"] for one in self.ec2.describe_instances()["Reservations"]
                                for instance in one["Instances"])
        self.assertEqual(states(), ["pending", "pending"])
        self.cloud.run(made[0])
        self.assertEqual(states(), ["pending", "running"])
        self.cloud.end(made[0])
        self.assertEqual(states(), ["pending", "terminated"])

    def test_throttling_and_a_server_that_is_busy(self):
        self.cloud.fault("*", "throttle")
        self.cloud.fault("DescribeInstances", "busy")
        self.tool("ec2", "us-west-2", "DescribeInstances", given=[])
        self.assertEqual([each[2] for each in self.cloud.asked], ["RequestLimitExceeded", "InternalError", ""])
        self.cloud.fault("*", "throttle", times=9)
        self.assertEqual(self.refusal(self.ec2.describe_instances), "RequestLimitExceeded")


class Checks(CloudCase):
    def test_signatures(self):
        for env, code in (({"AWS_SECRET_ACCESS_KEY": "another-secret-of-somebody"}, "AuthFailure"),
                          ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, "AuthFailure")):
            self.assertEqual(self.tool("ec2", "us-west-2", "DescribeInstances", given=[], code=1, **env)["aws_code"], code)
        said = self.tool("sts", "us-west-2", "GetCallerIdentity", given=[], code=1, AWS_SECRET_ACCESS_KEY="another-secret",
                         AWS_SESSION_TOKEN="a-secret-token")
        self.assertEqual((said["aws_code"], said["code"]), ("SignatureDoesNotMatch", "denied"))
        self.assertNotIn("a-secret-token", json.dumps(said))  # which what was refused quotes

    def test_requests_are_the_models(self):
        said = self.tool("ec2", "us-west-2", "DescribeInstances", given=[["InstanceIdd.1", "i-1"]], code=1)
        self.assertEqual(said["aws_code"], "UnknownParameter")
        self.tool("ec2", "us-west-2", "DescribeEverything", given=[], code=1)
        self.assertEqual(len(self.cloud.problems), 1)
        self.assertIn("InstanceIdd.1", self.cloud.problems[0])

    def test_the_image_of_deep_learning(self):
        import aws_cloud
        found = self.tool("ssm", "us-west-2", "GetParameter", given={"Name": aws_cloud.DLAMI})
        self.assertEqual(found["Parameter"]["Value"], self.cloud.image)
        self.assertEqual(self.tool("ssm", "us-west-2", "GetParameter", given={"Name": "/nope"}, code=1)["aws_code"],
                         "ParameterNotFound")

    def test_from_several_threads(self):
        threads = [threading.Thread(target=lambda: self.ec2.run_instances(**self.few)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.cloud.instances("running")), 12)


class Instances(CloudCase):
    """launcher/provider/aws/instances.hpp: nothing doubled, nothing lost."""

    def setUp(self):
        super().setUp()
        self.notes = Path(self.enterContext(tempfile.TemporaryDirectory())) / "intents"

    def op(self, op, *nodes, zones=(), **env):
        return self.tool("instances", "us-west-2", str(self.notes), given={
            "op": op, "nodes": nodes, "zones": zones, "boot": "#!/bin/sh\n",
            "config": {"ImageId": self.cloud.image, "InstanceType": "p3.2xlarge"}}, **env)

    def left(self):
        return sorted(path.name for path in self.notes.iterdir())

    def test_a_gang_is_one_request_and_is_listed_by_its_tags(self):
        made = self.op("create", "w-1", "w-2", "w-3")
        self.assertEqual([(each["node"], each["state"]) for each in made], [(f"w-{n}", "pending") for n in (1, 2, 3)])
        self.assertEqual(self.cloud.count("RunInstances"), 1)
        there = self.op("list")
        self.assertEqual([(each["node"], each["id"], each["state"], each["type"]) for each in there],
                         [(each["node"], each["id"], "running", "gpu") for each in made])
        self.assertEqual(self.left(), [])
        # Asked again: those that are there are told, what is missing is made.
        again = self.op("create", "w-1", "w-2", "w-3", "w-4")
        self.assertEqual([each["id"] for each in again[:3]], [each["id"] for each in made])
        self.assertEqual(len(self.cloud.instances()), 4)
        self.assertEqual({each["state"] for each in self.op("release")} <= {"stopping", "gone"}, True)
        self.assertEqual((self.op("list"), self.cloud.instances()), ([], []))
        self.assertEqual(self.cloud.problems, [])

    def test_zones_in_their_order(self):
        self.cloud.capacity["us-west-2a", "p3.2xlarge"] = 1
        made = self.op("create", "w-1", "w-2", zones=["us-west-2a", "us-west-2b"])
        self.assertEqual({each["zone"] for each in made}, {"us-west-2b"})
        tokens = [each[1]["ClientToken"] for each in self.cloud.asked if each[0] == "RunInstances"]
        self.assertEqual(len(set(tokens)), 2)
        self.cloud.capacity["us-west-2b", "p3.2xlarge"] = 0
        none = self.op("create", "w-3", "w-4", zones=["us-west-2a", "us-west-2b"])
        self.assertEqual([each["state"] for each in none], ["gone", "gone"])
        self.assertIn("us-west-2a: InsufficientInstanceCapacity; us-west-2b: Insuff", none[0]["error"])
        self.assertEqual(len(self.cloud.instances()), 2)

    def test_lost_answers(self):
        self.cloud.fault("RunInstances", "lose", times=9)
        made = self.op("create", "w-1", "w-2", AWS_MAX_ATTEMPTS="2")
        self.assertEqual([each["node"] for each in made], ["w-1", "w-2"])
        self.assertEqual(len(self.cloud.instances()), 2)
        self.assertEqual(len(self.op("list")), 2)
        # Nor was it made, and nobody can know that at once.
        self.cloud._faults.clear()
        self.cloud.fault("RunInstances", "drop", times=9)
        lost = self.op("create", "w-3", AWS_MAX_ATTEMPTS="1")
        self.assertIn("error", lost[0])
        self.assertEqual(len(self.left()), 1)
        self.cloud._faults.clear()
        there = self.op("list")
        self.assertEqual([(each["node"], each["state"]) for each in there if not each["id"]], [("w-3", "pending")])
        self.assertEqual(self.op("create", "w-3")[0]["state"], "pending")  # told, and not made
        self.assertEqual(len(self.cloud.instances()), 2)
        note = self.notes / self.left()[0]
        said = json.loads(note.read_text())
        note.write_text(json.dumps({**said, "asked": said["asked"] - 600_000}))
        self.assertEqual(len(self.op("list")), 2)
        self.assertEqual(self.left(), [])

    def test_a_command_that_was_killed(self):
        """After the request, before its answer: the next one finds what it made."""
        self.cloud.unknown_for = 2
        self.cloud.fault("RunInstances", "lose", times=1)
        process = subprocess.Popen([TOOL, "instances", "us-west-2", str(self.notes)], stdin=subprocess.PIPE, text=True,
                                   stdout=subprocess.DEVNULL, env={"HOME": "/nonexistent", **self.cloud.environment(),
                                                                   "AWS_MAX_ATTEMPTS": "1"})
        with process.stdin:
            process.stdin.write(json.dumps({"op": "create", "nodes": ["w-1"], "config": {
                "ImageId": self.cloud.image, "InstanceType": "p3.2xlarge"}}))
        while not self.cloud.instances():
            time.sleep(0.01)
        process.kill()
        process.wait()
        self.assertEqual([each["node"] for each in self.op("create", "w-1")], ["w-1"])
        self.assertEqual(len(self.cloud.instances()), 1)
        self.cloud.unknown_for = 0
        released = self.op("release")
        self.assertEqual({each["node"] for each in released}, {"w-1"})
        self.assertEqual(self.cloud.instances(), [])

    def test_killed_at_any_point(self):
        chance = random.Random(14)
        for number in range(12):
            nodes = [f"w-{number}-{each}" for each in (1, 2)]
            self.cloud.unknown_for = chance.choice([0, 0, 2])
            process = subprocess.Popen([TOOL, "instances", "us-west-2", str(self.notes)], stdin=subprocess.PIPE, text=True,
                                       stdout=subprocess.DEVNULL, env={"HOME": "/nonexistent", **self.cloud.environment()})
            with process.stdin:
                process.stdin.write(json.dumps({"op": "create", "nodes": nodes, "config": {
                    "ImageId": self.cloud.image, "InstanceType": "p3.2xlarge"}}))
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
            process.wait()
            self.op("list")  # is accepted behind what the killed one has sent
            self.cloud.settle()
            with self.cloud.lock:
                made = {each[1]["ClientToken"] for each in self.cloud.asked if each[0] == "RunInstances"}
            # Where nothing was asked for, minutes pass until that is certain.
            for note in self.notes.glob("*.json"):
                said = json.loads(note.read_text())
                if said["token"] not in made:
                    note.write_text(json.dumps({**said, "asked": said["asked"] - 600_000}))
            self.assertEqual(sorted(each["node"] for each in self.op("create", *nodes)), nodes)
        self.assertEqual(len(self.cloud.instances()), 24)
        self.op("release")
        self.assertEqual(self.cloud.instances(), [])

    def test_what_ec2_does_not_know_yet(self):
        self.cloud.unknown_for = 3
        made = self.op("create", "w-1", "w-2")
        there = self.op("list")
        self.assertEqual([(each["id"], each["state"]) for each in there], [(each["id"], "pending") for each in made])
        self.assertIn("not known to EC2 yet", there[0]["reason"])
        self.assertEqual({each["state"] for each in self.op("release")} <= {"stopping", "gone"}, True)
        self.assertEqual(self.cloud.instances(), [])

    def test_it_is_followed(self):
        self.cloud.hold_pending = True
        made = self.op("create", "w-1", "w-2")
        threading.Timer(1, lambda: (self.cloud.run(made[0]["id"]), self.cloud.end(made[1]["id"]))).start()
        told = self.op("follow")
        self.assertEqual(sorted((each["id"], each["state"]) for each in told),
                         sorted([(made[0]["id"], "running"), (made[1]["id"], "gone")]))

    def test_stopped_and_started_again(self):
        made = [each["id"] for each in self.op("create", "w-1", "w-2")]
        self.cloud.hold_stopping = self.cloud.hold_pending = True
        told = self.op("stop")
        self.assertEqual([(each["id"], each["state"], each["reason"]) for each in told],
                         [(each, "stopped", "it is being stopped") for each in made] * 2)
        # Whoever starts one that is being stopped waits for that.
        threading.Timer(0.5, self.cloud.halt).start()
        told = self.tool("instances", "us-west-2", str(self.notes), given={"op": "start"})
        self.assertEqual([(each["id"], each["state"], each["reason"]) for each in told], [(each, "pending", "") for each in made] * 2)
        self.cloud.run()
        self.assertEqual([each["state"] for each in self.op("list")], ["running", "running"])
        self.assertEqual(self.cloud.count("ModifyInstanceAttribute"), 0)
        self.assertEqual(self.cloud.count("StartInstances") > 1, True)

    def test_what_one_that_is_started_again_runs(self):
        (made,) = self.op("create", "w-1")
        given = []
        self.cloud.on_modify = lambda *changed: given.append(changed)
        self.op("stop")
        self.tool("instances", "us-west-2", str(self.notes), given={"op": "start", "boot": "#!/bin/sh\necho @NODE@ again\n"})
        ((changed, data),) = given
        self.assertEqual((changed, gzip.decompress(data)), (made["id"], b"#!/bin/sh\necho w-1 again\n"))
        self.assertEqual(self.cloud.problems, [])

    def test_one_that_has_no_room_keeps_no_other(self):
        a, b = self.op("create", "w-1", "w-2", zones=["us-west-2a"])
        self.op("stop")
        self.cloud.capacity["us-west-2a", "p3.2xlarge"] = 1
        self.cloud.fault("StartInstances", "InsufficientInstanceCapacity", times=2)  # of both, and of the first
        told = self.op("start")
        self.assertIn("there is no room for it in us-west-2a", told[0]["error"])
        self.assertEqual([each["state"] for each in told], ["stopped", "pending", "stopped", "running"])
        self.assertEqual(self.cloud.instances("stopped"), [a["id"]])
        self.assertEqual(self.cloud.instances("running"), [b["id"]])

    def test_a_list_that_is_older_than_what_was_asked(self):
        self.op("create", "w-1")
        run = self.cloud._set_state
        self.cloud.on_stop = lambda each: run(each, "running", 16)
        self.assertEqual([each["state"] for each in self.op("stop")], ["stopped", "stopped"])
        self.cloud.halt(*self.cloud.instances())
        self.cloud.on_start = lambda each: run(each, "stopped", 80)
        self.assertEqual([each["state"] for each in self.op("start")], ["pending", "pending"])

    def test_a_spot_machine_is_not_stopped(self):
        given = {"op": "create", "nodes": ["w-1"], "config": {
            "ImageId": self.cloud.image, "InstanceType": "p3.2xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}}
        self.tool("instances", "us-west-2", str(self.notes), given=given)
        told = self.op("stop")
        self.assertIn("one-time Spot", told[0]["error"])
        self.assertEqual(told[1]["state"], "running")

    def test_tags_of_the_user_stay(self):
        given = {"op": "create", "nodes": ["w-1"], "config": {
            "ImageId": self.cloud.image, "InstanceType": "p3.2xlarge", "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "a b"}, {"Key": "dtrain-cluster", "Value": "x"}]}]}}
        self.tool("instances", "us-west-2", str(self.notes), given=given)
        found = self.ec2.describe_instances()["Reservations"][0]["Instances"][0]
        tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
        self.assertEqual((tags["team"], tags["dtrain-cluster"], tags["dtrain-node"]), ("a b", "c", "w-1"))


if __name__ == "__main__":
    aws_lab.enter()
    unittest.main(verbosity=2)
