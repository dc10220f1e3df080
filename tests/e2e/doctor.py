"""doctor: what is wrong is named, nothing is changed without --fix, and what is well stays unsaid."""

from harness import *

# What the machine itself may have, whoever's it is, and what other tests have left on it.
OF_THE_MACHINE = {"disk", "limits", "drivers"}


class DoctorCase(ClusterCase):
    nodes = 2

    def examine(self, *flags):
        """What doctor has found, as (node, finding), without what is the machine's; and its answer."""
        done = self.run_dtrain("doctor", "--json", *flags)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        answer = json.loads(done.stdout)
        found = [(row["node"], finding) for row in answer["nodes"] for finding in row["findings"]
                 if finding["kind"] not in OF_THE_MACHINE and "the head's disk has" not in finding["what"]
                 and not (finding["kind"] == "sockets" and str(self.folder) not in finding["what"])]
        if not any(finding["severity"] == "problem" and not finding["fixed"]
                   for row in answer["nodes"] for finding in row["findings"]):
            self.assertEqual(done.returncode, 0 if answer["complete"] else 1)
        else:
            self.assertEqual(done.returncode, 1)
        return found, answer

    def node(self, name="node-0"):
        return self.root() / "nodes" / name

    def stray(self):
        """A process as an attempt that is long over may have left it."""
        errors = self.node() / "jobs" / "gone-abcdef" / "attempt-1" / "errors" / "0.json"
        process = subprocess.Popen(["/bin/sleep", "1000"], env={
            "DTRAIN_ATTEMPT_TOKEN": "gone", "TORCHELASTIC_ERROR_FILE": str(errors)})
        self.started.append(process)
        return process

    def stale_sockets(self):
        """A folder of sockets of a root that is gone, a day old."""
        folder = Path(f"/tmp/dtrain-{os.getuid()}") / f"e2e-{os.getpid()}"
        folder.mkdir(0o700)
        self.addCleanup(subprocess.run, ["rm", "-rf", folder])
        (folder / "root").symlink_to(self.folder / "gone")
        os.utime(folder, (time.time() - 86400,) * 2)
        return folder


