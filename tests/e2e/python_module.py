"""The Python module: ranks under dtrain and under torchrun, jobs from a script, a notebook in a real
Jupyter kernel."""

import sys

from harness import *
from training import python_torch

MODULE = SOURCE / "trainer" / "python"
RANK = """
import json, os, signal, sys, tempfile, time
import dtrain
world, folder = dtrain.world(), dtrain.resume_path()
done = json.loads((folder / "done.json").read_text()) if folder else 0
assert done == dtrain.resume_step()
print(f"rank {world.rank} of {world.size} attempt {world.attempt} after {done}", flush=True)
open(f"came-{world.rank}", "w").close()
for step in range(done + 1, 7):
    dtrain.progress(step, total=6)
    checkpoint = None
    if world.rank == 0:
        checkpoint = tempfile.mkdtemp()
        json.dump(step, open(checkpoint + "/done.json", "w"))
    dtrain.report({"loss": 1 / step, "never": float("nan")}, step, checkpoint)
    if step == 3 and world.attempt == 1 and "--die" in sys.argv and world.rank == 0:
        while not os.path.exists("came-1"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Jobs(ClusterCase):
    nodes = 1

    def setUp(self):
        super().setUp()
        self.env.update(DTRAIN=str(DTRAIN), PYTHONPATH=str(MODULE), PYTHONDONTWRITEBYTECODE="1")
        (self.folder / "rank.py").write_text(RANK)
        self.submit_ranks = f"""
import dtrain, json, sys
env = {{'PYTHONPATH': {str(MODULE)!r}, 'DOLLAR': '$HOME${{HOME}}'}}
submit = lambda words, **more: dtrain.submit([sys.executable, *words], env=env, **more)
"""

    def script(self, text, code=0, **env):
        done = subprocess.run([sys.executable, "-c", self.submit_ranks + text], env={**self.env, **env},
                              cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_a_job_from_submit_to_pull(self):
        done = self.script("""
job = submit(["rank.py", "--die"], nproc_per_node=2, max_restarts=1, name="py", checkpoint={"num_to_keep": 2})
assert job.follow() is job
r = job.result()
folder = job.pull("brought", best=True)
print(json.dumps([r.state, r.ok, r.exit_code, r.step, r.metrics["loss"], r.metrics["never"] != r.metrics["never"],
                  [c.step for c in r.checkpoints], r.best_checkpoint.step, r.error, job.metrics(),
                  job.logs(rank=0, attempt=2), dtrain.job("py").id == job.id, job.state, len(r.raw["attempts"]),
                  [p.read_text() for p in folder.rglob("done.json")]]))
""")
        lines = done.stdout.split("\n")
        for rank in (0, 1):
            self.assertIn(f"[{rank}] rank {rank} of 2 attempt 1 after 0", lines)
        self.assertIn("[0] rank 0 of 2 attempt 2 after 3", lines)
        self.assertRegex(done.stderr, r"py-\w+: succeeded")
        got = json.loads(lines[-2])
        rows = got.pop(9)
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, 6])
        self.assertEqual(rows[1], {"step": 2, "loss": 0.5})
        self.assertEqual(got[:9], ["succeeded", True, 0, 6, 1 / 6, True, [5, 6], 6, None])
        self.assertIn("rank 0 of 2 attempt 2 after 3\n", got[9])
        self.assertEqual(got[10:], [True, "succeeded", 2, ["6"]])

    def test_a_failure_and_its_cause(self):
        done = self.script("""
r = submit(["-c", "import sys; print('no data', file=sys.stderr); sys.exit(3)"]).result()
print(json.dumps([r.state, r.ok, r.exit_code, r.error, r.raw["error"]["last_lines"]]))
""")
        self.assertEqual(json.loads(done.stdout), ["failed", False, 3, "rank 0 on node-0: exit code 3", ["no data"]])

    def test_values_are_meant_as_they_are(self):
        done = self.script("""
