"""exec, attach, and who may come in at all."""

import pty
import select
import socket
import ssl

from harness import *


class Access(ClusterCase):
    nodes = 2

    def test_exec_returns_output_and_code(self):
        done = self.run_dtrain("exec", "--", "/bin/sh", "-c", "echo to out; echo to err >&2; exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("to out", done.stdout)
        self.assertIn("to err", done.stderr)
        self.assertEqual(self.run_dtrain("exec", "--", "/no/such/program").returncode, 255)

    def test_exec_on_all_nodes(self):
        out = self.ok("exec", "--all", "--", "/bin/echo", "hello")
        self.assertEqual(out.count("hello"), 2)
        self.assertIn("node-1", out)

    def test_exec_takes_stdin_and_much_output(self):
        done = self.run_dtrain("exec", "--", "/bin/sh", "-c", "cat; seq 1 200000", input="from stdin\n",
                               stdin=None)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("from stdin", done.stdout)
        self.assertIn("200000", done.stdout)
        self.assertEqual(len(done.stdout.split("\n")), 200002)

    def test_exec_on_a_node_that_is_just_coming_back(self):
        for _ in range(3):
            victim = next(p for p in self.agents("node")
                          if b"node-1" in Path(f"/proc/{p}/cmdline").read_bytes())
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: self.run_dtrain("exec", "--node", "node-1", "--", "/bin/true",
                                               deadline=20).returncode == 0, "it answers")

    def test_exec_input_waits_for_the_command(self):
        """A command that does not read: what is sent to it does not pile up in our processes."""
        feeder = subprocess.Popen(["head", "-c", "300M", "/dev/zero"], stdout=subprocess.PIPE)
        process = subprocess.Popen([str(DTRAIN), "exec", "--", "/bin/sleep", "3"], env=self.env,
                                   stdin=feeder.stdout, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        most = 0
        while process.poll() is None:
            for pid in self.agents("node") + self.agents("head"):
                text = Path(f"/proc/{pid}/status").read_text()
                most = max(most, int(re.search(r"VmRSS:\s+(\d+)", text).group(1)))
            time.sleep(0.05)
        feeder.kill()
        feeder.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertLess(most, 40000, "KiB resident")

    def test_a_signal_passes_input_that_waits(self):
        marker = f"{os.getpid()}66666"
        with open(self.folder / "big", "wb") as big:
            big.truncate(64 << 20)
        with open(self.folder / "big", "rb") as big:
            process = self.start("exec", "--", "/bin/sleep", marker, stdin=big)
            sent = Path(f"/proc/{process.pid}/fdinfo/0")
            # As much as may be on its way: nothing more is taken.
            eventually(lambda: int(re.search(r"pos:\s+(\d+)", sent.read_text()).group(1)) >= 2 << 20,
                       "the input waits")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(DEADLINE), 130)
        eventually(lambda: not processes_with(marker), "the command is gone")

    def test_no_process_of_exec_outlives_down(self):
        marker = f"{os.getpid()}77777"
        ours = self.start("exec", "--", "/bin/sleep", marker)
        eventually(lambda: processes_with(f"/bin/sleep\0{marker}"), "it runs")
        for pid in self.agents("node"):
            os.kill(pid, signal.SIGKILL)
        self.ok("down", "-y")
        self.assertEqual([p for p in processes_with(f"/bin/sleep\0{marker}") if p != ours.pid], [])

    def test_a_command_of_exec_ends_with_the_head(self):
        marker = f"{os.getpid()}88888"
        ours = self.start("exec", "--node", "node-1", "--", "/bin/sleep", marker)

        def command():
            return [p for p in processes_with(f"/bin/sleep\0{marker}") if p != ours.pid]

        eventually(command, "it runs")
        head, = self.agents("head")
        watch, = self.agents("watch")
        # Nobody starts the head again: by a new connection the node would end what the old one has begun.
        os.kill(watch, signal.SIGSTOP)
        self.addCleanup(os.kill, watch, signal.SIGCONT)
        os.kill(head, signal.SIGKILL)
        eventually(lambda: not command(), "the command is gone")
        self.assertEqual(self.agents("head"), [])

    def test_the_sockets_are_made_again(self):
        job = self.submit("sleep 1000")
        self.wait_state(job, "running")
        for path in self.sockets():
            path.unlink()
        eventually(lambda: self.run_dtrain("status").returncode == 0, "it answers again", 20)
        # A node agent that is started again finds its supervisor.
        for pid in self.agents("node"):
            os.kill(pid, signal.SIGKILL)
        self.ok("stop", job)
        self.wait_state(job, "stopped")

    def test_attach_is_a_terminal(self):
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(str(DTRAIN), ["dtrain", "attach"], {**self.env, "SHELL": "/bin/sh"})
        seen = b""

        def read_until(text):
            nonlocal seen
            until = time.monotonic() + 30
            while text not in seen:
                self.assertLess(time.monotonic(), until, seen)
                if select.select([fd], [], [], 0.1)[0]:
                    try:
                        seen += os.read(fd, 65536)
                    except OSError:
                        return

        os.write(fd, b"test -t 0 && echo is''-a-terminal\n")
        read_until(b"is-a-terminal")
        os.write(fd, b"exit 6\n")
        _, status = os.waitpid(pid, 0)
        os.close(fd)
        self.assertEqual(os.waitstatus_to_exitcode(status), 6)

    def test_sockets_and_keys_are_for_their_owner_only(self):
        for path in [*below(self.root(), "key.pem"), *self.sockets()]:
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)
        self.assertEqual(Path(f"/tmp/dtrain-{os.getuid()}").stat().st_mode & 0o777, 0o700)

    @unittest.skipUnless(os.getuid() == 0, "needs root to become another user")
    def test_another_user_is_hung_up_on(self):
        self.assertGreater(self.json("status")["cluster"]["head"]["port"], 0)
        job = self.submit("sleep 1000")
        self.wait_state(job, "running")
        ours = self.sockets()
        self.assertGreater(len(ours), 1, "the head's and the job's")
        for path in ours:
            self.assertEqual(stranger_at(path), "not connected")
            # Even with the path open to all, the kernel's word for the peer's uid decides.
            self.assertEqual(stranger_at(path, way_open=True), "hung up on", path)

    def test_the_port_wants_the_clusters_certificate(self):
        port = self.json("status")["cluster"]["head"]["port"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        got = b""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
                with context.wrap_socket(raw) as tls:
                    tls.sendall(b"GET /v1/node/control HTTP/1.1\r\nHost: x\r\n\r\n")
                    got = tls.recv(100)
        except OSError:
            pass
        self.assertEqual(got, b"")
        self.assertEqual([n["state"] for n in self.json("status")["nodes"]], ["ready", "ready"])


if __name__ == "__main__":
    main()
