"""`submit --on`, and the end of `submit --stop`: up, the job, its results here, down."""

from disk import CHECKPOINT
from harness import *


class JobCluster(ClusterCase):
    nodes = 0

    def setUp(self):
        super().setUp()
        self.write_cluster(1)
        self.yaml = self.folder / "cluster.yaml"
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "save.py").write_text(CHECKPOINT)
        (self.folder / "job.yaml").write_text("name: save\ncommand: [python3, save.py, '2', '1000']\nworkdir: work\n")

    def submitted(self, *args, flags=("--on", "cluster.yaml")):
        return self.run_dtrain("submit", *flags, *args, deadline=2 * DEADLINE)

    def held(self, name, *flags):
        """Started, and held until release(name)."""
        os.mkfifo(self.folder / name)
        process = self.start("submit", "--on", "cluster.yaml", "-o", f"results-{name}", *flags, "--", "/bin/sh", "-c",
                             f"echo {name} runs; read line <'{self.folder / name}'", stderr=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), f"{name} runs\n")
        return process

    def release(self, name):
        (self.folder / name).write_text("go\n")

    def assert_gone(self):
        self.assertEqual(self.pids(), [])
        self.assertFalse(self.root().exists())

    def test_up_the_job_its_results_down(self):
        done = self.submitted("job.yaml", "--", "/bin/sh", "-c", "echo hello; exec python3 save.py 2 1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "hello\n")  # what the ranks wrote, and nothing else
        self.assertIn("cluster e2e is given back", done.stderr)
        self.assert_gone()
        [folder] = self.folder.glob("save-*")
        self.assertEqual((folder / "logs/attempt-1/0.out").read_text(), "hello\n")
        self.assertEqual((folder / "checkpoints/checkpoint_000001/shard-00000-of-00001/model").stat().st_size, 1000)
        # The cluster that was current stays so: none.
        self.assertEqual(self.run_dtrain("status").returncode, 4)

    def test_the_results_of_the_next_job_come_to_the_same_folder(self):
        # Its logs have the same names and sizes, and the cluster that has them goes.
        for said in ("first\n", "other\n"):
            done = self.submitted("-o", "results", "--", "/bin/echo", said.strip())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.folder / "results/logs/attempt-1/0.out").read_text(), said)
            self.assert_gone()

    def test_the_jobs_code_and_what_json_says(self):
        done = self.submitted("--json", "-o", "there", "--", "/bin/sh", "-c", "exit 7")
        self.assertEqual(done.returncode, 1, done.stderr)
        said = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(said[0]["type"], "submitted")
        self.assertEqual((said[-2]["folder"], said[-2]["troubles"]), ("there", []))
        self.assertEqual((said[-1]["cluster"], said[-1]["complete"]), ("e2e", True))
        self.assert_gone()

    def test_one_that_is_up_stays_up(self):
        self.ok("up", self.yaml)
        done = self.submitted("--", "/bin/true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cluster e2e is up already, and stays up", done.stderr)
        self.assertNotEqual(self.pids(), [])
        # Unless it was said.
        done = self.submitted("--", "/bin/true", flags=("--stop",))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_gone()

    def test_the_last_of_two_gives_it_back(self):
        first = self.held("first")
        second = self.held("second")
        self.release("first")
        _, said = first.communicate(timeout=DEADLINE)
        self.assertEqual(first.returncode, 0, said)
        self.assertRegex(said, "1 job runs on e2e: sh-")
        self.assertIn("cluster e2e stays up", said)
        self.release("second")
        _, said = second.communicate(timeout=DEADLINE)
        self.assertEqual(second.returncode, 0, said)
        self.assertIn("cluster e2e is given back", said)
        self.assert_gone()

    def test_up_makes_it_one_that_stays(self):
        first = self.held("first")
        self.ok("up", self.yaml)
        self.release("first")
        first.communicate(timeout=DEADLINE)
        self.assertEqual(self.submitted("--", "/bin/true").returncode, 0)
        self.assertNotEqual(self.pids(), [])

    def test_nothing_is_left_for_a_job_that_cannot_be(self):
        refused = self.submitted("--nnodes", "2", "--", "/bin/true")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("can never run", refused.stderr)
        self.assert_gone()
        # What is wrong with the job is said before anything is brought up.
        (self.folder / "job.yaml").write_text("name: save\n")
        refused = self.submitted("job.yaml")
        self.assertEqual(refused.returncode, 2)
        self.assertNotIn("up", refused.stderr.split())
        self.assert_gone()
        for flags in (["-d"], ["--local"], ["--dry-run"]):
            self.assertEqual(self.submitted(*flags, "--", "/bin/true").returncode, 2, flags)
        self.assertEqual(self.submitted("cluster.yaml", "--", "/bin/true").returncode, 2)

    def test_a_job_that_cannot_start_brings_nothing_up(self):
        # What is brought up would need an agent.
        for said, *words in (("the workdir .*/none is not there", "--workdir", "none", "--", "/bin/true"),
                             (r"the program \./none ", "--", "./none"),
                             (r"the program \./save\.py is not executable", "--workdir", "work", "--", "./save.py"),
                             ("a line for the shell is one argument", "--", "make && ./none"),
                             ("is no committed checkpoint", "--from-checkpoint", "./work", "--", "/bin/true")):
            refused = self.run_dtrain("submit", "--on", "cluster.yaml", *words, env={"DTRAIN_AGENT": "/none"})
            self.assertNotIn(refused.returncode, (0, 3, 130), words)
            self.assertRegex(refused.stderr, said)
        # What only the nodes' login environment may have is left to them.
        refused = self.run_dtrain("submit", "--on", "cluster.yaml", "--", "no-such-program",
                                  env={"DTRAIN_AGENT": "/none"})
        self.assertIn("DTRAIN_AGENT names /none", refused.stderr)

    def test_no_result_is_lost(self):
        # They cannot come here.
        (self.folder / "there").write_text("in the way")
        done = self.submitted("job.yaml", "-o", "there")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cluster e2e stays up until dtrain down -c e2e", done.stderr)
        # Another job's, which nobody has asked for.
        done = self.submitted("--", "/bin/true")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("2 checkpoints", done.stderr)
        self.assertIn("cluster e2e stays up; to give it back: dtrain down -c e2e", done.stderr)
        self.ok("pull", "-c", "e2e", "save", "-o", "here")
        # Still one that is given back.
        self.assertEqual(self.submitted("--", "/bin/true").returncode, 0)
        self.assert_gone()

    def test_who_detaches_is_told(self):
        first = self.held("first")
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=DEADLINE)
        self.assertEqual(first.returncode, 130)
        self.assertIn("cluster e2e is not given back: dtrain down -c e2e", said)
        [job] = self.json("status", "-c", "e2e")["jobs"]
        self.assertEqual(job["state"], "running")
        self.ok("down", "-y", "-c", "e2e")
        self.assert_gone()

    def test_who_leaves_before_the_head_has_the_job_is_told(self):
        first = self.held("first")
        env, asked = self.silent_head("POST /v1/jobs ")
        second = self.start("submit", "--on", "cluster.yaml", "--", "/bin/true", env=env, stderr=subprocess.PIPE)
        self.assertTrue(asked.wait(DEADLINE))
        said = self.leaves_at_once(second)
        self.assertIn("stopped before the head said that it has the job", said)
        # It would have been given back, but for the other one.
        self.assertRegex(said, "1 job runs on e2e: sh-")
        self.assertIn("cluster e2e stays up", said)
        self.release("first")
        first.communicate(timeout=DEADLINE)
        self.assert_gone()

    def test_who_leaves_what_start_brought_up_before_the_head_has_the_job_is_told(self):
        self.ok("up", self.yaml)
        env, asked = self.silent_head("POST /v1/jobs ")
        process = self.start("submit", self.yaml, "--start", "--stop", "--", "/bin/true", env=env,
                             stderr=subprocess.PIPE)
        self.assertTrue(asked.wait(DEADLINE))
        self.assertIn("cluster e2e is not given back: dtrain down -c e2e", self.leaves_at_once(process))
        self.assertNotEqual(self.pids(), [])
        self.ok("down", "-y")
        self.assert_gone()

    def test_who_leaves_while_the_results_come_is_told(self):
        self.ok("up", self.yaml)
        env, asked = self.silent_head("/files ")
        process = self.start("submit", "--stop", "--", "/bin/true", env=env, stderr=subprocess.PIPE)
        self.assertTrue(asked.wait(DEADLINE))
        said = self.leaves_at_once(process)
        self.assertIn("cluster e2e stays up until dtrain down -c e2e", said)
        self.assertNotEqual(self.pids(), [])
        self.ok("down", "-y")
        self.assert_gone()


if __name__ == "__main__":
    main()
