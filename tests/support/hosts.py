#!/usr/bin/env python3
"""Real hosts on this machine, each with its own network, processes, disk, name, sshd and host key.

    enter()                                    # first thing in the program: see lab.py
    with Hosts(4) as lab:
        lab[0].name, lab[0].address            # h0 10.77.0.10
        lab.cluster_yaml(path, "demo")         # h0 is the head
        lab[2].cut(); lab[2].join()

By hand, as root: `tests/support/hosts.py 4` gives a shell beside four hosts (--help for more).

What a host sees is this machine's installed system (/usr, /etc) and nothing else: no checkout, no
home, no /opt, no /usr/local; or a bare Debian 11 (`lower=old_system()`).
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

from lab import available, base, enter, home, known_hosts, old_system, private_key, sh, skeletons

USER, UID = "dev", 2001
NETWORKS = {"lab0": "10.77.0", "lab1": "10.78.0"}  # of the second only hosts know
NETWORKS6 = {"lab0": "fd00:77:", "lab1": "fd00:78:"}  # for hosts with IPv6 alone


def make_networks():
    for number, (bridge, prefix) in enumerate(NETWORKS.items()):
        if not sh("ip", "link", "show", bridge, check=False):
            # An address of its own. Else it has the lowest one of its ports, another once that host is removed, and
            # what the others then send here is lost until this end says something.
            batch = f"link add {bridge} address 02:77:00:00:00:0{number} type bridge\nlink set {bridge} up\n"
            if bridge == "lab0":
                batch += (f"addr add {prefix}.1/24 dev {bridge}\n"
                          f"addr add {NETWORKS6[bridge]}:1/64 dev {bridge} nodad\n")
            sh("ip", "-batch", "-", input=batch)


BOOT = textwrap.dedent("""\
    set -e
    root=$1; name=$2; boot_id=$3; shift 3
    cd "$root"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t tmpfs -o mode=755 dev dev
    mkdir dev/pts dev/shm
    mknod -m 666 dev/null c 1 3; mknod -m 666 dev/zero c 1 5; mknod -m 666 dev/full c 1 7
    mknod -m 666 dev/random c 1 8; mknod -m 666 dev/urandom c 1 9; mknod -m 666 dev/tty c 5 0
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
    mount -t tmpfs -o mode=1777 shm dev/shm
    mount -t tmpfs -o mode=755 run run
    mkdir -p run/sshd run/lock
    echo "$boot_id" >run/boot_id
    mount --bind run/boot_id proc/sys/kernel/random/boot_id
    for shared in "$@"; do mkdir -p ".$shared"; mount --bind -o ro "$shared" ".$shared"; done
    hostname "$name"
    mount --make-rprivate /
    pivot_root . .
    umount -l .
    cd /
    exec /usr/local/bin/lab-init -- /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config
    """)


@functools.cache
def sum_of(file):
    """SHA-256 of a file that does not change."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def shaped(rate):
    """tc's words for a link of that rate."""
    return "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"


