"""The module dtrain in a rank, against a socket of the test's own and against a folder; its jobs, with a
command of the test's own."""

import hashlib
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

MODULE = Path(sys.argv.pop(1)).resolve()
SCHEMA = Path(__file__).resolve().parents[3] / "configs" / "job.schema.json"


class Head:
    """The other end of a report socket: keeps what it gets, answers what wants an answer."""

    def __init__(self, path, answer):
        self.reports, self._answer = [], answer
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection):
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                report = json.loads(line)
                self.reports.append(report)
                if report.get("ack"):
                    answer = self._answer(report)
                    if answer is None:
                        return  # as a head that goes
                    connection.sendall(answer)

    def wait_for(self, count):
        """What came, once so many did: checkpoints have a connection of their own and come last here."""
        until = time.monotonic() + 60
        while len(self.reports) < count and time.monotonic() < until:
            time.sleep(0.005)
        return sorted(self.reports, key=lambda report: report["type"] == "checkpoint")

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain rank "))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_script(self, script, rank=None, size=1, **env):
        """Runs it as a rank (rank=None: alone); its last line of stdout is JSON, or nothing."""
        others = ("DTRAIN_", "TORCHELASTIC_", "RANK", "WORLD", "SLURM_")
        base = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        base.update(PYTHONPATH=str(MODULE), PYTHONDONTWRITEBYTECODE="1", FOLDER=str(self.folder))
        if rank is not None:
            base.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
        base.update({k: str(v) for k, v in env.items()})
        return subprocess.run([sys.executable, "-c", "import json, os, dtrain\nfrom pathlib import Path\n"
                               "folder = Path(os.environ['FOLDER'])\n" + script],
                              env=base, capture_output=True, text=True, timeout=60)

    def answer(self, script, **more):
        done = self.run_script(script, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.split("\n")[-2]), done

    def fails(self, script, **more):
        done = self.run_script(script, **more)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("DtrainError", done.stderr)
        return done.stderr

    def head(self, answer=lambda report: b'{"ok":true,"path":"/final"}\n'):
        path = self.folder / "report.sock"
        head = Head(path, answer)
        self.addCleanup(head.close)
        return head, {"DTRAIN_REPORT_SOCKET": path}


WHOLE = """
def whole(step, text):
    made = folder / f"made-{step}"
    (made / "sub").mkdir(parents=True)
    (made / "w.txt").write_text(text)
    (made / "sub" / "empty").write_text("")
    return made
"""


