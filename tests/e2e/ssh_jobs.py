"""Jobs on hosts: training over several of them, logs, files, terminals."""

import hashlib
import shutil
import socket
import threading

import search_harness
from ssh_harness import *

MLP = BUILD / "examples" / "mnist_mlp" / "mnist_mlp"


class Training(HostsCase):
    """The example, as it was built here, on hosts that have no LibTorch."""

    count = 4
    options = {"disk": "2g"}
    agents_on = "all"

    @classmethod
    def unavailable(cls):
        return None if MLP.exists() else "the examples are not built (trainer disabled)"

    def test_ddp_over_four_hosts(self):
        self.write(file_mounts={"~/images": str(first_images(4000, self.folder / "images"))})
        self.up()
        for host in self.lab:
            self.assertFalse(list(host.root.rglob("libtorch_cpu.so")))
        train = ("--nnodes", "4", "--", MLP, "--limit", "4000", "--epochs", "1", "--batch-size-per-worker", "32",
                 "--data", f"/home/{USER}/images")
        out = self.ok("submit", *train, deadline=500)
        result = self.json("result")
        self.assertEqual(result["state"], "succeeded")
        self.assertGreater(result["metrics"]["accuracy"], 0.4)
        self.assertIn("step", out)
        self.assertIn("4 ranks", out)
        begin = time.monotonic()
        self.ok("submit", *train)  # the second time nothing needs to be sent
        print(f"    again in {time.monotonic() - begin:.1f} s")
        target = self.folder / "pulled"
        self.ok("pull", "--best", "-o", target)
        manifest = next(target.rglob("manifest.json"))
        for file in json.loads(manifest.read_text())["files"]:
            content = (manifest.parent / file["path"]).read_bytes()
            self.assertEqual(hashlib.sha256(content).hexdigest(), file["sha256"], file["path"])
        self.assertIn("libtorch_cpu.so", self.ok("bundle", MLP))


class Spares(HostsCase):
    count = 3
    agents_on = "all"

    def test_a_spare_has_the_content_before_it_takes_the_place_of_a_lost_host(self):
        self.up()
        work = self.folder / "work"
        work.mkdir()
        (work / "data.txt").write_text("brought\n")
        (self.folder / "job.yaml").write_text(
            "name: train\nnnodes: 2\nspares: 1\nworkdir: work\n"
            "command: 'cat data.txt; while [ ! -e ~/stop ]; do sleep 0.05; done'\n")
        job = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        [spare] = eventually(lambda: [each["node"] for each in self.json("status")["jobs"][0]["spares"] if each["ready"]],
                             "the spare is ready")
        self.assertEqual(spare, "h2")
        brought = [path for path in self.lab[2].path("~/.dtrain").rglob("data.txt") if "workdir-2" in str(path)]
        self.assertEqual(len(brought), 1)
        before = brought[0].stat()
        self.lab[1].crash()
        eventually(lambda: len(self.job(job)["attempts"]) == 2, "the next attempt")
        self.wait_state(job, "running")
        self.assertEqual([node["node"] for node in self.job(job)["attempts"][1]["nodes"]], ["h0", "h2"])
        # It is the file that was there before, not another that was brought now.
        after = brought[0].stat()
        self.assertEqual((after.st_ino, after.st_mtime_ns), (before.st_ino, before.st_mtime_ns))
        eventually(lambda: self.ok("logs", job).count("brought") >= 2, "both ranks have read it")
        self.ok("stop", job)


