"""Machines that join by themselves: docs/join.md as written, each tool and shell that may fetch the agent,
and whatever a join credential could be misused for."""

import concurrent.futures
import hashlib
import http.client
import socket
import ssl

from ssh_harness import *

PAGE = SOURCE / "docs" / "join.md"
# What a script needs beside the one program that fetches.
UTILITIES = ("base64", "cat", "chmod", "cut", "date", "echo", "grep", "gzip", "id", "mkdir", "mv", "rm", "sed",
             "sha256sum", "sleep", "tail", "uname", "wc", "head")
TOOLS = ("curl", "python3", "openssl")


def once(script):
    """The script, without its later rounds."""
    rounds = "for i in 0 1 2 3 4 5 6 7 8;"
    assert rounds in script
    return script.replace(rounds, "for i in 0;")


def elsewhere(script, *addresses):
    return re.sub(r" A='.*'", f" A='{' '.join(addresses)}'", script)


def fetching(script):
    """The script, on a machine that has the agent already."""
    fetched = re.sub(r"(?m)^S=[0-9a-f]{64}$", "S=none", script)
    assert fetched != script
    return fetched


class JoinCase(HostsCase):
    """h0 is the head and the only host of the YAML; the others are machines that nobody logs in to."""

    agents_on = (0,)

    def setUp(self):
        super().setUp()
        self.write([0])
        self.up()

    def paste(self, index, text, *, shell=("/bin/sh",), env=None, code=0):
        """Runs `text` there as a person who is logged in would, and gives what was said."""
        env = {"HOME": "/home/dev", "PATH": "/usr/bin:/bin", **(env or {})}
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *shell, "-c",
                 '("$@") 2>&1; echo "exit $?"', "sh", *shell, "-c", text]
        said, _, status = self.lab[index].run(*words, user=USER).rpartition("exit ")
        self.assertEqual(int(status), code, said)
        return said

    def script(self, *flags):
        return self.ok("join-command", "--script", *flags)

    def node(self, name):
        return next((n for n in self.json("status")["nodes"] if n["node"] == name), None)

    def wait_ready(self, name):
        return eventually(lambda: (n := self.node(name)) and n["state"] == "ready" and n, f"{name} is ready")

    def head_log(self):
        root = self.json("status")["cluster"]["head"]["root"]
        return self.lab[0].path(f"{root}/head.log").read_text()

    def bin(self, index, programs):
        """A folder there with these programs and no others; gives PATH."""
        folder = self.lab[index].path("~/bin")
        folder.mkdir()
        for program in programs:
            (folder / program).symlink_to(f"/usr/bin/{program}")
        return "/home/dev/bin"


