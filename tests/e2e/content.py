"""Jobs whose files are sent by content: workdirs, bundles, what is sent again and what is not. The
nodes are local ones; DTRAIN_STAGE=1 has their jobs sent as to machines elsewhere."""

import hashlib
import shutil

from harness import *

DEADLINE_S = DEADLINE
LIBRARY = 'extern "C" int answer() { return %d; }\n'
PROGRAM = """
#include <cstdio>
extern "C" int answer();
int main() { std::printf("answer %d\\n", answer()); }
"""


class Content(ClusterCase):
    nodes = 0

    def setUp(self):
        super().setUp()
        # Over the network, though these nodes are on the head's machine.
        self.env.update(DTRAIN_STAGE="1", DTRAIN_CONTENT_FETCH="network")
        self.write_cluster(3)
        self.ok("up", self.folder / "cluster.yaml")

    # ---- helpers

    def workdir(self, name, **files):
        folder = self.folder / name
        folder.mkdir()
        for path, text in files.items():
            (folder / path).write_text(text)
        return folder

    def submit_in(self, folder, script, *flags):
        return self.ok("submit", "--workdir", folder, *flags, "--", "/bin/sh", "-c", script)

    def node_content(self, node):
        return self.root() / "nodes" / f"node-{node}" / "content"

    def head_content(self):
        return self.root() / "head" / "content"

    def blobs(self, content):
        return {p.name: p for p in below(content / "blobs") if p.is_file()}

    def build(self, *args):
        subprocess.run(["g++", "-O0", *map(str, args)], check=True, timeout=DEADLINE_S)

    def build_program(self, number):
        """A program in a folder of its own, whose library lies where no loader would look."""
        hidden = self.folder / "hidden"
        hidden.mkdir(exist_ok=True)
        work = self.folder / "program"
        work.mkdir(exist_ok=True)
        (hidden / "answer.cpp").write_text(LIBRARY % number)
        (hidden / "main.cpp").write_text(PROGRAM)
        self.build("-shared", "-fPIC", "-Wl,-soname,libanswer.so.1", hidden / "answer.cpp",
                   "-o", hidden / "libanswer.so.1")
        if not (work / "train").exists():
            self.build(hidden / "main.cpp", hidden / "libanswer.so.1", f"-Wl,-rpath,{hidden}",
                       "-o", work / "train")
        return work, hidden

    # ---- tests

    def test_each_attempt_has_a_copy_of_the_workdir_as_it_was(self):
        folder = self.workdir("work", data="one", other="two")
        (folder / "sub" / "deep").mkdir(parents=True)
        (folder / "sub" / "run").write_text("#!/bin/sh\necho run\n")
        (folder / "sub" / "run").chmod(0o755)
        (folder / "link").symlink_to("data")
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_text("no")
        (folder / ".dtrainignore").write_text("*.tmp\n")
        (folder / "x.tmp").write_text("no")
        out = self.submit_in(folder, "pwd; cat data link; ./sub/run; ls -A; ls sub; echo new > data;"
                                     " echo $RANK > mine-$RANK", "--nproc-per-node", "1", "--no-prefix")
        self.assertIn("/workdir-1\n", out)
        self.assertIn("oneone", out)
        self.assertIn("run\n", out)
        self.assertIn("deep\n", out)
        self.assertNotIn(".git", out)
        self.assertNotIn("x.tmp", out)
        # What the ranks write is theirs: neither the folder here nor the stored content changes.
        self.assertEqual((folder / "data").read_text(), "one")
        out = self.submit_in(folder, "cat data; ls", "--no-prefix")
        self.assertIn("one", out)
        self.assertNotIn("mine-0", out)

    def test_the_keys_of_clusters_stay_behind_wherever_they_are(self):
        out = self.submit_in(self.folder, "ls -A state | wc -l; ls cluster.yaml", "--no-prefix")
        self.assertEqual(out.split(), ["0", "cluster.yaml"])

    def test_two_jobs_with_different_workdirs_do_not_see_each_other(self):
        script = "cat who; while [ ! -e go ]; do sleep 0.02; done; cat who"
        jobs = {}
        for name in "ab":
            folder = self.workdir(name, who=f"I am {name}\n")
            jobs[name] = self.submit(script, "--workdir", folder)
        for job in jobs.values():
            self.wait_state(job, "running")
        for folder in self.root().glob("nodes/*/jobs/*/workdir-1"):
            (folder / "go").touch()
        for name, job in jobs.items():
            self.wait_state(job, "succeeded")
            self.assertEqual(self.rank_output(job, 0).read_text(), f"I am {name}\n" * 2)
            self.ok("rm", job)
        eventually(lambda: not list(self.root().glob("nodes/*/jobs/*/workdir-1")),
                   "the workdirs go with their jobs")

    def test_a_library_from_anywhere_goes_along_and_only_what_changed_goes_again(self):
        work, hidden = self.build_program(41)
        (work / "big").write_bytes(os.urandom(3 << 20))
        plan = self.json("bundle", work / "train")
        taken = {f["name"]: f for f in plan["files"] if f["taken"]}
        self.assertIn("libanswer.so.1", taken)
        self.assertIn("its R", taken["libanswer.so.1"]["reason"])
        self.assertNotIn("libc.so.6", taken)
        self.assertRegex(plan["glibc"], r"^2\.\d+$")

        def run():
            job = self.json("submit", "-d", "--workdir", work, "--nnodes", "3", "--",
                            "./train")["job"]
            self.wait_state(job, "succeeded", "failed")
            return [self.rank_output(job, rank).read_text() for rank in range(3)]

        self.assertEqual(run(), ["answer 41\n"] * 3)
        first = set(self.blobs(self.node_content(1)))
        self.assertEqual(set(self.blobs(self.node_content(2))), first)

        self.build_program(42)
        self.assertEqual(run(), ["answer 42\n"] * 3)
        second = set(self.blobs(self.node_content(1)))
        # The library, and the bundle's tree that names it.
        self.assertEqual(len(second - first), 2)
        new = hashlib.sha256((hidden / "libanswer.so.1").read_bytes()).hexdigest()
        self.assertIn(new, second - first)

        # Nothing changed: nothing new anywhere.
        before = set(self.blobs(self.head_content()))
        self.assertEqual(run(), ["answer 42\n"] * 3)
        self.assertEqual(set(self.blobs(self.head_content())), before)

    def test_the_bundle_is_what_runs_where_the_library_is_gone(self):
        work, hidden = self.build_program(7)
        first = self.submit("while [ ! -e go ]; do sleep 0.02; done", "--workdir",
                            self.workdir("first"))
        self.wait_state(first, "running")
        job = self.json("submit", "-d", "--workdir", work, "--after", first, "--", "./train")["job"]
        # Submitted and not started yet: now the library, and the program, are gone from here.
        shutil.rmtree(hidden)
        self.assertNotEqual(subprocess.run([work / "train"], capture_output=True,
                                           timeout=DEADLINE_S).returncode, 0)
        shutil.rmtree(work)
        (next(self.root().glob(f"nodes/*/jobs/{first}/workdir-1")) / "go").touch()
        self.wait_state(job, "succeeded", "failed")
        self.assertEqual(self.rank_output(job, 0).read_text(), "answer 7\n")

    def test_a_program_outside_of_the_workdir_goes_along(self):
        work, _ = self.build_program(5)
        folder = self.workdir("empty", data="x")
        out = self.ok("submit", "--workdir", folder, "--no-prefix", "--", work / "train")
        self.assertIn("answer 5", out)
        self.assertTrue(list(self.root().glob("nodes/*/content/bundles/*/bin/train")))

    def test_damaged_content_is_noticed_and_sent_again(self):
        folder = self.workdir("work", data="whole\n" * 1000)
        text = (folder / "data").read_bytes()
        name = hashlib.sha256(text).hexdigest()
        self.submit_in(folder, "true", "--nnodes", "3")
        # On a node: another byte, the same size. On the head: gone.
        spoiled = self.blobs(self.node_content(0))[name]
        spoiled.chmod(0o644)
        spoiled.write_bytes(b"X" + text[1:])
        out = self.submit_in(folder, "sha256sum data", "--no-prefix")
        self.assertIn(name, out)
        for content in (self.head_content(), self.node_content(1)):
            self.blobs(content)[name].unlink()
        out = self.submit_in(folder, "sha256sum data", "--nnodes", "3", "--no-prefix")
        self.assertEqual(out.count(name), 3)

    def test_a_node_that_dies_while_it_fetches_goes_on(self):
        incoming = self.node_content(0) / "incoming"
        node, size = self.node_pid(0), 300 << 20

        def on_its_way():
            with contextlib.suppress(FileNotFoundError):  # it has just come
                return any(1 << 20 < p.stat().st_size < size for p in incoming.glob("*"))
            return False

        def caught():
            """The node stands still amid the file; or it has all of it."""
            if on_its_way():
                os.kill(node, signal.SIGSTOP)
                if on_its_way():
                    return "midway"
                os.kill(node, signal.SIGCONT)
            return want in self.blobs(self.node_content(0)) and "past"

        # Again with another file where a busy machine let one come before it was seen.
        for number in range(5):
            folder = self.workdir(f"work{number}")
            (folder / "big").write_bytes(os.urandom(size))
            want = hashlib.sha256((folder / "big").read_bytes()).hexdigest()
            job = self.submit("sha256sum big", "--workdir", folder)
            if eventually(caught, "the file is on its way", pause=0.005) == "midway":
                break
            self.wait_state(job, "succeeded")
        self.assertEqual(self.state(job), "staging")
        os.kill(node, signal.SIGKILL)
        self.wait_state(job, "succeeded")
        self.assertIn(want, self.rank_output(job, 0).read_text())
        self.assertEqual(list(incoming.glob("*")), [])

    def test_a_stop_while_files_are_brought(self):
        folder = self.workdir("work")
        (folder / "big").write_bytes(os.urandom(300 << 20))
        job = self.submit("sleep 1000", "--workdir", folder)
        self.wait_state(job, "staging", "starting", "running")
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.ok("rm", job)
        eventually(lambda: not list(self.root().glob("nodes/*/jobs/" + job)), "its folder goes")

    def test_a_restart_has_a_fresh_workdir(self):
        folder = self.workdir("work", data="as sent\n")
        script = "cat data; echo spoiled > data; exit $((DTRAIN_ATTEMPT == 1))"
        out = self.submit_in(folder, script, "--max-restarts", "1", "--no-prefix")
        self.assertEqual(out.count("as sent"), 2)

    def test_what_is_refused_before_anything_is_sent(self):
        done = self.run_dtrain("submit", "--workdir", self.folder / "nowhere", "--", "/bin/true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("nowhere", done.stderr)

    def node_pid(self, number):
        mark = f"nodes/node-{number}"
        for pid in self.agents("node"):
            if Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(mark.encode()):
                return pid
        raise AssertionError(f"no agent of node-{number}")


class OnTheHeadsMachine(ClusterCase):
    def test_content_is_linked_and_not_kept_twice(self):
        self.env["DTRAIN_STAGE"] = "1"
        (self.folder / "work").mkdir()
        (self.folder / "work" / "data").write_bytes(b"data" * 100000)
        self.ok("submit", "--workdir", self.folder / "work", "--", "/bin/sh", "-c",
                "test $(wc -c < data) = 400000 && echo more >> data")
        name = hashlib.sha256(b"data" * 100000).hexdigest()
        ours = self.root() / "head" / "content" / "blobs" / name[:2] / name
        nodes = self.root() / "nodes" / "node-0" / "content" / "blobs" / name[:2] / name
        self.assertEqual(ours.stat().st_ino, nodes.stat().st_ino)
        self.assertEqual(hashlib.sha256(ours.read_bytes()).hexdigest(), name)


if __name__ == "__main__":
    main()