class Searches(HostsCase):
    agents_on = "all"

    def trials(self):
        return self.json("tune", "result")["trials"]

    def test_pbt(self):
        """Trials on hosts that meet the head and not each other; those that are moved begin from checkpoints of others."""
        for host in self.lab:
            host.in_network("nft", "-f", "-", input=FIREWALL)
        self.up()
        work = self.folder / "work"
        work.mkdir()
        (work / "train.py").write_text(search_harness.TRAIN)
        last, gate = 30, 24
        (self.folder / "search.yaml").write_text(json.dumps({
            "name": "count", "command": ["python3", "train.py", "{lr}", str(last), "0.05", "keeps"], "workdir": "work",
            "resources": {"CPU": len(os.sched_getaffinity(0)) / 2}, "env": {"GATE": str(gate), "GO": f"/home/{USER}/go"},
            # So far apart that the worst is the worst, whoever is some steps ahead.
            "space": {"lr": {"uniform": [0, 1]}}, "search": {"points_to_evaluate": [{"lr": lr} for lr in (0.3, 0.5, 0.7, 0.95)]},
            "metric": "accuracy", "mode": "max", "num_samples": 4,
            "scheduler": {"algorithm": "pbt", "perturbation_interval": 2}}))
        name = self.json("tune", "-d", self.folder / "search.yaml")["search"]
        eventually(lambda: sum(trial["iteration"] >= gate - 1 or trial["exploits"] > 0 for trial in self.trials()) == 4,
                   "all have come as far")
        for host in self.lab:
            host.path("~/go").touch()
        self.assertIn(f"{name} succeeded", self.ok("tune", "status", "-f"))
        result = self.trials()
        self.assertEqual([(trial["state"], trial["iteration"]) for trial in result], [("complete", last)] * 4)
        moved = [leg for trial in result if trial["exploits"] for leg in trial["legs"][1:]]
        self.assertTrue(moved)
        for leg in moved:
            self.assertRegex(self.ok("logs", leg), r"began at [1-9]")
        nodes = {node["node"] for trial in result for leg in trial["legs"]
                 for attempt in self.job(leg)["attempts"] for node in attempt["nodes"]}
        self.assertEqual(nodes, {"h0", "h1"})
        best = self.ok("tune", "best", "-q").strip()
        self.ok("pull", best, "--best", "-o", self.folder / "pulled")
        [step] = (self.folder / "pulled").rglob("step")
        self.assertEqual(step.read_text(), str(last))
        self.ok("tune", "rm", "-y", name)


