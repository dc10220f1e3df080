"""The test hosts themselves, by plain ssh: what the other tests rely on is so."""

import socket

from harness import processes_with
from ssh_harness import *


class Lab(HostsCase):
    count = 3
    only = {1: {"shell": "/usr/bin/fish", "profile": "echo noisy; echo noisy >&2"},
            2: {"networks": ("lab1",)}}
    options = {"disk": "64m"}

    def said(self, index, *words, **more):
        done = self.lab.ssh(index, *words, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_hosts_are_machines_of_their_own(self):
        self.assertEqual(self.said(0, "hostname; whoami; echo $HOME"), "h0\ndev\n/home/dev")
        boot_id = "cat /proc/sys/kernel/random/boot_id"
        self.assertNotEqual(self.said(0, boot_id), Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        before = self.said(0, boot_id)
        self.lab[0].path("~/kept").write_text("x")
        self.lab[0].reboot()
        self.assertNotEqual(self.said(0, boot_id), before)
        self.assertIn("kept", self.said(0, "ls"))
        pids = self.said(0, "ls -d /proc/[0-9]* | wc -l")
        self.assertLess(int(pids), 15)

    def test_nothing_of_this_checkout_is_there(self):
        for path in (SOURCE, BUILD, SOURCE / ".deps", DTRAIN, "/root/.pyenv", laboratory.base() / "home"):
            self.assertNotEqual(self.lab.ssh(0, f"ls {path}", user="root").returncode, 0, path)

    def test_login_shell_and_noise(self):
        self.assertIn("fish", self.said(1, "echo $SHELL"))
        done = self.lab.ssh(1, "true")
        self.assertEqual((done.stdout, done.stderr), ("noisy\n", "noisy\n"))

    def test_a_host_behind_another_is_not_reachable_from_here(self):
        self.assertNotEqual(self.lab.ssh(2, "-o", "ConnectTimeout=1", "true").returncode, 0)

    def test_a_new_key_is_refused_by_ssh(self):
        old = self.lab[0].fingerprint()
        self.lab[0].new_key()
        self.assertNotEqual(self.lab[0].fingerprint(), old)
        done = self.lab.ssh(0, "true")
        self.assertEqual(done.returncode, 255)
        self.assertIn("IDENTIFICATION HAS CHANGED", done.stderr)

    def test_a_full_disk_is_full_and_empties(self):
        self.lab[0].fill()
        self.assertIn("No space left", self.lab.ssh(0, "echo x >file").stderr)
        self.lab[0].unfill()
        self.said(0, "echo x >file")

    def test_connections_are_dropped_and_commands_live_on(self):
        process = subprocess.Popen(["ssh", f"{USER}@h0", "echo started; exec sleep 1000"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.readline()
        self.lab[0].drop_connections()
        self.assertEqual(process.wait(10), 255)
        process.stdout.close()
        self.assertEqual(len(self.lab[0].processes(UID, "sleep 1000")), 1)
        self.said(0, "true")

    def test_a_crash_is_silent_and_a_poweroff_is_not(self):
        for end, closed in (("poweroff", True), ("crash", False)):
            with socket.create_connection((self.lab[0].address, 22), DEADLINE) as connection:
                connection.recv(100)
                getattr(self.lab[0], end)()
                connection.settimeout(DEADLINE if closed else 0.3)
                try:
                    heard = connection.recv(100) == b""
                except ConnectionError:
                    heard = True
                except TimeoutError:
                    heard = False
                self.assertEqual(heard, closed, end)
            self.lab[0].boot()

    def test_a_pair_can_be_cut_from_each_other_alone(self):
        reach = "timeout %d bash -c 'exec 3<>/dev/tcp/10.77.0.11/22'"
        self.said(0, reach % 60)
        self.lab[1].drop(self.lab[0])
        self.assertNotEqual(self.lab.ssh(0, reach % 1).returncode, 0)
        self.said(1, "true")

    def test_a_connection_outlives_the_removal_of_another_host(self):
        """Also one on which only the other end speaks, as an sshd does at first."""
        address = lambda: json.loads(laboratory.sh("ip", "-j", "link", "show", "lab0"))[0]["address"]
        before = address()
        laboratory.sh("ip", "link", "add", "other", "address", "00:00:00:00:00:01", "type", "veth", "peer", "name", "another")
        self.addCleanup(laboratory.sh, "ip", "link", "del", "other")
        laboratory.sh("ip", "link", "set", "other", "master", "lab0")
        self.assertEqual(address(), before)

    def test_rate_limits(self):
        self.lab[0].rate("40mbit")
        self.addCleanup(self.lab[0].rate, None)
        begin = time.monotonic()
        self.assertEqual(len(self.lab.ssh(0, "head -c 2000000 /dev/zero", text=False).stdout), 2000000)
        self.assertGreater(time.monotonic() - begin, 0.3)


class Alone(HostsCase):
    count = 0

    def test_sigkill_leaves_nothing(self):
        """A lab within this one, whose program is killed."""
        env = {k: v for k, v in os.environ.items() if k != "DTRAIN_LAB"}
        process = subprocess.Popen([sys.executable, SOURCE / "tests/support/hosts.py", "2", "--", "/bin/sh", "-c",
                                    "echo up; exec sleep 1000"], env=env, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "up\n")
        mounts = Path("/proc/mounts").read_text()
        self.assertTrue(processes_with("lab-init"))
        process.kill()
        process.wait()
        eventually(lambda: not processes_with("lab-init") and not processes_with("sshd_config"), "all gone", 10)
        self.assertEqual(Path("/proc/mounts").read_text(), mounts)


class Old(HostsCase):
    count = 1

    @classmethod
    def unavailable(cls):
        cls.options = {"lower": old_system()}
        return None if old_system() else "there is no Debian 11 in .deps/hosts (scripts/setup --tests)"

    def test_it_is_old_and_bare(self):
        done = self.lab.ssh(0, "ldd --version | head -1; for p in python3 rsync tar; do command -v $p; done; "
                               "ls /usr/lib/*/libstdc++* /usr/share/datasets")
        self.assertIn("2.31", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)


if __name__ == "__main__":
    main()
