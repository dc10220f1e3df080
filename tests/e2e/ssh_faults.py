"""Hosts that fail: what is said, what is kept, how it goes on."""

import threading

from ssh_harness import *


# Rank 1 commits a checkpoint of 20 MB once it is told to by a file.
SAVE = """
import json, os, pathlib, socket, time
home = pathlib.Path.home()
if os.environ["RANK"] == "1":
    while not (home / "save").exists():
        time.sleep(0.05)
    (home / "mine").mkdir()
    (home / "mine" / "model").write_bytes(os.urandom(20_000_000))
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
    s.sendall(json.dumps({"type": "checkpoint", "step": 1, "path": str(home / "mine"), "ack": True}).encode() + b"\\n")
    print("answer:", s.makefile().readline().strip())
"""


class Faults(HostsCase):
    count = 3
    options = {"disk": "300m"}
    agents_on = "all"

    def test_a_full_disk_of_the_head_costs_no_job_and_no_checkpoint(self):
        self.write([0, 1])
        self.up()
        for host in self.lab:
            host.path("~/save.py").write_text(SAVE)
        job = self.submit("exec /usr/bin/python3 ~/save.py", "--nnodes", "2")
        self.wait_state(job, "running")
        follower = self.start("logs", "-f", "--json", job)
        self.lab[0].fill(leave=5_000_000)
        self.lab[1].path("~/save").touch()
        while "the checkpoint of step 1 waits for room: no room below" not in (line := follower.stdout.readline()):
            self.assertTrue(line, "it ended")
        self.lab[0].fill()
        said = self.refused("submit", "-d", "--", "true")
        self.assertRegex(said.lower(), "room|space|disk")
        self.assertEqual(self.state(job), "running")
        self.lab[0].unfill()
        self.wait_state(job, "succeeded")
        self.assertIn('answer: {"ok":true', self.ok("logs", job))
        self.assertEqual([c["step"] for c in self.job(job)["checkpoints"]], [1])
        self.wait_state(self.submit("true"), "succeeded")

    def test_a_full_disk_is_named(self):
        self.lab[1].wipe()  # there is no room for the agent
        self.lab[1].fill()
        said = self.refused("up", self.write())
        self.assertIn("h1", said)
        self.assertRegex(said.lower(), "space|disk")
        self.lab[1].unfill()
        self.up()
        self.assert_ready(0, 1, 2)

    def test_a_disk_that_fills_while_files_come(self):
        data = self.folder / "data"
        data.mkdir()
        (data / "big").write_bytes(os.urandom(80_000_000))
        self.lab[2].path("~/data").mkdir()
        self.lab[2].path("~/data/big").write_text("the user's own")
        subprocess.run(["chown", "-R", f"{UID}:{UID}", self.lab[2].path("~/data")], check=True)
        self.lab[1].fill(leave=60_000_000)
        said = self.refused("up", self.write([0, 1], file_mounts={"~/data": "data"}))
        self.assertIn("h1", said)
        self.assertFalse(self.lab[1].path("~/data/big").exists(), "no half a file")
        self.lab[1].unfill()
        self.up()
        self.assertEqual(self.lab[1].path("~/data/big").stat().st_size, 80_000_000)

    def test_a_host_that_is_not_there(self):
        self.lab[2].crash()
        (laboratory.home() / ".ssh" / "config").write_text("Host *\n  ConnectTimeout 2\n")
        self.addCleanup((laboratory.home() / ".ssh" / "config").unlink)
        said = self.refused("up", self.write())
        self.assertIn("h2", said)
        self.ok("up", self.yaml, "--min-nodes", "2")
        self.assertEqual({n: s for n, s in self.states().items() if s == "ready"}, {"h0": "ready", "h1": "ready"})
        self.lab[2].boot()
        self.up()
        self.assert_ready(0, 1, 2)

    def test_down_lists_what_it_cannot_reach(self):
        (laboratory.home() / ".ssh" / "config").write_text("Host *\n  ConnectTimeout 2\n")
        self.addCleanup((laboratory.home() / ".ssh" / "config").unlink)
        self.up()
        self.lab[2].cut()
        done = self.run_dtrain("down", "-y")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("h2", done.stdout + done.stderr)
        self.assert_clean(0, 1)
        self.lab[2].join()
        self.ok("down", "-y", self.yaml)
        self.assert_clean(2)

    def test_a_node_that_reboots_comes_back_with_up(self):
        self.write(setup_commands=["echo ran >>~/setup"])
        self.up()
        self.lab[1].reboot()
        eventually(lambda: self.states().get("h1") != "ready", "its loss is seen")
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertEqual(self.lines(1, "~/setup"), ["ran"], "setup is not run again")
        self.assertIn("h1", self.ok("exec", "--node", "h1", "--", "hostname"))

    def test_a_job_outlives_a_node_that_reboots(self):
        self.up()
        job = self.submit("while [ ! -e ~/stop ]; do sleep 0.05; done", "--nnodes", "3")  # max_restarts is 0
        self.wait_state(job, "running")
        self.lab[1].reboot()
        eventually(lambda: self.states().get("h1") != "ready", "its loss is seen")
        self.up()
        for host in self.lab:
            host.path("~/stop").touch()
        self.wait_state(job, "succeeded", deadline=150)
        first = self.job(job)["attempts"][0]
        self.assertEqual((first["failure"], first["counted"]), ("node_lost", False))
        self.assertRegex(first["reason"], "h1 was (started anew|lost)")

    def test_the_head_that_reboots_knows_its_jobs(self):
        self.up()
        done = self.submit("echo done before")
        self.wait_state(done, "succeeded")
        self.lab[0].reboot()
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertEqual(self.state(done), "succeeded")
        self.assertIn("done before", self.ok("logs", done))
        self.assertIn("again", self.ok("submit", "--nnodes", "3", "--", "echo", "again"))

    def test_a_node_that_vanishes_leaves_what_it_had_said(self):
        self.up()
        (self.folder / "job.yaml").write_text(
            "command: echo \"rank $RANK says this\"; while :; do sleep 0.1; done\n"
            "nnodes: 3\nrestart: {on: [exit_code]}\n")
        job = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        eventually(lambda: self.ok("logs", job).count("says this") == 3, "all have spoken")
        self.lab[2].crash()
        self.wait_state(job, "failed", deadline=90)
        self.assertIn("h2", json.dumps(self.job(job)["error"]))
        self.assertEqual(self.job(job)["attempts"][0]["failure"], "node_lost")
        self.assertIn("restart.on does not name it (node_lost)", self.job(job)["reason"])
        self.assertIn("rank 2 says this", self.ok("logs", job))
        for index in (0, 1):
            eventually(lambda: not self.lab[index].processes(UID, "sleep"), "no rank is left")
        self.lab[2].boot()
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertIn("on 3", self.ok("submit", "--nnodes", "3", "--", "/bin/sh", "-c", "echo on $WORLD_SIZE"))

    def test_a_cut_cable_for_a_moment_does_not_end_a_job(self):
        self.up()
        job = self.submit("while [ ! -e ~/stop ]; do sleep 0.05; done; echo rank $RANK ended", "--nnodes", "3")
        self.wait_state(job, "running")
        self.lab[1].cut()
        time.sleep(2)
        self.lab[1].join()
        for host in self.lab:
            host.path("~/stop").touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)
        for rank in range(3):
            self.assertIn(f"rank {rank} ended", self.ok("logs", job))

    def test_a_slow_line_is_slow_and_right(self):
        self.up()
        job = self.submit("yes 'a line of some length, as programs write them' | head -n 20000 | cat -n; "
                          "while [ ! -e ~/stop ]; do sleep 0.05; done", "--nnodes", "3")
        self.wait_state(job, "running")
        self.lab[1].rate("1mbit")
        self.addCleanup(self.lab[1].rate, None)
        begin = time.monotonic()
        # Of 1.1 MB the line takes 9 s, beside the heartbeats.
        eventually(lambda: self.ok("logs", job, "--rank", "1", deadline=90).count("\n") == 20000, "all lines are there",
                   pause=1)
        print(f"    {time.monotonic() - begin:.0f} s for 1.1 MB at 1 Mbit/s")
        for rank in range(3):
            said = self.ok("logs", job, "--rank", rank, "--no-prefix")
            self.assertEqual([int(line.split()[0]) for line in said.splitlines()], list(range(1, 20001)))
        self.assert_ready(0, 1, 2)
        for host in self.lab:
            host.path("~/stop").touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)
        self.assertNotIn("lost", self.ok("status", "-v"))

    def test_who_follows_comes_back_after_a_long_silence(self):
        self.up()
        job = self.submit('i=0; while [ ! -e ~/stop ]; do i=$((i+1)); echo "line $i"; sleep 0.01; done; '
                          'echo "end $i"')
        self.wait_state(job, "running")
        follower = self.start("logs", "-f", job, stderr=subprocess.PIPE)
        follower.stdout.readline()
        said = []
        reader = threading.Thread(target=lambda: said.append(follower.stdout.read()))
        reader.start()
        self.lab[0].cut()
        try:
            # Until the connection has been given up, and not only the line is dead.
            while "the head is away" not in (line := follower.stderr.readline()):
                self.assertTrue(line, "it ended")
        finally:
            self.lab[0].join()
        # On a slow machine it says first for how long it has tried.
        while "not reached for" in (line := follower.stderr.readline()):
            pass
        self.assertIn("the head is back", line)
        for host in self.lab:
            host.path("~/stop").touch()
        self.assertEqual(follower.wait(DEADLINE), 0)
        reader.join()
        last = int(re.search(r"end (\d+)", said[0]).group(1))
        self.assertEqual([int(n) for n in re.findall(r"line (\d+)", said[0])], list(range(2, last + 1)))

    def test_a_pair_that_cannot_talk_is_named(self):
        self.up()
        self.lab[1].drop(self.lab[2])
        done = self.run_dtrain("submit", "--nnodes", "3", "--", "/bin/sh", "-c", "sleep 1", deadline=90)
        self.assertNotEqual(done.returncode, 0)
        said = done.stdout + done.stderr + self.ok("result")
        self.assertRegex(said, "h1.*h2|h2.*h1")


if __name__ == "__main__":
    main()
