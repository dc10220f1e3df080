"""Who may include whom: the walls of the house, checked over every source file."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)

# A folder may include itself and these. The longest matching name counts.
MAY = {
    "launcher/core": [],
    "launcher/spec": ["launcher/core", "launcher/wire/fields.hpp"],
    "launcher/files": ["launcher/core", "launcher/wire/fields.hpp", "launcher/wire/json.hpp"],
    "launcher/tune": ["launcher/core", "launcher/spec", "launcher/wire/fields.hpp", "launcher/wire/json.hpp"],
    "launcher/wire": ["launcher/core", "launcher/files", "launcher/spec"],
    "launcher/remote": ["launcher/core", "launcher/spec", "launcher/wire", "launcher/files"],
    "launcher/provider": ["launcher/core", "launcher/spec", "launcher/wire", "launcher/files",
                          "launcher/remote"],
    "launcher/cluster": ["launcher/core", "launcher/spec", "launcher/wire", "launcher/files",
                         "launcher/remote", "launcher/provider"],
    "agent": ["launcher/core", "launcher/wire", "launcher/files", "launcher/spec"],
    "agent/head": ["agent", "launcher/core", "launcher/wire", "launcher/files", "launcher/spec", "launcher/tune"],
    "agent/head/machines": ["agent", "launcher/core", "launcher/wire", "launcher/files", "launcher/spec",
                            "launcher/remote/local.hpp", "launcher/remote/transport.hpp", "launcher/provider"],
    "agent/scaler": ["launcher/core", "launcher/provider"],
    "agent/profiler": ["launcher/core", "launcher/wire/json.hpp"],
    "cli": ["launcher"],
    "trainer": [],
    "examples": ["trainer"],
}
# Inside the agent: each role by itself, but for what the roles say of themselves.
AGENT = {
    "agent/supervise": [],
    "agent/link": [],
    "agent/node": ["agent/link", "agent/supervise"],
    "agent/head": ["agent/link", "agent/node/facts.hpp"],
    "agent/head/store": [],
    "agent/head/engine": ["agent/head/store"],
    "agent/head/machines": ["agent/head/engine"],
    "agent/head/server": ["agent/head/engine", "agent/head/machines", "agent/head/store", "agent/head/setup.hpp", "agent/head/joins.hpp",
                          "agent/head/join_script.hpp", "agent/link", "agent/node/facts.hpp"],
    "agent/scaler": [],
    "agent/profiler": [],
    "agent/watch": [],
    "agent/session": ["agent/node/config.hpp", "agent/node/facts.hpp", "agent/node/fetch.hpp", "agent/head/setup.hpp"],
}
# A library that only one place may use.
ONLY = {
    "yaml-cpp/": ["launcher/spec/"],
    "curl/": ["launcher/provider/http"],
    "libssh/": ["launcher/remote/"],
    "elfutils/": ["agent/profiler/"],
    "sqlite3.h": ["agent/head/store/"],
    "torch/": ["trainer/", "examples/"],
    "CLI/": ["cli/", "agent/main.cpp", "examples/", "trainer/tools/"],
}
HEADERS_WITHOUT = ["boost/beast", "openssl/", "CLI/"]  # costly: they stay inside .cpp files


def sources():
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "*.hpp", "*.cpp"],
        capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        str(p.relative_to(ROOT)) for p in ROOT.rglob("*.[hc]pp")]
    return [name for name in names
            if name and not name.startswith(("tests/", "build")) and (ROOT / name).exists()]


def includes(name):
    return [(quote, path) for quote, path in INCLUDE.findall((ROOT / name).read_text())]


def owner(name, table):
    homes = [home for home in table if name == home or name.startswith(home + "/")]
    return max(homes, key=len) if homes else None


class Layering(unittest.TestCase):
    def test_there_are_sources(self):
        self.assertGreater(len(sources()), 50)

    def test_folders_include_only_what_they_may(self):
        wrong = []
        for name in sources():
            for quote, path in includes(name):
                if quote != '"':
                    continue
                home = owner(name, MAY)
                self.assertIsNotNone(home, f"{name} lies in no folder of the house")
                allowed = [home, *MAY[home]]
                if not any(path == a or path.startswith(a + "/") for a in allowed):
                    wrong.append(f"{name} includes {path}")
                role = owner(name, AGENT)
                if role and path.startswith("agent/"):
                    fine = [role, *AGENT[role]]
                    if not any(path == a or path.startswith(a + "/") for a in fine):
                        wrong.append(f"{name} includes {path}")
        self.assertEqual(wrong, [])

    def test_includes_are_relative_to_the_root(self):
        wrong = [f"{name}: {path}" for name in sources() for quote, path in includes(name)
                 if quote == '"' and not (ROOT / path).exists()]
        self.assertEqual(wrong, [])

    def test_libraries_stay_in_their_room(self):
        wrong = []
        for name in sources():
            for _, path in includes(name):
                for library, rooms in ONLY.items():
                    if path.startswith(library) and not name.startswith(tuple(rooms)):
                        wrong.append(f"{name} includes {path}")
        self.assertEqual(wrong, [])

    def test_costly_headers_stay_out_of_headers(self):
        # What is split over several files has an inside, NAME_impl.hpp, that only they include.
        wrong = [f"{name} includes {path}" for name in sources() if name.endswith(".hpp")
                 and name.startswith(("launcher/", "agent/")) and not name.endswith("_impl.hpp")
                 for _, path in includes(name) if path.startswith(tuple(HEADERS_WITHOUT))]
        wrong += [f"{name} includes {path}" for name in sources() if name.endswith(".hpp")
                  for _, path in includes(name) if path.endswith("_impl.hpp")]
        self.assertEqual(wrong, [])

    def test_each_folder_has_its_readme(self):
        folders = {str(Path(name).parent) for name in sources()
                   if name.startswith(("launcher/", "agent/"))} | {"trainer", "cli", "configs",
                                                                    "scripts", "tests"}
        folders.discard("agent")
        missing = [f for f in sorted(folders) if not (ROOT / f / "README.md").exists()]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