class Join(JoinCase):
    count = 3

    def test_the_page_works_as_written(self):
        """Blocks named `sh` are for the laptop, `machine` for the machine that is to join."""
        text = PAGE.read_text()
        done, pasted, line = 0, 0, ""
        for language, block in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text):
            if language == "sh":
                for command in block.strip().split("\n"):
                    env = {**self.env, "PATH": f"{DTRAIN.parent}:{os.environ['PATH']}"}
                    ran = subprocess.run(["/bin/bash", "-c", command], cwd=self.folder, env=env, text=True,
                                         stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
                    self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stdout}\n{ran.stderr}")
                    line = next((l for l in ran.stdout.split("\n") if l.endswith("|sh")), line)
                    done += 1
            if language == "machine":
                # The page shows the line cut short.
                self.assertIn("joins", self.paste(1, line if block.startswith("echo ") else block))
                self.wait_ready("joined-1")
                pasted += 1
        self.assertGreater(done, 5)
        self.assertEqual(pasted, 1)
        self.assert_clean(0, 1)

    def test_a_node_that_joined_is_a_node(self):
        line = self.ok("join-command", "--type", "gpu").strip()
        self.assertLess(len(line), 4096)
        self.assertNotIn("\n", line)
        self.paste(1, line)
        node = self.wait_ready("joined-1")
        self.assertEqual((node["joined"], node["type"], node["address"]), (True, "gpu", self.lab[1].address))
        self.assertFalse(self.node("h0")["joined"])
        self.assertEqual(self.json("status")["cluster"]["expected_nodes"], 1)
        self.assertEqual(self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK").count("rank"), 2)
        # Nothing of the credential is left there, and no up takes the node away.
        self.assertEqual([], [p for p in self.lab[1].path("~/.dtrain/agents").iterdir() if p.name.startswith(".")])
        self.up()
        self.assertEqual(self.node("joined-1")["state"], "ready")
        # Nobody logs in to it by SSH: a terminal there goes through the head.
        self.lab[1].configure_sshd("DenyUsers *")
        terminal = self.terminal("attach", "--node", "joined-1", size=(33, 101))
        terminal.type("echo $(hostname)-'is'-here; stty size\n")
        terminal.read_until("h1-is-here")
        terminal.read_until("33 101")
        terminal.type("exit 6\n")
        self.assertEqual(terminal.end(), 6)
        # The head is started anew: who has joined is known.
        root = self.json("status")["cluster"]["head"]["root"]
        for pid in self.lab[0].processes(UID, f"head --root {root}"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.wait_ready("joined-1")
        # The name is not another's.
        self.refused("join-command", "--node", "joined-1")
        self.assertEqual(self.json("join-command", "--list")["joins"][0]["state"], "used")
        self.ok("down", "-y")
        self.assert_clean(0, 1)

    def test_a_node_that_joined_leaves_when_it_is_revoked(self):
        self.paste(1, self.script())
        self.wait_ready("joined-1")
        job = self.submit("exec sleep 1000", "--nnodes", "2")
        self.wait_state(job, "running")
        self.assertIn("has ranks running", self.refused("join-command", "--revoke", "joined-1"))
        self.ok("stop", job)
        self.ok("join-command", "--revoke", "joined-1")
        self.assertIsNone(self.node("joined-1"))
        self.assert_clean(1)
        self.assertIn("no join credential", self.refused("join-command", "--revoke", "joined-1", code=2))
        # What is kept of it stays its own.
        self.assertEqual(self.json("join-command")["node"], "joined-2")

    def test_down_says_what_a_node_that_is_away_keeps(self):
        self.paste(1, self.script())
        self.wait_ready("joined-1")
        self.lab[1].cut()
        eventually(lambda: self.node("joined-1")["state"] in ("joining", "lost"), "gone")
        self.assertIn("what it had stays on it", self.refused("down", "-y"))
        self.assert_clean(0)
        self.lab[1].join()
        # By hand, as the page says.
        root = next(self.lab[1].path("~/.dtrain").glob("lab-*/joined-1"))
        agent = next(self.lab[1].path("~/.dtrain/agents").glob("*/dtrain-agent"))
        there = lambda path: "/" + str(path.relative_to(self.lab[1].root))
        self.paste(1, f"{there(agent)} leave --root {there(root)}")
        self.assert_clean(1)

    def test_a_node_that_was_away_when_it_was_revoked_leaves_when_it_is_back(self):
        self.paste(1, self.script())
        self.wait_ready("joined-1")
        self.lab[1].cut()
        eventually(lambda: self.node("joined-1")["state"] in ("joining", "lost"), "gone")
        self.assertFalse(self.json("join-command", "--revoke", "joined-1")["told"])
        self.lab[1].join()
        self.assert_clean(1)
        self.assertIn("was told to leave", self.head_log())

    def contained(self):
        """h1 as a container whose only program is the script: a process that is the node, and its pid there."""
        (self.folder / "said").touch()
        words = ["env", "-i", "HOME=/home/dev", "PATH=/usr/bin:/bin", "/bin/sh", "-s", "--", "--contained", "--end-within", "60"]
        with open(self.folder / "said", "w") as said:
            process = subprocess.Popen(self.lab[1].inside(*words, user=USER), stdin=subprocess.PIPE, stdout=said,
                                       stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        process.stdin.write(self.script())
        process.stdin.close()
        self.wait_ready("joined-1")
        return process, next(iter(self.lab[1].processes(UID, "dtrain-agent join")))

    def test_a_container_is_a_node_until_it_is_told_to_end(self):
        process, pid = self.contained()
        self.assertIn("as joined-1", (self.folder / "said").read_text())
        self.assertEqual(list(self.lab[1].path("~/.dtrain/agents").glob(".join.*")), [], "the credential is used")
        self.assertFalse(self.lab[1].processes(UID, "/bin/sh"), "the agent has taken the shell's place")
        job = self.submit("trap 'echo last; exit 0' TERM; echo up; while :; do sleep 0.01; done", "--nnodes", "2")
        eventually(lambda: self.ok("logs", job).count("up") == 2, "both ranks are up")
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(process.wait(60), 0, (self.folder / "said").read_text())
        eventually(lambda: self.node("joined-1") is None, "it has left")
        self.assertEqual(self.lab[1].processes(UID), [])
        self.assertIn("[1] last", self.ok("logs", job))

    def test_a_container_that_is_revoked_ends_and_leaves_nothing(self):
        process, _ = self.contained()
        self.ok("join-command", "--revoke", "joined-1")
        self.assertEqual(process.wait(60), 0, (self.folder / "said").read_text())
        self.assert_clean(1)

    def test_an_address_is_never_left_out_silently(self):
        self.assertIn("not an address: head.example", self.refused("join-command", "--address", "head.example", code=2))
        self.assertIn("not an address: fe80::1%eth0", self.refused("join-command", "--address", "fe80::1%eth0", code=2))
        many = [word for i in range(9) for word in ("--address", f"203.0.113.{i}")]
        self.assertIn("8 addresses at most", self.refused("join-command", *many, code=2))
        self.assertIn(" A='203.0.113.5 2001:db8::5 ", self.script("--address", "203.0.113.5", "--address", "2001:DB8::5"))
        self.assertEqual(len(self.json("join-command", "--list")["joins"]), 1)

    def test_each_tool_and_each_shell_will_do(self):
        self.assertTrue(Path("/usr/bin/busybox").exists(), "scripts/setup --tests brings it")
        names = iter(range(1, 100))
        for shell in (["/usr/bin/dash"], ["/usr/bin/busybox", "sh"], ["/bin/bash", "--posix"]):
            for tool in TOOLS:
                with self.subTest(shell=shell, tool=tool):
                    path = self.bin(1, (*UTILITIES, tool))
                    if "busybox" in shell[0]:  # with its own utilities, where it has them
                        for program in UTILITIES:
                            (self.lab[1].path("~/bin") / program).unlink()
                        self.lab[1].run("/usr/bin/busybox", "--install", "-s", "/home/dev/bin")
                        for program in TOOLS:
                            self.lab[1].path(f"~/bin/{program}").unlink(missing_ok=True)
                        (self.lab[1].path("~/bin") / tool).symlink_to(f"/usr/bin/{tool}")
                    self.paste(1, self.script(), shell=shell, env={"PATH": path})
                    name = f"joined-{next(names)}"
                    self.wait_ready(name)
                    self.ok("join-command", "--revoke", name)
                    self.assert_clean(1)
                    self.lab[1].wipe()

    def test_a_machine_that_cannot_fetch_says_so(self):
        script = self.script()
        said = self.paste(1, script, env={"PATH": self.bin(1, UTILITIES)}, code=1)
        self.assertIn("curl, python3 or openssl is needed", said)
        self.assertIn("dtrain up adds this machine over SSH", said)
        self.lab[1].path("~/old.cnf").write_text(
            "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = limits\n[limits]\nMaxProtocol = TLSv1.2\n")
        quick = once(script)
        for tool in TOOLS:
            self.lab[1].run("rm", "-rf", "/home/dev/bin")
            path = self.bin(1, (*UTILITIES, tool))
            if tool == "curl":  # which asks no openssl.cnf
                (self.lab[1].path("~/bin") / tool).unlink()
                self.lab[1].path("~/bin/curl").write_text('#!/bin/sh\nexec /usr/bin/curl --tls-max 1.2 "$@"\n')
                self.lab[1].path("~/bin/curl").chmod(0o755)
            said = self.paste(1, quick, env={"PATH": path, "OPENSSL_CONF": "/home/dev/old.cnf"}, code=1)
            self.assertIn(f"{tool} here speaks no TLS 1.3", said)
        # Nobody is there.
        said = self.paste(1, elsewhere(quick, "10.77.0.250", "127.0.0.1"), code=1)
        self.assertRegex(said, "cannot fetch the agent from the head, at 10.77.0.250 127.0.0.1 port .*The clock here says")
        self.assertEqual(self.left_on(1), [])
        self.assertIsNone(self.node("joined-1"))

    def test_clocks_that_are_off(self):
        """By an hour nobody is disturbed; by days the script says what may be wrong."""
        library = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
        self.assertTrue(library.exists(), "scripts/setup --tests brings it")
        for number, off in ((1, "-1h"), (2, "+1h")):
            for tool in TOOLS:
                self.lab[1].run("rm", "-rf", "/home/dev/bin")
                path = self.bin(1, (*UTILITIES, tool))
                # The agent is static and has the true clock: so its own TLS is another test's.
                said = self.paste(1, fetching(self.script("--node", f"{tool}{number}")),
                                  env={"PATH": path, "LD_PRELOAD": library, "FAKETIME": off})
                self.assertIn("joins", said)
                self.wait_ready(f"{tool}{number}")
        quick = fetching(once(self.script()))
        said = self.paste(1, quick, env={"LD_PRELOAD": library, "FAKETIME": "-10d"}, code=1)
        self.assertIn("not yet valid", said)
        self.assertIn("The clock here says", said)

    def test_past_a_proxy_and_a_curlrc(self):
        proxy = "http://127.0.0.1:9"
        self.lab[1].path("~/.curlrc").write_text(f"proxy = {proxy}\n")
        env = {name: proxy for base in ("http_proxy", "https_proxy", "all_proxy") for name in (base, base.upper())}
        for number, tool in enumerate(TOOLS, 1):
            self.lab[1].run("rm", "-rf", "/home/dev/bin")
            self.paste(1, fetching(self.script()), env={**env, "PATH": self.bin(1, (*UTILITIES, tool))})
            self.wait_ready(f"joined-{number}")

    def test_who_has_the_agent_fetches_none(self):
        self.paste(1, self.script())
        self.wait_ready("joined-1")
        [agent] = self.lab[1].path("~/.dtrain/agents").iterdir()
        self.assertEqual(agent.name, hashlib.sha256((BUILD / "agent" / "dtrain-agent").read_bytes()).hexdigest())
        # With nothing that could fetch; and the first address leads nowhere.
        self.paste(1, self.script("--address", "127.0.0.1"), env={"PATH": self.bin(1, UTILITIES)})
        self.wait_ready("joined-2")
        self.assertEqual(list(self.lab[1].path("~/.dtrain/agents").iterdir()), [agent])
        self.ok("down", "-y")
        self.assert_clean(0, 1)

    def test_a_head_behind_another_address(self):
        """h1 passes connections on to the head, as a NAT would; h2 meets the head nowhere else."""
        port = self.json("status")["cluster"]["head"]["port"]
        relay = subprocess.Popen(["nsenter", f"--net={self.lab[1].folder}/net", sys.executable, "-c", RELAY,
                                  str(port), self.lab[0].address], stdout=subprocess.PIPE)
        self.addCleanup(relay.wait)
        self.addCleanup(relay.kill)
        relay.stdout.readline()
        relay.stdout.close()
        self.lab[2].drop(self.lab[0])
        said = self.paste(2, self.script("--address", "10.77.0.250", "--address", self.lab[1].address))
        self.assertIn("joins", said)
        self.wait_ready("joined-1")
        config = json.loads(next(self.lab[2].path("~/.dtrain").glob("*/joined-1/node.json")).read_text())
        self.assertEqual(config["head"]["addresses"][0], self.lab[1].address)
        self.assertIn(self.lab[0].address, config["head"]["addresses"])

    def serve(self, index, port, program, *words):
        """Something that listens on that machine's loopback."""
        server = subprocess.Popen(["nsenter", f"--net={self.lab[index].folder}/net", sys.executable, "-c", program,
                                   str(port), *map(str, words)], stdout=subprocess.PIPE)
        def end():
            server.kill()
            server.wait()
        self.addCleanup(end)
        self.assertEqual(server.stdout.readline(), b"listens\n")
        server.stdout.close()
        return end

    def test_whoever_is_not_the_head_gives_no_agent(self):
        port = self.json("status")["cluster"]["head"]["port"]
        script = once(elsewhere(self.script(), "127.0.0.1"))
        root = self.lab[0].path(self.json("status")["cluster"]["head"]["root"])
        foreign, node = self.folder / "foreign", self.folder / "node"
        def openssl(*words):
            subprocess.run(["openssl", *words], check=True, capture_output=True)
        for folder in (foreign, node):
            folder.mkdir()
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=head",
                    "-keyout", folder / "key.pem", "-out", folder / "csr")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9",
                "-subj", "/CN=foreign", "-keyout", foreign / "ca.key", "-out", foreign / "ca.pem")
        usage = "extendedKeyUsage=serverAuth,clientAuth\n"
        for folder, name, ca, ca_key in ((foreign, "DNS:head", foreign / "ca.pem", foreign / "ca.key"),
                                         (node, "DNS:h0", root / "ca/cert.pem", root / "ca/key.pem")):
            (folder / "ext").write_text(f"subjectAltName={name}\n{usage}")
            openssl("x509", "-req", "-in", folder / "csr", "-CA", ca, "-CAkey", ca_key, "-set_serial", "7", "-days", "9",
                    "-extfile", folder / "ext", "-out", folder / "cert.pem")
        trusted = self.lab[1].path("/etc/ssl/certs")
        trusted.mkdir(parents=True, exist_ok=True)
        digest = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", foreign / "ca.pem"], check=True,
                                capture_output=True, text=True).stdout.strip()
        for who, folder, runs in (("the head", root / "identity", True), ("a node", node, False),
                                  ("a foreign CA", foreign, False), ("a CA that this machine trusts", foreign, False)):
            if "trusts" in who:
                (trusted / f"{digest}.0").write_text((foreign / "ca.pem").read_text())
            end = self.serve(1, port, IMPOSTOR, folder / "cert.pem", folder / "key.pem")
            for tool in TOOLS:
                with self.subTest(who=who, tool=tool):
                    self.lab[1].run("rm", "-rf", "/home/dev/bin")
                    said = self.paste(1, script, env={"PATH": self.bin(1, (*UTILITIES, tool))}, code=0 if runs else 1)
                    self.assertEqual("MARKER" in said, runs, said)
            end()

    def test_an_address_that_says_nothing_is_left(self):
        port = self.json("status")["cluster"]["head"]["port"]
        self.serve(1, port, SILENT)
        for number, tool in enumerate(TOOLS, 1):
            self.lab[1].run("rm", "-rf", "/home/dev/bin")
            script = fetching(once(elsewhere(self.script(), "127.0.0.1", self.lab[0].address)))
            self.assertIn("-lt 20 ]", script)
            # Not of the head itself, which a busy machine may keep silent for longer.
            script = script.replace("-lt 20 ]", "-lt $([ $2 = 127.0.0.1 ] && echo 3 || echo 20) ]")
            self.paste(1, script, env={"PATH": self.bin(1, (*UTILITIES, tool))})
            self.wait_ready(f"joined-{number}")

    def test_another_account_lays_no_trap(self):
        """The home takes no program; where one may go instead is another's, or leads elsewhere."""
        script = once(self.script())
        spare = f"/var/tmp/dtrain-{UID}"
        home = self.lab[1].path("~/.dtrain")
        if home.exists():
            self.lab[1].run("rm", "-rf", "/home/dev/.dtrain")
        home.write_text("no folder")
        for trap in (("mkdir", "-m", "777", spare), ("ln", "-s", "/home/dev/mine", spare)):
            with self.subTest(trap=trap[0]):
                self.lab[1].run("mkdir", "-p", "/home/dev/mine")
                self.lab[1].run("chown", f"{UID}", "/home/dev/mine")
                self.lab[1].run(*trap)
                self.assertIn("takes a program", self.paste(1, script, code=1))
                self.assertEqual([], list(self.lab[1].path("/home/dev/mine").iterdir()))
                self.lab[1].run("rm", "-rf", spare)

    def test_the_same_machine_may_ask_again(self):
        script = self.script()
        self.paste(1, script)
        self.wait_ready("joined-1")
        certificate = self.lab[1].path(next(self.lab[1].path("~/.dtrain").glob("*/joined-1/identity/cert.pem")).relative_to(self.lab[1].root))
        before = certificate.read_text()
        self.assertIn("joins", self.paste(1, script))
        self.assertEqual(certificate.read_text(), before)
        self.assertEqual(self.node("joined-1")["state"], "ready")
        # Another machine comes too late, and it is told why.
        said = self.paste(2, script, code=1)
        self.assertIn("has been used by another machine", said)
        self.assertIn("another machine asked with a join credential", self.head_log())

    def test_a_local_cluster_has_no_door_for_others(self):
        (self.folder / "local.yaml").write_text("cluster_name: here\nprovider: {type: local}\n")
        self.ok("up", "local.yaml")
        self.addCleanup(self.run_dtrain, "down", "-y", "-c", "here")
        self.assertIn("listens to this machine alone", self.refused("join-command", "-c", "here"))


