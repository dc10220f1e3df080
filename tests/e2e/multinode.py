"""Jobs over several nodes, which on one machine are several agents."""

from harness import *


class Multinode(ClusterCase):
    nodes = 4

    def test_ranks_spread_over_nodes(self):
        out = self.ok("submit", "--nnodes", "4", "--nproc-per-node", "2", "--", "/bin/sh", "-c",
                      'echo "<$RANK $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE $MASTER_ADDR $MASTER_PORT>"')
        rows = sorted(re.findall(r"<(\d) (\d) (\d) (\d) (\d) (\S+) (\d+)>", out))
        self.assertEqual([r[:5] for r in rows],
                         [(str(i), str(i % 2), str(i // 2), "4", "8") for i in range(8)])
        self.assertEqual(len({r[5:] for r in rows}), 1)

    def test_one_failure_ends_all_nodes(self):
        job = self.submit("[ $RANK = 3 ] && { sleep 0.3; exit 4; }; sleep 1000", "--nnodes", "4")
        self.wait_state(job, "failed")
        error = self.job(job)["error"]
        self.assertEqual((error["rank"], error["node"], error["exit_code"]), (3, "node-3", 4))
        self.assertEqual(processes_with_environment(f"DTRAIN_JOB_ID={job}"), [])

    def test_a_killed_supervisor_on_one_node_ends_the_rest(self):
        job = self.submit("while :; do sleep 1000; done", "--nnodes", "2")
        self.wait_state(job, "running")
        os.kill(self.agents("supervise")[0], signal.SIGKILL)
        self.wait_state(job, "failed")
        eventually(lambda: not processes_with_environment(f"DTRAIN_JOB_ID={job}"), "all gone", 5)

    def test_elastic_range_takes_what_is_there(self):
        out = self.ok("submit", "--nnodes", "2:9", "--", "/bin/sh", "-c", "echo w$WORLD_SIZE")
        self.assertIn("w4", out)

    def test_a_node_agent_killed_in_a_job_of_all_nodes(self):
        stop = self.folder / "stop"
        job = self.json("submit", "-d", "--nnodes", "4", "--env", f"STOP={stop}", "--", "/bin/sh", "-c",
                        'while [ ! -e "$STOP" ]; do sleep 0.05; done; echo done $RANK')["job"]
        self.wait_state(job, "running")
        os.kill(self.agents("node")[2], signal.SIGKILL)
        eventually(lambda: all(n["state"] == "ready" for n in self.json("status")["nodes"]),
                   "the node is back")
        stop.touch()
        self.wait_state(job, "succeeded")
        for rank in range(4):
            self.assertIn(f"done {rank}", self.ok("logs", job))


class MachinesApart(ClusterCase):
    nodes = 2
    apart = True

    def test_the_first_failure_across_nodes_is_dated_by_measured_clocks(self):
        job = self.submit("[ $RANK = 1 ] && { sleep 0.3; exit 4; }; sleep 1000", "--nnodes", "2")
        self.wait_state(job, "failed")
        attempt = self.job(job)["attempts"][0]
        self.assertTrue(attempt["reason"].startswith("rank 1 on node-1: exit code 4"), attempt["reason"])
        root = attempt["causes"]["listed"][0]
        self.assertEqual((root["role"], root["rank"], root["node"]), ("root", 1, "node-1"))
        self.assertLess(root["uncertainty_ms"], 1000)
        self.assertIn("root", self.ok("result", job, "-v"))


if __name__ == "__main__":
    main()
