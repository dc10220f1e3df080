"""Hosts that let nobody in: which are tried, why, until when, and the end of it."""

from ssh_harness import *

# Accepts whoever comes, and closes at once: a gateway whose machine is gone, an sshd that dies.
CLOSER = "import socket\ns = socket.create_server(('', 22), backlog=64)\nprint('listens', flush=True)\nwhile True: s.accept()[0].close()"


class Unreached(HostsCase):
    count = 2
    agents_on = "all"

    def close_at_once(self, index):
        """From now on the host's port 22 does so; its sshd is another's to find."""
        host = self.lab[index]
        host.configure_sshd("Port 2200")
        self.addCleanup(host.configure_sshd)
        closer = subprocess.Popen(["nsenter", f"--net={host.folder}/net", sys.executable, "-c", CLOSER],
                                  stdout=subprocess.PIPE)
        self.addCleanup(closer.wait)
        self.addCleanup(closer.kill)
        closer.stdout.readline()
        closer.stdout.close()

    def timed(self, *args):
        """Runs dtrain; gives its exit code, and each line that it said with the seconds until then."""
        begin = time.monotonic()
        process = self.start(*args)
        lines = [(time.monotonic() - begin, line.rstrip("\n")) for line in process.stdout]
        return process.wait(), lines, time.monotonic() - begin

    def test_down_says_which_hosts_close_at_once_and_gives_up(self):
        self.up()
        for index in range(2):
            self.close_at_once(index)
        code, lines, took = self.timed("down", "-y", "--timeout", "30")
        self.assertEqual(code, 1, lines)
        stopping = [at for at, line in lines if "stopping jobs" in line]
        for name in ("h0", "h1"):
            told = [at for at, line in lines if name in line and "not reached" in line]
            self.assertTrue(told, f"{name}: {lines}")
            self.assertLess(told[0], stopping[0], lines)
        said = "\n".join(line for _, line in lines)
        self.assertIn("closed the connection before it said anything", said)
        self.assertIn("given up after 30.0 s", said)
        self.assertRegex(said, r"h0 .*not reached")  # the table, at the end
        self.assertRegex(said, r"h1 .*not reached")
        self.assertLess(took, DEADLINE, lines)

    def test_down_gives_back_what_can_be_reached(self):
        self.up()
        self.close_at_once(1)
        code, lines, took = self.timed("down", "-y", "--timeout", "30")
        self.assertEqual(code, 1, lines)
        self.assert_clean(0)

    def test_ctrl_c_ends_a_down_that_waits_and_the_next_goes_on(self):
        self.up()
        self.lab[1].drop("10.77.0.1")
        self.lab[1].drop(self.lab[0])
        down = self.start("down", "-y", "--timeout", "60")
        for line in down.stdout:
            if "h1" in line and "not reached" in line:
                break
        begin = time.monotonic()
        down.send_signal(signal.SIGINT)
        said = down.stdout.read()
        self.assertEqual(down.wait(), 1, said)
        self.assertLess(time.monotonic() - begin, 15, said)
        self.assertIn("stopping; dtrain down goes on from here", said)
        for name in ("h0", "h1"):
            self.assertRegex(said, name + r" .*not reached")
        self.lab[1].undrop()
        self.ok("down", "-y")
        self.assert_clean(0, 1)

    def test_up_says_which_hosts_do_not_answer(self):
        self.lab[1].drop("10.77.0.1")
        self.lab[1].drop(self.lab[0])
        code, lines, took = self.timed("up", self.write(), "--timeout", "30", "--json")
        self.assertEqual(code, 1, lines)
        events = [(at, json.loads(line)) for at, line in lines if line.startswith("{")]
        waiting = [(at, event) for at, event in events if event.get("state") == "waiting"]
        self.assertTrue(waiting, lines)
        self.assertEqual({event["node"] for _, event in waiting}, {"h1"})
        self.assertIn("no answer", waiting[0][1]["text"])
        # While it is tried, not when it has been given up.
        failed = [at for at, event in events
                  if event.get("node") == "h1" and event.get("state") == "failed"]
        self.assertLess(waiting[0][0], failed[0] if failed else took)
        self.assertLess(took, DEADLINE)
        each = {node["node"]: node["error"] for node in events[-1][1]["each"]}
        self.assertIsNone(each["h0"])
        self.assertIn("10.77.0.11", json.dumps(each["h1"]))

    def test_other_verbs_say_it_too(self):
        self.up()
        self.lab[0].drop("10.77.0.1")
        code, lines, _ = self.timed("status")
        self.assertNotEqual(code, 0, lines)
        self.assertTrue([line for _, line in lines if "h0" in line and "not reached" in line], lines)

    def test_up_goes_on_trying_what_refuses_for_now(self):
        """As a machine that boots does: with --timeout it is tried until then."""
        self.lab[1].configure_sshd("Port 2200")
        self.addCleanup(self.lab[1].configure_sshd)
        process = self.start("up", self.write(), "--timeout", "60")
        said = next((line for line in process.stdout if "not reached" in line), "")
        self.assertIn("h1: connect: not reached", said)
        self.assertIn("refused", said)
        self.lab[1].configure_sshd()
        out = process.communicate(timeout=DEADLINE)[0]
        self.assertEqual(process.returncode, 0, out)
        self.assert_ready(0, 1)


if __name__ == "__main__":
    main()
