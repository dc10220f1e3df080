"""logs: prefixes, filters, tails, raw bytes."""

from harness import *


class Logs(ClusterCase):
    def test_filters(self):
        job = self.submit("for i in 1 2 3 4 5; do echo out $i $RANK; echo err $i $RANK >&2; done",
                          "--nproc-per-node", "2")
        self.wait_state(job, "succeeded")
        done = self.run_dtrain("logs", job)
        everything = done.stdout + done.stderr
        for rank in (0, 1):
            for i in range(1, 6):
                self.assertIn(f"out {i} {rank}", everything)
                self.assertIn(f"err {i} {rank}", everything)
        one = self.ok("logs", job, "--rank", "1")
        self.assertIn("out 5 1", one)
        self.assertNotRegex(one, r"out \d 0")
        self.assertNotIn("err", self.ok("logs", job, "--stdout"))
        done = self.run_dtrain("logs", job, "--stderr")
        self.assertIn("err 5 0", done.stderr)
        self.assertNotIn("out", done.stdout + done.stderr)
        tail = self.ok("logs", job, "--rank", "0", "--stdout", "--tail", "2")
        self.assertEqual(re.findall(r"out (\d) 0", tail), ["4", "5"])
        self.assertNotIn("\x1b", everything)
        lines = [json.loads(l) for l in self.ok("logs", job, "--json").strip().split("\n")]
        self.assertTrue(all(isinstance(l, dict) for l in lines))

    def test_a_last_line_without_newline_is_there(self):
        job = self.submit("printf 'no newline'")
        self.wait_state(job, "succeeded")
        self.assertIn("no newline", self.ok("logs", job))

    def test_output_is_in_the_log_when_the_state_is_terminal(self):
        for _ in range(5):
            out = self.ok("submit", "--", "/bin/sh", "-c", "seq 1 2000")
            self.assertEqual(len(re.findall(r"(?m)\b\d+$", out.split("succeeded")[0])) >= 2000, True)

    def test_jobs_are_named_by_prefix(self):
        job = self.submit("echo this one", "--name", "zebra")
        self.wait_state(job, "succeeded")
        self.assertIn("this one", self.ok("logs", "zeb"))
        done = self.run_dtrain("logs", "nothing-like-it")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nothing-like-it", done.stderr)


if __name__ == "__main__":
    main()
