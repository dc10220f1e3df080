"""What the tests of clusters on AWS share: a fake cloud whose instances are real hosts, and a dtrain that has an
account there. Where that cannot be every test is skipped, with the reason."""

from ssh_harness import *

import aws_lab  # noqa: E402
import aws_roles  # noqa: E402

LOGIN = "ubuntu"


class AwsCase(HostsCase):
    """Tests with a cloud of their own each: self.cloud, and its instances self.machines, with `options`."""

    count = 0

    def setUp(self):
        super().setUp()
        import aws_cloud
        import aws_machines
        self.cloud = self.enterContext(aws_cloud.Cloud(host="10.77.0.1"))
        self.machines = self.enterContext(aws_machines.Machines(self.cloud, prepare=self.prepare, **self.options))
        self.env.update(self.cloud.environment())
        self.addCleanup(self.nobody_was_rude)

    def nobody_was_rude(self):
        self.assertEqual(self.cloud.problems, [])

    def prepare(self, machine):
        """What its image has besides, before it boots."""
        if self.agents_on == "all":
            for program in (AGENT, AGENT.with_name("dtrain-scaler")):
                machine.put_program(program)

    def name(self):
        return "lab"

    def write(self, types=None, provider=None, **more):
        types = types or {"head": {"node_config": {"InstanceType": "m5.large", "ImageId": "latest_ubuntu"}}}
        write_yaml(self.yaml, {"cluster_name": self.name(), "provider": {"type": "aws", "region": "us-west-2", **(provider or {})},
                               "available_node_types": types, "head_node_type": "head", "max_workers": 8, **more})
        return self.yaml

    def up(self, *flags, **more):
        if not self.yaml.exists():
            self.write()
        return self.ok("up", "-y", self.yaml, *flags, **more)

    def leave_nothing(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def assert_ready(self, *nodes):
        self.assertEqual({node: state for node, state in self.states().items() if state != "gone"},
                         {node: "ready" for node in nodes})

    def by_node(self):
        return self.by_node_of(self.name())

    def by_node_of(self, cluster):
        """{node: its instance} of what there is of a cluster, by the tags; "": one that does not say it."""
        found = {}
        for each in self.cloud.instances():
            instance = self.cloud.backend.get_instance(each)
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            if tags["dtrain-cluster"] != cluster:
                continue
            node = tags.get(f"dtrain-node.{instance.ami_launch_index}") or tags.get("dtrain-node", "")
            found[node] = instance
        return found

    def asked_for(self, action):
        """The parameters of each such request that was granted."""
        return [form for each, form, error in self.cloud.asked if each == action and not error]

    def assert_nothing_left(self):
        self.assertEqual(self.cloud.instances(), [])
        ours = [group.name for groups in self.cloud.backend.groups.values() for group in groups.values()
                if group.name != "default"]
        self.assertEqual(ours, [])
        self.assertEqual(list(self.cloud.backend.key_pairs), [])
        self.assertEqual(list(self.cloud._groups), [])
        self.assertEqual([role.name for role in aws_roles.iam().get_roles() if role.path.startswith("/dtrain/us-west-2/")], [])
        self.machines.wait()
        self.assertEqual(len(self.machines), 0)


def main():
    aws_lab.enter()
    from ssh_harness import main as run
    run()


__all__ = ["BUILD", "DEADLINE", "SOURCE", "DTRAIN", "AwsCase", "LOGIN", "aws_roles", "contextlib", "eventually", "first_images", "main",
           "json", "os", "re", "signal", "subprocess", "sys", "time", "unittest", "Path"]
