"""Clusters over SSH: up from nothing, up again, growing, shrinking, down."""

import shutil

from ssh_harness import *


class Up(HostsCase):
    count = 3

    COUNT = "echo ran >>~/{}"

    def with_everything(self, members=None, **more):
        """A cluster with one of each that `up` can do on a node; each command counts its runs."""
        mounted = self.folder / "data"
        mounted.mkdir(exist_ok=True)
        (mounted / "a.txt").write_text("one\n")
        (mounted / "tool").write_text("#!/bin/sh\necho tool\n")
        (mounted / "tool").chmod(0o755)
        return self.write(members, **{**dict(
            file_mounts={"~/data": "data"},
            initialization_commands=[self.COUNT.format("initialization")],
            setup_commands=[self.COUNT.format("setup-1"), self.COUNT.format("setup-2")],
            head_setup_commands=[self.COUNT.format("head"), "echo $RAY_HEAD_IP >~/head_ip"],
            worker_setup_commands=[self.COUNT.format("worker"), "echo $RAY_HEAD_IP >~/head_ip"]), **more})

    def runs(self, what):
        """How often a command ran, host by host."""
        return [len(self.lines(index, f"~/{what}")) for index in range(self.count)]

    def test_up_from_nothing_and_down_to_nothing(self):
        self.with_everything()
        self.up()
        self.assert_ready(0, 1, 2)
        for what, expected in (("initialization", [1, 1, 1]), ("setup-1", [1, 1, 1]), ("setup-2", [1, 1, 1]),
                               ("head", [1, 0, 0]), ("worker", [0, 1, 1])):
            self.assertEqual(self.runs(what), expected, what)
        for index in range(3):
            self.assertEqual(self.lines(index, "~/data/a.txt"), ["one"])
            self.assertEqual(self.lab[index].path("~/data/tool").stat().st_mode & 0o777, 0o755)
            self.assertEqual(self.lines(index, "~/head_ip"), [self.lab[0].address])
            agents = list(self.lab[index].path("~/.dtrain/agents").glob("*/dtrain-agent"))
            self.assertEqual(len(agents), 1)
        out = self.ok("submit", "--nnodes", "3", "--", "/bin/sh", "-c",
                      "echo theirs >~/data/results; echo $(hostname) is $RANK")
        self.assertEqual(sorted(re.findall(r"h\d is \d", out)), ["h0 is 0", "h1 is 1", "h2 is 2"])
        down = self.json("down", "-y")
        self.assertTrue(down["complete"], down)
        self.assert_clean(0, 1, 2)
        for index in range(3):
            self.assertEqual(self.lines(index, "~/data/results"), ["theirs"], "the user's own files stay")
            self.assertFalse(self.lab[index].path("~/data/a.txt").exists(), "what sync brought goes")

    def agents(self):
        """Those that last, by host."""
        return [sorted(pid for role in ("watch", "head", "node")
                       for pid in host.processes(UID, f"dtrain-agent {role}")) for host in self.lab]

    def test_up_again_does_nothing(self):
        self.with_everything()
        self.up()
        before = [{str(p): p.stat().st_mtime_ns for p in host.path("~/data").rglob("*")} for host in self.lab]
        pids = self.agents()
        self.assertEqual([len(each) for each in pids], [3, 2, 2])
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        self.assertEqual(self.runs("setup-1"), [1, 1, 1])
        self.assertEqual(self.runs("initialization"), [1, 1, 1])
        self.assertEqual(before, [{str(p): p.stat().st_mtime_ns for p in host.path("~/data").rglob("*")}
                                  for host in self.lab])
        self.assertEqual(pids, self.agents())
        # What `up` had running there for itself ends with its connection.
        eventually(lambda: pids == [host.processes(UID, "dtrain-agent") for host in self.lab], "nothing else stays")

    def test_quiet_json_is_the_result_alone(self):
        self.with_everything([0, 1])
        events = [json.loads(line) for line in self.ok("up", "--json", self.yaml).splitlines()]
        self.assertGreater(len(events), 1)
        result = [json.loads(line) for line in self.ok("up", "--json", "-q", self.yaml).splitlines()]
        self.assertEqual([set(each) for each in result], [set(events[-1])])

    def test_a_changed_file_is_sent_and_no_setup_runs(self):
        self.with_everything()
        self.up()
        kept = self.lab[1].path("~/data/tool").stat().st_ino
        (self.folder / "data" / "a.txt").write_text("two\n")
        (self.folder / "data" / "new.txt").write_text("new\n")
        self.up()
        self.assertEqual([self.lines(i, "~/data/a.txt") for i in range(3)], [["two"]] * 3)
        self.assertEqual([self.lines(i, "~/data/new.txt") for i in range(3)], [["new"]] * 3)
        self.assertEqual(self.lab[1].path("~/data/tool").stat().st_ino, kept)
        self.assertEqual(self.runs("setup-1"), [1, 1, 1])

    def test_a_changed_setup_command_runs_from_there_on(self):
        self.with_everything()
        self.up()
        self.with_everything(setup_commands=[self.COUNT.format("setup-1"), self.COUNT.format("setup-new")])
        self.up()
        self.assertEqual(self.runs("setup-1"), [1, 1, 1])
        self.assertEqual(self.runs("setup-new"), [1, 1, 1])
        self.up("--force")
        self.assertEqual(self.runs("setup-1"), [2, 2, 2])

    def test_no_setup_runs_none(self):
        self.with_everything()
        self.up("--no-setup")
        self.assert_ready(0, 1, 2)
        self.assertEqual(self.runs("setup-1"), [0, 0, 0])

    def test_dry_run_says_what_and_does_nothing(self):
        self.with_everything()
        said = self.ok("up", self.yaml, "--dry-run")
        for host in self.lab:
            self.assertIn(host.name, said)
            self.assertFalse(host.path("~/data").exists())
            self.assertFalse(host.path("~/.dtrain").exists())
        self.assertIn("not in the cluster yet", said)
        self.up()
        (self.folder / "data" / "a.txt").write_text("two\n")
        said = self.ok("up", self.yaml, "--dry-run")
        self.assertEqual(self.lines(0, "~/data/a.txt"), ["one"])
        self.with_everything([0, 1])
        plan = self.json("up", self.yaml, "--dry-run")
        self.assertEqual(plan["action"], "planned")
        h = [host.name for host in self.lab]
        self.assertEqual([(each["node"], each["action"], each["reason"]) for each in plan["plan"]],
                         [(h[0], "keep", "in the cluster"), (h[1], "keep", "in the cluster"),
                          (h[2], "release", "no longer in the YAML")])
        self.assertEqual(plan["removed"], [f"{h[2]}: would go"])
        self.assert_ready(0, 1, 2)

    def test_a_host_that_only_the_head_knows_stays_and_is_named(self):
        self.up()
        shutil.rmtree(self.root())
        self.write([0, 1])
        for flags in (["--dry-run"], [], []):
            up = self.json("up", self.yaml, *flags)
            self.assertEqual(up["removed"], [])
            if flags:  # this machine has no notes, and the head is asked
                self.assertEqual([each["reason"] for each in up["plan"]], ["in the cluster"] * 2)
                self.assertIn("is in the cluster and not in this YAML", "\n".join(up["warnings"]))
            if not flags:
                self.assertIn(f"{self.lab[2].name} is in the cluster and not in this YAML",
                              "\n".join(up["warnings"]))
        self.assert_ready(0, 1, 2)
        # Where it is known, it leaves and is cleaned.
        self.write()
        self.up()
        self.write([0, 1])
        up = self.json("up", self.yaml)
        self.assertEqual([line.split(":")[0] for line in up["removed"]], [self.lab[2].name])
        self.assertEqual(len(self.json("status")["nodes"]), 2)
        self.assert_clean(2)

    def test_down_names_a_host_that_only_the_head_knows(self):
        self.up()
        shutil.rmtree(self.root())
        self.write([0, 1])
        done = self.run_dtrain("down", "-y", "--json", self.yaml)
        self.assertEqual(done.returncode, 1, done.stdout)
        down = json.loads(done.stdout.strip().split("\n")[-1])
        self.assertEqual([(row["node"], row["what"]) for row in down["rows"] if not row["gone"]],
                         [(self.lab[2].name, "not reached")])
        self.assert_clean(0, 1)

    def test_hosts_cannot_be_replaced(self):
        self.write()
        done = self.run_dtrain("up", self.yaml, "--replace")
        self.assertEqual(done.returncode, 2)
        self.assertIn("provider ssh makes no machines", done.stderr)

    def test_dry_run_where_workers_have_an_agent_and_the_head_has_none(self):
        self.up()
        self.lab[0].wipe()
        said = self.ok("up", self.yaml, "--dry-run")
        for host in self.lab:
            self.assertIn(host.name, said)
        self.assertFalse(self.lab[0].path("~/.dtrain/agents").exists())

    def test_down_of_what_is_not_up_is_no_failure(self):
        self.with_everything()
        self.ok("down", "-y", self.yaml)
        for host in self.lab:
            self.assertFalse(host.path("~/.dtrain").exists())

    def test_hosts_come_and_go_under_a_running_job(self):
        self.with_everything([0, 1])
        self.up()
        job = self.submit("while [ ! -e ~/stop ]; do sleep 0.05; done; echo ended", "--nnodes", "2")
        self.wait_state(job, "running")
        self.with_everything([0, 1, 2])
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertEqual(self.runs("setup-1"), [1, 1, 1])
        self.with_everything([0, 1])
        self.up()
        self.assert_ready(0, 1)
        self.assert_clean(2)
        self.assertEqual(self.state(job), "running")
        for index in (0, 1):
            self.lab[index].path("~/stop").touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)

    def test_a_second_head_is_refused(self):
        self.write([0, 1])
        self.up()
        there = self.agents()
        root = self.json("status")["cluster"]["head"]["root"]
        provider = json.loads(self.yaml.read_text().split("provider: ")[1].split("\n")[0])
        for said, members, more in (("provider.root was not given, and is ~/elsewhere", [0, 1],
                                     {"provider": {**provider, "root": "~/elsewhere"}}),
                                    (f"the head was {self.lab[0].address}, and is {self.lab[1].address}", [1, 0], {}),
                                    (f"the head was {self.lab[0].address}, and is {self.lab[2].address}", [2, 1], {})):
            self.write(members, **more)
            for verb in (("up", self.yaml), ("up", "--dry-run", self.yaml)):
                out = self.refused(*verb)
                self.assertIn(said, out)
                self.assertIn(f"dtrain down -c {self.name()} first", out)
        self.assertEqual(self.agents(), there)
        self.assert_clean(2)
        # By another name of its host it is the same.
        self.write([0, 1], each={0: {"host": "h0"}})
        self.up("--accept-new-host-keys")
        self.assert_ready(0, 1)
        self.assertEqual(self.json("status")["cluster"]["head"]["root"], root)
        eventually(lambda: [len(agents) for agents in self.agents()] == [len(agents) for agents in there], "no others run")
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_clean(0, 1)

    def test_a_new_dtrain_replaces_the_agents_under_a_running_job(self):
        self.with_everything([0, 1])
        self.up()
        job = self.submit("for i in $(seq 1000000); do echo line $i; [ ! -e ~/stop ] || exit 0; sleep 0.01; done",
                          "--nnodes", "2")
        self.wait_state(job, "running")
        agent = self.folder / "dtrain-agent"
        shutil.copy(BUILD / "agent" / "dtrain-agent", agent)
        with open(agent, "ab") as file:
            file.write(b"another build")
        old = [set(host.path("~/.dtrain/agents").iterdir()) for host in self.lab[:2]]
        said = self.json("up", self.yaml, env={"DTRAIN_AGENT": str(agent)})
        self.assertEqual(said["action"], "changed")
        for index in (0, 1):
            new = set(self.lab[index].path("~/.dtrain/agents").iterdir()) - old[index]
            self.assertEqual(len(new), 1)
            running = [os.readlink(f"/proc/{pid}/exe") for pid in self.lab[index].processes(UID, "dtrain-agent node")
                       + self.lab[index].processes(UID, "dtrain-agent head")]
            self.assertTrue(running)
            for program in running:
                self.assertIn(new.copy().pop().name, program)
        self.assertEqual(self.state(job), "running")
        for index in (0, 1):
            self.lab[index].path("~/stop").touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)
        for rank in (0, 1):
            lines = self.ok("logs", job, "--rank", rank).splitlines()
            self.assertEqual(lines, [f"line {i + 1}" for i in range(len(lines))])
            self.assertGreater(len(lines), 10)

    def test_a_wiped_node_is_noticed(self):
        self.with_everything()
        self.up()
        self.lab[1].wipe()
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertEqual(self.runs("setup-1"), [1, 1, 1])  # h1's count was wiped too
        self.assertEqual(self.lines(1, "~/data/a.txt"), ["one"])
        self.assertIn("h1", self.ok("exec", "--node", "h1", "--", "hostname"))

    def test_another_laptop_attaches(self):
        self.with_everything([0, 1])
        self.up()
        job = self.submit("echo from the first; while [ ! -e ~/stop ]; do sleep 0.05; done")
        self.wait_state(job, "running")
        other = {"XDG_STATE_HOME": str(self.folder / "other laptop")}
        self.ok("up", self.yaml, env=other)
        self.assertEqual(self.runs("setup-1")[:2], [1, 1])
        self.assertIn(job, self.ok("status", env=other))
        eventually(lambda: "from the first" in self.ok("logs", job, env=other), "its log is seen")
        self.ok("stop", job, env=other)
        self.assertEqual(self.state(job), "stopped")
        self.ok("down", "-y", env=other)
        self.assert_clean(0)

    def test_down_keeps_what_it_is_told_to(self):
        self.with_everything([0, 1])
        self.up()
        (self.folder / "save.py").write_text("""
import json, os, socket
os.mkdir("/tmp/saved")
open("/tmp/saved/weights", "w").write("1")
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
stream.sendall(json.dumps({"type": "checkpoint", "step": 1, "path": "/tmp/saved", "ack": True}).encode() + b"\\n")
assert json.loads(stream.makefile().readline())["ok"]
""")
        job = self.json("submit", "-d", "--", "python3", "save.py")["job"]
        self.wait_state(job, "succeeded")
        self.ok("down", "--workers-only")  # and asks nothing: its checkpoint stays
        self.assert_clean(1)
        self.assertEqual(self.states()["h0"], "ready")
        asked = self.run_dtrain("down")
        self.assertEqual(asked.returncode, 1)
        self.assertIn("1 checkpoint (", asked.stderr)
        self.ok("down", "-y")