class World(Case):
    def test_alone_and_as_a_rank(self):
        told = "w = dtrain.world()\nprint(json.dumps([w.rank, w.size, w.local_rank, w.attempt, w.restart_count]))\n"
        self.assertEqual(self.answer(told)[0], [0, 1, 0, 1, 0])
        self.assertEqual(self.answer(told, rank=3, size=4, TORCHELASTIC_RESTART_COUNT=2)[0], [3, 4, 3, 3, 2])
        self.assertEqual(self.answer(told, rank=3, size=4, TORCHELASTIC_RESTART_COUNT=2, DTRAIN_ATTEMPT=5)[0][3], 5)

    def test_a_task_of_srun(self):
        told = ("w = dtrain.world()\n"
                "print(json.dumps([w.rank, w.size, w.local_rank, w.local_size, w.node_rank, w.nodes, w.attempt]))\n")
        task = {"SLURM_PROCID": 5, "SLURM_NTASKS": 7, "SLURM_LOCALID": 1, "SLURM_NODEID": 2,
                "SLURM_JOB_NODELIST": "n[08-10],gpu1", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_RESTART_COUNT": 1}
        self.assertEqual(self.answer(told, **task)[0], [5, 7, 1, 2, 2, 4, 2])
        self.assertEqual(self.answer(told, **{**task, "SLURM_STEP_NODELIST": "n08"})[0], [5, 7, 1, 7, 2, 1, 2])
        self.assertEqual(self.answer(told, rank=0, size=2, **task)[0][:2], [0, 2])  # torchrun below srun
        for env, said in (({"SLURM_PROCID": 7}, "not below SLURM_NTASKS=7"),
                          ({"SLURM_LOCALID": ""}, "SLURM_LOCALID is not"),
                          ({"SLURM_JOB_NODELIST": "n[3-1]"}, "not a list that Slurm writes")):
            self.assertIn(said, self.fails("dtrain.world()", **{**task, **env}))

    def test_an_environment_that_is_wrong(self):
        for env, said in (({"RANK": "x", "WORLD_SIZE": 2}, "RANK=x"), ({"RANK": 1}, "WORLD_SIZE is not"),
                          ({"RANK": 2, "WORLD_SIZE": 2}, "not below WORLD_SIZE=2")):
            self.assertIn(said, self.fails("dtrain.world()", **env))


class Reports(Case):
    def test_lines_are_as_the_contract_says(self):
        head, env = self.head()
        got, done = self.answer(WHOLE + """
dtrain.progress(1, total=2, epoch=0, message="m", metrics={"x": 1})
dtrain.progress(1, total=2)  # too soon: dropped
dtrain.progress(2, total=2)  # the last one: not
dtrain.report({"loss": 0.5, "bad": float("nan"), "up": float("inf"), "down": -float("inf")}, 7)
dtrain.heartbeat(7, collective=9)
dtrain.heartbeat(collective={"sequence": 10, "done": True}, phase="data")
dtrain.heartbeat(8, step_times={"steps": 8, "seconds": 2.5, "wait": 0.5})
print(json.dumps(str(dtrain.report({"loss": 0.25}, checkpoint=whole(8, "a")))))
""", rank=0, size=2, **env)
        self.assertEqual(got, "/final")
        self.assertEqual(head.wait_for(7), [
            {"type": "progress", "step": 1, "total": 2, "epoch": 0, "message": "m", "metrics": {"x": 1.0}},
            {"type": "progress", "step": 2, "total": 2},
            {"type": "metrics", "step": 7, "metrics": {"loss": 0.5, "bad": "nan", "up": "inf", "down": "-inf"}},
            {"type": "heartbeat", "step": 7, "collective": 9},
            {"type": "heartbeat", "collective": {"sequence": 10, "done": True}, "phase": "data"},
            {"type": "heartbeat", "step": 8, "step_times": {"steps": 8, "seconds": 2.5, "wait": 0.5}},
            {"type": "metrics", "step": 8, "metrics": {"loss": 0.25}},
            {"type": "checkpoint", "step": 8, "path": str(self.folder / "made-8"), "shard": 0, "shards": 1,
             "metrics": {"loss": 0.25}, "keep": False, "ack": True}])
        self.assertIn("step 8  loss 0.25\n", done.stdout)

    def test_only_rank_0s_metrics_are_kept_and_each_rank_may_have_a_shard(self):
        head, env = self.head()
        self.answer(WHOLE + 'dtrain.report({"loss": 1}, 1)\n'
                    'print(json.dumps(str(dtrain.checkpoint(whole(1, "a"), 1, shard=1, shards=2, keep=True))))',
                    rank=1, size=2, **env)
        self.assertEqual([(r["type"], r.get("shard"), r.get("shards"), r.get("keep")) for r in head.wait_for(1)],
                         [("checkpoint", 1, 2, True)])

    def test_a_checkpoint_that_nobody_confirms_is_an_error(self):
        for answer, said in ((b'{"error":"no room"}\n', "no room"), (b"[]\n", "not understood"), (None, "was closed")):
            with self.subTest(said):
                head, env = self.head(lambda report, answer=answer: answer)
                error = self.fails(WHOLE + 'dtrain.checkpoint(whole(3, "a"), 3)', rank=0, size=1, **env)
                self.assertIn("checkpoint of step 3 was not committed", error)
                self.assertIn(said, error)
                self.doCleanups()
                self.setUp()
        self.assertIn("was not committed", self.fails(WHOLE + 'dtrain.checkpoint(whole(3, "a"), 3)',
                                                      DTRAIN_REPORT_SOCKET=self.folder / "gone"))

    def test_a_socket_that_is_gone_never_stops_the_training_for_metrics(self):
        done = self.run_script('for s in range(3): dtrain.report({"a": s}, s)\n', DTRAIN_REPORT_SOCKET="/gone")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("training goes on"), 1)

    def test_a_head_that_was_started_again_gets_the_next_report(self):
        head, env = self.head()
        self.answer("""
import socket
dtrain.report({"a": 1}, 1)
# The connection is broken by hand, as a restarted head breaks it.
from dtrain import _rank
_rank._reporter()._socket.shutdown(socket.SHUT_RDWR)
dtrain.report({"a": 2}, 2)
print("{}")
""", rank=0, size=1, **env)
        self.assertEqual(sorted(r["step"] for r in head.wait_for(2)), [1, 2])

    def test_a_checkpoint_waits_for_its_commit_without_a_limit(self):
        _, env = self.head()
        got, _ = self.answer(WHOLE + """
import socket
limits = []
class Watched(socket.socket):
    def makefile(self, *words, **more):
        limits.append(self.gettimeout())
        return super().makefile(*words, **more)
socket.socket = Watched
print(json.dumps([str(dtrain.checkpoint(whole(1, "a"), 1)), limits]))
""", rank=0, size=1, **env)
        self.assertEqual(got, ["/final", [None]])

    def test_what_cannot_be_reported_is_said(self):
        for call, said in (('dtrain.report({"a": "x"}, 1)', "metric a: 'x' is not a number"),
                           ('dtrain.report({"": 1}, 1)', "1 to 128 printable"),
                           ('dtrain.report({1: 1}, 1)', "1 to 128 printable"),
                           ('dtrain.report({"a": 1}, -1)', "step=-1"),
                           ('dtrain.report({"a": 1}, 1.5)', "step=1.5"),
                           ('dtrain.report({str(i): 1 for i in range(257)}, 1)', "at most 256"),
                           ('dtrain.checkpoint(folder / "none", 1)', "is a folder"),
                           ('dtrain.checkpoint(folder, 1, shard=2, shards=2)', "not below shards=2"),
                           ('dtrain.configure(num_to_keep=2)', "together with storage_path"),
                           ('dtrain.configure(folder, num_to_keep=0)', "num_to_keep=0"),
                           ('dtrain.configure(folder, score_order="up")', "max or min")):
            with self.subTest(call):
                self.assertIn(said, self.fails(call, rank=0, size=1))
        self.assertIn("does not say which part", self.fails("dtrain.checkpoint(folder, 1)", rank=1, size=2))