class Jobs(HostsCase):
    count = 3
    agents_on = "all"

    def test_the_laptop_may_close_its_lid(self):
        self.up()
        job = self.submit('i=0; while [ ! -e ~/stop ]; do i=$((i+1)); echo "line $i of $RANK"; sleep 0.002; done; '
                          'echo "end $i of $RANK"', "--nnodes", "3")
        follower = self.start("logs", "-f", job)
        follower.stdout.readline()
        follower.kill()
        self.wait_state(job, "running")
        follower = self.start("logs", "-f", job)
        follower.stdout.readline()
        self.assertIn(f"detached; {job} goes on", self.leaves_at_once(follower))
        follower = self.start("logs", "-f", job)
        said = []
        reader = threading.Thread(target=lambda: said.append(follower.stdout.read()))
        reader.start()
        for host in self.lab:
            host.path("~/stop").touch()
        self.assertEqual(follower.wait(DEADLINE), 0)
        reader.join()
        self.ok("pull", job, "--logs", "-o", self.folder / "pulled")
        pulled = "".join(p.read_text() for p in (self.folder / "pulled").rglob("*") if p.is_file())
        for text in (said[0], pulled):
            for rank in range(3):
                numbers = [int(n) for n in re.findall(rf"line (\d+) of {rank}\b", text)]
                [last] = re.findall(rf"end (\d+) of {rank}\b", text)
                self.assertEqual(numbers, list(range(1, int(last) + 1)), f"rank {rank}")

    def test_two_workdirs_at_once(self):
        self.up()
        jobs = []
        for name in ("one", "two"):
            folder = self.folder / name
            folder.mkdir()
            (folder / "which").write_text(f"this is {name}\n")
            jobs.append(self.json("submit", "-d", "--nnodes", "2", "--workdir", folder, "--", "/bin/sh", "-c",
                                  "while [ ! -e ~/stop ]; do sleep 0.02; done; cat which; echo mine >>written; "
                                  "wc -l <written")["job"])
        for job in jobs:
            self.wait_state(job, "running")
        for host in self.lab:
            host.path("~/stop").touch()
        for job, name in zip(jobs, ("one", "two")):
            self.wait_state(job, "succeeded", "failed")
            out = self.ok("logs", job)
            self.assertEqual(out.count(f"this is {name}"), 2, out)
            self.assertEqual(out.count("this is"), 2, out)

    def test_the_path_of_a_checkpoint_means_the_machine_of_its_rank(self):
        self.up()
        (self.folder / "save.py").write_text("""
import json, os, socket
rank = int(os.environ["RANK"])
folder = "/tmp/checkpoint"
os.mkdir(folder)
with open(f"{folder}/weights", "w") as file:
    file.write(f"of rank {rank}" * 1000)
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
stream.sendall(json.dumps({"type": "checkpoint", "step": 1, "path": folder, "shard": rank, "shards": 3,
                           "keep": rank == 1, "ack": True}).encode() + b"\\n")
answer = json.loads(stream.makefile().readline())
assert answer["ok"], answer
""")
        job = self.json("submit", "-d", "--nnodes", "3", "--", "python3", "save.py")["job"]
        self.wait_state(job, "succeeded")
        self.ok("pull", job, "--checkpoints", "-o", self.folder / "pulled")
        for rank in range(3):
            [weights] = (self.folder / "pulled").rglob(f"shard-0000{rank}-of-00003/weights")
            self.assertEqual(weights.read_text(), f"of rank {rank}" * 1000)
        there = [host.path("/tmp/checkpoint/weights").exists() for host in self.lab[:3]]
        self.assertEqual(there, [False, True, False], "what is not kept is moved, on its own machine")

    def test_exec_on_hosts(self):
        self.up()
        out = self.ok("exec", "--all", "--", "hostname")
        for name in ("h0", "h1", "h2"):
            self.assertRegex(out, rf"(?m)^\W*{name}\W.*{name}$")
        self.assertEqual(self.run_dtrain("exec", "--all", "--", "sh", "-c", "[ $(hostname) != h1 ] || exit 7").returncode, 7)
        done = self.run_dtrain("exec", "--node", "h2", "--", "cat", input="through it", stdin=None)
        self.assertEqual((done.returncode, done.stdout), (0, "through it"))

    def test_attach_is_a_terminal_with_its_size_and_exit_code(self):
        self.up()
        for flags, name in (((), "h0"), (("--node", "h1"), "h1")):
            terminal = self.terminal("attach", *flags, size=(33, 101))
            terminal.type("echo $(hostname)-'is'-here; stty size\n")
            terminal.read_until(f"{name}-is-here")
            terminal.read_until("33 101")
            terminal.resize(40, 120)
            terminal.type('until [ "$(stty size)" = "40"" 120" ]; do sleep 0.02; done; stty size\n')
            terminal.read_until("40 120")
            terminal.type("exit 6\n")
            self.assertEqual(terminal.end(), 6)

    def goes_on_and_goes_with_down(self, program, seen):
        self.up()
        said = self.run_dtrain("exec", "--node", "h1", f"--{program}", "--", "sh", "-c",
                               "echo begun | tee ~/seen; exec sleep 1000")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn(f"attach --{program}", said.stderr)
        eventually(lambda: self.lines(1, "~/seen"), "it runs")
        self.assertTrue(self.lab[1].processes(UID, "sleep 1000"))
        terminal = self.terminal("attach", "--node", "h1", f"--{program}")
        terminal.read_until(seen)
        self.assertEqual(self.run_dtrain("exec", f"--{program}", "--stop", "--", "true").returncode, 255)
        self.ok("down", "-y")
        self.assert_clean(1)

    @unittest.skipUnless(shutil.which("tmux"), "there is no tmux")
    def test_what_runs_in_tmux_goes_on_and_goes_with_down(self):
        self.goes_on_and_goes_with_down("tmux", "dtrain-")

    @unittest.skipUnless(shutil.which("screen"), "there is no screen")
    def test_what_runs_in_screen_goes_on_and_goes_with_down(self):
        self.goes_on_and_goes_with_down("screen", "begun")

    def serve(self, host):
        """A program there that answers on port 8000 of its loopback."""
        server = ("import socket\ns = socket.create_server(('127.0.0.1', 8000))\n"
                  "while True:\n c, _ = s.accept()\n c.sendall(c.recv(100).upper())\n c.close()\n")
        process = subprocess.Popen(["nsenter", "-t", str(host.init), "--net", sys.executable, "-c", server])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        eventually(lambda: "0100007F:1F40" in Path(f"/proc/{host.init}/net/tcp").read_text(), "the server listens")

    def answers(self, port):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(b"hello")
                return connection.recv(100) == b"HELLO"
        except OSError:
            return False

    def test_forward_to_a_node(self):
        self.up()
        self.serve(self.lab[1])
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.start("forward", f"{port}:h1:8000")
        eventually(lambda: self.answers(port), "the answer comes through", 20)
        self.assertTrue(self.answers(port))

    def test_ports_come_along_with_a_command(self):
        self.up()
        self.serve(self.lab[0])
        command = self.start("exec", "-p", "8000", "--", "/bin/sh", "-c", "echo runs; read line; exit 7",
                             stdin=subprocess.PIPE)
        self.assertIn("forwarding", command.stdout.readline())
        self.assertTrue(self.answers(8000))
        command.communicate(timeout=DEADLINE)  # the end of its stdin
        self.assertEqual(command.returncode, 7)
        self.assertFalse(self.answers(8000))

    def test_sync_up_and_down(self):
        self.up()
        source = self.folder / "source"
        (source / "deep").mkdir(parents=True)
        (source / "deep" / "file").write_text("there and back\n")
        (source / "link").symlink_to("deep/file")
        self.ok("sync", "up", source, "~/synced")
        for index in range(3):
            self.assertEqual(self.lines(index, "~/synced/deep/file"), ["there and back"], f"h{index}")
            self.assertEqual(os.readlink(self.lab[index].path("~/synced/link")), "deep/file")
        self.ok("sync", "down", "--node", "h2", "~/synced", self.folder / "back")
        self.assertEqual((self.folder / "back" / "deep" / "file").read_text(), "there and back\n")

    def test_sync_knows_the_head_and_reaches_drained_nodes(self):
        self.write([2, 0, 1])
        self.up()
        self.assertEqual([n["node"] for n in self.json("status")["nodes"] if n["head"]], ["h2"])
        for index in range(3):
            self.ok("exec", "--node", f"h{index}", f"mkdir ~/results && echo h{index} >~/results/who")
        self.ok("sync", "down", "~/results", self.folder / "results")
        self.assertEqual((self.folder / "results" / "who").read_text(), "h2\n")
        self.ok("drain", "h1")
        self.assertEqual(self.states()["h1"], "drained")
        source = self.folder / "source"
        source.mkdir()
        (source / "file").write_text("also there\n")
        self.ok("sync", "up", source, "~/synced")
        for index in range(3):
            self.assertEqual(self.lines(index, "~/synced/file"), ["also there"], f"h{index}")


