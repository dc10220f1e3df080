"""What goes to many hosts goes from this machine to one of them, and from each to the next."""

from ssh_harness import *

COUNT = 12


class Spread(HostsCase):
    count = COUNT
    options = {"disk": "150m"}

    def setUp(self):
        super().setUp()
        self.addCleanup(self.rate, None)

    def rate(self, rate):
        for host in self.lab:
            host.rate(rate)

    def sources(self, said, what="agent"):
        """{host: [where it was told to get the agent]}, as -v has it."""
        found = {}
        for host, source in re.findall(rf"^(h\d+): {what} from (this machine|h\d+)$", said, re.MULTILINE):
            found.setdefault(host, []).append(source)
        return found

    def from_here(self, said, what="agent"):
        return sorted(host for host, tries in self.sources(said, what).items() if tries[-1] == "this machine")

    def make_data(self):
        """6 MB that no compression makes smaller, and a small file."""
        data = self.folder / "data"
        (data / "deep").mkdir(parents=True)
        (data / "deep/large").write_bytes(os.urandom(6_000_000))
        (data / "small").write_text("small\n")
        return data

    def assert_data(self, data, *indexes):
        for index in indexes:
            there = self.lab[index].path("~/data")
            for name in ("deep/large", "small"):
                self.assertEqual((there / name).read_bytes(), (data / name).read_bytes(), f"h{index}")
            self.assertEqual(list(self.lab[index].path("~/.dtrain").rglob(".parcel*")), [], f"h{index}")

    def assert_agents(self, *indexes):
        """Each has the agent whole, and nothing beside it."""
        wanted = (BUILD / "agent/dtrain-agent").read_bytes()
        for index in indexes:
            [folder] = self.lab[index].path("~/.dtrain/agents").iterdir()
            self.assertEqual([path.name for path in folder.iterdir()], ["dtrain-agent"])
            self.assertEqual((folder / "dtrain-agent").read_bytes(), wanted)

    def test_one_copy_leaves_this_machine(self):
        self.write()
        before = self.lab.sent()
        self.up("--seeds", "0", deadline=120)
        every = self.lab.sent() - before
        self.ok("down", "-y", deadline=120)
        before = self.lab.sent()
        said = self.run_dtrain("up", "-v", self.yaml, deadline=120)
        sent = self.lab.sent() - before
        self.assertEqual(said.returncode, 0, said)
        self.assert_only_these_listen()
        words = said.stdout + said.stderr
        self.assertEqual(len(self.sources(words)), COUNT, words)
        copies = len(self.from_here(words))
        self.assertLess(copies, 5, words)
        # All that is said to each host besides is little.
        self.assertLess(sent, every * (copies + 1) / COUNT, words)
        print(f"    {COUNT} hosts: {every / 1e6:.1f} MB from here to all, {sent / 1e6:.1f} MB to {copies} of them")
        self.assert_ready(*range(COUNT))
        self.assert_agents(*range(COUNT))
        self.assertTrue(self.json("down", "-y", deadline=120)["complete"])
        self.assert_clean(*range(COUNT))

    def test_files_go_from_host_to_host(self):
        data = self.make_data()
        self.write()
        self.up(deadline=120)
        self.write(file_mounts={"~/data": str(data)})
        before = self.lab.sent()
        said = self.run_dtrain("up", "-v", self.yaml, deadline=120)
        sent = self.lab.sent() - before
        words = said.stdout + said.stderr
        self.assertEqual(said.returncode, 0, words)
        self.assertEqual(len(self.sources(words, "files")), COUNT, words)
        copies = len(self.from_here(words, "files"))
        self.assertLess(copies, 5, words)
        self.assertLess(sent, 6e6 * (copies + 1), words)
        print(f"    {sent / 1e6:.1f} MB from here for 6 MB on {COUNT} hosts")
        self.assert_data(data, *range(COUNT))
        self.assert_only_these_listen()
        # One of many changes there: it alone gets its file anew, whatever the way.
        self.lab[3].path("~/data/deep/large").unlink()
        self.up(deadline=120)
        self.assert_data(data, *range(COUNT))
        self.assertTrue(self.json("down", "-y", deadline=120)["complete"])
        self.assert_clean(*range(COUNT))

    def test_eight_hosts_all_get_it_from_here(self):
        self.write(range(8))
        said = self.run_dtrain("up", "-v", self.yaml, deadline=120)
        self.assertEqual(said.returncode, 0, said)
        self.assertEqual(self.sources(said.stdout + said.stderr), {})
        self.assert_agents(*range(8))

    def test_hosts_that_do_not_reach_each_other(self):
        for host in self.lab:
            host.in_network("nft", "-f", "-", input=FIREWALL)
        data = self.make_data()
        self.write(file_mounts={"~/data": str(data)})
        said = self.run_dtrain("up", "-v", self.yaml, deadline=120)
        words = said.stdout + said.stderr
        self.assertEqual(said.returncode, 0, words)
        self.assertEqual(len(self.from_here(words)), COUNT, words)
        self.assertEqual(len(self.from_here(words, "files")), COUNT, words)
        self.assertIn("unreachable: no answer", words)
        self.assert_ready(*range(COUNT))
        self.assert_agents(*range(COUNT))
        self.assert_data(data, *range(COUNT))

    def begin_slowly(self, *flags):
        """An `up` that has only begun to spread, and which hosts it gives the agent to itself."""
        self.rate("16mbit")
        self.write()
        up = self.start("up", "-v", self.yaml, *flags)
        words, givers = "", set()
        while "agent from this machine" not in words or not givers - {"h0"}:
            line = up.stdout.readline()
            self.assertTrue(line, words)
            words += line
            givers |= set(re.findall(r"agent from (h\d+)$", line, re.MULTILINE))
        return up, words, sorted(givers - {"h0"})

    def test_a_host_that_dies_while_it_gives(self):
        up, words, givers = self.begin_slowly("--min-nodes", str(COUNT - 1), "--timeout", "20")
        dead = givers[0]
        self.lab[int(dead[1:])].poweroff()
        self.rate(None)
        words += up.communicate(timeout=400)[0]
        self.assertEqual(up.returncode, 0, words)
        self.assertIn(f"not from {dead}: ", words)
        rest = [index for index in range(COUNT) if f"h{index}" != dead]
        states = self.states()
        self.assertEqual([states[f"h{index}"] for index in rest], ["ready"] * len(rest))
        self.assert_agents(*rest)

    def test_ctrl_c_leaves_no_listener_and_no_half_file(self):
        up, words, _ = self.begin_slowly()
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=DEADLINE)
        self.assertNotEqual(up.returncode, 0)
        self.assert_only_these_listen()

        def half():
            return [path for host in self.lab for path in host.path("~/.dtrain/agents").glob("*/.*")]
        eventually(lambda: not half(), "no half file")
        # Only now, for what is queued goes with it, and a connection's reset is sent once.
        self.rate(None)
        self.up(deadline=120)
        self.assert_ready(*range(COUNT))


if __name__ == "__main__":
    main()
