"""launcher/provider/aws/head_role.hpp: a head has its role whatever happened before, and nothing of it stays.

  python3 head_role.py [TEST...]     with DTRAIN_AWS_TOOL, the built aws_tool
"""

import json
import re
import unittest

from fake_cloud import SOURCE, CloudCase, aws_lab

MADE = ["CreateRole", "CreateTags", "PutRolePolicy", "CreateInstanceProfile", "AddRoleToInstanceProfile",
        "AssociateIamInstanceProfile"]
NAME = "dtrain-gpus-abcdef"


class RoleCase(CloudCase):
    def setUp(self):
        super().setUp()
        import aws_roles
        self.iam = aws_roles.iam()
        self.addCleanup(lambda: self.assertEqual(self.cloud.problems, []))

    def head(self, cluster="gpus", **more):
        tags = {"dtrain-cluster": cluster, "dtrain-cluster-id": f"{cluster}-abcdef", "dtrain-role": "head", "dtrain-node": "head"}
        made = self.ec2.run_instances(**{**self.few, "MinCount": 1, "MaxCount": 1}, **more, TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}])
        return made["Instances"][0]["InstanceId"]

    def op(self, op, cluster="gpus", code=0, env=None, **more):
        return self.tool("head_role", "us-west-2", given={"op": op, "cluster": cluster, **more}, code=code, **(env or {}))

    def roles(self, op="list", cluster="gpus", **more):
        return [each for each in self.op(op, cluster, **more) if each["what"] == "instance role"]

    def profile(self, instance):
        """The name of the one that it has."""
        return ((self.cloud.backend.get_instance(instance).iam_instance_profile or {}).get("Arn") or "").rpartition("/")[2]

    def since(self, action):
        """What was asked from the last such request on."""
        names = [each[0] for each in self.cloud.asked]
        return names[len(names) - 1 - names[::-1].index(action):]

    def assert_whole(self, instance, name=NAME, cluster="gpus"):
        self.assertEqual(self.profile(instance), name)
        self.assertEqual([each.name for each in self.iam.get_instance_profile(name).roles], [name])
        role = self.iam.get_role(name)
        self.assertEqual(role.path, f"/dtrain/us-west-2/{cluster}/")
        self.assertEqual(list(role.policies), ["dtrain"])
        self.assertEqual({tag["Key"]: tag["Value"] for tag in role.tags}["dtrain-cluster"], cluster)

    def assert_none(self):
        self.assertEqual((list(self.iam.get_roles()), list(self.iam.get_instance_profiles())), ([], []))


class Made(RoleCase):
    def test_once_and_again(self):
        head = self.head()
        self.op("ensure", instance=head)
        self.assert_whole(head)
        self.assertEqual(self.since("CreateRole"), MADE)
        policies = dict(self.iam.get_role(NAME).policies)
        self.op("ensure", instance=head)
        self.assertEqual(self.since("DescribeInstances"), ["DescribeInstances", "PutRolePolicy"])
        self.assert_whole(head)
        self.assertEqual(self.iam.get_role(NAME).policies, policies)
        # Who may not write policies leaves it as it is.
        self.cloud.fault("PutRolePolicy", "AccessDenied")
        self.op("ensure", instance=head)
        # A head in its place has it too.
        self.cloud.end(head)
        other = self.head()
        self.op("ensure", instance=other)
        self.assert_whole(other)
        self.assertEqual([(each["cluster"], each["id"]) for each in self.roles()], [("gpus", NAME)])

    def test_begun_by_a_command_that_ended(self):
        """After each of its requests, whether that was still done or not."""
        for number in range(len(MADE) + 1):
            for kind in ("drop", "lose"):
                with self.subTest(number=number, kind=kind):
                    head = self.head()
                    self.cloud.fault("*", kind, times=9, after=number)
                    self.op("ensure", instance=head, code=1, env={"AWS_MAX_ATTEMPTS": "1"})
                    self.cloud._faults.clear()
                    self.op("ensure", instance=head)
                    self.assert_whole(head)
                    self.cloud.end(head)
                    self.assertEqual([each["gone"] for each in self.roles("take_away")], [True])
                    self.assert_none()

    def test_a_profile_that_is_there_stays(self):
        self.iam.create_instance_profile("mine", "/", [])
        head = self.head(IamInstanceProfile={"Name": "mine"})
        self.op("ensure", instance=head)
        self.assertEqual((self.profile(head), self.cloud.asked[-1][0]), ("mine", "DescribeInstances"))
        # Also one that it gets meanwhile.
        other = self.head()
        self.cloud.fault("AssociateIamInstanceProfile", "IncorrectState")
        self.op("ensure", instance=other)

    def test_news_that_has_not_come_yet(self):
        head = self.head()
        self.cloud.fault("AssociateIamInstanceProfile", "InvalidParameterValue", times=3)
        self.cloud.fault("PutRolePolicy", "NoSuchEntity", times=2)
        self.cloud.fault("AddRoleToInstanceProfile", "NoSuchEntity")
        self.cloud.fault("DescribeInstances", "InvalidInstanceID.NotFound")
        self.op("ensure", instance=head)
        self.assert_whole(head)

    def test_who_may_not_is_told_what_to_do(self):
        for action, code in (("CreateRole", "AccessDenied"), ("PutRolePolicy", "AccessDenied"),
                             ("AssociateIamInstanceProfile", "UnauthorizedOperation")):
            with self.subTest(action):
                head = self.head()
                self.cloud.fault(action, code)
                said = self.op("ensure", instance=head, code=1)
                self.assertEqual(said["code"], "denied")
                self.assertIn(f"{action} is refused: {code}", said["error"])
                self.assertIn("giving the head the role", said["error"])
                self.assertIn("IamInstanceProfile", said["hint"])
                self.assertIn("docs/aws.md#what-the-head-may-do", said["hint"])
                self.roles("take_away")
                self.assert_none()
        self.cloud.fault("CreateRole", "LimitExceeded")  # too many roles
        said = self.op("ensure", instance=self.head(), code=1)
        self.assertEqual((said["code"], said["hint"]), ("exhausted", ""))

    def test_long_names(self):
        cluster = "n" * 63
        head = self.head(cluster)
        self.op("ensure", cluster, instance=head)
        (role,) = self.roles(cluster=cluster)
        self.assertEqual(len(role["id"]), 64)
        self.assertRegex(role["id"], r"^dtrain-n{44}-[0-9a-f]{12}$")
        self.assert_whole(head, role["id"], cluster)


