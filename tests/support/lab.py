"""The lab that test hosts stand in: namespaces of the program that uses it.

enter() starts the program anew inside them (network, mounts, processes). So nothing outside is
touched, several labs run side by side, there is no way to an outside network, and whatever way the
program ends, by SIGKILL too, the kernel takes everything away with it.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
OLD_SYSTEM = SOURCE / ".deps" / "hosts" / "bullseye"
# Beside this machine's own system, what a test host may have of it.
SYSTEM = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
EMPTY = ("boot", "dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var")
# What the old system is bare of too, though its package manager brings it.
BARE = ("usr/bin/tar", "usr/bin/perl*", "usr/lib/x86_64-linux-gnu/libstdc++.so*")
PROGRAMS = {"ip": "iproute2", "nft": "nftables", "tc": "iproute2", "tini-static": "tini",
            "sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client",
            "unshare": "util-linux", "nsenter": "util-linux", "pivot_root": "util-linux"}


def available():
    """None where hosts can be made, else why not."""
    if os.environ.get("DTRAIN_LAB"):
        return None
    if os.getuid() != 0:
        return "hosts need root"
    missing = sorted({package for program, package in PROGRAMS.items() if not which(program)})
    if missing:
        return "hosts need the packages " + " ".join(missing) + " (scripts/setup --tests)"
    probe = subprocess.run(["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "/bin/sh", "-c",
                            "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/u /mnt/w && mount -t overlay "
                            "none -o lowerdir=/usr,upperdir=/mnt/u,workdir=/mnt/w /mnt/a"
                            " && ip link add name lab0 type veth peer name lab1 && ip link add name lab2 type bridge"],
                           capture_output=True, text=True)
    if probe.returncode:
        return "no hosts here, namespaces do not work: " + probe.stderr.strip().replace("\n", "; ")
    return None


def enter():
    """Starts this program anew in a lab of its own, unless it is in one; where that cannot be it
    goes on outside, and available() says why."""
    if os.environ.get("DTRAIN_LAB"):
        set_up()
    elif available() is None:
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork",
                   "--kill-child=KILL", "--mount-proc", which("tini-static"), "--", sys.executable,
                   *sys.argv]
        os.environ["DTRAIN_LAB"] = str(free_folder())
        sys.stdout.flush()
        os.execvp(command[0], command)


def which(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_folder():
    """A folder of every Debian that may be covered, as nothing that we need is below it."""
    needed = [SOURCE, Path(sys.executable).resolve(), Path(os.environ.get("DTRAIN_BUILD", "/")).resolve()]
    return next(folder for folder in map(Path, ("/media", "/srv", "/mnt"))
                if folder.is_dir() and not os.path.ismount(folder) and not any(path.is_relative_to(folder) for path in needed))


def sh(*argv, check=True, **more):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, **more)
    if check and done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def base():
    return Path(os.environ["DTRAIN_LAB"])


def home():
    """The home of whoever sits at the laptop; ~ of every program in the lab, ssh's too."""
    return base() / "home"


def set_up():
    if (base() / "home").exists():
        return
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    sh("mount", "-t", "tmpfs", "-o", "mode=755", "lab", base())
    home().mkdir()
    (base() / "tmp").mkdir(mode=0o1777)
    (base() / "tmp").chmod(0o1777)
    # ssh takes the home from passwd, whatever HOME says.
    rows = Path("/etc/passwd").read_text().split("\n")
    for at, row in enumerate(rows):
        fields = row.split(":")
        if fields[0] == "root":
            fields[5] = str(home())
            rows[at] = ":".join(fields)
    (base() / "passwd").write_text("\n".join(rows))
    sh("mount", "--bind", base() / "passwd", "/etc/passwd")
    os.environ.update(HOME=str(home()), TMPDIR=str(base() / "tmp"))
    for name in [name for name in os.environ if name.startswith(("SSH_", "XDG_"))]:
        del os.environ[name]
    sh("ip", "link", "set", "lo", "up")
    (home() / ".ssh").mkdir(mode=0o700)
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "laptop", "-f", private_key())
    make_skeleton()


def private_key():
    return home() / ".ssh" / "id_ed25519"


def known_hosts():
    return home() / ".ssh" / "known_hosts"


def old_system():
    """A bare Debian 11 as a host's system: glibc 2.31, no Python, rsync, tar or C++ runtime. None
    where it is not there."""
    return OLD_SYSTEM if (OLD_SYSTEM / ".complete").exists() else None


def skeletons():
    return {True: base() / "skeleton", False: base() / "skeleton-old"}


def make_skeleton():
    """What all hosts have over the system below them: its own users, an empty home, and nothing of
    what this machine has beside its installed system."""
    for own_system, layer in skeletons().items():
        layer.mkdir()
        if own_system:
            for entry in Path("/").iterdir():
                if entry.name not in SYSTEM + EMPTY:
                    whiteout(layer / entry.name)
            for folder in (*EMPTY, "usr/local"):
                opaque(layer / folder)
        elif old_system():
            for pattern in BARE:
                for path in old_system().glob(pattern):
                    whiteout(layer / path.relative_to(old_system()))
        for folder in (*EMPTY, "etc/ssh", "root/.ssh", "usr/local/bin", "var/tmp", "var/log", "var/lib", "var/cache"):
            (layer / folder).mkdir(parents=True, exist_ok=True)
        for folder in ("tmp", "var/tmp"):
            (layer / folder).chmod(0o1777)
        (layer / "root").chmod(0o700)
        (layer / "root/.ssh").chmod(0o700)
        shutil.copy(f"{private_key()}.pub", layer / "root/.ssh/authorized_keys")
        shutil.copy(which("tini-static"), layer / "usr/local/bin/lab-init")


def whiteout(path):
    """What lies below overlayfs at this path is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o020000, os.makedev(0, 0))


def opaque(folder):
    """The folder is there, with nothing of what lies below it."""
    folder.mkdir(parents=True)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")
