"""A job's setup: once on a node, live, its logs and its errors."""

from harness import *


class Setup(ClusterCase):
    nodes = 2

    def count(self, name):
        """How many lines setup has written to a file of its own."""
        path = self.folder / name
        return len(path.read_text().split()) if path.exists() else 0

    def test_once_on_a_node_and_not_in_each_attempt(self):
        # In place: the second rank of the first attempt fails once.
        setup = f"echo ran >>'{self.folder}/runs'"
        done = self.run_dtrain("submit", "--nnodes", "2", "--max-restarts", "2", "--setup", setup, "--", "/bin/sh",
                               "-c", '[ "$DTRAIN_ATTEMPT" = 3 ] || [ "$RANK" = 0 ] || exit 1')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.count("runs"), 2)  # one for each node

    def test_what_it_built_in_a_sent_folder_is_there_for_the_next_attempt(self):
        work = self.folder / "work"
        work.mkdir()
        (work / "part").write_text("part\n")
        setup = f"echo ran >>'{self.folder}/runs'; cat part part >built"
        done = self.run_dtrain("submit", "--workdir", work, "--max-restarts", "2", "--setup", setup, "--", "/bin/sh",
                               "-c", 'cat built; [ "$DTRAIN_ATTEMPT" = 3 ]', env={"DTRAIN_STAGE": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "part\npart\n" * 3)
        self.assertEqual(self.count("runs"), 1)
        # Another job has a folder of its own.
        self.ok("submit", "--workdir", work, "--setup", setup, "--", "cat", "built", env={"DTRAIN_STAGE": "1"})
        self.assertEqual(self.count("runs"), 2)

    def test_again_after_a_failure_and_when_it_left_processes(self):
        setup = f"echo ran >>'{self.folder}/runs'; [ $(wc -l <'{self.folder}/runs') -ge 2 ]"
        done = self.run_dtrain("submit", "--max-restarts", "2", "--setup", setup, "--", "true")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.count("runs"), 2)
        setup = f"echo ran >>'{self.folder}/servers'; sleep 1000 >/dev/null 2>&1 &"
        done = self.run_dtrain("submit", "--max-restarts", "1", "--setup", setup, "--", "/bin/sh", "-c",
                               '[ "$DTRAIN_ATTEMPT" = 2 ]')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.count("servers"), 2)

    def test_its_output_is_seen_live_and_again(self):
        os.mkfifo(self.folder / "go")
        setup = f"echo begun on $NODE_RANK; read x <'{self.folder}/go'"
        follower = self.start("submit", "--setup", setup, "--", "echo", "trained", stderr=subprocess.PIPE)
        self.assertTrue(any("[setup node-0] begun on 0" in line for line in iter(follower.stderr.readline, "")))
        with open(self.folder / "go", "w") as go:  # it is still running
            go.write("\n")
        out, _ = follower.communicate(timeout=DEADLINE)
        self.assertEqual(follower.returncode, 0)
        self.assertEqual(out, "trained\n")
        self.assertEqual(self.ok("logs", "--setup"), "[setup node-0] begun on 0\n")
        self.assertEqual(self.ok("logs"), "trained\n")
        events = [json.loads(line) for line in self.ok("logs", "--setup", "--json").splitlines()]
        self.assertEqual([(e["stream"], e["rank"], e["node"], e["text"]) for e in events],
                         [("setup", None, "node-0", "begun on 0")])
        # The node's own setup lists, in both forms.
        self.assertIn("no setup commands", self.run_dtrain("logs", "--setup", "node-1").stderr)
        self.assertIn("no setup commands", self.run_dtrain("logs", "--setup", "--node", "node-1").stderr)

    def test_a_failure_is_told_in_plain_characters(self):
        done = self.run_dtrain("submit", "--setup", r"echo first; printf 'bad \033]0;x\007thing\n'; exit 7", "--", "true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("[setup node-0] first", done.stderr)
        last = next(line for line in done.stderr.splitlines() if "root cause" in line)
        self.assertIn(r"setup on node-0: exit code 7: bad \x1b]0;x\x07thing", last)
        self.assertNotIn(r"\x0a", done.stderr)


if __name__ == "__main__":
    main()