job = submit(["-c", "import os; print(os.environ['DOLLAR'], os.getcwd())"], workdir="a $b")
job.result(); print(job.logs(), end="")
job = dtrain.submit("echo $((1+2)) > line.txt; cat line.txt")
job.result(); print(job.logs(), end="")
for text in ("\\U0001F600 \\xfc", "a\\x7f\\x85b\\u2028c\\ufeff", "two\\nlines\\t\\"'"):
    echo = submit(["-c", "import sys; sys.stdout.buffer.write(ascii(sys.argv[1]).encode())", text])
    echo.result(); assert echo.logs() == ascii(text), (echo.logs(), ascii(text))
""".replace("job = submit", "import os; os.mkdir('a $b'); job = submit"))
        self.assertEqual(done.stdout, f"$HOME${{HOME}} {self.folder / 'a $b'}\n3\n")

    def test_stop_timeout_and_a_warm_start(self):
        done = self.script("""
job = submit(["-c", "import time; print('there', flush=True); time.sleep(600)"], stop_grace_s=1)
try:
    job.result(timeout=0.01)
except TimeoutError as error:
    print("timeout", job.id in str(error))
print(job.stop().state, job.result().state, job.result().error is not None)
first = submit(["rank.py"]); first.result()
again = dtrain.submit(resume=first, env={"MORE": "$HOME"}, timeout_s=100, resources={"CPU": 0.5},
                      checkpoint={"num_to_keep": 1})
print(again.result().raw["resumed_from"] == first.id, [c.step for c in again.result().checkpoints])
print(again.logs(), end="")
third = dtrain.submit("echo $MORE", resume=again); third.result()
print(third.logs(), end="")
try:
    third.logs(rank=7)
except dtrain.DtrainError as error:
    print("no rank 7" in str(error))
""")
        self.assertEqual(done.stdout, "timeout True\nstopped stopped True\n"
                         "True [1, 2, 3, 4, 5, 6]\nrank 0 of 1 attempt 1 after 6\n$HOME\nTrue\n")

    def test_errors_of_the_command(self):
        done = self.script("""
def fails(call):
    try:
        call()
    except dtrain.DtrainError as error:
        print(json.dumps([error.code, error.message, error.hint, error.location, len(error.problems)]))
fails(lambda: submit(["rank.py"], nproc=2, nnodes=0))
fails(lambda: dtrain.submit(["./rank.py"]))
fails(lambda: dtrain.job("none"))
fails(lambda: dtrain.status("nowhere"))
""")
        errors = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        self.assertEqual([e[0] for e in errors], ["invalid", "invalid", "not_found", "unreachable"], errors)
        self.assertEqual(errors[0][1], "nproc: no such key in a job YAML\nnnodes: must be 1 to 10000, not 0")
        self.assertEqual((errors[0][3], errors[0][4]), (None, 2))
        missing = self.script("dtrain.status()", code=1, DTRAIN="/none/dtrain")
        self.assertIn("DTRAIN=/none/dtrain: no such program", missing.stderr)
        missing = self.script("dtrain.status()", code=1, DTRAIN="", PATH="/none")
        self.assertIn("the command dtrain is not in PATH", missing.stderr)

    def test_a_cluster_by_its_yaml(self):
        refused = self.run_dtrain("down", "-c", "cluster.yaml")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("cluster.yaml is a cluster YAML, and no cluster of that name is known", refused.stderr)
        self.assertIn("dtrain down cluster.yaml", refused.stderr)
        done = self.script("""
print(dtrain.status("cluster.yaml")["cluster"]["name"])
down = dtrain.down("cluster.yaml")
print(down["cluster"], down["was_up"], down["complete"])
""")
        self.assertEqual(done.stdout, "e2e\ne2e True True\n")
        self.assertEqual(self.pids(), [])

    def test_the_command_in_path_and_beside_the_module(self):
        copy = self.folder / "site" / "dtrain"
        copy.mkdir(parents=True)
        for path in (MODULE / "dtrain").glob("*.py"):
            (copy / path.name).write_bytes(path.read_bytes())
        (copy.parent / "bin").mkdir()
        (copy.parent / "bin" / "dtrain").symlink_to(DTRAIN)
        print_name = "print(dtrain.status()['cluster']['name'])"
        self.assertEqual(self.script(print_name, DTRAIN="", PATH=str(DTRAIN.parent)).stdout, "e2e\n")
        self.assertEqual(self.script(print_name, DTRAIN="", PATH="/none", PYTHONPATH=str(copy.parent)).stdout, "e2e\n")

    def test_an_interrupt_detaches(self):
        process = subprocess.Popen(
            [sys.executable, "-uc", self.submit_ranks +
             "submit(['-c', 'import time; print(\"there\", flush=True); time.sleep(600)'], name='long').follow()"],
            env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        self.assertEqual(process.stdout.readline(), "there\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
        self.assertRegex(out, r"^long-\w+ goes on. To come back: dtrain.job\('long-\w+'\).follow\(\)")
        self.assertIn("KeyboardInterrupt", err)
        self.assertEqual(self.json("result", "long")["state"], "running")
        self.ok("stop", "long", "--grace-s", "1")

    def test_python_ddp_under_dtrain_and_torchrun(self):
        torch = python_torch()
        if torch is None:
            self.skipTest("no python3 with torch here (scripts/bench installs one)")
        example = SOURCE / "examples" / "python_ddp"
        flags = [word for name, value in torch.items() for word in ("--env", f"{name}={value}")]
        out = self.ok("submit", "--nproc-per-node", "2", *flags, "--workdir", example, "--", sys.executable, "train.py",
                      deadline=180)
        ours = re.findall(r"(?m)^\[0\] (step \d+  loss \S+)$", out)
        self.assertEqual(len(ours), 4, out)
        self.assertEqual([c["step"] for c in self.json("result")["checkpoints"]], [5, 10, 15, 20])
        theirs = []
        for steps in (10, 20):  # the second goes on where the first ended
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                 "train.py", "--steps", str(steps), "--storage", str(self.folder / "store")],
                env={**self.env, **torch}, cwd=example, capture_output=True, text=True, timeout=180)
            self.assertEqual(done.returncode, 0, done.stderr)
            theirs += re.findall(r"(?m)^(step \d+  loss \S+)$", done.stdout)
        self.assertIn("rank 1 goes on after step 10", done.stdout)
        self.assertEqual(theirs, ours)


def jupyter():
    """A python3 with a kernel and nbclient, or None."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import nbclient, ipykernel"], capture_output=True).returncode == 0:
            return python
    return None


