"""Reaching hosts: jumps, host keys, shells and what sshd may be set to."""

import socket

from ssh_harness import *


class Keys(HostsCase):
    count = 2

    def test_a_changed_key_is_refused_and_nothing_sent(self):
        old = self.lab[1].fingerprint()
        self.lab[1].new_key()
        said = self.refused("up", self.write())
        self.assertIn(old, said)
        self.assertIn(self.lab[1].fingerprint(), said)
        self.assertIn("h1", said)
        self.assertFalse(self.lab[1].path("~/.dtrain").exists())

    def test_an_unknown_key_is_shown_and_accepted_only_when_told(self):
        self.lab.forget()
        said = self.refused("up", self.write())
        for host in self.lab:
            self.assertIn(host.fingerprint(), said)
            self.assertFalse(host.path("~/.dtrain").exists())
        self.up("--accept-new-host-keys")
        self.assert_ready(0, 1)
        self.assertFalse(known_hosts().exists(), "the user's own file is not ours to write")
        self.up()  # it is pinned: no flag needed
        old = self.lab[0].fingerprint()
        self.lab[0].new_key()
        said = self.refused("up", self.yaml, "--accept-new-host-keys")
        self.assertIn(old, said)
        self.assertIn(self.lab[0].fingerprint(), said)

    def test_asks_on_a_terminal(self):
        self.lab.forget()
        terminal = self.terminal("up", self.write([0]))
        terminal.read_until(self.lab[0].fingerprint())
        terminal.type("yes\n")
        self.assertEqual(terminal.end(), 0)
        self.assert_ready(0)


