"""What readers get, however many or slow they are: all of it, or an error."""

import resource
import select
import socket

from harness import *

# In whole seconds longer than any time for which a slow reader was once waited.
STALL = 2.5


def agents(root):
    """Pids of the agents below a cluster's root, by role."""
    found = {}
    for pid in processes_with(str(root)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if words[0].endswith("dtrain-agent"):
                found.setdefault(words[1], []).append(pid)
    return found


def open_files(pid):
    """Soft and hard limit of a process."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


class ManyFollowers(ClusterCase):
    ranks = 40
    followers = 6

    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
        super().setUp()

    def follow_all(self):
        """Follows a job of many ranks by several at once; what each of them printed."""
        gate = self.folder / "gate"
        job = self.submit(f"while [ ! -e '{gate}' ]; do sleep 0.1; done; echo rank $RANK says so",
                          "--nproc-per-node", self.ranks)
        self.wait_state(job, "running")
        readers = [self.start("logs", "-f", job) for _ in range(self.followers)]
        gate.touch()
        results = []
        for reader in readers:
            out, _ = reader.communicate(timeout=DEADLINE)
            results.append((reader.returncode, set(re.findall(r"rank (\d+) says so", out)), out))
        return results

    def test_every_role_takes_what_the_hard_limit_gives(self):
        for code, said, out in self.follow_all():
            self.assertEqual(code, 0, out)
            self.assertEqual(len(said), self.ranks, out)
        job = self.submit("sleep 1000")
        self.wait_state(job, "running")
        found = agents(self.root())
        self.assertEqual({"head", "node", "supervise", "watch"} - set(found), set(), found)
        for role, pids in found.items():
            for pid in pids:
                soft, hard = open_files(pid)
                self.assertEqual(soft, hard, role)

    def test_a_command_has_the_limit_of_the_login(self):
        self.assertEqual(self.ok("exec", "--", "sh", "-c", "ulimit -Sn").strip(), "150")

    def test_followers_share_descriptors_where_the_hard_limit_is_small(self):
        [head] = agents(self.root())["head"]
        resource.prlimit(head, resource.RLIMIT_NOFILE, (200, 200))
        for code, said, out in self.follow_all():
            self.assertEqual(code, 0, out)
            self.assertEqual(len(said), self.ranks, out)


class FewDescriptors(ClusterCase):
    nodes = 0

    def test_up_says_where_the_hard_limit_is_too_small_for_the_head(self):
        self.write_cluster(1)
        done = self.run_dtrain("up", self.folder / "cluster.yaml", preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (300, 300)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("open 300 files", done.stdout + done.stderr)


class Logs(ClusterCase):
    def test_a_log_that_cannot_be_opened_is_an_error(self):
        job = self.submit("echo something")
        self.wait_state(job, "succeeded")
        log = self.rank_output(job, 0)
        log.unlink()
        log.symlink_to(log.name)
        for verb in (["logs"], ["logs", "-f"]):
            done = self.run_dtrain(*verb, job)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("0.out", done.stderr)
            self.assertIn("symbolic links", done.stderr)
        done = self.run_dtrain("pull", job, "-o", "pulled")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("0.out", done.stderr)

    def test_ranks_and_attempts_that_do_not_exist_are_an_error(self):
        job = self.submit("echo out", "--nproc-per-node", "2")
        self.wait_state(job, "succeeded")
        for verb in (["logs"], ["logs", "-f"]):
            done = self.run_dtrain(*verb, job, "--rank", "7")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("no rank 7", done.stderr)
            self.assertIn("0 to 1", done.stderr)
            done = self.run_dtrain(*verb, job, "--attempt", "9")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("no attempt 9", done.stderr)
            self.assertIn("attempt 1", done.stderr)
        done = self.run_dtrain("logs", job, "--rank", "-1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--rank", done.stderr)
        self.assertLess(len(done.stderr), 200, done.stderr)


class Offsets(ClusterCase):
    def frames(self, target, first):
        """What the head says to one who begins with that frame: [(is text, bytes)]."""
        [path] = [path for path in self.sockets() if path.name == "head.sock"]
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(DEADLINE)
        stream.connect(str(path))
        self.addCleanup(stream.close)
        stream.sendall(f"GET {target} HTTP/1.1\r\nHost: dtrain\r\nUpgrade: websocket\r\n"
                       "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
        reader = stream.makefile("rb")
        self.assertIn(b" 101 ", reader.readline())
        while reader.readline() != b"\r\n":
            pass
        text = json.dumps(first).encode()
        stream.sendall(b"\x81" + bytes([0x80 | len(text)]) + bytes(4) + text)
        found = []
        while (head := reader.read(2)) and head[0] & 0xF != 8:
            size = head[1] & 0x7F
            if size > 125:
                size = int.from_bytes(reader.read(2 if size == 126 else 8), "big")
            found.append((head[0] & 0xF == 1, reader.read(size)))
        return found

    def test_who_comes_back_is_sent_only_what_it_lacks(self):
        script = "i=0; while [ $i -lt 2000 ]; do echo rank $RANK line $i; i=$((i+1)); done; echo end >&2"
        job = self.submit(script, "--nproc-per-node", "2")
        self.wait_state(job, "succeeded")
        whole = [b"".join(b"rank %d line %d\n" % (rank, i) for i in range(2000)) for rank in (0, 1)]
        have = [len(whole[0]) - 15, len(whole[1])]
        frames = self.frames(f"/v1/jobs/{job}/follow?from=1&follow=1",
                             {"type": "from", "attempt": 1, "event": 0,
                              "logs": [[1, 0, have[0], 4], [1, 1, have[1], 0]]})
        sent = {}
        for (is_text, header), (_, data) in zip(frames, frames[1:]):
            if is_text and (header := json.loads(header))["type"] == "log":
                self.assertEqual(header["bytes"], len(data))
                stream = (header["rank"], header["stream"])
                sent.setdefault(stream, (header["offset"], b""))
                sent[stream] = (sent[stream][0], sent[stream][1] + data)
        self.assertEqual(sent, {(0, "out"): (have[0], whole[0][have[0]:]), (1, "err"): (0, b"end\n")})


class Forward(ClusterCase):
    def test_a_connection_that_breaks_does_not_look_as_if_it_had_ended(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        forward = self.start("forward", f"0:node-0:{listener.getsockname()[1]}", stderr=subprocess.PIPE)
        port = int(re.search(r"localhost:(\d+)", forward.stdout.readline())[1])
        client = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.addCleanup(client.close)
        listener.settimeout(DEADLINE)
        served, _ = listener.accept()
        self.addCleanup(served.close)
        served.sendall(b"the first part")
        self.assertEqual(client.recv(100), b"the first part")
        [head] = agents(self.root())["head"]
        os.kill(head, signal.SIGKILL)
        with self.assertRaises(ConnectionResetError):
            client.recv(100)

    def test_it_ends_though_the_program_there_holds_a_connection(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        forward = self.start("forward", f"0:node-0:{listener.getsockname()[1]}")
        port = int(re.search(r"localhost:(\d+)", forward.stdout.readline())[1])
        client = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.addCleanup(client.close)
        listener.settimeout(DEADLINE)
        served, _ = listener.accept()  # which neither reads nor ends
        self.addCleanup(served.close)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 16))
        forward.send_signal(signal.SIGINT)
        self.assertEqual(forward.wait(DEADLINE), 0)

    def test_it_ends_though_the_head_does_not_answer(self):
        silent, asked = self.silent_head("/v1/forward")
        forward = self.start("forward", "0:node-0:80", env=silent, stderr=subprocess.PIPE)
        port = int(re.search(r"localhost:(\d+)", forward.stdout.readline())[1])
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE):
            self.assertTrue(asked.wait(DEADLINE))
            self.leaves_at_once(forward, 0)


class Pull(ClusterCase):
    def test_a_checkpoint_of_many_small_files_is_pulled_in_linear_time(self):
        count = 8000
        (self.folder / "save.py").write_text(f"""
import json, os, socket
d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work"); os.makedirs(d)
for i in range({count}):
    with open(os.path.join(d, f"part-{{i}}"), "w") as f: f.write(f"{{i}}" * 20)
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
s.sendall(json.dumps({{"type": "checkpoint", "step": 1, "path": d, "ack": True}}).encode() + b"\\n")
assert json.loads(f.readline())["ok"]
""")
        job = self.submit("exec python3 save.py")
        self.wait_state(job, "succeeded", deadline=200)
        # It takes some three seconds; a look through the whole list for each file took six minutes.
        self.ok("pull", job, "--checkpoints", "-o", "pulled", deadline=200)
        [folder] = (self.folder / "pulled" / "checkpoints").iterdir()
        self.assertEqual(len(list(folder.rglob("part-*"))), count)
        for i in range(0, count, 97):
            [part] = folder.rglob(f"part-{i}")
            self.assertEqual(part.read_text(), f"{i}" * 20)
        again = self.json("pull", job, "--checkpoints", "-o", "pulled")
        self.assertEqual({file["how"] for file in again["files"]}, {"already_here"})

    def test_a_checkpoint_that_the_head_cannot_read_is_told(self):
        (self.folder / "save.py").write_text("""
import json, os, socket
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
for step in (1, 2):
    d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], str(step)); os.makedirs(d)
    open(os.path.join(d, "weights"), "w").write("w")
    s.sendall(json.dumps({"type": "checkpoint", "step": step, "path": d, "ack": True}).encode() + b"\\n")
    assert json.loads(f.readline())["ok"]
