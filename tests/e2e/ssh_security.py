"""Who gets in: not the network, not another user, not a node that has left."""

import ssl

from ssh_harness import *

# Runs in another host's network: every TCP port of the address that answers.
SCAN = """
import errno, select, socket, sys
found, wave = [], 500
for first in range(1, 65536, wave):
    waiting = {}
    for port in range(first, min(first + wave, 65536)):
        s = socket.socket(); s.setblocking(False)
        code = s.connect_ex((sys.argv[1], port))
        if code == 0: found.append(port); s.close()
        elif code == errno.EINPROGRESS: waiting[s] = port
        else: s.close()
    while waiting:
        _, ready, _ = select.select([], list(waiting), [], 5)
        if not ready: break
        for s in ready:
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0: found.append(waiting[s])
            del waiting[s]; s.close()
print(*found)
"""

# Runs in another host's network: TLS without a certificate, and bytes that are no TLS at all; prints
# what came back.
KNOCK = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
request = b"GET /v1/node/control HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
got = b""
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as raw, context.wrap_socket(raw) as tls:
        tls.sendall(request)
        got += tls.recv(1000)
except OSError:
    pass
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as raw:
        raw.sendall(request)
        plain = raw.recv(1000)
        got += plain if plain[:1] != b"\\x15" else b""  # a TLS alert says nothing of ours
except OSError:
    pass