RELAY = """
import socket, sys, threading
def carry(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
door = socket.create_server(('', int(sys.argv[1])))
print('listens', flush=True)
while True:
    a = door.accept()[0]
    b = socket.create_connection((sys.argv[2], int(sys.argv[1])))
    for pair in ((a, b), (b, a)): threading.Thread(target=carry, args=pair, daemon=True).start()
"""


SILENT = """
import socket, sys
door = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listens', flush=True)
held = []
while True: held.append(door.accept())
"""

IMPOSTOR = """
import hashlib, socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
door = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listens', flush=True)
agent = b'#!/bin/sh\\necho MARKER\\n'
head = 'HTTP/1.1 200 OK\\r\\nETag: \\"%s\\"\\r\\nContent-Length: %d\\r\\n\\r\\n' % (hashlib.sha256(agent).hexdigest(), len(agent))
while True:
    plain = door.accept()[0]
    plain.settimeout(5)
    try:
        with context.wrap_socket(plain, server_side=True) as caller:
            caller.recv(65536)
            caller.sendall(head.encode() + agent)
            caller.unwrap()
    except OSError: pass
"""


class Credential:
    """What a thief has: the files of a script, and this machine's tools."""

    def __init__(self, case, script, name="credential"):
        self.folder = case.folder / name
        self.folder.mkdir()
        for file in ("key.pem", "cert.pem", "ca.pem"):
            (self.folder / file).write_text(re.search(rf"cat >{file} <<E\n(.*?)^E\n", script, re.S | re.M)[1])
        self.port = int(re.search(r"^P=(\d+)", script, re.M)[1])
        self.address = case.lab[0].address
        self.node, self.cluster = re.search(r"node (\S+) of the dtrain cluster (\S+)\.", script).groups()

    def connect(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.folder / "ca.pem")
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        return context.wrap_socket(socket.create_connection((self.address, self.port), 20), server_hostname="head")

    def ask(self, method, path, body=None, length=None):
        """Status and body of the answer; `length` is announced in place of what is sent."""
        with self.connect() as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: head\r\n"
            if body is not None or length is not None:
                head += f"Content-Length: {len(body or b'') if length is None else length}\r\n"
            connection.sendall(head.encode() + b"\r\n" + (body or b""))
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            return answer.status, answer.read()

    def request(self, key="key", name=None):
        """A certificate request for a key of that name, made when there is none."""
        file = self.folder / f"new-{key}.pem"
        uri = name or f"dtrain://{self.cluster}/node/{self.node}"
        openssl = ["openssl", "req", "-new", "-subj", "/CN=x", "-addext", f"subjectAltName=URI:{uri}"]
        if not file.exists():
            subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", file], check=True)
        pem = subprocess.run([*openssl, "-key", file], check=True, capture_output=True, text=True).stdout
        return json.dumps({"request": pem, "incarnation": key}).encode()

    def join(self, *args, **more):
        status, body = self.ask("POST", "/v1/join/request", self.request(*args, **more))
        return status, json.loads(body) if status == 200 else body.decode()


