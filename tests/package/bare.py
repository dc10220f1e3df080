"""scripts/package --check: each package installed, used and removed in bare Debian 11 and 12 systems, whose
bases debootstrap makes at the first time. What is tried changes nothing of a base, and has no network.

  python3 tests/package/bare.py FOLDER [TEST...]     with the packages of that folder; needs root
"""

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest
from pathlib import Path

SERVE_NAMES = sys.argv[1:] == ["--serve-names"]
SOURCE = Path(__file__).resolve().parents[2]
BASES = SOURCE / ".deps" / "bases"
PACKAGES = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
DEADLINE = 180

# $1: the base; $2: what lies at /root/packages there; $3: a script that a shell there runs as root, with
# a person called ann about. All is gone with the namespaces.
BOOT = textwrap.dedent("""\
    set -e
    mount -t tmpfs scratch "$TMPDIR"
    cd "$TMPDIR"
    mkdir up work root
    mount -t overlay -o "lowerdir=$1,upperdir=up,workdir=work" root root
    cd root
    mount -t proc proc proc
    mount -t tmpfs -o mode=755 dev dev
    for device in null zero full random urandom tty; do mknod -m 666 dev/$device c $(stat -c '%Hr %Lr' /dev/$device); done
    ln -s /proc/self/fd dev/fd
    mkdir -m 1777 dev/shm
    mkdir root/packages
    mount --bind -o ro "$2" root/packages
    for shared in $SHARED; do mkdir -p ".$shared"; mount --bind -o ro "$shared" ".$shared"; done
    ip link set lo up
    hostname bare
    echo 'ann:x:2001:2001::/home/ann:/bin/bash' >>etc/passwd
    mkdir home/ann && chown 2001:2001 home/ann
    if [ -n "$NAMESERVER" ]; then
      mkfifo ../dns
      python3 "$NAMESERVER" --serve-names >../dns &
      read -r ready <../dns
    fi
    exec chroot . /bin/bash -ec "$3"
    """)

# As ann: a cluster of two nodes, a job on both, its output, and nothing left running.
USE = """
cat >/tmp/use <<'END'
set -e
cd
echo 'cluster_name: bare
provider: {type: local, nodes: 2}' >cluster.yaml
dtrain up cluster.yaml
dtrain submit --name hello --nnodes 2 -- sh -c 'echo rank $RANK of $WORLD_SIZE on $(uname -n)'
dtrain logs hello >logs
[ "$(sort logs)" = "[0] rank 0 of 2 on bare
[1] rank 1 of 2 on bare" ] || { cat logs; exit 1; }
[ "$(dtrain result --json hello | grep -o '"state":"[a-z]*"' | head -n 1)" = '"state":"succeeded"' ]
dtrain down -y
for process in /proc/[0-9]*; do
  case "$(readlink $process/exe || true)" in */dtrain*) echo "$process runs"; exit 1 ;; esac
done
END
use() { runuser -u ann -- env -i HOME=/home/ann PATH="$1" bash /tmp/use; }
# What an installation may have changed, and must not have left.
files() { find / -xdev \\( -path /home/ann -o -path /tmp -o -path /proc -o -path /dev -o -path /root -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache/apt \\) -prune -o -print | sort; }
"""
DEBIAN = "/usr/local/bin:/usr/bin:/bin"