class Storage(Case):
    """Without dtrain: the same rules, kept by rank 0."""

    def numbers(self):
        return sorted(path.name for path in (self.folder / "store" / "checkpoints").glob("checkpoint_*"))

    def keep(self, body="", **options):
        return WHOLE + f'dtrain.configure(folder / "store", **{options!r})\n' + body

    def test_a_committed_checkpoint_is_as_the_format_says(self):
        path, _ = self.answer(self.keep('print(json.dumps(str(dtrain.report({"acc": 0.5, "bad": float("nan")}, 470, '
                                        'whole(1, "abc")))))'), rank=0, size=2, TORCHELASTIC_RESTART_COUNT=1)
        path = Path(path)
        self.assertEqual(path, self.folder / "store" / "checkpoints" / "checkpoint_000000")
        manifest = json.loads((path / "manifest.json").read_text())
        self.assertRegex(manifest.pop("created"), r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        shard = "shard-00000-of-00001"
        self.assertEqual(manifest, {
            "format": "dtrain-checkpoint", "version": 1, "number": 0, "job": "", "attempt": 2, "step": 470,
            "world_size": 2, "shards": 1, "metrics": {"acc": 0.5, "bad": "nan"},
            "files": [{"path": f"{shard}/sub/empty", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
                      {"path": f"{shard}/w.txt", "size": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}]})
        self.assertEqual((path / shard / "w.txt").read_text(), "abc")
        self.assertEqual(json.loads((path / shard / "shard.json").read_text())["step"], 470)
        self.assertFalse((self.folder / "made-1").exists())  # moved
        self.assertEqual(list((self.folder / "store" / "checkpoints" / ".tmp").iterdir()), [])

    def test_a_restart_goes_on_from_the_newest(self):
        self.answer(self.keep('dtrain.report({}, 5, whole(1, "a")); dtrain.report({}, 9, whole(2, "b"), keep=True)\n'
                              'print(json.dumps((folder / "made-2").exists()))'))
        self.assertTrue((self.folder / "made-2").exists())
        got, _ = self.answer(self.keep('dtrain.report({"x": 1}, checkpoint=None)\n'
                                       'print(json.dumps([(dtrain.resume_path() / "w.txt").read_text(), '
                                       'dtrain.resume_step()]))'))
        self.assertEqual(got, ["b", 9])
        _, done = self.answer(self.keep('dtrain.report({"x": 1})\nprint("{}")'))
        self.assertIn("step 10  x 1", done.stdout)
        self.assertIn("there is no shard 1", self.fails(self.keep("dtrain.resume_path(1)")))

    def test_num_to_keep_keeps_the_best_and_the_newest(self):
        script = self.keep('for s, a in enumerate([0.1, 0.9, float("nan"), 0.5, 0.2]):\n'
                           '    dtrain.report({"a": a}, s, whole(s, "x"))\nprint("{}")',
                           num_to_keep=2, score_attribute="a")
        self.answer(script)
        self.assertEqual(self.numbers(), ["checkpoint_000001", "checkpoint_000003", "checkpoint_000004"])

    def test_what_this_run_began_from_stays_as_long_as_it_runs(self):
        self.answer(self.keep('dtrain.report({}, 1, whole(1, "a"))\nprint("{}")', num_to_keep=1))
        got, _ = self.answer(self.keep('p = dtrain.resume_path()\n'
                                       'for s in 2, 3: dtrain.report({}, s, whole(s, "b"))\n'
                                       'print(json.dumps((p / "w.txt").read_text()))', num_to_keep=1))
        self.assertEqual(got, "a")
        self.assertEqual(self.numbers(), ["checkpoint_000000", "checkpoint_000002"])
        self.answer(self.keep('dtrain.resume_path(); dtrain.report({}, 4, whole(4, "c"))\nprint("{}")', num_to_keep=1))
        self.assertEqual(self.numbers(), ["checkpoint_000002", "checkpoint_000003"])

    def test_an_old_one_that_cannot_be_removed_takes_nothing_from_the_new_one(self):
        script = self.keep('dtrain.report({}, 1, whole(1, "x"))\n'
                           'def refused(*_, **__): raise PermissionError(13, "refused")\n'
                           'dtrain._checkpoints.shutil.rmtree = refused\n'
                           'print(json.dumps(str(dtrain.report({}, 2, whole(2, "y")))))', num_to_keep=1)
        path, done = self.answer(script)
        self.assertTrue(path.endswith("checkpoint_000001"), path)
        self.assertRegex(done.stderr, "warning: older checkpoints than .* are not removed: .*refused")

    def test_damaged_ones_are_passed_over(self):
        self.answer(self.keep('for s in range(3): dtrain.report({}, s, whole(s, str(s)))\nprint("{}")'))
        store = self.folder / "store" / "checkpoints"
        (store / "checkpoint_000002" / "shard-00000-of-00001" / "w.txt").write_text("9")  # the same size
        (store / "checkpoint_000001" / "manifest.json").unlink()
        resumed = self.keep('p = dtrain.resume_path()\nprint(json.dumps((p / "w.txt").read_text()))')
        got, done = self.answer(resumed)
        self.assertEqual(got, "0")
        self.assertIn("does not match its SHA-256", done.stderr)
        self.assertIn("checkpoint_000002.bad", self.numbers())
        # Its number is not given again.
        path, _ = self.answer(self.keep('print(json.dumps(str(dtrain.report({}, 7, whole(7, "7")))))'))
        self.assertTrue(path.endswith("checkpoint_000003"), path)
        for folder in store.glob("checkpoint_*"):
            if (folder / "manifest.json").exists():
                (folder / "manifest.json").write_text("{")
        self.assertIn("is whole", self.fails(self.keep("dtrain.resume_path()")))

    def test_what_an_earlier_run_left_unfinished_goes(self):
        left = self.folder / "store" / "checkpoints" / ".tmp" / "attempt-1-step-1" / "shard-00000-of-00001"
        left.mkdir(parents=True)
        (left / "old").write_text("old")
        path, _ = self.answer(self.keep('print(json.dumps(str(dtrain.report({}, 1, whole(1, "a")))))'))
        self.assertFalse((Path(path) / "shard-00000-of-00001" / "old").exists())

    FULL = """
import errno, shutil
from dtrain import _checkpoints
written, full = _checkpoints._write, set()
def write(path, document):
    if path.name in full:
        path.with_name(path.name + ".part").write_text("{")
        raise OSError(errno.ENOSPC, "no room")
    written(path, document)
_checkpoints._write = write
def refused(call, *arguments, **more):
    try:
        call(*arguments, **more)
    except (dtrain.DtrainError, OSError) as error:
        return str(error)
def there(made):
    return sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file())
"""

    def test_a_folder_that_is_not_committed_stays_the_programs(self):
        for full in "shard.json", "manifest.json":
            for how in "moved", "copied", "other file system", "other file system, full":
                with self.subTest(full=full, how=how):
                    got, _ = self.answer(self.keep(self.FULL + f"""
how = {how!r}
if how.startswith("other"):
    renamed = os.rename
    def rename(a, b):
        if (folder / "store" in Path(a).parents) != (folder / "store" in Path(b).parents):
            raise OSError(errno.EXDEV, "another file system")
        renamed(a, b)
    _checkpoints.os.rename = rename
if how.endswith("full"):
    def copytree(source, target):
        Path(target).mkdir()
        (Path(target) / "w.txt").write_text("")
        raise OSError(errno.ENOSPC, "no room")
    copied, shutil.copytree = shutil.copytree, copytree
made = whole(1, "abc")
full.add({full!r})
said = refused(dtrain.checkpoint, made, 1, keep=how == "copied")
left = [(made / "w.txt").read_text(), there(made), os.listdir(folder / "store" / "checkpoints" / ".tmp")]
full.clear()
if how.endswith("full"): shutil.copytree = copied
path = dtrain.checkpoint(made, 1, keep=how == "copied")
shard = path / "shard-00000-of-00001"
print(json.dumps([said, left, path.name, (shard / "w.txt").read_text(), there(shard), made.exists()]))"""))
                    said, left, name, text, files, exists = got
                    self.assertIn("was not committed: [Errno 28] no room", said)
                    self.assertEqual(left, ["abc", ["sub/empty", "w.txt"], []])
                    self.assertEqual((name, text), ("checkpoint_000000", "abc"))
                    self.assertEqual(files, ["shard.json", "sub/empty", "w.txt"])
                    self.assertEqual(exists, how == "copied")
                self.doCleanups()
                self.setUp()

    def test_a_folder_that_cannot_be_given_back_is_named_and_outlives_the_next_one(self):
        got, done = self.answer(WHOLE + self.FULL + """
renamed = os.rename
def rename(a, b):
    if Path(b) == folder / "made-1":
        raise PermissionError(errno.EACCES, "refused")
    renamed(a, b)
_checkpoints.os.rename = rename
full.add("manifest.json")
said = refused(dtrain.checkpoint, whole(1, "a"), 1)
full.clear()
dtrain.checkpoint(whole(2, "b"), 2)
left = folder / "store" / "checkpoints" / ".tmp" / "attempt-1-step-1" / "shard-00000-of-00001"
print(json.dumps([said, there(left), str(left)]))""", DTRAIN_STORAGE_PATH=self.folder / "store")
        said, files, left = got
        self.assertIn("was not committed: [Errno 28] no room", said)
        self.assertEqual(files, ["sub/empty", "w.txt"])
        self.assertIn(f"made-1 was not committed, and is {left} now: ", done.stderr)

    def test_links_and_shards_are_refused(self):
        self.assertIn("regular files only", self.fails(self.keep(
            'm = whole(1, "a"); os.symlink("/etc/passwd", m / "l"); dtrain.checkpoint(m, 1)')))
        self.assertIn("need dtrain", self.fails(self.keep('dtrain.checkpoint(whole(2, "a"), 2, shard=0, shards=2)')))

    def test_without_a_storage_it_says_so_once(self):
        got, done = self.answer(WHOLE + 'print(json.dumps([dtrain.checkpoint(whole(s, "a"), s) for s in (1, 2)]))')
        self.assertEqual(got, [None, None])
        self.assertEqual(done.stderr.count("checkpoints stay where they are"), 1)
        self.assertTrue((self.folder / "made-1" / "w.txt").exists())

    def test_dtrains_checkpoint_and_the_ones_beside_it(self):
        self.answer(self.keep('for s in range(3): dtrain.report({}, s, whole(s, str(s)))\nprint("{}")'))
        store = self.folder / "store" / "checkpoints"
        read = 'print(json.dumps((dtrain.resume_path() / "w.txt").read_text()))'
        env = {"DTRAIN_REPORT_SOCKET": "/gone", "DTRAIN_CHECKPOINT": store / "checkpoint_000001"}
        self.assertEqual(self.answer(read, **env)[0], "1")
        (store / "checkpoint_000001" / "shard-00000-of-00001" / "w.txt").write_text("9")
        self.assertEqual(self.answer(read, **env)[0], "0")
        self.assertEqual(len(self.numbers()), 3)  # the head's are not touched


class Command(Case):
    """Jobs from Python, with a `dtrain` that is a script: what it was told, and what it makes of answers."""

    def command(self, shell):
        """A `dtrain` of these shell lines, $verb being its first word; its words go into a file."""
        path = self.folder / "dtrain"
        path.write_text('#!/bin/sh\nverb=$1\nprintf "%s\\n" "$@" "" >> "$FOLDER/words"\n' + shell)
        path.chmod(0o755)
        return {"DTRAIN": path}

    def words(self):
        """The words of each call."""
        return [call.split("\n") for call in (self.folder / "words").read_text().rstrip("\n").split("\n\n")]

    def follower(self, env):
        process = subprocess.Popen([sys.executable, "-c", 'import dtrain; dtrain.Job("j-1", "c").follow()'],
                                   env={**os.environ, "PYTHONPATH": str(MODULE), "PYTHONDONTWRITEBYTECODE": "1",
                                        "FOLDER": str(self.folder), **{k: str(v) for k, v in env.items()}},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        limit = threading.Timer(60, process.kill)
        limit.start()
        self.addCleanup(limit.cancel)
        return process

    def test_a_checkpoint_that_did_not_come_is_an_error(self):
        env = self.command("""echo '{"job":"j-1","folder":"j-1","files":[],"troubles":["a: gone","b: cut"]}'; exit 1""")
        error = self.fails('dtrain.Job("j-1", "c").pull()', **env)
        self.assertIn("the head cannot read a: gone\nthe head cannot read b: cut\n", error)
        env = self.command("""echo '{"job":"j-1","folder":"j-1","files":[],"troubles":[]}'""")
        self.assertEqual(self.answer('print(json.dumps(str(dtrain.Job("j-1", "c").pull())))', **env)[0], "j-1")

    def test_a_text_is_written_as_it_is(self):
        env = self.command("""for last; do :; done; cat "$last" > "$FOLDER/job.json"; echo '{"job":"j-1"}'""")
        self.answer('print(json.dumps(dtrain.submit(["a", "\U0001F600 ü"], local=True).id))', **env)
        written = (self.folder / "job.json").read_bytes()
        self.assertIn('"\U0001F600 ü"'.encode(), written)  # and no \\ud83d\\ude00, which is no YAML
        self.assertIn("is no Unicode: '\\udcff'", self.fails('dtrain.submit(["\\udcff"], local=True)', **env))

    def test_a_job_that_goes_on_is_told_by_flags(self):
        env = self.command("""echo '{"job":"j-2"}'""")
        self.answer('print(json.dumps(dtrain.submit("make", resume="j-1", local=True, max_restarts=2, '
                    'resources={"GPU": 1}).id))', **env)
        self.assertEqual(self.words(), [["submit", "--json", "-d", "--local", "--resume", "j-1", "--max-restarts=2",
                                         "--gpus=1", "--", "/bin/sh", "-c", "make"]])
        error = self.fails('dtrain.submit(resume="j-1", local=True, bundle="off", checkpoint={"TPU": 1})', **env)
        self.assertIn("submit(resume=…): bundle, checkpoint: TPU: cannot be changed", error)
        self.assertEqual(len(self.words()), 1)
        self.answer('print(json.dumps(dtrain.submit(resume="j-1", local=True, hang_timeout_s=60, on_hang="restart", '
                    'log_limit="1GiB", label_selector={"tier": "!gold"}, resources={"TPU": 1, "license": 2}).id))',
                    **env)
        self.assertEqual(self.words()[1:], [["submit", "--json", "-d", "--local", "--resume", "j-1",
                                             "--hang-timeout-s=60", "--on-hang=restart", "--log-limit=1GiB",
                                             "--label-selector=tier=!gold", "--resource=TPU=1",
                                             "--resource=license=2"]])

    def test_every_key_that_has_a_flag_can_be_changed(self):
        env = self.command("""echo '{"job":"j-2"}'""")
        keys = json.loads(SCHEMA.read_text())["properties"]
        # Mappings are empty: their names are those of each.
        values = {key: {} if key == "secrets" or "object" in shape.get("type", "") else "1"
                  for key, shape in keys.items()}
        got, _ = self.answer(f"""
refused = []
for key, value in json.loads({json.dumps(values)!r}).items():
    try:
        dtrain.submit(resume="j-1", local=True, **{{key: value}})
    except dtrain.DtrainError:
        refused.append(key)
print(json.dumps(refused))
""", **env)
        self.assertEqual(sorted(got), ["bundle", "restart"])

    def test_the_live_line_is_the_lowest_ranks(self):
        events = [(1, 5), (0, 3), (1, 6), (0, 4)]
        lines = "\n".join(json.dumps({"type": "progress", "rank": rank, "step": step}) for rank, step in events)
        env = self.command(f"cat <<'END'\n{lines}\nEND\n")
        done = self.run_script('import sys\nsys.stderr.isatty = lambda: True\ndtrain.Job("j-1", "c").follow()', **env)
        self.assertEqual(re.findall(r"step \d", done.stderr), ["step 5", "step 3", "step 4"])

    def test_a_folder_is_no_cluster_yaml(self):
        env = self.command("""echo '{}'""")
        self.answer('os.chdir(folder); os.mkdir("prod"); Path("c.yaml").write_text("")\n'
                    'for verb in dtrain.up, dtrain.status, dtrain.down: verb("prod"); verb("c.yaml"); verb()\n'
                    'dtrain.down(Path("c.yaml"), yes=True); print("{}")', **env)
        self.assertEqual(self.words(), [[verb, "--json", *words] for verb in ("up", "status", "down")
                                        for words in (["-c", "prod"], ["c.yaml"], [])]
                         + [["down", "--json", "c.yaml", "-y"]])

    def test_warnings_of_the_command_are_said(self):
        env = self.command("""echo "dtrain: of $verb" >&2
case $verb in
  logs) echo '{"type":"log","rank":0,"stream":"err","text":"line"}';;
  *) echo '{"state":"running","attempts":[{"world_size":2}]}';;
esac""")
        got, done = self.answer('j = dtrain.Job("j-1", "c")\nj.follow()\nprint(json.dumps([j.state, j.logs()]))', **env)
        # What the ranks wrote to stderr is theirs, and the command's own words are not among it.
        self.assertEqual(got, ["running", "[0] line\n"])
        self.assertEqual((done.stderr.count("dtrain: of result\n"), done.stderr.count("dtrain: of logs\n")), (3, 2))

    def test_warnings_come_while_a_job_is_followed(self):
        # It ends once its warning was seen.
        env = self.command("""echo "dtrain: early" >&2
read line < "$FOLDER/go"
echo '{"type":"state","state":"x"}'""")
        os.mkfifo(self.folder / "go")
        process = self.follower(env)
        self.assertEqual(process.stderr.readline(), "dtrain: early\n")
        (self.folder / "go").write_text("on\n")
        self.assertEqual(process.communicate(timeout=60)[1], "j-1: x\n")
        self.assertEqual(process.returncode, 0)

    @unittest.skipUnless(sys.platform == "linux", "prctl")
    def test_a_killed_interpreter_leaves_no_follower(self):
        env = self.command("""echo there >&2; exec sleep 600""")
        process = self.follower(env)
        self.assertEqual(process.stderr.readline(), "there\n")
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        ended = os.pidfd_open(child)
        self.addCleanup(os.close, ended)
        process.kill()
        process.communicate(timeout=60)
        gone = bool(select.select([ended], [], [], 10)[0])
        if not gone:
            os.kill(child, 9)
        self.assertTrue(gone)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[1:], verbosity=2)