class Prepared(JoinCase):
    """What `up` does over SSH to a worker, a machine that joins does to itself."""
    count = 2

    def setUp(self):
        HostsCase.setUp(self)
        self.data = self.folder / "data"
        (self.data / "below").mkdir(parents=True)
        (self.data / "below" / "weights").write_bytes(bytes(range(256)) * 4000)
        (self.data / "key").write_text("secret")
        (self.data / "key").chmod(0o600)
        (self.folder / "one.txt").write_text("one")
        self.setup_commands(["echo first >>~/log", 'echo "second on $DTRAIN_NODE" | tee -a ~/log'])
        self.up()

    def setup_commands(self, commands, **more):
        self.write([0], file_mounts={"~/data": str(self.data), "~/one.txt": str(self.folder / "one.txt")},
                   worker_setup_commands=commands, **more)

    def there(self, path):
        return self.lab[1].path(path)

    def wait_reason(self, text, name="joined-1"):
        return eventually(lambda: (n := self.node(name)) and text in n["reason"] and n, text)

    def log(self):
        return self.lines(1, "~/log")

    def test_files_and_setup_before_it_is_ready(self):
        self.paste(1, self.ok("join-command").strip())
        self.wait_ready("joined-1")
        self.assertEqual(self.log(), ["first", "second on joined-1"])
        weights, was = self.there("~/data/below/weights"), self.data / "below" / "weights"
        self.assertEqual(weights.read_bytes(), was.read_bytes())
        self.assertEqual(weights.stat().st_mtime_ns, was.stat().st_mtime_ns)
        self.assertEqual(self.there("~/data/key").stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.there("~/one.txt").read_text(), "one")
        self.assertIn("second on joined-1", self.ok("logs", "--setup", "joined-1"))
        self.assertFalse(any(self.there("~/.dtrain").glob("lab-*/joined-1/unpacked")))
        # Its agent is started anew: nothing is done twice.
        for pid in self.lab[1].processes(UID, "node --root"):
            os.kill(pid, signal.SIGKILL)
        self.wait_ready("joined-1")
        self.assertEqual(self.log(), ["first", "second on joined-1"])
        # Pruning leaves what the next machine needs.
        self.ok("prune")
        self.ok("join-command", "--revoke", "joined-1")
        self.assert_clean(1)
        self.assertFalse(self.there("~/data/below").exists(), "what was brought goes too")

    def test_an_up_brings_what_has_changed(self):
        self.paste(1, self.ok("join-command").strip())
        self.wait_ready("joined-1")
        (self.data / "key").write_text("another")
        (self.data / "new").write_text("new")
        self.there("~/data/below/weights").write_text("changed there")
        self.setup_commands(["echo first >>~/log", "echo third >>~/log"])
        self.up()
        eventually(lambda: self.log()[-1:] == ["third"], "from the changed command on")
        eventually(lambda: "was left as it is" in self.node("joined-1")["reason"], "it is prepared")
        self.assertEqual(self.log(), ["first", "second on joined-1", "third"])
        self.assertEqual(self.there("~/data/key").read_text(), "another")
        self.assertEqual(self.there("~/data/new").read_text(), "new")
        self.assertEqual(self.there("~/data/below/weights").read_text(), "changed there", "it stays")
        self.assertIn("below/weights was left as it is", self.node("joined-1")["reason"])
        # Nothing has changed: nothing is done.
        before = self.lab[1].path("~/log").stat().st_mtime_ns
        self.up()
        self.wait_ready("joined-1")
        self.assertEqual(self.lab[1].path("~/log").stat().st_mtime_ns, before)

    def test_a_command_that_fails_is_told_and_mended(self):
        self.setup_commands(["echo first >>~/log", "echo the reason; exit 17"])
        self.up()
        self.paste(1, self.ok("join-command").strip())
        node = self.wait_reason("cannot be prepared")
        self.assertEqual(node["state"], "joining")
        for part in ("worker_setup", "command 2 of 2", "17"):
            self.assertIn(part, node["reason"])
        self.assertIn("the reason", self.ok("logs", "--setup", "joined-1"))
        job = self.submit("echo never", "--nnodes", "2")
        self.assertEqual(self.state(job), "queued")
        self.setup_commands(["echo first >>~/log", "echo mended >>~/log"])
        self.up()
        self.wait_ready("joined-1")
        self.assertEqual(self.log(), ["first", "mended"])
        self.wait_state(job, "succeeded")

    def test_a_head_that_dies_meanwhile(self):
        waiting = 'echo begin >>~/log; while [ ! -e ~/go ]; do sleep 0.02; done; echo end >>~/log'
        self.setup_commands([waiting])
        self.up()
        self.paste(1, self.ok("join-command").strip())
        self.wait_reason("worker_setup")
        root = self.json("status")["cluster"]["head"]["root"]
        for pid in self.lab[0].processes(UID, f"head --root {root}"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.wait_reason("being prepared")
        self.lab[1].path("~/go").touch()
        self.wait_ready("joined-1")
        self.assertEqual(self.log(), ["begin", "end"])

    def test_back_to_what_it_was_and_everything_again(self):
        """A change that fails half way and is taken back; a command that hangs; --force."""
        first = ["echo first >>~/log"]
        self.setup_commands(first)
        self.up()
        self.paste(1, self.ok("join-command").strip())
        self.wait_ready("joined-1")
        (self.data / "key").write_text("another")
        self.setup_commands(first + ["false"])
        self.up()
        node = self.wait_reason("cannot be prepared")
        self.assertEqual(node["state"], "ready", "it was prepared once, and goes on")
        (self.data / "key").write_text("secret")
        self.setup_commands(first)
        self.up()
        eventually(lambda: self.node("joined-1")["reason"] == "", "it is as it was")
        self.assertEqual(self.there("~/data/key").read_text(), "secret")
        self.setup_commands(first + ["echo waits >>~/log; sleep 1000"])
        self.up()
        eventually(lambda: "waits" in self.log(), "it hangs")
        self.setup_commands(first + ["echo mended >>~/log"])
        self.up()
        eventually(lambda: self.log()[-1] == "mended" and self.node("joined-1")["reason"] == "", "mended")
        self.assertFalse(self.lab[1].processes(UID, "sleep 1000"))
        self.assertEqual(self.log().count("first"), 1)
        self.there("~/data/key").write_text("changed there")
        self.lab[1].cut()  # it is away at that moment
        self.up("--force")
        self.up()
        self.lab[1].join()
        eventually(lambda: self.log()[-2:] == ["first", "mended"], "everything again")
        eventually(lambda: self.there("~/data/key").read_text() == "secret", "also over what was changed")
        # Once: nothing is done by the next one, and what is changed afterwards is left alone.
        eventually(lambda: self.node("joined-1")["reason"] == "", "that is over")
        done = self.log()
        self.there("~/data/key").write_text("changed there")
        self.up()
        self.assertEqual(self.node("joined-1")["reason"], "")
        (self.data / "one more").write_text("one more")
        self.up()
        self.wait_reason("key was left as it is")
        self.assertEqual(self.log(), done)
        # Only files with --no-setup.
        (self.data / "new").write_text("new")
        self.setup_commands(["echo never >>~/log"])
        self.up("--no-setup")
        eventually(lambda: self.there("~/data/new").exists(), "files")
        self.assertNotIn("never", self.log())

    def test_a_list_that_is_wanted_no_more_ends(self):
        self.setup_commands(["echo waits >>~/log; sleep 1000"])
        self.up()
        self.paste(1, self.ok("join-command").strip())
        eventually(lambda: "waits" in self.log(), "it hangs")
        self.write([0])
        self.up()
        self.wait_ready("joined-1")
        self.assertFalse(self.lab[1].processes(UID, "sleep 1000"))

    def test_a_head_that_has_lost_what_it_was_given(self):
        self.ok("join-command", "--node", "early")
        root = self.json("status")["cluster"]["head"]["root"]
        self.lab[0].path(f"{root}/preparation.json").write_text("{")
        for pid in self.lab[0].processes(UID, f"head --root {root}"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.paste(1, self.ok("join-command").strip())
        self.assertEqual(self.wait_reason("dtrain up says it anew")["state"], "joining")
        self.up()
        self.wait_ready("joined-1")
        self.assertEqual(self.log(), ["first", "second on joined-1"])

    def test_a_first_preparation_of_a_node_that_works(self):
        self.write([0])
        self.up()
        self.paste(1, self.ok("join-command").strip())
        self.wait_ready("joined-1")
        job = self.submit("while [ ! -e ~/go ]; do sleep 0.02; done", "--nnodes", "2")
        self.wait_state(job, "running")
        self.setup_commands(["while [ ! -e ~/go ]; do sleep 0.02; done; echo set up >>~/log"])
        self.up()
        self.assertEqual(self.wait_reason("being prepared")["state"], "ready")
        for host in self.lab:
            host.path("~/go").touch()
        eventually(lambda: self.log() == ["set up"], "prepared")
        self.wait_state(job, "succeeded")

    def test_files_that_cannot_be_read(self):
        """Nothing is given out, and an `up` says so."""
        gone = self.data.rename(self.folder / "gone")
        self.assertIn("data", self.refused("join-command", code=2))
        self.assertEqual(self.json("join-command", "--list")["joins"], [])
        gone.rename(self.data)
        self.ok("join-command")

    def test_a_probe_that_says_no(self):
        self.setup_commands(["true"], ready={"command": "[ -e ~/fit ]"})
        self.lab[0].path("~/fit").touch()  # the head's machine is asked too
        self.up()
        self.paste(1, self.ok("join-command").strip())
        self.assertIn("ready.command", self.wait_reason("cannot be prepared")["reason"])
        self.lab[1].path("~/fit").touch()
        self.up()
        self.wait_ready("joined-1")


class ManyPrepared(JoinCase):
    """Their files go from machine to machine."""
    count = 10
    options = {"disk": "150m"}
    SIZE = 6_000_000

    def test_files_go_from_node_to_node(self):
        others = range(1, self.count)
        scripts = [self.ok("join-command").strip() for _ in others]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(self.paste, others, scripts))
        for index in others:
            self.wait_ready(f"joined-{index}")
        data = self.folder / "data"
        data.mkdir()
        (data / "weights").write_bytes(os.urandom(self.SIZE))
        self.write([0], file_mounts={"~/data": str(data)}, worker_setup_commands=["cksum data/weights >~/sum"])
        before = [host.sent() for host in self.lab]
        self.up()
        for index in others:
            eventually(lambda: self.lab[index].path("~/sum").exists(), f"{index} is prepared")
            self.assertEqual(self.lab[index].path("~/data/weights").read_bytes(), (data / "weights").read_bytes())
        sent = [host.sent() - then for host, then in zip(self.lab, before)]
        self.assertGreater(sum(sent), self.SIZE * len(others))
        copies = len(others) * sent[0] / sum(sent)
        print(f"    {copies:.1f} copies from the head for {len(others)} machines that joined")
        self.assertLess(copies, 7, sent)
        self.assert_only_these_listen(deadline=60)



class Misuse(JoinCase):
    count = 1

    def credential(self, *flags, name="credential"):
        return Credential(self, self.script(*flags), name)

    def head_socket(self):
        return next(self.lab[0].path(f"/tmp/dtrain-{UID}").rglob("head.sock"))

    def test_another_name(self):
        thief = self.credential()
        for name in ("node/h0", "node/joined-2", "head/head", "join/joined-1"):
            status, said = thief.join(name=f"dtrain://{thief.cluster}/{name}")
            self.assertEqual(status, 403, said)
            self.assertIn("the request asks for", said)
        self.assertEqual(thief.join(name="dtrain://other/node/joined-1")[0], 403)
        self.assertEqual(thief.join()[0], 200)

    def test_another_key(self):
        owner = self.credential()
        status, granted = owner.join("mine")
        self.assertEqual(status, 200)
        status, said = owner.join("stolen")
        self.assertEqual(status, 403)
        self.assertIn("has been used by another machine", said)
        self.assertIn("incarnation=stolen", self.head_log())
        # A lost reply strands nobody, also when the head is another by now.
        self.assertEqual(owner.join("mine")[1]["certificates"], granted["certificates"])
        for pid in self.lab[0].processes(UID, "dtrain-agent head"):
            os.kill(pid, signal.SIGKILL)
        def again():
            with contextlib.suppress(OSError):
                return owner.join("mine")
        self.assertEqual(eventually(again, "the head is back")[1]["certificates"], granted["certificates"])
        self.assertEqual(owner.join("stolen")[0], 403)

    def test_an_answer_that_nobody_heard(self):
        owner = self.credential()
        with owner.connect() as connection:
            body = owner.request()
            connection.sendall(b"POST /v1/join/request HTTP/1.1\r\nHost: head\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        status, granted = eventually(lambda: (got := owner.join())[0] == 200 and got, "it is signed")
        self.assertIn("BEGIN CERTIFICATE", granted["certificates"])

    def test_expired_by_the_heads_clock(self):
        owner = self.credential("--valid-for", "1s")
        said = eventually(lambda: (got := owner.ask("GET", "/v1/join/agent"))[0] == 403 and got[1].decode(), "expired")
        self.assertIn("expired at", said)
        self.assertIn("by the head's clock", said)
        self.assertEqual(owner.join()[0], 403)

    def test_before_it_is_valid(self):
        answer = json.loads(self.on_head("POST", "/v1/joins", {"valid_s": 60, "begins": False}))
        self.assertIsNone(answer["valid_until"])
        owner = Credential(self, answer["script"])
        status, said = owner.join()
        self.assertEqual((status, "is not valid yet" in said), (503, True), said)  # it comes again
        self.assertEqual(owner.ask("GET", "/v1/join/agent")[0], 503)
        self.assertEqual(self.json("join-command", "--list")["joins"][0]["state"], "waiting")
        self.assertTrue(json.loads(self.on_head("POST", f"/v1/joins/{owner.node}/begin"))["valid_until"])
        self.assertEqual(owner.join()[0], 200)

    def on_head(self, method, path, body=None):
        """Asks the head's API, on its machine and as its user."""
        program = ("import http.client, socket, sys\nc = http.client.HTTPConnection('head')\nc.sock = socket.socket(socket.AF_UNIX)\n"
                   "c.sock.connect(sys.argv[1])\nc.request(sys.argv[2], sys.argv[3], sys.argv[4])\nprint(c.getresponse().read().decode())")
        path_there = "/" + str(self.head_socket().relative_to(self.lab[0].root))
        return self.lab[0].run("/usr/bin/python3", "-c", program, path_there, method, path, json.dumps(body or {}), user=USER)

    def test_revoked(self):
        owner = self.credential()
        self.assertEqual(json.loads(self.ok("join-command", "--json", "--revoke", "joined-1"))["state"], "revoked")
        for status, said in (owner.join(), owner.ask("GET", "/v1/join/agent")):
            self.assertEqual(status, 403)
            self.assertIn("was taken back", said if isinstance(said, str) else said.decode())
        # One that takes its place is another.
        other = self.credential("--node", "joined-1", name="other")
        self.assertEqual(owner.join()[0], 403)
        self.assertEqual(other.join()[0], 200)

    def test_a_name_that_was_used_is_nobodys_again(self):
        """A thief who was granted a certificate and keeps it does not come back under the next one's name."""
        thief = self.credential()
        status, granted = thief.join()
        self.assertEqual(status, 200)
        self.ok("join-command", "--revoke", "joined-1")
        self.assertEqual(self.json("join-command")["node"], "joined-2")
        self.assertIn("or was", self.refused("join-command", "--node", "joined-1"))
        self.assertEqual(thief.join()[0], 403)
        root = self.json("status")["cluster"]["head"]["root"]
        for pid in self.lab[0].processes(UID, f"head --root {root}"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.assertIn("or was", self.refused("join-command", "--node", "joined-1"))
        self.assertFalse((self.lab[0].path(root) / "nodes/joined-1").exists())

    def test_every_other_route(self):
        thief = self.credential()
        gigabyte = 1 << 30
        for method, path, length in (
                ("GET", "/v1/node/control", None), ("GET", "/v1/node/bulk", None), ("GET", "/v1/node/content", None),
                ("GET", "/v1/status", None), ("POST", "/v1/jobs", gigabyte), ("POST", "/v1/shutdown", gigabyte),
                ("POST", "/v1/joins", gigabyte), ("POST", "/v1/node/control", gigabyte), ("PUT", "/v1/join/agent", gigabyte),
                ("POST", "/v1/join/agent", gigabyte), ("GET", "/v1/join/request", None), ("GET", "/v1/join/agent/", None),
                ("GET", "/v1/join/../status", None), ("GET", "/", None)):
            with self.subTest(method=method, path=path):
                begin = time.monotonic()
                status, said = thief.ask(method, path, length=length)
                self.assertEqual(status, 403)
                self.assertIn(b"nothing else", said)
                self.assertLess(time.monotonic() - begin, 60, "it waited for a body")
        # A WebSocket is none of its business either.
        upgrade = ("GET /v1/node/control HTTP/1.1\r\nHost: dtrain\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                   "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        with thief.connect() as connection:
            connection.sendall(upgrade.encode())
            self.assertIn(b" 403 ", connection.recv(65536).split(b"\r\n")[0])
        self.assertEqual(self.states(), {"h0": "ready"})

    def test_a_forged_certificate(self):
        thief = self.credential()
        openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                   "-days", "9", "-subj", "/CN=joined-1", "-addext",
                   f"subjectAltName=URI:dtrain://{thief.cluster}/join/joined-1", "-keyout", thief.folder / "key.pem",
                   "-out", thief.folder / "cert.pem"]
        subprocess.run(openssl, check=True, capture_output=True)
        with self.assertRaises(OSError):  # TLS: before a byte of HTTP
            thief.ask("GET", "/v1/join/agent")
        # One whom the true CA has signed, and the head has never given out.
        root = self.json("status")["cluster"]["head"]["root"]
        ca = self.lab[0].path(f"{root}/ca")
        (thief.folder / "ext").write_text(f"subjectAltName=URI:dtrain://{thief.cluster}/join/joined-1\nextendedKeyUsage=clientAuth\n")
        subprocess.run(["openssl", "req", "-new", "-key", thief.folder / "key.pem", "-subj", "/CN=x", "-out", thief.folder / "csr"], check=True)
        subprocess.run(["openssl", "x509", "-req", "-in", thief.folder / "csr", "-CA", ca / "cert.pem", "-CAkey", ca / "key.pem",
                        "-set_serial", "7", "-days", "9", "-extfile", thief.folder / "ext", "-out", thief.folder / "cert.pem"],
                       check=True, capture_output=True)
        status, said = thief.ask("GET", "/v1/join/agent")
        self.assertEqual((status, b"was taken back" in said), (403, True), said)

    def test_fetched_again_and_again(self):
        owner = self.credential()
        agent = (BUILD / "agent" / "dtrain-agent").read_bytes()
        for _ in range(20):
            status, body = owner.ask("GET", "/v1/join/agent")
            self.assertEqual((status, body == agent), (200, True))
        status, said = owner.ask("GET", "/v1/join/agent")
        self.assertEqual((status, b"too often" in said), (429, True), said)
        self.assertEqual(owner.join()[0], 200)  # it is not burnt

    def test_a_request_that_is_too_large_or_none(self):
        owner = self.credential()
        for length in (8193, 1 << 30):
            status, said = owner.ask("POST", "/v1/join/request", length=length)
            self.assertEqual((status, b"8192 may come" in said), (413, True), said)
        for body in (b"", b"{}", b"[" * 8000, b'{"request": "x", "incarnation": "y"}', b'{"request": 1}'):
            self.assertEqual(owner.ask("POST", "/v1/join/request", body)[0], 403, body[:40])
        self.assertEqual(owner.join()[0], 200)

    def test_who_holds_connections(self):
        """A writer that never ends is hung up on; readers that stand still keep nobody but their own credential."""
        thief, owner = self.credential(), self.credential(name="other")
        with thief.connect() as slow:
            slow.sendall(b"POST /v1/join/request HTTP/1.1\r\nHost: head\r\nContent-Length: 4000\r\n\r\n{")
            slow.settimeout(30)
            begin = time.monotonic()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                self.assertEqual(slow.recv(100), b"")
            self.assertLess(time.monotonic() - begin, 29)
        readers = []
        for _ in range(2):
            reader = thief.connect()
            self.addCleanup(reader.close)
            reader.sendall(b"GET /v1/join/agent HTTP/1.1\r\nHost: head\r\n\r\n")
            reader.recv(1)
            readers.append(reader)
        status, said = thief.ask("GET", "/v1/join/agent")
        self.assertEqual((status, b"being used" in said), (503, True), said)
        self.assertEqual(owner.ask("GET", "/v1/join/agent")[0], 200)
        self.assertEqual(owner.join()[0], 200)
        # Not for ever.
        eventually(lambda: thief.ask("GET", "/v1/join/agent")[0] == 200, "they are hung up on", 60, pause=0.5)


class Many(JoinCase):
    count = 33
    options = {"disk": "256m"}

    def test_32_machines_at_once(self):
        scripts = [self.script() for _ in range(32)]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            begin = time.monotonic()
            list(pool.map(lambda i: self.paste(i + 1, scripts[i]), range(32)))
            eventually(lambda: list(self.states().values()).count("ready") == 33, "all are ready")
            print(f"32 machines joined within {time.monotonic() - begin:.1f} s", file=sys.stderr)
        self.assertEqual(self.ok("submit", "--nnodes", "33", "--", "/bin/sh", "-c", "echo rank $RANK").count("rank"), 33)
        self.ok("down", "-y")
        self.assert_clean(*range(33))


if __name__ == "__main__":
    main()
