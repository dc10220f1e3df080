"""What is to be run: programs that are not there, words after --, and what a rank's environment has."""

from harness import *


class Programs(ClusterCase):
    def refused(self, *args):
        """The message of a submit that is refused before anything is queued."""
        done = self.run_dtrain("submit", *args)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(self.json("status")["jobs"], [])
        return done.stderr

    def test_what_cannot_be_started_is_refused_at_submit(self):
        (self.folder / "train.py").write_text("print('trained')\n")
        (self.folder / "train").write_text("#!/bin/sh\nexit 0\n")
        (self.folder / "train").chmod(0o755)
        for name, text in (("lost", "#!/no/such/interpreter\n"), ("windows", "#!/bin/sh\r\necho\r\n"),
                           ("plain.sh", "echo hello\n"), ("old.py", "#!/usr/bin/env no-such-python\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        said = self.refused("--max-restarts", "5", "--", "./trian")
        self.assertIn("./trian", said)
        self.assertIn("did you mean ./train?", said)
        self.assertIn("did you mean python3 ./train.py?", self.refused("--", "./train.py"))
        self.assertIn("did you mean python3 train.py?", self.refused("--", "train.py"))
        self.assertIn("did you mean ./train?", self.refused("--", "train"))
        self.assertIn("did you mean python3?", self.refused("--", "pyhton3", "train.py"))
        self.assertIn("/no/such/interpreter", self.refused("--", "./lost"))
        self.assertIn("line ends", self.refused("--", "./windows"))
        self.assertIn("did you mean sh ./plain.sh?", self.refused("--", "./plain.sh"))
        self.assertIn("no-such-python", self.refused("--", "./old.py"))
        self.assertIn("is a folder", self.refused("--", str(self.folder)))
        self.assertIn("/no/such/program", self.refused("--", "/no/such/program"))
        self.assertIn("no/such/folder", self.refused("--workdir", "no/such/folder", "--", "true"))
        (self.folder / "job.yaml").write_text("command: [./train.py]\nworkdir: gone\n")
        self.assertIn("gone", self.refused("job.yaml"))
        self.assertEqual(self.run_dtrain("submit", "--", "./train").returncode, 0)
        self.assertEqual(self.run_dtrain("submit", "--", "python3", "train.py").returncode, 0)

    def test_what_only_the_node_can_find_ends_the_job_at_once(self):
        # A setup might have made the program, so submit cannot know.
        done = self.run_dtrain("submit", "--max-restarts", "3", "--setup", "true", "--", "./built")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        result = self.json("result")
        self.assertEqual(len(result["attempts"]), 1, result)
        self.assertIn("node-0", result["error"]["message"])
        self.assertIn("./built", result["error"]["message"])
        self.assertIn(str(self.folder), result["error"]["message"])
        program = bytearray(Path("/bin/true").read_bytes())
        program[18] = 0xb7
        (self.folder / "other").write_bytes(program)
        (self.folder / "other").chmod(0o755)
        said = self.run_dtrain("submit", "--max-restarts", "3", "--", "./other").stderr
        self.assertIn("the program ./other, in folder", said)
        self.assertIn("is built for aarch64, and this machine is x86_64", said)
        self.assertEqual(len(self.json("result")["attempts"]), 1)
        # One that is made is started.
        (self.folder / "late").write_text("#!/bin/sh\necho late\n")
        self.ok("submit", "--setup", "chmod +x late", "--", "./late")
        first = self.submit("while [ ! -e go ]; do sleep 0.05; done; printf '#!/bin/sh\necho new\n' >new; chmod +x new")
        second = self.start("submit", "--after", first, "--", "./new")
        (self.folder / "go").touch()
        self.assertEqual(second.wait(DEADLINE), 0)
        self.ok("submit", "--setup", "printf '#!/bin/sh\\necho made\\n' >built; chmod +x built", "--", "./built")

    def test_torchruns_spellings(self):
        out = self.ok("submit", "--nproc_per_node=2", "--max_restarts", "1", "--", "/bin/sh", "-c",
                      "echo $RANK of $WORLD_SIZE, $TORCHELASTIC_MAX_RESTARTS")
        self.assertEqual(sorted(out.split("\n"))[1:], ["[0] 0 of 2, 1", "[1] 1 of 2, 1"])
        done = self.run_dtrain("submit", "--standalone", "--rdzv_backend", "c10d", "--rdzv-endpoint=h:29400",
                               "--master_port", "29500", "--node_rank=0", "--", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--rdzv-endpoint", done.stderr)
        self.assertIn("no effect", done.stderr)
        done = self.run_dtrain("submit", "--nnodes", "2", "--node_rank", "1", "--", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("all nodes", done.stderr)
        done = self.run_dtrain("submit", "--module", "pkg.train")
        self.assertEqual(done.returncode, 2)
        self.assertIn("python3 -m pkg.train", done.stderr)

    def test_switches_of_ours_pass_and_the_contract_does_not(self):
        out = self.ok("submit", "--env", "DTRAIN_TRANSPORT=gloo", "--env", "DTRAIN_TENSOR_CACHE=0", "--env",
                      "PYTHONUNBUFFERED=", "--", "/bin/sh", "-c",
                      "echo $DTRAIN_TRANSPORT $DTRAIN_TENSOR_CACHE [$PYTHONUNBUFFERED] $TORCHELASTIC_SIGNALS_TO_HANDLE")
        self.assertEqual(out, "gloo 0 [] SIGTERM,SIGINT,SIGHUP,SIGQUIT\n")
        for name in ("DTRAIN_JOB_ID", "RANK", "TORCHELASTIC_RUN_ID"):
            self.assertIn("is set by dtrain", self.run_dtrain("submit", "--env", f"{name}=1", "--", "true").stderr)

    def test_one_rule_for_words_after_the_dashes(self):
        self.assertEqual(self.ok("exec", "echo a | tr a b"), "b\n")
        self.assertEqual(self.ok("submit", "echo a | tr a b"), "b\n")
        (self.folder / "job.yaml").write_text("command: [false]\n")
        self.assertEqual(self.ok("submit", "job.yaml", "echo a | tr a b"), "b\n")
        self.assertEqual(self.ok("submit", "cluster.yaml", "echo a | tr a b"), "b\n")
        self.assertEqual(self.ok("submit", "job.yaml", "--", "echo", "a | b"), "a | b\n")
        # One word after -- is a program; that there is none proposes the other form.
        done = self.run_dtrain("submit", "--", "echo a | tr a b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("dtrain submit 'echo a | tr a b'", done.stderr)
        done = self.run_dtrain("exec", "--", "echo a | tr a b")
        self.assertEqual(done.returncode, 255)
        self.assertIn("dtrain exec 'echo a | tr a b'", done.stderr)
        # A name of a file stays one.
        self.assertIn("there is no file nothing", self.run_dtrain("submit", "nothing").stderr)

    def test_where_a_programs_own_options_belong(self):
        (self.folder / "job.yaml").write_text("command: [false]\n")
        (self.folder / "fit.py").write_text("print('fit')\n")
        done = self.run_dtrain("submit", "job.yaml", "fit.py", "--lr", "1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("dtrain submit job.yaml -- python3 ./fit.py --lr 1", done.stderr)
        done = self.run_dtrain("submit", "fit.py")
        self.assertEqual(done.returncode, 2)
        self.assertIn("dtrain submit -- python3 ./fit.py", done.stderr)


class ManyNodes(ClusterCase):
    nodes = 3

    def test_nodes_of_one_machine_share_its_cpus(self):
        show = ["/bin/sh", "-c", "echo ${OMP_NUM_THREADS-unset}"]
        out = self.ok("submit", "--nnodes", "3", "--no-prefix", "--", *show)
        self.assertEqual(out.split(), ["1"] * 3)
        self.assertEqual(self.ok("submit", "--", *show).split(), ["unset"])
        out = self.ok("submit", "--nnodes", "3", "--no-prefix", "--env", "OMP_NUM_THREADS=2", "--", *show)
        self.assertEqual(out.split(), ["2"] * 3)


if __name__ == "__main__":
    main()
