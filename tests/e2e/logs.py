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

    def test_a_line_of_ten_megabytes_and_bytes_that_are_no_text(self):
        odd = r"\033[31m\377\000\r\202end"
        job = self.submit(f"head -c 10000000 /dev/zero | tr '\\0' x; printf '{odd}'")
        self.wait_state(job, "succeeded")
        said = subprocess.run([str(DTRAIN), "logs", job, "--rank", "0"], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=DEADLINE)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(len(said.stdout.rstrip(b"\n")), 10_000_000 + 12)
        self.assertEqual(said.stdout.rstrip(b"\n")[10_000_000:], b"\x1b[31m\xff\x00\r\x82end")
        # It passed through the head in pieces.
        [head] = self.agents("head")
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{head}/status").read_text()).group(1))
        self.assertLess(peak, 100_000)

    def test_output_is_in_the_log_when_the_state_is_terminal(self):
        for _ in range(5):
            out = self.ok("submit", "--", "/bin/sh", "-c", "seq 1 2000")
            self.assertEqual(len(re.findall(r"(?m)\b\d+$", out.split("succeeded")[0])) >= 2000, True)

    def test_ctrl_c_beside_a_head_that_does_not_answer(self):
        job = self.submit("sleep 1000")
        silent, asked = self.silent_head("/follow")
        follower = self.start("logs", "-f", job, env=silent)
        self.assertTrue(asked.wait(DEADLINE))
        self.assertIn(f"detached; {job} goes on", self.leaves_at_once(follower))
        silent, asked = self.silent_head("/v1/exec")
        command = self.start("exec", "--", "true", env=silent)
        self.assertTrue(asked.wait(DEADLINE))
        self.assertEqual(self.leaves_at_once(command), "")

    def test_jobs_are_named_by_prefix(self):
        job = self.submit("echo this one", "--name", "zebra")
        self.wait_state(job, "succeeded")
        self.assertIn("this one", self.ok("logs", "zeb"))
        done = self.run_dtrain("logs", "nothing-like-it")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nothing-like-it", done.stderr)


if __name__ == "__main__":
    main()