class Old(HostsCase):
    """A system of 2021 with glibc 2.31, no Python, rsync, tar or C++ runtime."""

    count = 2

    @classmethod
    def unavailable(cls):
        cls.options = {"lower": old_system()}
        return None if old_system() else "there is no Debian 11 in .deps/hosts (scripts/setup --tests)"

    def test_up_and_jobs(self):
        data = self.folder / "data"
        data.mkdir()
        (data / "file").write_text("arrived\n")
        self.write(file_mounts={"~/data": "data"}, setup_commands=["cat ~/data/file >~/said"])
        self.up()
        self.assertEqual(self.lines(1, "~/said"), ["arrived"])
        out = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo $RANK: $(ldd --version | head -1)")
        self.assertEqual(len(re.findall(r"(?m)^.*2\.31$", out)), 2, out)
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_clean(0, 1)

    def test_a_program_brings_its_libraries(self):
        """A program with a shared library of its own, which asks nothing new of glibc."""
        (self.folder / "greet.c").write_text(
            '#include <unistd.h>\nvoid greet(void) { write(1, "greetings by bundle\\n", 20); }\n')
        (self.folder / "main.c").write_text(
            "#include <unistd.h>\nvoid greet(void);\nvoid _start(void) { greet(); _exit(0); }\n")
        lib = self.folder / "lib"
        lib.mkdir()
        for argv in (["-shared", "-fPIC", "-o", lib / "libgreet.so", "greet.c"],
                     ["-nostartfiles", "-o", "program", "main.c", f"-L{lib}", "-lgreet", f"-Wl,-rpath,{lib}"]):
            subprocess.run(["cc", *map(str, argv)], cwd=self.folder, check=True)
        self.write()
        self.up()
        self.assertEqual(self.lab.ssh(1, f"ls {lib}").returncode, 2)
        out = self.ok("submit", "--nnodes", "2", "--", self.folder / "program")
        self.assertEqual(out.count("greetings by bundle"), 2, out)

    @unittest.skipUnless(MLP.exists(), "the examples are not built (trainer disabled)")
    def test_a_program_too_new_is_told_before_anything_is_sent(self):
        self.up()
        done = self.run_dtrain("submit", "--nnodes", "2", "--", MLP, "--limit", "100")
        self.assertNotEqual(done.returncode, 0)
        said = done.stdout + done.stderr
        self.assertIn("2.31", said)
        self.assertRegex(said, r"2\.3[2-9]")
        self.assertEqual(list(self.lab[0].path("~/.dtrain").rglob("*torch*")), [])
        big = [p for host in self.lab for p in host.path("~/.dtrain").rglob("*")
               if p.is_file() and not p.is_symlink() and p.stat().st_size > 60_000_000]
        self.assertEqual(big, [])


if __name__ == "__main__":
    main()
