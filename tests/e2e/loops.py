"""What takes long and must hold no event loop up. Each test fails, by the harness, when a handler of
head, node or supervisor takes longer than HANDLER_LIMIT_MS."""

import sqlite3

from harness import *


class Loops(ClusterCase):
    def succeeded(self, script="true"):
        job = self.submit(script)
        self.wait_state(job, "succeeded")
        return job

    def test_a_job_of_many_files_is_forgotten(self):
        job = self.succeeded()
        folder = next(self.root().glob(f"nodes/*/jobs/{job}"))
        for part in range(20):
            (folder / str(part)).mkdir()
            for number in range(750):
                (folder / str(part) / str(number)).touch()
        trash = folder.parent.parent / "trash"
        self.ok("rm", job)
        eventually(lambda: not folder.exists(), "the job's folder is away")
        self.ok("exec", "--", "true")  # the node goes on meanwhile
        eventually(lambda: not any(trash.iterdir()), "its files are unlinked")

    def test_a_long_history_of_metrics_is_read(self):
        job = self.succeeded()
        rows = 45000
        head = self.agents("head")
        path = self.root() / "head" / "head.db"
        with sqlite3.connect(path, timeout=30) as database:
            database.executemany(
                "INSERT INTO metrics VALUES (?, 1, ?, ?, ?, ?, ?)",
                ((job, rank, seq, seq, 1700000000000 + seq,
                  '{"accuracy":0.5}' if seq % 1000 == 0 else '{"loss":0.25}')
                 for rank in (0, 1) for seq in range(1, rows + 1)))
        database.close()
        self.assertTrue(Path(f"{path}-wal").exists())
        self.succeeded()  # the head writes on
        self.assertEqual(self.agents("head"), head)
        drawn = {c["metric"]: c["curves"][0]["points"] for c in self.json("plot", job)["charts"]}
        self.assertEqual(len(drawn["loss"]) + len(drawn["accuracy"]), rows)
        self.assertEqual(drawn["accuracy"][-1][0], rows)


if __name__ == "__main__":
    main()