class Host:
    """One machine. Its disk outlives poweroff, crash and boot; its processes do not."""

    def __init__(self, index, options):
        self.index = index
        self.name = f"h{index}"
        self.options = options
        self.folder = base() / self.name
        self.root = self.folder / "root"  # its file system, whether it is up or not
        self.networks = options["networks"]
        self.address = self.address_in(self.networks[0])
        self.unshare = None
        self.init = None
        self.user_home = Path(options["home"])

    def address_in(self, network):
        return (f"{NETWORKS6[network]}:{10 + self.index:x}" if self.options["ipv6"]
                else f"{NETWORKS[network]}.{10 + self.index}")

    # ---- life

    def make(self, everybody):
        options = self.options
        lower = options["lower"]
        disk = self.folder / "disk"
        self.root.mkdir(parents=True)
        disk.mkdir()
        sh("mount", "-t", "tmpfs", "-o", f"size={options['disk']},mode=755", "disk", disk)
        (disk / "up").mkdir()
        (disk / "work").mkdir()
        layers = f"{skeletons()[lower is None]}:{lower or '/'}"
        sh("mount", "-t", "overlay", "-o",
           f"lowerdir={layers},upperdir={disk}/up,workdir={disk}/work", "root", self.root)
        etc = self.root / "etc"
        for key in (etc / "ssh").glob("ssh_host_*"):
            key.unlink()
        shutil.rmtree(etc / "ssh/sshd_config.d", ignore_errors=True)
        self.make_key()
        (etc / "hostname").write_text(self.name + "\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{host.address} {host.name}\n" for host in everybody))
        self.configure_sshd()
        self.make_user()
        (self.folder / "net").touch()
        sh("unshare", f"--net={self.folder}/net", "true")
        outer, inner = "", "link set lo up\n"
        for number, network in enumerate(self.networks):
            outer += (f"link add {self.link(network)} type veth peer name eth{number} netns {self.folder}/net\n"
                      f"link set {self.link(network)} master {network} up\n")
            address = self.address_in(network) + ("/64 nodad" if self.options["ipv6"] else "/24")
            inner += f"addr add {address} dev eth{number}\nlink set eth{number} up\n"
        sh("ip", "-batch", "-", input=outer)
        self.in_network("ip", "-batch", "-", input=inner)

    def link(self, network):
        return f"{network}-{self.name}"

    def in_network(self, *argv, **more):
        """Runs a program of this machine in the host's network."""
        return sh("nsenter", f"--net={self.folder}/net", *argv, **more)

    def make_key(self):
        path = self.root / "etc/ssh/ssh_host_ed25519_key"
        for old in (path, path.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", path)

    def known_hosts_line(self):
        key = (self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        return f"{self.address},{self.name} {key[0]} {key[1]}\n"

    def fingerprint(self):
        """SHA256:… of its key now."""
        return sh("ssh-keygen", "-lf", self.root / "etc/ssh/ssh_host_ed25519_key.pub").split()[1]

    def configure_sshd(self, *more):
        """Writes sshd's settings, the defaults but for these; takes effect at once if it runs."""
        path = self.root / "etc/ssh/sshd_config"
        path.write_text("\n".join([
            "HostKey /etc/ssh/ssh_host_ed25519_key", "UsePAM no", "PasswordAuthentication no",
            "PermitRootLogin prohibit-password", "UseDNS no", "PidFile /run/sshd.pid",
            # Hosts share this machine's processors: OpenMP's idle threads sleep, they do not spin.
            "SetEnv OMP_WAIT_POLICY=passive",
            "Subsystem sftp internal-sftp", *self.options["sshd"], *more, ""]))
        ports = [line.split()[1] for line in [*self.options["sshd"], *more] if line.startswith("Port ")]
        self.port = int(ports[0]) if ports else 22
        if self.init:
            self.restart_sshd()

    def restart_sshd(self):
        said = len(self.console(None))  # the old one still listens when the signal is on its way
        self.run("sh", "-c", "kill -HUP $(cat /run/sshd.pid)")
        self.wait_for_sshd(said)

    def make_user(self):
        etc, shell = self.root / "etc", self.options["shell"]
        with open(etc / "passwd", "a") as file:
            file.write(f"{USER}:x:{UID}:{UID}::{self.user_home}:{shell}\n")
        with open(etc / "group", "a") as file:
            file.write(f"{USER}:x:{UID}:\n")
        with open(etc / "shadow", "a") as file:
            file.write(f"{USER}:*:19000:0:99999:7:::\n")
        user_home = self.root / str(self.user_home).lstrip("/")
        (user_home / ".ssh").mkdir(parents=True)
        shutil.copy(f"{private_key()}.pub", user_home / ".ssh/authorized_keys")
        if self.options["profile"]:
            for name in (".bashrc", ".profile", ".bash_profile", ".zshenv", ".zprofile",
                         ".config/fish/config.fish"):
                (user_home / name).parent.mkdir(parents=True, exist_ok=True)
                (user_home / name).write_text(self.options["profile"] + "\n")
        sh("chown", "-R", f"{UID}:{UID}", user_home)
        user_home.chmod(0o700)

    def boot(self):
        assert self.init is None, f"{self.name} is up"
        for network in self.networks:
            sh("ip", "link", "set", self.link(network), "up")
        with open(self.folder / "console", "ab") as console:
            self.unshare = subprocess.Popen(
                ["nsenter", f"--net={self.folder}/net", "unshare", "--mount", "--pid", "--uts", "--ipc",
                 "--fork", "--kill-child=KILL", "/bin/sh", "-c", BOOT, "boot", str(self.root), self.name,
                 str(uuid.uuid4()), *map(str, self.options["share"])],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, env={
                    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True)
        children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children")
        while not (found := children.read_text().split()):
            if self.unshare.poll() is not None:
                raise RuntimeError(f"{self.name} does not boot: {self.console()}")
            time.sleep(0.002)
        self.init = int(found[0])
        self.wait_for_sshd()

    def wait_for_sshd(self, said=None):
        """Until sshd listens, as seen from within: it may not be reachable from here. One that starts
        again says so behind what it has `said`."""
        until = time.monotonic() + 20
        table = Path(f"/proc/{self.init}/net/tcp")
        while True:
            with contextlib.suppress(OSError):
                again = said is None or "Server listening" in self.console(None)[said:]
                if again and any(row.split()[1].endswith(f":{self.port:04X}") and row.split()[3] == "0A"
                                 for row in table.read_text().split("\n")[1:] if row):
                    return
            if time.monotonic() > until or self.unshare.poll() is not None:
                raise RuntimeError(f"{self.name}: sshd does not come up: {self.console()}")
            time.sleep(0.005)

    def console(self, last=2000):
        """The last characters of what it said, all for None."""
        with contextlib.suppress(OSError):
            text = (self.folder / "console").read_text(errors="replace")
            return text if last is None else text[-last:]
        return ""

    def is_up(self):
        return self.init is not None

    def poweroff(self):
        """All processes end at once; the kernel still closes their connections."""
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, 9)
            self.unshare.wait()
            self.init = None

    def crash(self):
        """As a power cut: nothing leaves the host any more, then its processes end."""
        self.cut()
        self.poweroff()

    def reboot(self):
        self.poweroff()
        self.boot()

    def remove(self):
        self.poweroff()
        for mounted in (self.root, self.folder / "disk", self.folder / "net"):
            sh("umount", "-l", mounted, check=False)
        for network in self.networks:
            sh("ip", "link", "del", self.link(network), check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def wipe(self):
        """Ends the user's processes and empties the home, but for the key that lets us in."""
        self.kill_user()
        keep = {".ssh", ".bashrc", ".profile", ".bash_profile", ".zshenv", ".zprofile", ".config"}
        for folder in (self.path(self.user_home), self.path("/tmp"), self.path("/var/tmp")):
            for entry in folder.iterdir():
                if entry.name not in keep:
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    else:
                        entry.unlink()

    def put_program(self, program):
        """The agent, or another of dtrain's programs, where and as an `up` brings it (launcher/remote/bootstrap.cpp)."""
        folder = self.path("~/.dtrain/agents") / sum_of(program)
        folder.mkdir(parents=True)
        shutil.copyfile(program, folder / program.name)
        for path in (folder / program.name, folder, folder.parent, folder.parent.parent):
            path.chmod(0o700)
            os.chown(path, UID, UID)

    def kill_user(self):
        """All of them, and what they start again while they die."""
        until = time.monotonic() + 20
        while pids := self.processes(uid=UID):
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: the user's processes do not end: {pids}")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.005)

    # ---- looking and acting, beside ssh

    def path(self, path):
        """The path here of a file there."""
        path = str(path)
        if path.startswith("~/"):
            path = str(self.user_home / path[2:])
        return self.root / path.lstrip("/")

    def inside(self, *argv, user=None):
        """The command that runs this one on the host, as root or as `user`."""
        who = ["--setuid", str(UID), "--setgid", str(UID)] if user else []
        return ["nsenter", "-t", str(self.init), "--mount", "--uts", "--ipc", "--net", "--pid",
                f"--root=/proc/{self.init}/root", "--wd=/", *who, "--", *argv]

    def run(self, *argv, user=None, check=True, **more):
        """Runs a program on the host and gives its output."""
        return sh(*self.inside(*argv, user=user), check=check, **more)

    def processes(self, uid=None, text=""):
        """Pids (as seen here) of its processes, of one user, with `text` in their command line."""
        namespace = os.readlink(f"/proc/{self.init}/ns/pid") if self.init else ""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace
                        and (uid is None or entry.stat().st_uid == uid)
                        and text.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" ")):
                    found.append(int(entry.name))
        return sorted(found)

    def listening(self):
        """{port: name of the program} of what listens on TCP, loopback left out."""
        out = self.in_network("ss", "-Hltnp")
        found = {}
        for row in out.splitlines():
            address, port = row.split()[3].rsplit(":", 1)
            if not address.startswith(("127.", "[::1]")):
                found[int(port)] = row.split('"')[1] if '"' in row else "?"
        return found

    def sent(self):
        """Bytes that it has sent so far."""
        link = self.link(self.networks[0])
        return json.loads(sh("ip", "-s", "-j", "link", "show", link))[0]["stats64"]["rx"]["bytes"]

    # ---- faults

    def cut(self):
        """The cable is out: silence both ways."""
        for network in self.networks:
            sh("ip", "link", "set", self.link(network), "down")

    def join(self):
        for network in self.networks:
            sh("ip", "link", "set", self.link(network), "up")

    def drop(self, other):
        """Silently drops what goes between this host and `other` (a Host or an address)."""
        address = getattr(other, "address", other)
        family = "ip6" if ":" in address else "ip"
        self.in_network("nft", "-f", "-", input=(
            "add table inet lab\n"
            "add chain inet lab in { type filter hook input priority 0; }\n"
            "add chain inet lab out { type filter hook output priority 0; }\n"
            f"add rule inet lab in {family} saddr {address} drop\n"
            f"add rule inet lab out {family} daddr {address} drop\n"))

    def undrop(self):
        self.in_network("nft", "delete", "table", "inet", "lab", check=False)

    def rate(self, rate):
        """Limits what goes in and out, such as "50mbit"; None: no limit."""
        how = ("replace", "root", *shaped(rate)) if rate else ("del", "root")
        for number, network in enumerate(self.networks):
            sh("tc", "qdisc", how[0], "dev", self.link(network), *how[1:], check=bool(rate))
            self.in_network("tc", "qdisc", how[0], "dev", f"eth{number}", *how[1:], check=bool(rate))

    def delay(self, milliseconds):
        """Adds to the way in and to the way out. Needs a kernel with sch_netem: see has_netem()."""
        for number, network in enumerate(self.networks):
            sh("tc", "qdisc", "replace", "dev", self.link(network), "root", "netem", "delay", f"{milliseconds}ms")
            self.in_network("tc", "qdisc", "replace", "dev", f"eth{number}", "root", "netem", "delay",
                            f"{milliseconds}ms")

    def fill(self, leave=0):
        """Fills its disk but for `leave` bytes: from then on ENOSPC."""
        self.unfill()
        disk = self.folder / "disk"
        with open(disk / "FILL", "wb") as file:
            size, piece = 0, 1 << 62
            while piece:  # others write there meanwhile, so that it takes more than one
                room = os.statvfs(disk)
                piece = min(piece, max(room.f_bavail * room.f_frsize - leave, 0))
                try:
                    if piece:
                        os.posix_fallocate(file.fileno(), size, piece)
                        size += piece
                except OSError:
                    piece //= 2

    def unfill(self):
        (self.folder / "disk/FILL").unlink(missing_ok=True)

    def new_key(self):
        """Another host key from now on, as after an installation anew, or with somebody between."""
        self.make_key()
        self.restart_sshd()

    def drop_connections(self):
        """Ends every SSH session: the connections break, what they started does not get a signal."""
        listener = int(self.path_in_memory("/run/sshd.pid").read_text())
        for pid in self.processes(text="sshd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                status = Path(f"/proc/{pid}/status").read_text()
                inner = int(next(row for row in status.split("\n") if row.startswith("NSpid:")).split()[-1])
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if inner not in (1, listener) and name.startswith("sshd"):
                    os.kill(pid, 9)

    def path_in_memory(self, path):
        """As path(), for what is in the running host's own mounts: /run, /dev, /proc."""
        return Path(f"/proc/{self.init}/root{path}")


def write_yaml(path, document):
    """Each key on a line of its own, its value as JSON, which is YAML too."""
    Path(path).write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in document.items()
                                  if value is not None))