""")
        job = self.submit("exec python3 save.py")
        self.wait_state(job, "succeeded")
        first, second = [Path(c["path"]) for c in self.job(job)["checkpoints"]]
        (first / "manifest.json").unlink()
        done = self.run_dtrain("pull", job, "-o", "pulled")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(first.name, done.stderr)
        self.assertEqual(len(list((self.folder / "pulled").rglob("weights"))), 1)


class SlowReaders(ClusterCase):
    def test_a_command_s_output_is_whole_however_slow_its_reader(self):
        sizes = [*range(1_000_000, 1_400_000, 50_000), 5_000_000]
        readers = [(size, self.start("exec", "--", "head", "-c", size, "/dev/zero", text=False,
                                     stderr=subprocess.PIPE)) for size in sizes]
        # The time passes while nobody reads; that is what is tested.
        time.sleep(STALL)
        for size, reader in readers:
            out, err = reader.communicate(timeout=DEADLINE)
            self.assertEqual((reader.returncode, len(out), err), (0, size, b""))

    def test_what_a_command_leaves_behind_is_not_waited_for(self):
        done = self.run_dtrain("exec", "--", "sh", "-c", "sleep 1000 & echo said; exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stdout, "said\n")
        self.assertIn("left behind", done.stderr)
        # One that never stops writing.
        process = self.start("exec", "--", "sh", "-c", "yes & echo said", stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0)
        self.assertIn("said\n", out)
        self.assertIn("left behind", err)

    def test_ctrl_c_leaves_a_reader_that_has_stopped(self):
        much = "yes | head -c 1000000; exec sleep 1000"
        job = self.submit(much)

        def leave(*verb, by=signal.SIGINT):
            read, write = os.pipe()
            self.addCleanup(os.close, read)
            self.addCleanup(os.close, write)
            process = self.start(*verb, stdout=write, stderr=subprocess.PIPE)
            eventually(lambda: not select.select([], [write], [], 0)[1], "the pipe is full")
            process.send_signal(by)
            _, err = process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 128 + by, err)
            return err

        self.assertIn(f"detached; {job} goes on", leave("logs", "-f", job))
        self.assertIn(f"detached; {job} goes on", leave("logs", "-f", "--json", job))
        self.ok("stop", job)
        self.assertIn("end it: dtrain stop", leave("submit", "--", "sh", "-c", much))
        self.ok("stop")
        leave("exec", "--", "sh", "-c", much, by=signal.SIGTERM)  # Ctrl-C may be for the command
        # The cluster stays, for nobody knows how the command ends.
        self.assertIn("is not given back: dtrain down -c ",
                      leave("exec", "--stop", "--", "sh", "-c", much, by=signal.SIGTERM))
        self.ok("status")

    def test_a_stopped_follower_is_not_queued_for(self):
        count, names = 250, 250  # 8 MB
        (self.folder / "report.py").write_text(f"""
