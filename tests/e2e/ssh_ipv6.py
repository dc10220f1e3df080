"""Hosts that have IPv6 alone."""

from ssh_harness import *

# Rank 0 takes the master port as TCPStore does, and hears from all others.
TALK = """
import os, socket
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("::", place[1]))
    server.listen()
    for _ in range(size - 1):
        print("heard", server.accept()[0].makefile().readline().strip(), flush=True)
else:
    for _ in range(600):
        try:
            socket.create_connection(place).sendall(f"rank {rank} of {socket.gethostname()}\\n".encode())
            break
        except ConnectionRefusedError:
            import time
            time.sleep(0.02)
print("nodes", os.environ["DTRAIN_NODE_IPS"].split("\\n"), flush=True)
"""


class Ipv6(HostsCase):
    count = 3
    options = {"ipv6": True}
    agents_on = "all"

    def test_up_submit_logs_exec_sync_down(self):
        self.assertIn(":", self.lab[0].address)
        self.up()
        self.assert_ready(0, 1, 2)
        status = self.json("status")
        self.assertEqual([node["address"] for node in status["nodes"]], [host.address for host in self.lab])
        self.assertIn(status["cluster"]["head"]["port"], self.lab[0].listening())
        (self.folder / "talk.py").write_text(TALK)
        out = self.ok("submit", "--nnodes", "3", "--", "python3", "talk.py")
        for index in (1, 2):
            self.assertIn(f"heard rank {index} of h{index}", out)
        self.assertIn(str([host.address for host in self.lab]), out)
        self.assertEqual(sorted(self.ok("logs").split("\n")), sorted(out.split("\n")))
        said = self.ok("exec", "--all", "--", "hostname")
        for host in self.lab:
            self.assertIn(host.name, said)
        (self.folder / "tree").mkdir()
        (self.folder / "tree" / "file").write_text("x\n")
        self.ok("sync", "up", "tree", "~/tree")
        self.assertEqual(self.lines(2, "~/tree/file"), ["x"])
        self.assertIn("already up", self.up())
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_clean(0, 1, 2)

    def test_ports_and_host_keys_in_brackets(self):
        for host in self.lab:
            host.configure_sshd("Port 2200")
            self.addCleanup(host.configure_sshd)
        self.lab.forget()
        write_yaml(self.yaml, {
            "cluster_name": "lab", "provider": {"type": "ssh", "hosts": [f"[{host.address}]:2200" for host in self.lab]},
            "auth": {"ssh_user": USER, "ssh_private_key": str(laboratory.private_key())}})
        said = self.refused("up", self.yaml)
        self.assertIn(f"[{self.lab[1].address}]:2200", said)
        self.ok("up", self.yaml, "--accept-new-host-keys")
        self.ok("up", self.yaml)
        self.assertEqual(list(self.states().values()), ["ready"] * 3)

    def test_the_head_by_name(self):
        """Names are looked up here; what nodes are told of each other are addresses."""
        self.write([0, 1], each={index: {"host": f"h{index}", "node": f"n{index}"} for index in (0, 1)})
        self.up("--accept-new-host-keys")
        self.assertEqual([node["address"] for node in self.json("status")["nodes"]],
                         [host.address for host in self.lab][:2])
        self.assertIn("rank 1", self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK"))

    def test_a_worker_out_of_reach_is_tried_through_the_head(self):
        self.lab[2].drop("fd00:77::1")
        self.up()
        self.assert_ready(0, 1, 2)
        self.assertIn("h2", self.ok("exec", "--node", "h2", "--", "hostname"))


if __name__ == "__main__":
    main()
