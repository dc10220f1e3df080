"""docs/ssh.md, followed to the letter: its files are written, its commands run in order."""

import shutil

from ssh_harness import *

PAGE = SOURCE / "docs" / "ssh.md"


class Page(HostsCase):
    count = 2
    options = {"disk": "2g"}

    @classmethod
    def unavailable(cls):
        if not (BUILD / "examples" / "mnist_mlp" / "mnist_mlp").exists():
            return "the examples are not built (trainer disabled)"
        return None

    def test_the_page_works_as_written(self):
        text = PAGE.read_text()
        # The reader has other addresses and names than the page: so have we.
        for theirs, ours in (("10.0.0.5", self.lab[0].address), ("10.0.0.6", self.lab[1].address),
                             ("ubuntu", USER)):
            text = text.replace(theirs, ours)
        blocks = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text)
        program = Path("examples") / "mnist_mlp" / "mnist_mlp"
        (self.folder / "build" / program).parent.mkdir(parents=True)
        shutil.copy2(BUILD / program, self.folder / "build" / program)
        env = {**self.env, "PATH": f"{DTRAIN.parent}:{os.environ['PATH']}"}
        commands = 0
        for language, block in blocks:
            if language == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", block)):
                (self.folder / name.group(1)).write_text(block)
            if language == "sh":
                for command in block.strip().split("\n"):
                    done = subprocess.run(["/bin/bash", "-c", command], cwd=self.folder, env=env, text=True,
                                          stdin=subprocess.DEVNULL, capture_output=True, timeout=1500)
                    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
                    commands += 1
        self.assertGreater(commands, 7)
        self.assertTrue(list((self.folder / "model").rglob("*.safetensors")))
        self.assert_clean(0, 1)


if __name__ == "__main__":
    main()
