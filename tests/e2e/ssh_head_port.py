"""The head's port and address: kept, waited for, told to the nodes by the next up."""

from ssh_harness import *

HOLDER = ("import socket, sys\ns = socket.create_server(('', int(sys.argv[1])))\nprint('listens', flush=True)\n"
          "while True: s.accept()[0].close()")


class HeadPort(HostsCase):
    count = 2
    agents_on = "all"

    def port(self):
        return self.json("status")["cluster"]["head"]["port"]

    def both_run_ranks(self):
        self.assertEqual(self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK").count("rank"), 2)

    def test_a_port_that_is_taken_is_waited_for_and_told(self):
        self.up()
        port = self.port()
        self.assertLess(port, 32768, "kernels give the ports from there on to whoever asks for any")
        head = self.lab[0]
        head.poweroff()
        holder = subprocess.Popen(["nsenter", f"--net={head.folder}/net", sys.executable, "-c", HOLDER, str(port)],
                                  stdout=subprocess.PIPE)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        holder.stdout.readline()
        holder.stdout.close()
        head.boot()
        up = self.start("up", self.yaml, "--json")
        told = next((line for line in up.stdout if "is taken by another program" in line), "")
        self.assertIn(f"port {port}", told)
        self.assertIn(f"port {port} is taken by another program", self.ok("status"))
        holder.kill()
        said = up.communicate(timeout=DEADLINE)[0]
        self.assertEqual(up.returncode, 0, said)
        self.assert_ready(0, 1)
        self.assertEqual(self.port(), port)
        self.assertNotIn("taken", self.ok("status"))
        self.both_run_ranks()

    def test_another_port_reaches_the_nodes_by_up_alone(self):
        self.up()
        port = self.port()
        provider = json.loads(self.yaml.read_text().split("provider: ")[1].split("\n")[0])
        self.write(provider={**provider, "head_port": port + 50})
        self.up()
        self.assert_ready(0, 1)
        self.assertEqual(self.port(), port + 50)
        self.both_run_ranks()
        self.assertIn("already up", self.up())

    def test_another_address_reaches_the_nodes_by_up_alone(self):
        self.up()
        head = self.lab[0]
        moved = "10.77.0.200"
        old, head.address = head.address, moved
        self.addCleanup(setattr, head, "address", old)
        head.in_network("ip", "addr", "del", f"{old}/24", "dev", "eth0")
        head.in_network("ip", "addr", "add", f"{moved}/24", "dev", "eth0")
        self.addCleanup(head.in_network, "ip", "addr", "add", f"{old}/24", "dev", "eth0")
        self.addCleanup(head.in_network, "ip", "addr", "del", f"{moved}/24", "dev", "eth0")
        self.lab.trust()
        self.write()
        self.up()
        self.assert_ready(0, 1)
        self.both_run_ranks()


if __name__ == "__main__":
    main()
