"""Words and small ways of the command line, each as somebody met it."""

import struct

from harness import *


class Programs(unittest.TestCase):
    def test_the_agent_needs_nothing_of_a_node_and_talks_to_no_cloud(self):
        """Static, for any Linux; what asks clouds is dtrain-scaler, on the head's machine alone."""
        agent = (BUILD / "agent" / "dtrain-agent").read_bytes()
        self.assertEqual(agent[:5], b"\x7fELF\x02")
        [first] = struct.unpack_from("<Q", agent, 32)
        size, count = struct.unpack_from("<HH", agent, 54)
        kinds = [struct.unpack_from("<I", agent, first + i * size)[0] for i in range(count)]
        self.assertIn(1, kinds)  # PT_LOAD
        self.assertNotIn(3, kinds)  # PT_INTERP: who would load shared libraries
        self.assertNotIn(b"curl_easy_", agent)
        self.assertIn(b"curl_easy_", DTRAIN.read_bytes())


class SmallThings(ClusterCase):
    def test_status_says_how_long_it_is_up(self):
        self.assertRegex(self.ok("status"), r"local, up for \d[\d.]* (ms|s|m .*),")

    def test_a_restart_says_its_reason_once(self):
        done = self.run_dtrain("submit", "--max-restarts", "1", "--", "/bin/sh", "-c", "exit 3")
        self.assertEqual(done.stderr.count("restart 1 of 1 after rank 0"), 1, done.stderr)

    def test_a_result_says_its_reason_once(self):
        self.run_dtrain("submit", "--", "sh", "-c", "exit 3")
        said = self.ok("result")
        self.assertEqual(said.count("rank 0 on node-0: exit code 3"), 1, said)
        self.assertIn("root cause", said)

    def test_keys_that_differ_in_case_alone(self):
        (self.folder / "job.yaml").write_text("command: [true]\nresources: {cpu: 1}\n")
        done = self.run_dtrain("submit", "job.yaml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean CPU?", done.stderr)

    def test_srun_where_no_slurm_is(self):
        for wait in ([], ["--wait"]):
            done = self.run_dtrain("submit", "--launcher", "srun", *wait, "--", "true")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("no node of this cluster, whose provider is local, is in a Slurm allocation", done.stderr)
            self.assertIn("leave launcher out", done.stderr)
        self.assertEqual(self.json("status")["jobs"], [])

    def test_forward_to_a_node_that_is_not_there(self):
        done = self.run_dtrain("forward", "0:node-7:80", deadline=20)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no node node-7", done.stderr)
        self.assertIn("node-0", done.stderr)

    def test_a_plot_of_one_point_warns_of_nothing(self):
        report = ("import json,os,socket; s=socket.socket(socket.AF_UNIX); s.connect(os.environ['DTRAIN_REPORT_SOCKET']);"
                  "s.sendall(json.dumps({'type':'metrics','step':1,'metrics':{'loss':0.5},'ack':True}).encode()+b'\\n');"
                  "s.recv(100)")
        self.ok("submit", "--", "python3", "-c", report)
        done = self.run_dtrain("plot")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("arning", done.stderr)
        self.assertIn("loss", done.stdout)

    def test_up_of_a_name_that_is_not_known(self):
        done = self.run_dtrain("-c", "new", "up")
        self.assertEqual(done.returncode, 2)
        self.assertIn("Cluster new is not known here", done.stderr)


if __name__ == "__main__":
    main()