RUN_NOTEBOOK = """
import nbclient, nbformat, sys
notebook = nbformat.read(sys.argv[1], as_version=4)
# The kernel of this very Python, whatever kernels are installed.
from jupyter_client.manager import AsyncKernelManager
manager = AsyncKernelManager()
manager.kernel_spec.argv[0] = sys.executable
client = nbclient.NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": sys.argv[2]}})
client.execute()
nbformat.write(notebook, sys.argv[2] + "/done.ipynb")
"""


class Notebook(ClusterCase):
    nodes = 0

    def name(self):
        return "local"

    def test_the_example_in_a_kernel(self):
        python = jupyter()
        if python is None:
            self.skipTest("no Jupyter kernel here (scripts/setup --tests installs one)")
        env = {**self.env, "DTRAIN": str(DTRAIN), "PYTHONPATH": str(MODULE), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([python, "-c", RUN_NOTEBOOK, SOURCE / "examples" / "notebook.ipynb", self.folder],
                              env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = [cell["outputs"] for cell in json.loads((self.folder / "done.ipynb").read_text())["cells"]
                 if cell["cell_type"] == "code"]

        def text(outputs, kind):
            return "".join("".join(o.get("text", [])) if o["output_type"] == "stream"
                           else "".join(o.get("data", {}).get("text/plain", [])) + "\n"
                           for o in outputs if o["output_type"] in kind)

        self.assertIn("'ready'", text(cells[0], ["execute_result"]))
        # One display that was updated in place, and the ranks' lines.
        shown = [o for o in cells[2] if o["output_type"] == "display_data"]
        self.assertEqual(len(shown), 1, cells[2])
        self.assertRegex("".join(shown[0]["data"]["text/plain"]), r"descent-\w+ succeeded step 20/20  loss ")
        self.assertIn('<progress value="20" max="20">', "".join(shown[0]["data"]["text/html"]))
        self.assertIn("[1] rank 1 of 2 begins at 10.000\n", text(cells[2], ["stream"]))
        self.assertRegex(text(cells[2], ["execute_result"]), r"Job\('descent-\w+', cluster='local'\)")
        self.assertRegex(text(cells[3], ["execute_result"]), r"\('succeeded', \{'loss': 0.01\d+\}, 20\)")
        self.assertIn("20", text(cells[4], ["execute_result"]))
        self.assertIn("did you mean max_restarts?", text(cells[5], ["stream"]))
        self.assertEqual(text(cells[6], ["execute_result"]), "True\n")


if __name__ == "__main__":
    main()
