"""What a job needs on many hosts: the head gives it to a few, and they give it to each other."""

from ssh_harness import *

COUNT = 12
SIZE = 6_000_000
SAVE = """
import json, os, socket, sys, tempfile
folder = tempfile.mkdtemp(dir=os.environ["HOME"])
open(folder + "/large", "wb").write(os.urandom(int(sys.argv[1])))
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
stream.sendall(json.dumps({"type": "checkpoint", "step": 1, "path": folder, "ack": True}).encode() + b"\\n")
print(stream.makefile().readline())
"""


class Content(HostsCase):
    count = COUNT
    options = {"disk": "150m"}
    agents_on = "all"

    def setUp(self):
        super().setUp()
        self.write()
        self.up(deadline=120)
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "large").write_bytes(os.urandom(SIZE))

    def succeeded(self, job):
        self.assertEqual(self.wait_state(job, "succeeded", "failed"), "succeeded",
                         self.job(job)["reason"] + self.ok("logs", job))

    def sent(self):
        return [host.sent() for host in self.lab]

    def assert_spread(self, before):
        """A few nodes had it from the head, and the others from them."""
        sent = [now - then for now, then in zip(self.sent(), before)]
        self.assertGreater(sum(sent), SIZE * (COUNT - 1))
        copies = (COUNT - 1) * sent[0] / sum(sent)
        print(f"    {copies:.1f} copies from the head for {COUNT - 1} other nodes")
        self.assertGreater(copies, 3)
        self.assertLess(copies, 8, sent)

    def test_a_jobs_files_go_from_node_to_node(self):
        before = self.sent()
        self.ok("submit", "--workdir", self.work, "--nnodes", COUNT, "--", "cksum", "large", deadline=120)
        self.assert_spread(before)
        self.assertEqual(len(set(self.ok("logs", "--no-prefix").split("\n")) - {""}), 1)
        self.assert_only_these_listen(deadline=60)
        # What is there is not brought again.
        before = sum(self.sent())
        self.ok("submit", "--workdir", self.work, "--nnodes", COUNT, "--", "cksum", "large", deadline=120)
        self.assertLess(sum(self.sent()) - before, SIZE)

    def test_one_that_gives_and_dies(self):
        for host in self.lab:
            host.rate("40mbit")
            self.addCleanup(host.rate, None)
        before = self.sent()
        job = self.json("submit", "-d", "--workdir", self.work, "--nnodes", COUNT, "--", "cksum", "large")["job"]
        giver = eventually(lambda: next((host for host, then in zip(self.lab[1:], before[1:])
                                         if host.sent() - then > SIZE / 4), None), "another than the head gives",
                           pause=0.005)
        for pid in giver.processes(text="dtrain-agent node"):
            os.kill(pid, signal.SIGKILL)
        self.succeeded(job)
        self.assertEqual(len(self.job(job)["attempts"]), 1)
        self.assertEqual(len(set(self.ok("logs", job, "--no-prefix").split("\n")) - {""}), 1)

    def test_nodes_that_do_not_reach_each_other_have_them_from_the_head(self):
        for host in self.lab:
            host.in_network("nft", "-f", "-", input=FIREWALL)
        self.lab[0].rate("60mbit")  # so that they wait for each other
        self.addCleanup(self.lab[0].rate, None)
        # One for each host: there is room for no other beside it.
        (self.folder / "job.yaml").write_text(
            f"name: each\nworkdir: work\nresources: {{CPU: {os.cpu_count()}}}\n"
            "command: 'until [ -e ~/go ]; do sleep 0.1; done; cksum large'\n")
        jobs = [self.json("submit", "-d", self.folder / "job.yaml")["job"] for _ in range(COUNT)]
        for job in jobs:
            self.wait_state(job, "running")
        for host in self.lab:
            host.path("~/go").touch()
        for job in jobs:
            self.succeeded(job)
        used = {node["node"] for job in jobs for node in self.job(job)["attempts"][0]["nodes"]}
        self.assertEqual(len(used), COUNT)
        [log] = self.lab[0].path("~/.dtrain").rglob("head.log")
        self.assertIn("content was not had from another node", log.read_text())

    def test_a_checkpoint_goes_from_node_to_node(self):
        (self.work / "save.py").write_text(SAVE)
        saved = self.json("submit", "-d", "--workdir", self.work, "--", "python3", "save.py", SIZE)["job"]
        self.succeeded(saved)
        (self.work / "large").unlink()
        before = self.sent()
        self.ok("submit", "--workdir", self.work, "--from-checkpoint", saved, "--nnodes", COUNT, "--", "sh", "-c",
                "cat $(find $DTRAIN_CHECKPOINT -name large) | cksum", deadline=120)
        self.assert_spread(before)
        self.assertEqual(len(set(self.ok("logs", "--no-prefix").split("\n")) - {""}), 1)


if __name__ == "__main__":
    main()
