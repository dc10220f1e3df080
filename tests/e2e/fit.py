"""Programs that make jobs and searches of themselves: examples/torch_trainer and tune_mnist."""

import socket

from harness import *

DATA = "/usr/share/datasets/fashion-mnist"


class Driver(ClusterCase):
    example = "torch_trainer"

    def command(self, *arguments):
        return [str(BUILD / "examples" / self.example / self.example), *arguments]

    def run_program(self, *arguments, code=0, **env):
        done = subprocess.run(self.command(*arguments), env={**self.env, "DTRAIN": str(DTRAIN), **env},
                              cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def interrupted(self, stream):
        """Interrupts it once it says on that stream that it runs; gives what it says then."""
        process = subprocess.Popen(self.command(DATA), env={**self.env, "DTRAIN": str(DTRAIN)}, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        said = ""
        while "running" not in said:
            line = getattr(process, stream).readline()
            self.assertTrue(line, said)
            said += line
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of the group
        out, err = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, -signal.SIGINT, out + err)
        return err


class Fit(Driver):
    nodes = 2

    def test_it_submits_itself_and_returns_the_result(self):
        done = self.run_program(DATA, "128")
        result = self.json("result")
        self.assertEqual((result["name"], result["state"], result["attempts"][0]["world_size"]),
                         ("fashion-mnist", "succeeded", 2))
        self.assertEqual([c["step"] for c in result["checkpoints"]], [1, 2])
        lines = done.stdout.split("\n")
        self.assertEqual(len([line for line in lines if line.startswith("[0] step ")]), 2, done.stdout)
        # What stands behind fit() is said once, by the driver, and is what the job's result says.
        self.assertIn(f"loss {result['metrics']['loss']:g}", lines)
        self.assertIn(f"checkpoint {result['checkpoints'][-1]['path']}", lines)
        self.assertEqual(len([line for line in lines if "checkpoint /" in line and not line.startswith("[")]), 1)

    def test_what_train_func_throws_is_the_error(self):
        done = self.run_program("/none", code=1)
        self.assertRegex(done.stderr, r"(?m)^it failed: rank \d on node-\d: exit code 1\n.* in /none$")
        self.assertEqual(len(self.json("result")["attempts"]), 2)  # max_failures is 1

    def test_an_interrupt_detaches(self):
        self.assertRegex(self.interrupted("stderr"), r"dtrain logs -f\b.* fashion-mnist-")
        self.assertEqual(self.json("result")["state"], "running")
        self.ok("stop", "--grace-s", "1")

    def test_without_the_command_it_says_what_to_do(self):
        done = self.run_program(code=1, DTRAIN="", PATH="/none")
        self.assertIn("torchrun --no-python", done.stderr)

    def test_as_torchruns_ranks(self):
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            ranks = []
            for rank in range(2):
                env = {**self.env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                       "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]),
                       "OMP_NUM_THREADS": "1"}
                ranks.append(subprocess.Popen(self.command(DATA, "128"), env=env, cwd=self.folder, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            self.started += ranks
            outputs = [process.communicate(timeout=600)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0, 0], outputs)
        self.assertRegex(outputs[1], r"(?m)^loss \S+\n")
        self.assertTrue((self.folder / "runs/fashion-mnist/checkpoints/checkpoint_000001/manifest.json").exists())


class Search(Driver):
    example = "tune_mnist"

    def test_it_searches_and_returns_the_results(self):
        done = self.run_program(DATA, "256")
        best = self.json("tune", "best")
        self.assertEqual(best["search"].split("-")[:2], ["tune", "mnist"])
        found = re.search(r"(?m)^the best of 30: accuracy (\S+) with (.*)$", done.stdout)
        self.assertEqual(f"{best['value']:g}", found[1], done.stdout)
        self.assertEqual(best["params"], json.loads(found[2]))
        self.assertTrue(Path(best["checkpoint"]["path"]).is_dir())
        trials = self.json("tune", "result")["trials"]
        self.assertEqual({trial["state"] for trial in trials}, {"complete", "stopped"})
        # The program alone, as a trial of a YAML.
        (self.folder / "search.yaml").write_text(json.dumps(
            {"command": self.command(), "space": {"lr": 0.1, "epochs": 2, "images": 256, "data": DATA},
             "metric": "accuracy", "mode": "max"}))
        self.ok("tune", self.folder / "search.yaml", deadline=120)
        self.assertEqual(self.json("tune", "best")["iteration"], 2)

    def test_trials_that_fail_are_the_error(self):
        done = self.run_program("/none", code=1)
        self.assertIn("it failed: 10 trials failed, and none ended well (fail_fast)", done.stderr)
        self.assertIn("no trial has reported the metric", done.stderr)

    def test_an_interrupt_detaches(self):
        self.assertRegex(self.interrupted("stdout"), r"dtrain tune status -f\b.* tune-mnist-")
        self.assertEqual(self.json("tune", "list")["searches"][0]["state"], "running")
        self.ok("tune", "stop", "--grace-s", "1")


class FirstCluster(Driver):
    """Without a cluster it brings this machine's up."""

    nodes = 0

    def name(self):
        return "local"

    def test_the_local_cluster_is_brought_up(self):
        done = self.run_program(DATA, "128")
        self.assertIn("no cluster is up: the local one is brought up", done.stderr)
        self.assertEqual(self.json("result")["state"], "succeeded")

    def test_a_cluster_that_was_named_is_not_replaced(self):
        done = self.run_program(code=1, DTRAIN_CLUSTER="nowhere")
        self.assertIn("nowhere", done.stderr)
        self.assertEqual(self.pids(), [])


if __name__ == "__main__":
    main()