print(got)
"""


class Security(HostsCase):
    count = 3
    agents_on = "all"

    def from_host(self, index, program, *arguments):
        return self.lab[index].in_network(sys.executable, "-c", program, *arguments).strip()

    def test_only_sshd_and_the_heads_port_are_open(self):
        self.up()
        port = self.json("status")["cluster"]["head"]["port"]
        self.assertEqual(sorted(self.lab[0].listening()), sorted([22, port]))
        self.assertEqual(list(self.lab[1].listening()), [22])
        self.assertEqual(self.from_host(2, SCAN, self.lab[0].address), f"22 {port}")
        self.assertEqual(self.from_host(2, SCAN, self.lab[1].address), "22")

    def test_the_port_closes_on_whoever_has_no_certificate(self):
        self.up()
        port = self.json("status")["cluster"]["head"]["port"]
        self.assertEqual(self.from_host(2, KNOCK, self.lab[0].address, port), "b''")
        self.assert_ready(0, 1, 2)

    def test_another_user_of_the_head_cannot_open_its_socket(self):
        self.up()
        sockets = [p for p in self.lab[0].path(f"/tmp/dtrain-{UID}").rglob("*.sock")]
        self.assertTrue(sockets)
        for path in sockets:
            self.assertEqual(stranger_at(path), "not connected")
            # Even with the way to it open to all, the kernel's word for the peer's uid decides.
            self.assertEqual(stranger_at(path, way_open=True), "hung up on")

    def test_another_user_who_has_taken_the_name_of_the_folder_of_sockets_is_no_obstacle(self):
        for host in self.lab[:2]:
            taken = host.path(f"/tmp/dtrain-{UID}")
            taken.mkdir(mode=0o700)  # root's
            self.addCleanup(taken.rmdir)
        self.up()
        self.assert_ready(0, 1, 2)
        out = self.ok("submit", "--nnodes", "3", "--", "sh", "-c", "echo rank $RANK is here")
        self.assertEqual(sorted(re.findall(r"rank (\d) is here", out)), ["0", "1", "2"])
        self.assertIn("bridged", self.ok("exec", "--node", "h1", "--", "echo", "bridged"))
        self.ok("down", "-y")
        for host in self.lab:
            self.assertEqual(list(host.path("/tmp").glob(f"dtrain-{UID}.*")), [])

    def test_another_user_who_has_taken_the_name_of_the_spare_folder_has_nothing_removed_and_is_no_head(self):
        host = self.lab[0]
        taken = host.path(f"/var/tmp/dtrain-{UID}")
        taken.mkdir()  # root's
        (taken / "agents").symlink_to(host.user_home)
        thesis = host.path("~/thesis")
        thesis.mkdir()
        (thesis / "text").write_text("years")
        for path in (thesis / "text", thesis):
            os.chown(path, UID, UID)
            os.utime(path, (time.time() - 7200,) * 2)
        self.up()
        self.assertTrue((thesis / "text").exists())
        head = next(host.path("~/.dtrain").glob("*/head"))
        feigned = taken / head.parent.name / "head"
        (feigned / "ca").mkdir(parents=True)
        for name in ("head.json", "ca/cert.pem"):
            (feigned / name).write_bytes((head / name).read_bytes())
            (feigned / name).chmod(0o644)
        self.ok("down", "-y")
        self.assertTrue((thesis / "text").exists())
        self.assertIn("cluster lab is not up", self.refused("submit", self.yaml, "--", "/bin/true", code=4))
        self.assertFalse((self.root() / "cluster.json").exists(), "another user's head was taken for the cluster's")

    def test_secrets_are_in_no_argument_log_or_state(self):
        secret = "s3cret-" + os.urandom(8).hex()
        self.up()
        job = self.json("submit", "-d", "--nnodes", "2", "--secret", "TOKEN", "--", "/bin/sh", "-c",
                        'test -n "$TOKEN" && echo ${#TOKEN} characters; while [ ! -e ~/stop ]; do sleep 0.05; done',
                        env={"TOKEN": secret})["job"]
        eventually(lambda: self.ok("logs", job).count("23 characters") == 2, "both ranks have it")
        for host in self.lab:
            for pid in host.processes():
                with contextlib.suppress(OSError):
                    self.assertNotIn(secret.encode(), Path(f"/proc/{pid}/cmdline").read_bytes())
        for said in (self.ok("status", "--json"), self.ok("result", "--json", job), self.ok("logs", job)):
            self.assertNotIn(secret, said)
        for place in [*(host.path("~/.dtrain") for host in self.lab), self.folder]:
            for path in place.rglob("*"):
                if path.is_file() and secret.encode() in path.read_bytes():
                    self.assertIn("secrets", str(path))
                    self.assertEqual(path.stat().st_mode & 0o077, 0, path)
        for host in self.lab:
            host.path("~/stop").touch()
        self.wait_state(job, "succeeded")
        found = [path for host in self.lab for path in host.path("~/.dtrain").rglob("*")
                 if path.is_file() and secret.encode() in path.read_bytes()]
        self.assertEqual(found, [])

    def test_no_credential_of_the_user_reaches_a_host(self):
        self.up()
        self.ok("submit", "--", "/bin/true")
        key = laboratory.private_key().read_text().split("\n")[3].encode()
        for host in self.lab:
            for path in host.path("~/").rglob("*"):
                if path.is_file() and not path.is_symlink():
                    self.assertNotIn(key, path.read_bytes(), path)
            for pid in host.processes(UID):
                with contextlib.suppress(OSError):
                    self.assertNotIn(b"SSH_AUTH_SOCK", Path(f"/proc/{pid}/environ").read_bytes())

    def test_keys_stay_where_they_were_made(self):
        self.up()
        keys = {index: {p.read_bytes() for p in self.lab[index].path("~/.dtrain").rglob("key.pem")}
                for index in range(3)}
        self.assertEqual(len(keys[0] | keys[1] | keys[2]), sum(len(k) for k in keys.values()))
        for index in range(3):
            self.assertTrue(keys[index])
            for path in self.lab[index].path("~/.dtrain").rglob("key.pem"):
                self.assertEqual(path.stat().st_mode & 0o077, 0, path)
        self.assertEqual([p for i in (1, 2) for p in self.lab[i].path("~/.dtrain").rglob("ca/key.pem")], [])
        laptop = [p for p in self.folder.rglob("*.pem") if b"PRIVATE" in p.read_bytes()]
        self.assertEqual(laptop, [])

    def test_a_node_that_has_left_is_not_let_in_again(self):
        self.up()
        identity = next(self.lab[2].path("~/.dtrain").glob("*/h2/identity"))
        stolen = self.folder / "stolen"
        stolen.mkdir()
        for path in identity.iterdir():
            (stolen / path.name).write_bytes(path.read_bytes())
        port = self.json("status")["cluster"]["head"]["port"]
        knock = ("import socket, ssl, sys\nc = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\nc.check_hostname = False\n"
                 "c.verify_mode = ssl.CERT_NONE\nc.load_cert_chain(sys.argv[3] + '/cert.pem', sys.argv[3] + '/key.pem')\n"
                 "t = c.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60))\n"
                 "try:\n t.sendall(sys.argv[4].encode().replace(b'|', b'\\r\\n'))\n print(t.recv(12))\n"
                 "except (ConnectionError, ssl.SSLError): print(b'')")
        joins = ("GET /v1/node/control HTTP/1.1|Host: x|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|"
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||")
        submits = "POST /v1/jobs HTTP/1.1|Host: x|Content-Length: 2||{}"

        def answer(request):
            return self.from_host(2, knock, self.lab[0].address, port, stolen, request)

        self.assertEqual(answer(joins), "b'HTTP/1.1 101'")
        self.assertEqual(answer(submits), "b''", "a node submits a job")
        self.write([0, 1])
        self.up()
        self.assertEqual(answer(joins), "b''")


if __name__ == "__main__":
    main()
