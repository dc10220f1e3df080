"""doctor on hosts, each with a disk and a network of its own."""

from ssh_harness import *


class Doctor(HostsCase):
    count = 2
    options = {"disk": "300m"}

    def findings(self, *kinds):
        """By node, of those kinds; and whether all were asked."""
        done = self.run_dtrain("doctor", "--json")
        answer = json.loads(done.stdout)
        return ([(row["node"], f["severity"], f["what"]) for row in answer["nodes"] for f in row["findings"]
                 if f["kind"] in kinds], answer["complete"])

    def test_hosts_that_are_well_and_a_disk_that_is_full(self):
        self.up()
        found, complete = self.findings("processes", "state", "permissions", "checkpoints", "clock", "disk")
        self.assertEqual((found, complete), ([], True))
        self.lab[1].fill()
        (node, severity, what), = self.findings("disk")[0]
        self.assertEqual((node, severity), (self.lab[1].name, "problem"))
        self.assertRegex(what, r"\(the node's folder\).* free of ")
        self.lab[1].unfill()
        self.assertEqual(self.findings("disk")[0], [])

    def test_a_host_that_is_cut_off(self):
        self.up()
        self.lab[1].cut()
        self.addCleanup(self.lab[1].join)
        eventually(lambda: self.json("status")["nodes"][1]["state"] == "lost", "it is lost")
        found, complete = self.findings("state")
        self.lab[1].join()
        self.assertFalse(complete)
        self.assertIn((self.lab[1].name, "problem"), [each[:2] for each in found])


if __name__ == "__main__":
    main()
