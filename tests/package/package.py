"""scripts/package: what the packages hold, that they say what they are, and that they are the same
however often they are made. Nothing is compiled, nobody is asked over the network."""

import base64
import csv
import email
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
EPOCH = 1700000000
LIMIT = 120


def run(*argv, **more):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT, **more)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    return done.stdout


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def content(folder):
    """Name below it -> bytes, of all files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        held = tempfile.TemporaryDirectory(prefix="dtrain package ")
        cls.addClassCleanup(held.cleanup)
        cls.folder = Path(held.name)
        cls.made = cls.make("once", 0o022)
        [cls.deb] = cls.made.glob("dtrain_*.deb")
        [cls.tarball] = cls.made.glob("*.tar.gz")
        [cls.wheel] = cls.made.glob("*.whl")
        cls.version = cls.deb.name.split("_")[1]
        run("dpkg-deb", "-x", cls.deb, cls.folder / "deb")
        run("dpkg-deb", "-e", cls.deb, cls.folder / "control")
        with tarfile.open(cls.tarball) as tar:
            cls.members = tar.getmembers()
            tar.extractall(cls.folder / "unpacked")
        [cls.tree] = (cls.folder / "unpacked").iterdir()

    @classmethod
    def make(cls, name, umask):
        out, scratch = cls.folder / name, cls.folder / f"{name} scratch"
        scratch.mkdir()
        run(sys.executable, SOURCE / "scripts/package", "--build", BUILD, "--no-rebuild", "--out", out,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "TMPDIR": str(scratch)}, umask=umask)
        return out

    def test_made_again_they_are_the_same(self):
        again = self.make("again", 0o077)
        sums = lambda folder: {path.name: sha256(path.read_bytes()) for path in folder.iterdir()}
        self.assertEqual(sums(self.made), sums(again))

    def test_names_say_version_and_machine(self):
        self.assertEqual(self.deb.name, f"dtrain_{self.version}_amd64.deb")
        self.assertEqual(self.tarball.name, f"dtrain-{self.version}-linux-x86_64.tar.gz")
        self.assertEqual(self.wheel.name,
                         f"dtrain-{self.version}-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl")
        self.assertEqual(run(self.tree / "bin/dtrain", "--version").decode(), f"dtrain {self.version}\n")

    def test_programs_need_no_library(self):
        for program in (self.tree / "bin/dtrain", self.tree / "libexec/dtrain/dtrain-agent", self.tree / "libexec/dtrain/dtrain-scaler"):
            said = run("readelf", "-ldW", program).decode()
            self.assertIn("LOAD", said)
            self.assertNotIn("INTERP", said)
            self.assertNotIn("NEEDED", said)

    def test_all_hold_the_same(self):
        tree, deb = content(self.tree), content(self.folder / "deb/usr")
        with zipfile.ZipFile(self.wheel) as wheel:
            inside = {name.split(".data/", 1)[1]: wheel.read(name) for name in wheel.namelist() if ".data/" in name}
        self.assertEqual({name.replace("scripts/", "bin/").removeprefix("data/"): data
                          for name, data in inside.items()}, tree)
        elsewhere = {"share/doc/dtrain/CHANGELOG.md": "share/doc/dtrain/changelog.gz",
                     "share/zsh/site-functions/_dtrain": "share/zsh/vendor-completions/_dtrain"}
        self.assertEqual({elsewhere.get(name, name + ".gz" * name.startswith("share/man/")) for name in tree}, set(deb))
        for name in ("bin/dtrain", "libexec/dtrain/dtrain-agent", "share/doc/dtrain/docs/cli.md"):
            self.assertEqual(tree[name], deb[name])

    def test_what_there_is(self):
        tree = content(self.tree)
        for path in SOURCE.glob("docs/*.md"):
            self.assertEqual(tree[f"share/doc/dtrain/docs/{path.name}"], path.read_bytes())
        for path in SOURCE.glob("configs/*"):
            self.assertEqual(tree[f"share/doc/dtrain/examples/{path.name}"], path.read_bytes())
        pages = {name for name in tree if name.startswith("share/man/man1/")}
        self.assertTrue({"share/man/man1/dtrain.1", "share/man/man1/dtrain-up.1"} <= pages, pages)
        for name, shell in (("bash-completion/completions/dtrain.bash", "bash"),
                            ("zsh/site-functions/_dtrain", "zsh"), ("fish/vendor_completions.d/dtrain.fish", "fish")):
            self.assertEqual(tree[f"share/{name}"], run(self.tree / "bin/dtrain", "completion", shell))
        licenses = {name.rsplit("/", 1)[1] for name in tree if name.startswith("share/doc/dtrain/licenses/")}
        self.assertTrue({"libssl-dev", "libssh-dev", "libc6-dev", "libboost1.81-dev", "libcli11-dev", "scipy"} <= licenses,
                        licenses)
        self.assertEqual({name.split("/")[0] for name in tree}, {"bin", "libexec", "share"})

    def test_entries_of_the_tarball(self):
        names = [member.name for member in self.members]
        self.assertEqual(names, sorted(names, key=lambda name: name.split("/")))
        for member in self.members:
            self.assertEqual((member.uid, member.gid, member.uname, member.gname, member.mtime),
                             (0, 0, "root", "root", EPOCH), member.name)
            runs = member.isdir() or "/bin/" in member.name or "/libexec/" in member.name
            self.assertEqual(member.mode, 0o755 if runs else 0o644, member.name)

    def test_entries_of_the_deb(self):
        for line in run("dpkg-deb", "-c", self.deb).decode().splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--) root/root .* 2023-11-14 22:13 \./")
        control = self.folder / "control"
        sums = dict(reversed(line.split("  ")) for line in (control / "md5sums").read_text().splitlines())
        self.assertEqual(sums, {name: hashlib.md5(data).hexdigest()
                                for name, data in content(self.folder / "deb").items()})
        fields = email.message_from_string((control / "control").read_text())
        self.assertEqual((fields["Package"], fields["Version"], fields["Architecture"]),
                         ("dtrain", self.version, "amd64"))
        self.assertNotIn("Depends", fields)
        for source in ("glibc", "libssh", "openssl", "yaml-cpp", "sqlite3"):
            self.assertRegex(fields["Built-Using"], rf"(^|, ){source} \(= \S+\)")

    def test_record_of_the_wheel(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist()}
            self.assertEqual({info.date_time for info in wheel.infolist()}, {(2023, 11, 14, 22, 13, 20)})
        record = f"dtrain-{self.version}.dist-info/RECORD"
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(files[record].decode()))}
        self.assertEqual(rows.pop(record), ("", ""))
        digest = lambda data: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        self.assertEqual(rows, {name: (digest(data), str(len(data))) for name, data in files.items() if name != record})

    def test_pip_installs_the_wheel(self):
        target = self.folder / "site"
        run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", target, self.wheel)
        self.assertEqual(sha256((target / "bin/dtrain").read_bytes()), sha256((self.tree / "bin/dtrain").read_bytes()))
        self.assertTrue(os.access(target / "libexec/dtrain/dtrain-agent", os.X_OK))
        module = "import dtrain._command as c, importlib.metadata as m; print(c.program(), m.version('dtrain'))"
        said = run(sys.executable, "-c", module, env={"PATH": "/none", "PYTHONPATH": str(target)}, cwd="/")
        self.assertEqual(said.decode(), f"{target}/bin/dtrain {self.version}\n")

    def test_unpacked_it_works_where_it_lies(self):
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}
        dtrain = self.tree / "bin/dtrain"
        try:
            said = run(dtrain, "submit", "--local", "--", "sh", "-c", "echo rank $RANK is there", env=env)
            self.assertIn(b"rank 0 is there\n", said)
        finally:
            run(dtrain, "down", "-y", "-c", "local", env=env)

    def test_the_training_library(self):
        found = list(self.made.glob("libdtrain-trainer-dev_*.deb"))
        if not (BUILD / "trainer").is_dir():
            self.assertEqual(found, [])
            self.skipTest("built without the training library")
        [deb] = found
        fields = email.message_from_bytes(run("dpkg-deb", "-f", deb))
        self.assertRegex(fields["Depends"], r"^g\+\+, .*libpng-dev")
        names = run("dpkg-deb", "-c", deb).decode()
        for name in (r"/include/dtrain/trainer/trainer\.hpp", r"/libdtrain-trainer\.a", r"/pkgconfig/dtrain-trainer\.pc",
                     r"/cmake/dtrain-trainer/dtrain-trainerConfig\.cmake", r"/usr/bin/dtrain-data"):
            self.assertRegex(names, name + r"\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)  # skips say why
