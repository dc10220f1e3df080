"""Parts of GPUs: jobs that share one. GPUs are told as in a step of Slurm, which counts those of its environment."""

from harness import *

SLEEPS = "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK; exec sleep 1000"


class GpuParts(ClusterCase):
    nodes = 0

    def up(self, gpus):
        self.write_cluster(1)
        self.env.update(SLURM_STEP_ID="0", CUDA_VISIBLE_DEVICES=gpus)
        self.ok("up", self.folder / "cluster.yaml")
        for name in ("SLURM_STEP_ID", "CUDA_VISIBLE_DEVICES"):
            del self.env[name]

    def running(self, *flags):
        job = self.submit(SLEEPS, *flags, "--stop-grace-s", "1")
        self.wait_state(job, "running")
        return job

    def sees(self, job, rank=0):
        return eventually(lambda: self.rank_output(job, rank).read_text(), "the rank says what it sees").split()

    def test_four_quarters_share_one_and_a_fifth_waits(self):
        self.up("0")
        jobs = [self.running("--gpus", "0.25") for _ in range(4)]
        for job in jobs:
            self.assertEqual(self.sees(job), ["0", "0"])
        fifth = self.submit("true", "--gpus", "0.25")
        waits = "needs 0.25 of a GPU on a node; node-0 has 0 of 1 GPU with 0.25 free"
        reason = lambda: self.job(fifth)["state"] == "queued" and \
            next(j["reason"] for j in self.json("status")["jobs"] if j["job"] == fifth)
        eventually(lambda: reason() == waits, "it waits for one of them")
        said = self.ok("status", "-v")
        self.assertIn("GPUs in use: 0\n", said)
        self.assertIn(f"{jobs[0]} on node-0: 0.25 of GPU 0\n", said)
        # Whoever dies, they have what they have.
        self.kill_agents("head")
        self.kill_agents("node")
        eventually(lambda: self.json("status")["nodes"][0]["state"] == "ready", "the node is back")
        self.assertEqual(self.json("status")["nodes"][0]["gpus_used"], {"0": 1})
        self.assertEqual(reason(), waits)
        self.ok("stop", jobs[2])
        self.wait_state(fifth, "succeeded")
        eventually(lambda: self.json("status")["nodes"][0]["gpus_used"] == {"0": 0.75}, "it has given its part back")

    def test_ranks_of_a_job_have_different_gpus(self):
        self.up("5,7")  # as Slurm numbers them
        job = self.running("--gpus", "0.5", "--nproc-per-node", "2")
        self.assertEqual([self.sees(job, rank) for rank in range(2)], [["5,7", "0"], ["5,7", "1"]])
        one = self.running("--gpus", "0.3")
        self.assertEqual(self.sees(one), ["5", "0"])
        self.assertEqual(self.json("status")["nodes"][0]["gpus_used"], {"0": 0.8, "1": 0.5})
        done = self.run_dtrain("submit", "--gpus", "0.25", "--nproc-per-node", "4", "--", "true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it needs 0.25 of each of 4 GPUs (its ranks share none) on a node; node-0 has 2 of 2 GPUs with 0.25 free",
                      done.stderr)

    def test_what_is_no_part_is_refused(self):
        self.up("0")
        for gpus, why in (("1.5", "or below 1 a part of a GPU in ten-thousandths, not 1.5"), ("half", "'half' is no number")):
            done = self.run_dtrain("submit", "--gpus", gpus, "--", "true")
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    main()
