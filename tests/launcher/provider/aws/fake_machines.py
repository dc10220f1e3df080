"""tests/support/aws_machines.py: instances of the fake cloud that are real hosts, run their boot data and know
themselves by their metadata service. Needs root.

  python3 fake_machines.py [TEST...]     with DTRAIN_AWS_TOOL, the built aws_tool
"""

import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(SOURCE / "tests" / "support"))
import aws_lab  # noqa: E402
import lab  # noqa: E402

TOOL = os.environ["DTRAIN_AWS_TOOL"]
DEADLINE = 120


def eventually(condition, what):
    until = time.monotonic() + DEADLINE
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {DEADLINE} s for {what}")
        time.sleep(0.02)
    return found


class MachineCase(unittest.TestCase):
    def setUp(self):
        import aws_cloud
        import aws_machines
        import hosts
        hosts.make_networks()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cloud = self.enterContext(aws_cloud.Cloud(host="10.77.0.1"))
        self.machines = self.enterContext(aws_machines.Machines(self.cloud))
        for name in ("login", "host"):
            lab.sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.folder / name)

    def ec2(self, action, *form):
        result = subprocess.run([TOOL, "ec2", "us-west-2", action], input=json.dumps(form), text=True, capture_output=True,
                                timeout=DEADLINE, check=False, env={"HOME": "/nonexistent", **self.cloud.environment()})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return json.loads(result.stdout)

    def launch(self, data, count=1, *more):
        public = (self.folder / "login.pub").read_bytes()
        with contextlib.suppress(AssertionError):
            self.ec2("ImportKeyPair", ["KeyName", "me"], ["PublicKeyMaterial", base64.b64encode(public).decode()])
        self.ec2("RunInstances", ["ImageId", self.cloud.image], ["InstanceType", "p3.2xlarge"], ["MinCount", str(count)],
                 ["MaxCount", str(count)], ["KeyName", "me"], ["UserData", base64.b64encode(data).decode()], *more)
        self.machines.wait()
        return self.cloud.instances("running")

    def ssh(self, machine, command):
        return subprocess.run(["ssh", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=" + str(self.folder / "known"),
                               "-o", "IdentitiesOnly=yes", "-i", self.folder / "login", f"ubuntu@{machine.address}", command],
                              text=True, capture_output=True, timeout=DEADLINE, check=False)

    def test_a_script_and_who_it_is(self):
        (first, second) = self.launch(b"""#!/bin/bash
            exec 3<>/dev/tcp/169.254.169.254/80
            printf 'PUT /latest/api/token HTTP/1.0\\r\\nX-aws-ec2-metadata-token-ttl-seconds: 60\\r\\n\\r\\n' >&3
            token=$(tail -n 1 <&3)
            exec 3<>/dev/tcp/169.254.169.254/80
            printf 'GET /latest/meta-data/instance-id HTTP/1.0\\r\\nX-aws-ec2-metadata-token: %s\\r\\n\\r\\n' "$token" >&3
            tail -n 1 <&3 >/root/me
            """, 2)
        for each in (first, second):
            me = self.machines[each].path("/root/me")
            self.assertEqual(eventually(lambda me=me: me.exists() and me.read_text(), "the boot data"), each)
        self.assertNotEqual(self.machines[first].address, self.machines[second].address)
        self.ec2("TerminateInstances", ["InstanceId.1", first], ["InstanceId.2", second])
        self.machines.wait()
        self.assertEqual(len(self.machines), 0)
        self.assertEqual(self.cloud.problems, [])

    def test_each_of_a_gang_runs_what_is_its_own(self):
        made = json.loads(subprocess.run(
            [TOOL, "instances", "us-west-2", str(self.folder / "intents")], text=True, check=True, timeout=DEADLINE,
            stdout=subprocess.PIPE, env={"HOME": "/nonexistent", **self.cloud.environment()}, input=json.dumps({
                "op": "create", "nodes": ["w-1", "w-2", "w-3"], "boot": "#!/bin/sh\necho '@NODE@' \"$#\" >/root/me\n",
                "config": {"ImageId": self.cloud.image, "InstanceType": "p3.2xlarge"}})).stdout)
        self.machines.wait()
        for each in made:
            me = self.machines[each["id"]].path("/root/me")
            self.assertEqual(eventually(lambda me=me: me.exists() and me.read_text(), "the boot data"), f"{each['node']} 0\n")

    def test_a_host_key_in_boot_data(self):
        key = (self.folder / "host").read_text().replace("\n", "\n    ")
        public = (self.folder / "host.pub").read_text().strip()
        (only,) = self.launch(f"""MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="part"

--part
Content-Type: text/cloud-config

#cloud-config
ssh_keys:
  ed25519_private: |
    {key}
  ed25519_public: {public}
--part
Content-Type: text/x-shellscript

#!/bin/sh
echo done >/tmp/done
--part--
""".encode())
        machine = self.machines[only]
        (self.folder / "known").write_text(f"{machine.address} {' '.join(public.split()[:2])}\n")
        said = self.ssh(machine, "whoami")
        self.assertEqual((said.stdout, said.returncode), ("ubuntu\n", 0), said.stderr)
        eventually(machine.path("/tmp/done").exists, "the script")
        machine.path("/tmp/done").unlink()
        # Stopped, and started again: its disk is there, and boot data count once.
        self.ec2("StopInstances", ["InstanceId.1", only])
        self.machines.wait()
        self.assertEqual(self.cloud.instances("stopped"), [only])
        self.assertFalse(machine.is_up())
        self.ec2("StartInstances", ["InstanceId.1", only])
        self.machines.wait()
        self.assertEqual(self.cloud.instances("running"), [only])
        self.assertEqual(self.ssh(machine, "ls /tmp").stdout, "")

    def test_scripts_that_are_run_at_each_start(self):
        part = lambda script: (b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="part"\n\n'
                               b'--part\nContent-Type: text/cloud-config\n\n#cloud-config\n'
                               b'cloud_final_modules: [[scripts-user, always]]\n'
                               b'--part\nContent-Type: text/x-shellscript\n\n' + script + b'\n--part--\n')
        (only,) = self.launch(part(b"#!/bin/sh\necho first >>/root/ran\n"))
        machine = self.machines[only]
        ran = machine.path("/root/ran")
        said = lambda text: eventually(lambda: ran.exists() and ran.read_text() == text, text)
        said("first\n")
        again = lambda action, *more: (self.ec2(action, ["InstanceId.1", only]), self.machines.wait())
        again("StopInstances")
        again("StartInstances")
        said("first\nfirst\n")
        again("StopInstances")
        self.ec2("ModifyInstanceAttribute", ["InstanceId", only], ["UserData.Value", base64.b64encode(
            part(b"#!/bin/sh\necho other >>/root/ran\n")).decode()])
        again("StartInstances")
        said("first\nfirst\nother\n")
        # One that does not say so is run once, also when it is another one.
        again("StopInstances")
        self.ec2("ModifyInstanceAttribute", ["InstanceId", only], ["UserData.Value", base64.b64encode(
            b"#!/bin/sh\necho never >>/root/ran\n").decode()])
        again("StartInstances")
        self.assertEqual(ran.read_text(), "first\nfirst\nother\n")
        self.assertEqual(self.cloud.problems, [])

    def test_credentials_of_a_role(self):
        """One that it was launched with, and one that it is given while it runs."""
        import aws_roles
        aws_roles.make_role("head", action="ec2:DescribeInstances")
        aws_roles.make_role("other", action="ec2:DescribeImages")
        (only,) = self.launch(b"", 1, ["IamInstanceProfile.Name", "head"])
        machine = self.machines[only]
        tool = lambda machine, action, *env, **more: machine.run(
            "env", f"AWS_ENDPOINT_URL_EC2={self.cloud.url}", "AWS_METADATA_SERVICE_TIMEOUT=30", *env,
            "aws_tool", "ec2", "us-west-2", action, input="[]", **more)

        def give_tool(machine):
            path = machine.path("/usr/local/bin/aws_tool")
            path.write_bytes(Path(TOOL).read_bytes())
            path.chmod(0o755)

        give_tool(machine)
        # The static program, which asks its own instance who it is, and then the cloud.
        self.assertIn(only, tool(machine, "DescribeInstances"))
        self.assertIn("UnauthorizedOperation", tool(machine, "DescribeImages", check=False))
        self.assertIn("no credentials", tool(machine, "DescribeInstances", "AWS_EC2_METADATA_DISABLED=true", check=False))
        # A notice, as an agent reads it.
        machine.metadata["latest/meta-data/spot/instance-action"] = '{"action": "terminate"}'

        (late,) = set(self.launch(b"")) - {only}
        give_tool(self.machines[late])
        self.assertIn("no credentials", tool(self.machines[late], "DescribeInstances", check=False))
        self.ec2("AssociateIamInstanceProfile", ["InstanceId", late], ["IamInstanceProfile.Name", "other"])
        self.machines.wait()
        self.assertIn("imagesSet", tool(self.machines[late], "DescribeImages"))
        self.assertEqual(self.cloud.by_role, [("head", "DescribeInstances"), ("head", "DescribeImages"), ("other", "DescribeImages")])


if __name__ == "__main__":
    aws_lab.enter()
    lab.enter()
    if lab.available():
        print("skipped:", lab.available())
        sys.exit(aws_lab.SKIPPED)
    unittest.main(verbosity=2)