class Ray(HostsCase):
    """A YAML as Ray's documentation has it for machines on premises."""

    count = 2

    def test_rays_yaml_works_unchanged(self):
        (self.folder / "project").mkdir()
        (self.folder / "project" / "code.py").write_text("pass\n")
        (self.folder / "project" / "big.bin").write_text("not to be copied\n")
        (self.folder / "project" / ".gitignore").write_text("ignored\n")
        (self.folder / "project" / "ignored").write_text("neither\n")
        self.yaml.write_text(f"""\
cluster_name: default
docker:
    image: ""
    container_name: ""
    pull_before_run: True
    run_options: []
provider:
    type: local
    head_ip: {self.lab[0].address}
    worker_ips: [{self.lab[1].address}]
auth:
    ssh_user: dev
    ssh_private_key: {laboratory.private_key()}
min_workers: 1
max_workers: 1
upscaling_speed: 1.0
idle_timeout_minutes: 5
file_mounts: {{
    "~/project": "{self.folder}/project",
}}
cluster_synced_files: []
file_mounts_sync_continuously: False
rsync_exclude:
    - "*.bin"
rsync_filter:
    - ".gitignore"
initialization_commands: []
setup_commands: [echo common >>~/order]
head_setup_commands: [echo head >>~/order]
worker_setup_commands: [echo worker $RAY_HEAD_IP >>~/order]
head_start_ray_commands:
    - ray stop
    - ulimit -c unlimited && ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
    - ray stop
    - ray start --address=$RAY_HEAD_IP:6379
""")
        done = self.run_dtrain("up", self.yaml)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            self.assertIn(key, done.stdout + done.stderr)
        self.assertEqual(sorted(self.states().values()), ["ready", "ready"])
        self.assertEqual(self.lines(0, "~/order"), ["common", "head"])
        self.assertEqual(self.lines(1, "~/order"), ["common", f"worker {self.lab[0].address}"])
        for index in (0, 1):
            there = {p.name for p in self.lab[index].path("~/project").iterdir()}
            self.assertEqual(there, {"code.py", ".gitignore"})
        self.assertEqual(self.ok("get-head-ip", self.yaml).strip(), self.lab[0].address)
        self.assertEqual(self.ok("get-worker-ips", self.yaml).split(), [self.lab[1].address])
        self.assertIn("h0", self.ok("exec", self.yaml, "hostname"))
        script = self.folder / "script.sh"
        script.write_text("#!/bin/sh\necho script on $(hostname) with $1\n")
        script.chmod(0o755)
        self.assertIn("script on h0 with argument", self.ok("submit", self.yaml, script, "argument"))
        (self.folder / "more").mkdir()
        (self.folder / "more" / "a").write_text("sent\n")
        (self.folder / "more" / "b.bin").write_text("left out by rsync_exclude\n")
        self.ok("rsync-up", self.yaml, self.folder / "more", "~/more")
        self.assertEqual(self.lines(0, "~/more/a"), ["sent"])
        self.assertFalse(self.lab[0].path("~/more/b.bin").exists())
        self.assertFalse(self.lab[1].path("~/more").exists(), "the head's node alone")
        self.ok("rsync-up", "-A", self.yaml, self.folder / "more", "~/more")
        self.assertEqual(self.lines(1, "~/more/a"), ["sent"])
        self.ok("rsync-down", self.yaml, "~/order", self.folder / "order")
        self.assertEqual((self.folder / "order").read_text(), "common\nhead\n")
        monitor = self.start("monitor", self.yaml, "--lines", "1000")
        self.assertTrue(any("the head is up" in line for line in iter(monitor.stdout.readline, "")))
        monitor.terminate()
        self.ok("exec", "--no-config-cache", self.yaml, "true", "--stop")
        self.assert_clean(0, 1)
        # Another laptop, in one step: up, run, down.
        other = {"XDG_STATE_HOME": str(self.folder / "other laptop")}
        self.assertIn("script on h0 with again",
                      self.ok("submit", "--start", "--stop", self.yaml, script, "again", env=other))
        self.assert_clean(0, 1)


if __name__ == "__main__":
    main()