class Doctor(DoctorCase):
    def test_a_cluster_that_is_well(self):
        found, answer = self.examine()
        self.assertEqual(found, [])
        self.assertTrue(answer["complete"])
        self.assertEqual([n["node"] for n in answer["nodes"]], ["head", "node-0", "node-1"])
        self.assertLess(abs(answer["nodes"][1]["clock"]["offset_ms"]),
                        1000 + answer["nodes"][1]["clock"]["uncertainty_ms"])
        if answer["problems"] + answer["notes"] == 0:
            self.assertEqual(self.ok("doctor"), "nothing found on 2 nodes\n")
        well = self.ok("doctor", "-v")
        for text in ["its watch runs", "clock: ", "free of", "processes: ", "permissions: "]:
            self.assertIn(text, well)

    def test_jobs_that_come_and_go_are_nothing_wrong(self):
        """Asked at any moment of a job's life, none of it is called a stray."""
        jobs = [self.submit("(setsid sleep 1000 &) ; sleep 0.2", "--nnodes", "2") for _ in range(5)]
        # The last one stays until it has been looked at twice.
        seen = self.folder / "seen"
        jobs.append(self.submit(f"(setsid sleep 1000 &) ; while [ ! -e '{seen}' ]; do sleep 0.05; done", "--nnodes", "2"))
        looks = 0
        while any(self.state(job) not in ("succeeded", "failed") for job in jobs):
            self.assertEqual(self.examine()[0], [])
            looks += 1
            if looks == 2:
                seen.touch()
        self.assertGreater(looks, 1)
        self.assertEqual(self.examine()[0], [])

    def test_what_is_planted_is_named_and_put_right(self):
        key = self.node() / "identity" / "key.pem"
        stray, sockets = self.stray(), self.stale_sockets()
        key.chmod(0o644)
        self.node("node-1").chmod(0o755)
        eventually(lambda: Path(f"/proc/{stray.pid}/comm").read_text() == "sleep\n", "it runs")

        found, answer = self.examine()
        said = {(node, f["kind"]): f for node, f in found}
        self.assertIn(str(stray.pid), said["node-0", "processes"]["what"])
        self.assertIn("gone-abcdef/attempt-1", said["node-0", "processes"]["what"])
        self.assertIn(str(key), said["node-0", "permissions"]["what"])
        self.assertIn("0755, not 0700", said["node-1", "permissions"]["what"])
        if sockets.is_dir():  # which another test of this user's has not put right
            for node in ("node-0", "node-1"):  # they share /tmp
                self.assertIn(str(sockets), said[node, "sockets"]["what"])
        self.assertEqual({which for which in said if which[1] != "sockets"},
                         {("node-0", "processes"), ("node-0", "permissions"), ("node-1", "permissions")})
        self.assertTrue(all(f["fixable"] and not f["fixed"] for _, f in found))
        self.assertFalse(answer["fix"])
        # Nothing is changed.
        self.assertIsNone(stray.poll())
        self.assertEqual(key.stat().st_mode & 0o777, 0o644)
        shown = self.run_dtrain("doctor")
        self.assertEqual(shown.returncode, 1)
        self.assertRegex(shown.stdout, r"node-0 +problem +\d process")
        self.assertIn("`dtrain doctor --fix` puts right", shown.stdout)

        found, answer = self.examine("--fix")
        self.assertTrue(all(f["fixed"] for _, f in found), found)
        self.assertEqual(stray.wait(DEADLINE), -signal.SIGKILL)
        self.assertFalse(sockets.exists())
        self.assertEqual(key.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.node("node-1").stat().st_mode & 0o777, 0o700)
        self.assertEqual(self.examine()[0], [])
        job = self.submit("true", "--nnodes", "2")  # nothing that it needs has gone
        self.wait_state(job, "succeeded")

    def test_unfinished_checkpoints_stay(self):
        job = self.submit("true")
        self.wait_state(job, "succeeded")
        left = self.root() / "head" / "storage" / job / "checkpoints" / ".tmp" / "attempt-1-step-470"
        left.mkdir(parents=True)
        (left / "model.safetensors").write_bytes(b"x" * 5000)
        os.utime(left, (time.time() - 3600,) * 2)
        for flags in ([], ["--fix"]):
            (node, finding), = self.examine(*flags)[0]
            self.assertEqual((node, finding["kind"], finding["severity"]), ("head", "checkpoints", "note"))
            self.assertIn(str(left), finding["what"])
            self.assertIn("4.9 KiB", finding["what"])
            self.assertFalse(finding["fixable"])
        self.assertTrue((left / "model.safetensors").exists())

    def test_a_watch_that_is_gone(self):
        watch, = self.agents("watch")
        os.kill(watch, signal.SIGTERM)  # on purpose: its agents start no other
        eventually(lambda: not self.agents("watch"), "it ends")
        found, _ = self.examine()
        self.assertEqual({node for node, _ in found}, {"head", "node-0", "node-1"})
        for _, finding in found:
            self.assertEqual((finding["kind"], finding["severity"]), ("state", "problem"))
            self.assertIn("does not run", finding["what"])
        self.ok("up", self.folder / "cluster.yaml")
        self.assertEqual(self.examine()[0], [])

    def test_a_node_that_is_away_is_named(self):
        # A watch that stands still lives: nobody starts another, and it starts no node agent.
        watch, = self.agents("watch")
        os.kill(watch, signal.SIGSTOP)
        try:
            for pid in self.agents("node"):
                if b"node-1" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            eventually(lambda: self.json("status")["nodes"][1]["state"] != "ready", "the node is away")
            shown = self.run_dtrain("doctor")
            found, answer = self.examine()
        finally:
            os.kill(watch, signal.SIGCONT)
        self.assertEqual(shown.returncode, 1)
        self.assertRegex(shown.stdout, r"node-1 +not asked +it is not connected")
        self.assertFalse(answer["complete"])
        self.assertEqual([n["error"] is None for n in answer["nodes"]], [True, True, False])
        eventually(lambda: self.examine()[1]["complete"], "it is back")

    def test_a_node_that_says_nothing_is_named(self):
        agent = next(p for p in self.agents("node") if b"node-1" in Path(f"/proc/{p}/cmdline").read_bytes())
        stop_between_handlers(agent)
        try:
            done = self.run_dtrain("doctor", "--json")
        finally:
            os.kill(agent, signal.SIGCONT)
        self.assertEqual(done.returncode, 1)
        away = json.loads(done.stdout)["nodes"][2]
        self.assertRegex(away["error"]["message"], "has not answered within 30 s|connection to it broke")


if __name__ == "__main__":
    main()