class Config(HostsCase):
    """What ~/.ssh holds counts."""

    count = 2

    def setUp(self):
        super().setUp()
        self.config = laboratory.home() / ".ssh" / "config"
        self.addCleanup(self.config.unlink, missing_ok=True)

    def test_aliases_ports_users_and_keys_of_ssh_config(self):
        other = laboratory.home() / ".ssh" / "other key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
        self.addCleanup(other.unlink)
        for host in self.lab:
            host.configure_sshd("Port 2200")
            self.addCleanup(host.configure_sshd)
            keys = host.path("~/.ssh/authorized_keys")
            before = keys.read_text()
            keys.write_text(Path(f"{other}.pub").read_text())
            self.addCleanup(keys.write_text, before)
        self.config.write_text("".join(
            f"Host box{i}\n  HostName {host.address}\n  HostKeyAlias {host.address}\n" for i, host in enumerate(self.lab))
            + f'Host box*\n  Port 2200\n  User {USER}\n  IdentityFile "{other}"\n  IdentitiesOnly yes\n')
        write_yaml(self.yaml, {"cluster_name": "lab", "provider": {"type": "ssh", "hosts": ["box0", "box1"]}})
        self.up()
        self.assertEqual(sorted(self.states()), ["box0", "box1"])
        self.assertIn("h1", self.ok("exec", "--node", "box1", "--", "hostname"))

    def test_keys_of_an_agent(self):
        socket_path = self.folder / "agent.sock"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        eventually(socket_path.exists, "ssh-agent listens")
        locked = self.folder / "locked"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "passphrase", "-f", locked], check=True)
        keys = self.lab[0].path("~/.ssh/authorized_keys")
        before = keys.read_text()
        self.addCleanup(keys.write_text, before)
        keys.write_text(Path(f"{locked}.pub").read_text())
        self.write([0], auth={"ssh_user": USER, "ssh_private_key": str(locked)})
        self.assertIn("h0", self.refused("up", self.yaml))  # no terminal: nobody to ask
        ask = self.folder / "ask"
        ask.write_text("#!/bin/sh\necho passphrase\n")
        ask.chmod(0o755)
        env = {"SSH_AUTH_SOCK": str(socket_path), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", locked], env={**self.env, **env}, check=True, capture_output=True)
        self.ok("up", self.yaml, env={"SSH_AUTH_SOCK": str(socket_path)})

    def test_an_sshd_that_hangs_is_given_up(self):
        """It accepts and never says a word."""
        listener = socket.create_server((self.lab[0].address.rsplit(".", 1)[0] + ".1", 2222))
        self.addCleanup(listener.close)
        self.config.write_text("Host 10.77.0.1\n  ConnectTimeout 2\n")
        self.write(None)
        document = {"cluster_name": "lab", "auth": {"ssh_user": USER, "ssh_private_key": str(laboratory.private_key())},
                    "provider": {"type": "ssh", "hosts": [{"host": self.lab[0].address, "node": "h0"},
                                                          {"host": "10.77.0.1", "ssh_port": 2222, "node": "mute"}]}}
        write_yaml(self.yaml, document)
        begin = time.monotonic()
        said = self.refused("up", self.yaml)
        self.assertIn("mute", said)
        self.assertLess(time.monotonic() - begin, 45)


class Jump(HostsCase):
    """h0 and h1 stand in both networks, h2 and h3 in the inner one only."""

    count = 4
    only = {0: {"networks": ("lab0", "lab1")}, 1: {"networks": ("lab0", "lab1")}, 2: {"networks": ("lab1",)},
            3: {"networks": ("lab1",)}}

    def test_through_a_jump_host_that_is_no_node(self):
        jump = [f"{USER}@{self.lab[1].address}"]
        self.write([2, 3], each={2: {"ssh_proxy_jump": jump}, 3: {"ssh_proxy_jump": jump}})
        self.up()
        self.assert_ready(2, 3)
        out = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK on $(hostname)")
        self.assertIn("rank 1 on h3", out)
        self.assertFalse(self.lab[1].path("~/.dtrain").exists())
        self.assertEqual([p.name for p in self.lab[1].path("~/.ssh").iterdir()], ["authorized_keys"])

    def test_through_two_jump_hosts(self):
        self.write([3], each={3: {"ssh_proxy_jump": [f"{USER}@{self.lab[0].address}", f"{USER}@{self.lab[2].address}"]}})
        self.up()
        self.assert_ready(3)

    def test_the_key_of_a_jump_host_counts(self):
        old = self.lab[1].fingerprint()
        self.lab[1].new_key()
        jump = [f"{USER}@{self.lab[1].address}"]
        said = self.refused("up", self.write([2], each={2: {"ssh_proxy_jump": jump}}))
        self.assertIn(old, said)
        self.assertIn(self.lab[1].fingerprint(), said)

    def test_a_worker_out_of_reach_is_tried_through_the_head(self):
        self.write([0, 2])
        self.up(deadline=120)
        self.assert_ready(0, 2)
        self.assertIn("h2", self.ok("exec", "--node", "h2", "--", "hostname"))


LONG_HOME = "/home/" + "/".join(letter * 50 for letter in "abc")


class Shells(HostsCase):
    """Users as they are: with any login shell, a profile that talks, a home with a long path."""

    count = 4
    options = {"profile": "echo welcome to $HOSTNAME; echo and more >&2"}
    only = {0: {"shell": "/usr/bin/fish"}, 1: {"shell": "/usr/bin/zsh"}, 2: {"shell": "/bin/dash"},
            3: {"home": LONG_HOME}}

    def test_up_submit_attach_down(self):
        (self.folder / "file with space").write_text("x\n")
        self.write(setup_commands=["echo 'quoted  $HOME' \"$HOME\" >~/said"],
                   file_mounts={"~/a b/it's": "file with space"})
        self.up()
        self.assert_ready(0, 1, 2, 3)
        for index, host in enumerate(self.lab):
            self.assertEqual(self.lines(index, "~/said"), [f"quoted  $HOME {host.user_home}"])
            self.assertEqual(self.lines(index, "~/a b/it's"), ["x"])
        out = self.ok("submit", "--nnodes", "4", "--", "/bin/sh", "-c", "echo rank $RANK on $(hostname)")
        self.assertEqual(out.count("rank"), 4)
        self.assertNotIn("welcome", out)
        self.assertEqual(self.run_dtrain("exec", "--node", "h0", "--", "sh", "-c", "exit 5").returncode, 5)
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_clean(*range(4))


class Sshd(HostsCase):
    """What an sshd may have switched off."""

    count = 2

    def test_without_forwarding_of_sockets(self):
        for host in self.lab:
            host.configure_sshd("AllowStreamLocalForwarding no", "AllowTcpForwarding no", "MaxSessions 2",
                                "Banner /etc/hostname")
            self.addCleanup(host.configure_sshd)
        self.up()
        self.assert_ready(0, 1)
        self.assertIn("a line", self.ok("submit", "--", "/bin/echo", "a line"))
        self.ok("down", "-y")


class Many(HostsCase):
    """32 hosts behind sshds as they come, which drop what logs in all at once."""

    count = 32
    options = {"disk": "100m"}
    agents_on = "all"

    def test_all_of_32_hosts_come_up(self):
        self.write()
        begin = time.monotonic()
        self.up(deadline=120)
        print(f"    32 hosts up in {time.monotonic() - begin:.1f} s")
        self.assert_ready(*range(32))
        self.assertEqual(len(self.ok("exec", "--all", "--", "hostname").split("\n")), 33)
        self.assertTrue(self.json("down", "-y", deadline=120)["complete"])

    def test_one_host_that_32_logins_meet_at_once(self):
        """Every node is reached through h0, whose sshd has its default MaxStartups."""
        jump = [f"{USER}@{self.lab[0].address}"]
        self.write(range(1, 17), each={i: {"ssh_proxy_jump": jump} for i in range(1, 17)})
        self.up(deadline=120)
        self.assert_ready(*range(1, 17))


if __name__ == "__main__":
    main()