class Policy(RoleCase):
    def policy(self, region="us-west-2", roles=()):
        return self.tool("head_role", region, given={"op": "policy", "cluster": "gpus", "roles": list(roles)})

    def test_it_is_the_pages(self):
        page = (SOURCE / "docs/aws.md").read_text().partition("## What the head may do")[2]
        shown = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
        self.assertEqual(shown, self.policy(roles=["arn:aws:iam::123456789012:role/workers"]))

    def test_what_workers_have_may_be_passed(self):
        import aws_roles
        for name in ("first", "second"):
            aws_roles.make_role(name, "/team/")
        head = self.head()
        self.op("ensure", instance=head, profiles=["first"])
        may = lambda: [each["Resource"] for each in json.loads(self.iam.get_role(NAME).policies["dtrain"])["Statement"]
                       if each["Action"] == "iam:PassRole"]
        role = "arn:aws:iam::123456789012:role/team/"
        self.assertEqual(may(), [[role + "first"]])
        self.op("ensure", instance=head, profiles=["arn:aws:iam::123456789012:instance-profile/team/second", "first"])
        self.assertEqual(may(), [[role + "first", role + "second"]])
        self.op("ensure", instance=head)
        self.assertEqual(may(), [])
        said = self.op("ensure", instance=head, profiles=["nobody"], code=1)
        self.assertEqual(said["code"], "not_found")
        self.assertIn("nobody", said["error"])

    def test_partitions(self):
        from botocore.session import Session
        for region in ("us-west-2", "eu-central-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1", "us-isob-east-1",
                       "us-isof-south-1", "eu-isoe-west-1", "eusc-de-east-1"):
            arns = re.findall(r'"arn:([^:]*):ec2', json.dumps(self.policy(region)))
            self.assertEqual(set(arns), {Session().get_partition_for_region(region)}, region)
        passing = self.policy("cn-north-1", ["arn:aws-cn:iam::1:role/r"])["Statement"][-1]
        self.assertEqual(passing["Condition"]["StringEquals"]["iam:PassedToService"],
                         ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])

    def test_it_holds(self):
        """By the role's credentials: its own cluster's machines, and nothing else."""
        import aws_roles
        aws_roles.make_role("w")
        head, foreign = self.head(), self.head("other")
        self.op("ensure", instance=head)
        (said,) = [json.loads(value) for path, value in aws_roles.metadata_of(
            self.cloud, self.cloud.backend.get_instance(head)).items() if "security-credentials" in path]
        role = {"AWS_ACCESS_KEY_ID": said["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": said["SecretAccessKey"],
                "AWS_SESSION_TOKEN": said["Token"]}

        def ask(action, *form, may=True, service="ec2", **env):
            said = self.tool(service, "us-west-2", action, given=form, code=0 if may else 1, **{**role, **env})
            if not may:
                self.assertIn(said["aws_code"], ("UnauthorizedOperation", "AccessDenied", "AuthFailure"))

        def run(cluster, may, **more):
            tags = [{"ResourceType": kind, "Tags": [{"Key": "dtrain-cluster", "Value": cluster}]}
                    for kind in ("instance", "volume") if cluster]
            ask("RunInstances", *self.tool("form", "RunInstancesRequest", given={
                **self.few, **({"TagSpecifications": tags} if tags else {}), **more}), may=may)

        ask("DescribeInstances")
        ask("GetCallerIdentity", service="sts")
        run("gpus", True)
        run("other", False)
        run("", False)
        run("gpus", False, IamInstanceProfile={"Name": "w"})
        self.op("ensure", instance=head, profiles=["w"])
        run("gpus", True, IamInstanceProfile={"Name": "w"})
        ask("CreateTags", ["ResourceId.1", foreign], ["Tag.1.Key", "dtrain-cluster"], ["Tag.1.Value", "gpus"], may=False)
        ask("TerminateInstances", ["InstanceId.1", foreign], may=False)
        for action in ("StopInstances", "StartInstances"):
            ask(action, ["InstanceId.1", foreign], may=False)
            ask(action, ["InstanceId.1", head])
        ask("ModifyInstanceAttribute", ["InstanceId", foreign], ["UserData.Value", "YQ=="], may=False)
        self.cloud.stop(head)
        ask("ModifyInstanceAttribute", ["InstanceId", head], ["UserData.Value", "YQ=="])
        ask("ListRoles", service="iam", may=False)
        ask("DescribeInstances", may=False, AWS_SESSION_TOKEN="another")
        ask("DescribeInstances", may=False, AWS_SESSION_TOKEN="")
        ask("TerminateInstances", ["InstanceId.1", head])
        self.assertEqual({each[0] for each in self.cloud.by_role}, {NAME})


class Removed(RoleCase):
    def test_begun_by_a_command_that_ended(self):
        requests = ["RemoveRoleFromInstanceProfile", "DeleteInstanceProfile", "DeleteRolePolicy", "DeleteRole"]
        for number, action in enumerate(requests):
            for kind in ("drop", "lose"):
                with self.subTest(action, kind=kind):
                    head = self.head()
                    self.op("ensure", instance=head)
                    self.cloud.end(head)
                    self.cloud.fault(action, kind, times=9)
                    (left,) = self.roles("take_away", env={"AWS_MAX_ATTEMPTS": "1"})
                    if kind == "drop":  # asked again over another connection, what is done is not there
                        self.assertFalse(left["gone"])
                        self.assertIn(action, left["note"])
                        self.assertEqual(list(dict.fromkeys(self.since(requests[0]))), requests[:number + 1])
                    self.cloud._faults.clear()
                    self.roles("take_away")
                    self.assert_none()
                    self.assertEqual(self.roles(), [])

    def test_what_is_still_in_use(self):
        self.op("ensure", instance=self.head())
        for action in ("DeleteInstanceProfile", "DeleteRole"):
            self.cloud.fault(action, "DeleteConflict", times=2)
        self.assertEqual([each["gone"] for each in self.roles("take_away")], [True])
        self.assert_none()

    def test_who_may_not_look(self):
        """A cluster that has none goes all the same; else it is said."""
        self.head("other")
        self.cloud.fault("ListRoles", "AccessDenied", times=1000)
        self.assertEqual(self.op("take_away", "other"), [])
        head = self.head()
        self.op("ensure", instance=head)
        self.cloud.end(head)
        self.cloud.fault("RemoveRoleFromInstanceProfile", "AccessDenied")
        (left,) = self.op("take_away")
        self.assertEqual((left["id"], left["gone"], left["kept"]), (NAME, False, False))
        self.assertIn("RemoveRoleFromInstanceProfile is refused: AccessDenied", left["note"])
        # Of all clusters nobody knows then.
        noted, others = self.roles(cluster="")
        self.assertEqual((noted["cluster"], noted["id"]), ("gpus", NAME))
        self.assertEqual((others["id"], others["kept"], others["gone"]), ("/dtrain/us-west-2/*", True, False))
        self.assertIn("ListRoles is refused: AccessDenied", others["note"])
        # Who may not look may remove.
        self.assertEqual([each["gone"] for each in self.roles("take_away")], [True])
        self.assert_none()

    def test_who_cannot_ask_is_told(self):
        self.cloud.fault("ListRoles", "drop", times=1000)
        # All else there is does not wait for it.
        (role,) = self.roles("take_away")
        self.assertFalse(role["gone"])
        self.assertIn("cannot be reached", role["note"])

    def test_all_pages_are_read_and_no_others(self):
        import aws_roles
        for number in range(205):
            aws_roles.make_role(f"dtrain-gpus-{number}", "/dtrain/us-west-2/gpus/")
        aws_roles.make_role("dtrain-gpus-two", "/dtrain/us-west-2/gpus-2/")
        aws_roles.make_role("elsewhere", "/dtrain/eu-west-1/gpus/")
        aws_roles.make_role("mine", "/")
        self.assertEqual(len(self.roles()), 205)
        self.assertEqual(self.since("ListRoles")[-1], "ListRoles")
        self.assertEqual(self.cloud.count("ListRoles"), 3)
        self.assertEqual({each["cluster"] for each in self.roles(cluster="")}, {"gpus", "gpus-2"})
        self.assertEqual(len(self.roles(cluster="")), 206)


if __name__ == "__main__":
    aws_lab.enter()
    unittest.main(verbosity=2)