import json, os, socket, time
while not os.path.exists("gate"): time.sleep(0.05)
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
for step in range({count} + 1):
    metrics = {{f"metric_{{i}}_" + "x" * 110: step + i for i in range({names})}}
    last = step == {count}
    s.sendall(json.dumps({{"type": "metrics", "step": step, "metrics": metrics, "ack": last}}).encode() + b"\\n")
assert json.loads(f.readline()) == {{"ok": True}}
""")
        job = self.submit("exec python3 report.py")
        self.wait_state(job, "running")
        follower = self.start("logs", "-f", "--json", job)
        follower.stdout.readline()
        os.kill(follower.pid, signal.SIGSTOP)
        (self.folder / "gate").touch()
        self.wait_state(job, "succeeded")
        os.kill(follower.pid, signal.SIGCONT)
        out, _ = follower.communicate(timeout=DEADLINE)
        self.assertEqual(follower.returncode, 0, out[-2000:])
        frames = [json.loads(line) for line in out.splitlines()]
        steps = [f["step"] for f in frames if f["type"] == "metrics"]
        self.assertEqual(max(steps), count)
        self.assertLess(len(steps), count * 3 // 4)
        self.assertEqual(frames[-1]["type"], "end")
        self.assertEqual([f["state"] for f in frames if f["type"] == "state"][-1], "succeeded")


if __name__ == "__main__":
    main()