def base(release, *packages):
    """A bare system, made if it is not there yet."""
    folder = BASES / "-".join([release, *packages])
    if not (folder / ".complete").exists():
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)
        BASES.mkdir(parents=True, exist_ok=True)
        print(f"package: fetching {folder.name} into {folder.parent}", flush=True)
        include = [f"--include={','.join(packages)}"] if packages else []
        with open(f"{folder}.log", "w") as log:
            subprocess.run(["debootstrap", "--variant=minbase", *include, release, str(part)], check=True,
                           stdout=log, stderr=log, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
        for waste in [*(part / "var/cache/apt/archives").glob("*.deb"), *(part / "var/lib/apt/lists").glob("*_*")]:
            waste.unlink()
        (part / ".complete").touch()
        part.rename(folder)
    return folder


def package(pattern):
    [path] = PACKAGES.glob(pattern)
    return path.name


class Bare:
    """On one release."""

    def inside(self, script, *packages, nameserver="", shared=(), deadline=DEADLINE):
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL", "bash", "-c",
                 BOOT, "boot", str(base(self.release, *packages)), str(PACKAGES), script],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": scratch, "NAMESERVER": nameserver,
                     "SHARED": " ".join(map(str, shared))})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_deb(self):
        said = self.inside(USE + f"""
files >/root/before
apt-get install -y /root/packages/{package("dtrain_*.deb")}
dtrain --version
(cd / && md5sum --quiet -c /var/lib/dpkg/info/dtrain.md5sums)
zcat /usr/share/man/man1/dtrain-up.1.gz | grep -c '^.SH'
bash -c '. /usr/share/bash-completion/completions/dtrain.bash; complete -p dtrain'
use {DEBIAN}
apt-get purge -y dtrain
files >/root/after
diff /root/before /root/after && echo nothing is left
""")
        self.assertIn("complete -o filenames -F _dtrain dtrain", said)
        self.assertTrue(said.endswith("nothing is left\n"), said)

    def test_tarball(self):
        self.inside(USE + f"""
! command -v python3
mkdir '/opt/some where'
tar -xzf /root/packages/{package("*.tar.gz")} -C '/opt/some where'
use "$(echo /opt/some\\ where/dtrain-*/bin):{DEBIAN}"
ln -s /opt/*/dtrain-*/bin/dtrain /usr/local/bin/dtrain
use {DEBIAN}
""")

    def test_wheel(self):
        said = self.inside(USE + f"""
runuser -u ann -- python3 -m venv /home/ann/venv
cp /root/packages/{package("*.whl")} /tmp
find /home/ann/venv ! -type d ! -path '*/__pycache__/*' | sort >/root/before
runuser -u ann -- /home/ann/venv/bin/pip install --no-index /tmp/*.whl
use /home/ann/venv/bin:{DEBIAN}
cat >/tmp/job.py <<'END'
import dtrain, subprocess
subprocess.run([dtrain._command.program(), "up"], check=True)
job = dtrain.submit(["sh", "-c", "echo from Python"])
job.follow()
assert job.result().ok
subprocess.run([dtrain._command.program(), "down", "-y"], check=True)
END
runuser -u ann -- env -i -C /home/ann HOME=/home/ann PATH={DEBIAN} /home/ann/venv/bin/python /tmp/job.py
runuser -u ann -- /home/ann/venv/bin/pip uninstall -y dtrain
find /home/ann/venv ! -type d ! -path '*/__pycache__/*' | sort >/root/after
diff /root/before /root/after && echo nothing is left
""", "python3-venv")
        self.assertIn("from Python", said)
        self.assertTrue(said.endswith("nothing is left\n"), said)

    def test_names_of_hosts(self):
        """Whatever the system's name service is made of: a static program must load none of its modules."""
        for hosts, passwd in (("files dns", "files"), ("hesiod nis files dns", "compat"),
                              ("files mdns4_minimal [NOTFOUND=return] resolve dns myhostname", "files systemd sss")):
            said = self.inside(f"""
dpkg -i /root/packages/{package("dtrain_*.deb")} >/dev/null
echo '127.0.0.66 of-file.test' >>/etc/hosts
echo 'nameserver 127.0.0.1' >/etc/resolv.conf
echo 'hosts: {hosts}
passwd: {passwd}' >/etc/nsswitch.conf
cd /root
export HOME=/root
for host in of-file of-dns of-nobody; do
  echo "cluster_name: x
provider: {{type: ssh, hosts: [$host.test]}}" >cluster.yaml
  code=0
  dtrain up cluster.yaml --timeout 1 || code=$?
  [ $code = 1 ]
done
""", nameserver=__file__)
            with self.subTest(hosts=hosts):
                self.assertIn("127.0.0.66 port 22: Connection refused", said)
                self.assertIn("127.0.0.77 port 22: Connection refused", said)
                self.assertIn("the name of-nobody.test has no address", said)


class Debian11(Bare, unittest.TestCase):
    release = "bullseye"


class Debian12(Bare, unittest.TestCase):
    release = "bookworm"

    def test_the_training_library(self):
        """LibTorch comes from where the package was built, at the same path."""
        deb = next(PACKAGES.glob("libdtrain-trainer-dev_*.deb"), None)
        if deb is None:
            self.skipTest("built without the training library")
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(files)) as tar:
            [pc] = [name for name in tar.getnames() if name.endswith(".pc")]
            text = tar.extractfile(pc).read().decode()
        torch = Path(re.search("^libtorch=(.*)$", text, re.M)[1])
        depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True, stdout=subprocess.PIPE, text=True)
        said = self.inside(USE + f"""
files >/root/before
dpkg -i /root/packages/{deb.name}
cp -r {SOURCE / "examples/own_project"} /tmp/project
cmake -S /tmp/project -B /tmp/cmake -DCMAKE_BUILD_TYPE=Release
cmake --build /tmp/cmake
OMP_NUM_THREADS=1 /tmp/cmake/circle
pkg-config --cflags --libs dtrain-trainer
dpkg --purge libdtrain-trainer-dev
files >/root/after
diff /root/before /root/after && echo nothing is left
""", "cmake", "make", "pkg-config", *depends.stdout.strip().split(", "), deadline=1200,
                           shared=[torch.parent, SOURCE / "examples/own_project"])
        accuracy = [float(found) for found in re.findall(r"val_accuracy ([\d.]+)", said)]
        self.assertGreater(accuracy[-1], 0.95, said)
        self.assertTrue(said.endswith("nothing is left\n"), said)


def serve_names():
    """A DNS server that knows of-dns.test."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    print("ready", flush=True)
    while True:
        query, client = server.recvfrom(512)
        end = query.index(b"\0", 12) + 5
        question = query[12:end]
        known = question.startswith(b"\6of-dns\4test\0")
        address = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\x4d" if known and question.endswith(b"\0\1\0\1") else b""
        server.sendto(query[:2] + (b"\x85\x80" if known else b"\x85\x83") + b"\0\1\0" + bytes([bool(address)])
                      + b"\0\0\0\0" + question + address, client)


if __name__ == "__main__":
    if SERVE_NAMES:
        serve_names()
    if PACKAGES is None or not PACKAGES.is_dir():
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("package: bare systems need root")
    unittest.main(verbosity=2)
