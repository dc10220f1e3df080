"""sync: files to a node and back, through the head."""

from harness import *


class Sync(ClusterCase):
    nodes = 2

    def setUp(self):
        super().setUp()
        self.home = self.folder / "home of mine"
        self.home.mkdir()

    # Beside the agents' own home: targets are absolute here.
    def target(self, name="there"):
        return self.home / name

    def source(self):
        source = self.folder / "src"
        (source / "sub").mkdir(parents=True, exist_ok=True)
        (source / "a").write_text("alpha")
        (source / "sub" / "b").write_bytes(os.urandom(3_000_000))
        (source / "link").symlink_to("sub/b")
        (source / "drop.o").write_text("x")
        return source

    def one(self, *args):
        answer = self.json("sync", *args)
        self.assertEqual(len(answer["nodes"]), 1)
        return answer["nodes"][0]["mounts"][0]

    def test_up_and_down_again(self):
        source = self.source()
        first = self.one("up", source, self.target(), "--exclude", "*.o")
        self.assertEqual((first["files"], first["left_count"]), (2, 0))
        self.assertEqual((self.target() / "sub/b").read_bytes(), (source / "sub/b").read_bytes())
        self.assertEqual(os.readlink(self.target() / "link"), "sub/b")
        self.assertFalse((self.target() / "drop.o").exists())
        again = self.one("up", source, self.target(), "--exclude", "*.o")
        self.assertEqual((again["files"], again["removed"]), (0, 0))

        (source / "a").write_text("changed")
        dry = self.one("up", source, self.target(), "--dry-run", "--exclude", "*.o")
        self.assertEqual(dry["sent_paths"], ["a"])
        self.assertEqual((self.target() / "a").read_text(), "alpha")

        back = self.one("down", self.target(), self.folder / "back", "--node", "node-1")
        self.assertEqual(back["files"], 2)
        self.assertEqual((self.folder / "back/a").read_text(), "alpha")

    def test_what_was_changed_there_stays(self):
        source = self.source()
        self.ok("sync", "up", source, self.target())
        (self.target() / "a").write_text("theirs")
        (source / "a").write_text("ours, later")
        done = self.run_dtrain("sync", "up", source, self.target())
        self.assertEqual(done.returncode, 1)
        self.assertIn("was changed there", done.stderr)
        self.assertEqual((self.target() / "a").read_text(), "theirs")
        self.ok("sync", "up", source, self.target(), "--overwrite")
        self.assertEqual((self.target() / "a").read_text(), "ours, later")

    def test_file_mounts_of_the_yaml(self):
        self.source()
        (self.folder / "cluster.yaml").write_text(
            f"cluster_name: {self.name()}\nprovider: {{type: local, nodes: 2}}\n"
            f"file_mounts:\n  '{self.target('one')}': ./src\n  '{self.target('two')}/': ./src/a\n"
            "rsync_exclude: ['*.o']\n")
        self.ok("sync", "up")
        self.assertEqual((self.target("one") / "a").read_text(), "alpha")
        self.assertEqual((self.target("two") / "a").read_text(), "alpha")
        self.assertFalse((self.target("one") / "drop.o").exists())

    def test_errors_of_the_other_side(self):
        done = self.run_dtrain("sync", "down", self.folder / "nothing", self.folder / "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing", done.stderr)
        self.target().write_text("a file")
        done = self.run_dtrain("sync", "up", self.source(), self.target())
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not a folder", done.stderr)
        self.assertEqual(self.run_dtrain("sync", "up", self.folder / "src").returncode, 2)

    def test_a_transfer_that_is_killed_leaves_nothing_half(self):
        source = self.folder / "large"
        source.mkdir()
        with open(source / "f", "wb") as file:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
        process = self.start("sync", "up", source, self.target())
        eventually(lambda: list(self.home.glob("there/.dtrain-sync-*/*")) or
                   process.poll() is not None, "it is on its way", pause=0.005)
        process.kill()
        process.wait()
        eventually(lambda: not list(self.home.glob("there/.dtrain-sync-*")), "it is cleaned up")
        eventually(lambda: not self.target().exists() or (self.target() / "f").exists(),
                   "the folder that it made is gone too, or it had been done")
        self.ok("sync", "up", source, self.target())
        self.assertEqual((self.target() / "f").read_bytes(), (source / "f").read_bytes())


if __name__ == "__main__":
    main()
