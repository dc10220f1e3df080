"""Setup commands on hosts: they run once, survive a lost connection, and say how they failed."""

import shlex

from ssh_harness import *

# Says that it began, waits for a file, says that it ended.
WAITING = 'echo begin >>~/log; while [ ! -e ~/go ]; do sleep 0.02; done; echo end >>~/log; echo "said at the end"'


class Setup(HostsCase):
    count = 2
    agents_on = "all"

    def go(self):
        for host in self.lab:
            host.path("~/go").touch()

    def test_a_dropped_connection_does_not_restart_a_command(self):
        self.write(setup_commands=["echo first >>~/log", WAITING])
        up = self.start("up", self.yaml)
        eventually(lambda: "begin" in self.lines(1, "~/log"), "the command runs")
        self.lab[1].drop_connections()
        eventually(lambda: not self.lab[1].processes(UID, "sshd:") or self.lab[1].processes(UID, "session"),
                   "the connection is gone")
        self.assertIsNone(up.poll(), "it goes on")
        self.go()
        said, _ = up.communicate(timeout=DEADLINE)
        self.assertEqual(up.returncode, 0, said)
        self.assertEqual(self.lines(1, "~/log"), ["first", "begin", "end"])
        self.assert_ready(0, 1)

    def test_a_cut_cable_for_a_while_does_not_restart_a_command(self):
        self.write(setup_commands=[WAITING])
        up = self.start("up", self.yaml)
        eventually(lambda: "begin" in self.lines(1, "~/log"), "the command runs")
        self.lab[1].cut()
        self.go()
        eventually(lambda: "end" in self.lines(1, "~/log"), "it ends by itself")
        self.lab[1].join()
        said, _ = up.communicate(timeout=DEADLINE)
        self.assertEqual(up.returncode, 0, said)
        self.assertEqual(self.lines(1, "~/log"), ["begin", "end"])

    def test_interrupted_up_goes_on_where_it_was(self):
        self.write(setup_commands=["echo first >>~/log", WAITING])
        up = self.start("up", self.yaml)
        eventually(lambda: all("begin" in self.lines(i, "~/log") for i in (0, 1)), "the command runs")
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=20)
        self.assertNotEqual(up.returncode, 0)
        self.go()
        self.up()
        for index in (0, 1):
            self.assertEqual(self.lines(index, "~/log")[:2], ["first", "begin"])
            self.assertEqual(self.lines(index, "~/log").count("first"), 1)
            self.assertIn("end", self.lines(index, "~/log"))

    def test_down_after_an_up_that_was_killed(self):
        self.write(setup_commands=[WAITING])
        up = self.start("up", self.yaml)
        eventually(lambda: all("begin" in self.lines(i, "~/log") for i in (0, 1)), "the command runs")
        up.kill()
        up.communicate(timeout=20)
        self.go()
        said = self.refused("down", "-y", "-c", self.name())
        self.assertIn(f"dtrain down {shlex.quote(str(self.yaml))} -c {self.name()} finds it", said)
        self.ok("down", "-y", self.yaml)
        self.assert_clean(0, 1)

    def test_a_failure_names_node_step_command_code_and_last_lines(self):
        self.write(setup_commands=["true", "seq 1 300; [ $(hostname) = h0 ] || { echo the reason >&2; exit 17; }"])
        said = self.refused("up", self.yaml)
        for part in ("h1", "seq 1 300", "17", "the reason", "300", "260"):
            self.assertIn(part, said)
        self.assertNotIn("\n200\n", said, "more than the last 50 lines")
        self.assertIn("the reason", self.ok("logs", "--setup", "h1"))

    def test_fewer_nodes_if_that_is_wanted(self):
        self.write(setup_commands=["[ $(hostname) = h0 ]"])
        done = self.run_dtrain("up", self.yaml, "--min-nodes", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not: h1", done.stderr)
        self.assertEqual(self.states().get("h0"), "ready")
        self.assertNotEqual(self.states().get("h1"), "ready")

    def test_the_log_of_setup_is_kept(self):
        self.write(setup_commands=["echo said in setup by $(hostname)"])
        self.up()
        for node in ("h0", "h1"):
            self.assertIn(f"said in setup by {node}", self.ok("logs", "--setup", node))

    def test_a_node_must_be_ready(self):
        self.write(ready={"command": "test $(hostname) = h0 || { echo no such disk; exit 1; }"})
        said = self.refused("up", self.yaml)
        self.assertIn("h1", said)
        self.assertIn("no such disk", said)
        self.write(ready={"gpus": 8})
        self.assertIn("GPU", self.refused("up", self.yaml))

    def test_setup_has_the_login_environment_and_ranks_do_too(self):
        for host in self.lab:
            host.path("~/.profile").write_text("export FROM_PROFILE=yes PATH=$PATH:/from/profile\n")
        self.addCleanup(lambda: [host.path("~/.profile").unlink() for host in self.lab])
        self.write(setup_commands=["echo $FROM_PROFILE >~/seen"])
        self.up()
        self.assertEqual(self.lines(1, "~/seen"), ["yes"])
        out = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo $RANK $FROM_PROFILE $PATH")
        self.assertEqual(len(re.findall(r"\d yes .*:/from/profile", out)), 2, out)


if __name__ == "__main__":
    main()
