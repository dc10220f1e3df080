"""The checker itself: of a run in which nothing was lost it says nothing, and of each loss a sentence."""

import copy
import unittest

from checker import Seen, broken


def attempt(number, state="succeeded", failure=None, reason=""):
    return {"attempt": number, "state": state, "failure": failure, "reason": reason, "world_size": 1}


def job(*attempts, checkpoints=()):
    return {"state": "succeeded", "reason": "", "attempts": list(attempts), "checkpoints": list(checkpoints)}


def checkpoint(number, of, count):
    return {"number": number, "step": count, "metrics": {"attempt": of}}


def lines(last, of, ends=True):
    return [f"line {n} in {of}" for n in range(1, last + 1)] + ([f"end {last} in {of}"] if ends else [])


def good():
    logs = {("a", 1, 0): lines(3, 1, ends=False), ("a", 2, 0): lines(5, 2)}
    return Seen(
        acknowledged=["a", "b"],
        jobs={"a": job(attempt(1, "failed", "node_lost", "h1 was lost"), attempt(2),
                       checkpoints=[checkpoint(0, 1, 1), checkpoint(1, 1, 2), checkpoint(2, 2, 3)]),
              "b": job(attempt(1))},
        logs=logs, followed=copy.deepcopy(logs),
        losses={("b", 1): {"10": "0.5", "20": "0.4"}}, reference={"10": "0.5", "20": "0.4"},
        notes={("a", 0): ["", "1 alive 10.0 .", "1 accepted 1 10.5 .", "1 accepted 2 11.0 .", "1 alive 11.0 .",
                          "2 resumed 2 12.0 .", "2 alive 12.5 .", "2 accep", "2 accepted 3 13.0 ."]},
        fenced={"a"})


class Checker(unittest.TestCase):
    def finds(self, words, damage):
        seen = good()
        damage(seen)
        found = broken(seen)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_nothing_lost(self):
        self.assertEqual(broken(good()), [])

    def test_a_job_that_nobody_knows(self):
        self.finds("c was acknowledged", lambda seen: seen.acknowledged.append("c"))

    def test_a_job_that_failed(self):
        self.finds("b is failed", lambda seen: seen.jobs["b"].update(state="failed"))

    def test_an_end_without_a_cause(self):
        self.finds("a, attempt 1: None", lambda seen: seen.jobs["a"]["attempts"][0].update(failure=None))
        self.finds("a, attempt 1: node_lost: ''", lambda seen: seen.jobs["a"]["attempts"][0].update(reason=""))

    def test_a_lost_a_doubled_and_a_late_line(self):
        def both(change):
            def damage(seen):
                change(seen.logs["a", 2, 0])
                change(seen.followed["a", 2, 0])
            return damage
        self.finds("after line 1 comes line 3", both(lambda lines: lines.pop(1)))
        self.finds("after line 2 comes line 2", both(lambda lines: lines.insert(2, "line 2 in 2")))
        self.finds("ended well after line 5, and says None", both(lambda lines: lines.pop()))

        self.finds("rank 0: it has ended well after line 0", lambda seen: (
            seen.logs.pop(("a", 2, 0)), seen.followed.pop(("a", 2, 0))))
        def seen_with(change, *events):
            seen = good()
            both(change)(seen)
            seen.events["a"] = list(events)
            return broken(seen)
        mark = "[dtrain: 12 bytes of output are missing here: No space left on device]"
        self.assertEqual(seen_with(lambda lines: lines.__setitem__(slice(1, 3), ["line", mark, "3 in 2"])), [])
        self.assertIn("after line 2 comes line 2",
                      seen_with(lambda lines: lines.__setitem__(slice(2, 2), [mark, "line 2 in 2"]))[0])
        full = "12 B of output could not be written (12 bytes)"
        self.assertEqual(seen_with(lambda lines: lines.pop(), full), [])
        self.assertIn("after line 1 comes line 3", seen_with(lambda lines: lines.pop(1), full)[0])

    def test_who_follows_lost_a_line(self):
        self.finds("2 lines, of 3", lambda seen: seen.followed["a", 1, 0].pop())
        self.finds("0 lines, of 3", lambda seen: seen.followed.pop(("a", 1, 0)))

    def test_a_wrong_number(self):
        self.finds("at step 10 the loss is 0.6, and 0.5", lambda seen: seen.losses["b", 1].update({"10": "0.6"}))

    def test_a_step_that_nobody_tells(self):
        self.finds("nothing is said of step 20", lambda seen: seen.losses["b", 1].pop("20"))
        self.finds("nothing is said of step 10", lambda seen: seen.losses["b", 1].clear())

    def test_a_checkpoint_of_an_attempt_that_was_over(self):
        self.finds("of attempt 1 was taken after one of attempt 2",
                   lambda seen: seen.jobs["a"]["checkpoints"].append(checkpoint(3, 1, 4)))

    def test_a_confirmed_checkpoint_that_is_gone(self):
        self.finds("it resumed from 1, and 2 was confirmed",
                   lambda seen: seen.notes["a", 0].__setitem__(5, "2 resumed 1 12.0 ."))
        self.finds("it began anew, and 2 was confirmed", lambda seen: seen.notes["a", 0].pop(5))

    def test_two_attempts_at_once(self):
        late = "1 alive 12.1 ."
        self.finds("attempt 1 still ran 0.100 s", lambda seen: seen.notes["a", 0].append(late))
        seen = good()
        seen.notes["a", 0].append(late)
        seen.stopped.append((11.0, 12.05))
        self.assertEqual(broken(seen), [])
        seen.fenced, seen.stopped = set(), []
        self.assertEqual(broken(seen), [])

    def test_what_runs_on(self):
        self.finds("process 7", lambda seen: seen.left.append("h1: process 7 runs on"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