def has_netem():
    sh("ip", "link", "add", "probe", "type", "dummy", check=False)
    done = subprocess.run(["tc", "qdisc", "add", "dev", "probe", "root", "netem", "delay", "1ms"], capture_output=True)
    sh("ip", "link", "del", "probe", check=False)
    return done.returncode == 0


class Hosts:
    """`count` hosts, h0 to hN-1, all up. Options, for all or in `only={index: {…}}` for one:

    shell     the user's login shell                      "/bin/bash"
    profile   lines that every shell's start-up files get ""
    home      the user's home                             "/home/dev"
    lower     another system than this machine's          None
    disk      how much its disk (memory!) holds           "1g"
    sshd      further lines of sshd_config                ()
    networks  ("lab0",) is reached from here; ("lab1",) only through a host with both
    share     folders of this machine that the host sees too, read-only
    ipv6      it has IPv6 alone, but for its own loopback     False
    """

    DEFAULTS = {"shell": "/bin/bash", "profile": "", "home": f"/home/{USER}", "lower": None, "disk": "1g", "sshd": (),
                "networks": ("lab0",), "share": (), "ipv6": False}

    def __init__(self, count, only=None, **options):
        unknown = set(options) - set(self.DEFAULTS)
        assert not unknown, unknown
        make_networks()
        self.hosts = [Host(index, {**self.DEFAULTS, **options, **(only or {}).get(index, {})})
                      for index in range(count)]

    def __enter__(self):
        try:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda host: (host.make(self.hosts), host.boot()), self.hosts))
            self.trust()
            (base() / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
                f"{host.address} {host.name}\n" for host in self.hosts if "lab0" in host.networks))
            if not os.path.ismount("/etc/hosts"):
                sh("mount", "--bind", base() / "hosts", "/etc/hosts")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.uplink(None)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(Host.remove, self.hosts))

    def __getitem__(self, index):
        return self.hosts[index]

    def __len__(self):
        return len(self.hosts)

    def __iter__(self):
        return iter(self.hosts)

    @staticmethod
    def uplink(rate):
        """Limits what this machine sends to all hosts together, such as "50mbit"; None: no limit. What
        they send to each other is Host.rate()'s."""
        how = ("replace", "root", *shaped(rate)) if rate else ("del", "root")
        sh("tc", "qdisc", how[0], "dev", "lab0", *how[1:], check=bool(rate))

    @staticmethod
    def sent():
        """Bytes that this machine has sent to hosts so far."""
        return json.loads(sh("ip", "-s", "-j", "link", "show", "lab0"))[0]["stats64"]["tx"]["bytes"]

    def trust(self):
        """Puts all hosts' keys, as they are now, into the laptop's known_hosts."""
        known_hosts().write_text("".join(host.known_hosts_line() for host in self.hosts))

    def forget(self):
        known_hosts().unlink(missing_ok=True)

    def cluster_yaml(self, path, name="lab", members=None, user=USER, each=None, **more):
        """Writes a cluster YAML with these hosts, the first of `members` as the head. `each` is
        {index: {key: value}} for single hosts; a key of `more` that is None is left out."""
        members = range(len(self.hosts)) if members is None else members
        document = {
            "cluster_name": name,
            "provider": {"type": "ssh", "hosts": [
                {"host": self.hosts[m].address, "node": self.hosts[m].name, **(each or {}).get(m, {})}
                for m in members]},
            "auth": {"ssh_user": user, "ssh_private_key": str(private_key())},
            **more}
        write_yaml(path, document)
        return Path(path)

    def ssh(self, index, *words, user=USER, **more):
        """Plain ssh to a host: what a person at this laptop would see."""
        return subprocess.run(["ssh", "-o", "BatchMode=yes", f"{user}@{self.hosts[index].address}", *words],
                              **{"capture_output": True, "text": True, "stdin": subprocess.DEVNULL,
                                 "timeout": 60, **more})


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s [COUNT] [options] [-- COMMAND]",
                                     description="A shell, or COMMAND, beside real hosts h0, h1, …: ssh dev@h0")
    parser.add_argument("count", type=int, nargs="?", default=2)
    parser.add_argument("--old", action="store_true", help="the hosts are a bare Debian 11")
    parser.add_argument("--shell", default="/bin/bash", help="the user's login shell there")
    parser.add_argument("--disk", default="2g", help="how much a host's disk holds (it is memory)")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    ours, command = sys.argv[1:at], sys.argv[at + 1:]
    options = parser.parse_args(ours)
    reason = available()
    if reason:
        sys.exit(reason)
    enter()
    if options.old and not old_system():
        sys.exit("there is no Debian 11 here (scripts/setup --tests)")
    with Hosts(options.count, shell=options.shell, disk=options.disk,
               lower=old_system() if options.old else None) as lab:
        yaml = lab.cluster_yaml(home() / "cluster.yaml")
        if not command:
            print(f"hosts h0 to h{len(lab) - 1}, user {USER}; a cluster YAML: {yaml}; ends with this shell")
            command = ["/bin/bash", "--norc"]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
