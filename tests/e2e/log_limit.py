"""log_limit: of what ranks write the newest part is kept, and who reads is told of what is not."""

import http.client

from harness import *

MIB = 1 << 20
LIMIT = 16 * MIB
STEP = MIB
WIDTH = 1024  # bytes of a line

# Prints the lines of a part once its gate is there, 8 lines at a time; the last part has no gate behind it.
WRITER = f"""
import os, sys, time
folder, parts, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = os.environ["RANK"]
number = 0
for part in range(parts):
    while not os.path.exists(f"{{folder}}/gate{{part}}"):
        time.sleep(0.01)
    end = (part + 1) * lines
    while number < end:
        some = range(number, min(number + 8, end))
        os.write(1, "".join(f"{{rank}}:{{i}}".ljust({WIDTH} - 1, ".") + "\\n" for i in some).encode())
        number += len(some)
"""


def line(rank, number):
    return f"{rank}:{number}".ljust(WIDTH - 1, ".")


def mark(count):
    return f"[dtrain: {count} bytes of output are missing here: released, as log_limit says]"


class LimitCase(ClusterCase):
    nodes = 0  # each brings its own up

    def start_writer(self, parts, megabytes, *flags, limit="16MiB"):
        """A job of `parts` parts of so many MiB a rank."""
        script = self.folder / "writer.py"
        script.write_text(WRITER)
        lines = megabytes * MIB // WIDTH
        answer = self.json("submit", "-d", "--log-limit", limit, *flags, "--", "python3", script, self.folder, parts,
                           lines)
        return answer["job"]

    def follow(self, job):
        """Follows it from the beginning, into the file `followed`."""
        with self.followed().open("w") as out:
            return self.start("logs", "-f", "--json", job, stdout=out, stderr=subprocess.PIPE)

    def followed(self):
        return self.folder / "followed"

    def open_gate(self, part):
        (self.folder / f"gate{part}").touch()

    def files(self, job, rank=0):
        """The rank's stdout where it was written, and the head's copies."""
        return list(self.root().glob(f"nodes/*/jobs/{job}/attempt-1/ranks/{rank}.out")) + \
            list(self.root().glob(f"head/mirror/{job}/attempt-1/*/{rank}.out"))

    def kill(self, pids):
        """kill -9; then the head is there, or back."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")

    def assert_kept(self, job, ranks, size):
        """Each file has its size, and no more blocks than the limit allows."""
        for rank in range(ranks):
            for path in self.files(job, rank):
                eventually(lambda: path.stat().st_size == size, f"{path} has {size} bytes")
                # A step more, since what is released is rounded down to blocks and up to lines.
                eventually(lambda: path.stat().st_blocks * 512 <= LIMIT + STEP, f"{path} is held to its limit")

    def warnings(self, job):
        done = self.run_dtrain("logs", "-f", "--json", job)
        events = [json.loads(each) for each in done.stdout.splitlines()]
        return [each["message"] for each in events if each["type"] == "event" and "log_limit" in each["message"]]

    def read_events(self, text, size, ranks=1):
        """The events of each rank's stream: each line once where it was written, or counted as released; and how much
        that is, rank by rank."""
        at, released = [0] * ranks, [0] * ranks
        for each in map(json.loads, text.splitlines()):
            if each["type"] not in ("log", "released") or each["stream"] != "out":
                continue
            rank = each["rank"]
            self.assertEqual(each["offset"], at[rank])
            if each["type"] == "released":
                released[rank] += each["bytes"]
                at[rank] += each["bytes"]
                continue
            if each.get("partial"):  # the rest of it was released
                self.assertTrue(line(rank, at[rank] // WIDTH)[at[rank] % WIDTH:].startswith(each["text"]))
                at[rank] += len(each["text"])
            else:
                self.assertEqual(each["text"], line(rank, at[rank] // WIDTH))
                at[rank] += WIDTH
        self.assertEqual(at, [size] * ranks)
        return released


class OnTheHeadsMachine(LimitCase):
    """There the ranks' files are what is read."""

    def setUp(self):
        super().setUp()
        self.write_cluster(1)
        self.ok("up", self.folder / "cluster.yaml")

    def test_a_log_that_cannot_be_read_any_further_is_cut_off(self):
        """While it is sent: nothing else stands among its bytes."""
        job = self.json("submit", "-d", "--", "head", "-c", 8 * MIB, "/dev/zero")["job"]
        self.wait_state(job, "succeeded")
        [name] = [each["path"] for each in self.ask("GET", f"/v1/jobs/{job}/files")["files"] if "out" in each["path"]]
        door = self.door()
        self.addCleanup(door.close)
        door.request("GET", f"/v1/jobs/{job}/files/{name}")
        door.sock.settimeout(DEADLINE)
        answer = door.getresponse()
        answer.read(WIDTH)
        [path] = self.files(job)
        Path(f"{path}.released").write_text("no offset")
        with self.assertRaises(http.client.IncompleteRead) as cut:
            answer.read()
        self.assertEqual(cut.exception.partial.strip(b"\0"), b"")

    def test_the_newest_is_kept_and_the_gap_is_counted(self):
        job = self.start_writer(4, 10)
        follower = self.follow(job)
        for part in range(4):
            self.open_gate(part)
        self.wait_state(job, "succeeded")
        size = 40 * MIB
        self.assert_kept(job, 1, size)
        self.assertEqual(follower.wait(DEADLINE), 0)
        self.read_events(self.followed().read_text(), size)

        said = self.ok("logs", job)
        lines = said.splitlines()
        count = int(re.match(r"\[dtrain: (\d+) bytes", lines[0])[1])
        self.assertEqual(lines[0], mark(count))
        self.assertEqual(count % WIDTH, 0)
        self.assertEqual(lines[1:], [line(0, i) for i in range(count // WIDTH, size // WIDTH)])
        self.assertLessEqual(size - count, LIMIT)
        self.assertGreater(size - count, LIMIT - 2 * STEP)
        self.assertEqual(self.read_events(self.ok("logs", "--json", job), size), [count])

        # Of those that are kept no mark is needed; of more there is one.
        last = size // WIDTH
        self.assertEqual(self.ok("logs", "--tail", "2", job).splitlines(), [line(0, last - 2), line(0, last - 1)])
        self.assertEqual(self.ok("logs", "--tail", str(last), job), said)

        done = self.run_dtrain("pull", "--logs", job, "-o", "here")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 log begins with a line for what was released by log_limit", done.stderr)
        pulled = self.folder / "here/logs/attempt-1/0.out"
        self.assertEqual(pulled.read_text(), said)
        again = self.json("pull", "--logs", job, "-o", "here")
        self.assertEqual({Path(each["path"]).name: (each["how"], each.get("released")) for each in again["files"]}
                         ["0.out"], ("already_here", count))
        # Another one by that name and of that size is none.
        pulled.write_bytes(b"x" * pulled.stat().st_size)
        self.ok("pull", "--logs", job, "-o", "here")
        self.assertEqual(pulled.read_text(), said)

        self.assertEqual(len(self.warnings(job)), 1, self.warnings(job))
        self.assertIn("16.0 MiB", self.warnings(job)[0])

    def test_who_lags_is_told_and_who_comes_back_too(self):
        job = self.start_writer(2, 24)
        self.wait_state(job, "running")
        follower = self.follow(job)
        eventually(lambda: "running" in self.followed().read_text(), "it follows")
        os.kill(follower.pid, signal.SIGSTOP)
        self.open_gate(0)
        path = eventually(lambda: self.files(job), "the file is there")[0]
        mark_of = path.with_name("0.out.released")
        eventually(lambda: mark_of.exists() and int(mark_of.read_text()) >= 8 * MIB, "much is released")
        # The head is another one by the time that it goes on.
        self.kill(self.agents("head"))
        os.kill(follower.pid, signal.SIGCONT)
        self.open_gate(1)
        self.assertEqual(follower.wait(DEADLINE), 0, follower.stderr.read())
        self.assertGreater(self.read_events(self.followed().read_text(), 48 * MIB)[0], 0)
        self.assertEqual(self.state(job), "succeeded")
        self.assertEqual(len(self.warnings(job)), 1, self.warnings(job))

    def test_without_a_limit_all_is_kept_and_too_small_a_one_is_refused(self):
        done = self.run_dtrain("submit", "-d", "--log-limit", "1MiB", "--", "true")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("log_limit: must be 16.0 MiB", done.stderr)
        job = self.start_writer(1, 24, limit="0")
        self.open_gate(0)
        self.wait_state(job, "succeeded")
        self.assertEqual(self.read_events(self.ok("logs", "--json", job), 24 * MIB), [0])
        self.assertEqual(self.warnings(job), [])


class OnOtherMachines(LimitCase):
    """Two nodes that send their logs to the head."""

    nodes = 2
    apart = True

    def test_kill_9_of_agents_and_head_changes_nothing(self):
        job = self.start_writer(4, 8, "--nnodes", "2")
        follower = self.follow(job)
        for part in range(4):
            self.open_gate(part)
            victims = self.agents("node") if part % 2 == 0 else self.agents("head")
            eventually(lambda: len(self.files(job, 1)) == 2 and self.files(job, 1)[1].stat().st_size > part * 8 * MIB,
                       "some of it came", pause=0.005)
            self.kill(victims)
        self.wait_state(job, "succeeded")
        size = 32 * MIB
        self.assertEqual(follower.wait(DEADLINE), 0, follower.stderr.read())
        self.read_events(self.followed().read_text(), size, ranks=2)
        for rank in range(2):
            self.assertEqual(len(self.files(job, rank)), 2)
        self.assert_kept(job, 2, size)
        kept = self.ok("logs", "--json", job)
        for released in self.read_events(kept, size, ranks=2):
            self.assertGreater(released, size - LIMIT - 1)
        self.assertEqual(len(self.warnings(job)), 1, self.warnings(job))

    def test_a_head_without_its_copies_gets_what_is_kept(self):
        job = self.start_writer(2, 20)
        self.open_gate(0)
        eventually(lambda: len(self.files(job)) == 2 and
                   all(path.with_name("0.out.released").exists() for path in self.files(job)),
                   "both are held to the limit")
        for pid in self.agents("watch") + self.agents("head") + self.agents("node"):
            os.kill(pid, signal.SIGKILL)
        for path in self.files(job):
            if "mirror" in path.parts:
                path.unlink()
                path.with_name("0.out.released").unlink()
        self.ok("up", self.folder / "cluster.yaml")
        self.open_gate(1)
        self.wait_state(job, "succeeded")
        self.assertGreater(self.read_events(self.ok("logs", "--json", job), 40 * MIB)[0], 40 * MIB - LIMIT - 1)
        self.assert_kept(job, 1, 40 * MIB)


if __name__ == "__main__":
    main()
