"""What dtrain promises, asked of what was seen. Each function gives the sentences of what was broken, and
touches nothing."""

import re
from dataclasses import dataclass, field


@dataclass
class Seen:
    """Of a whole run, once all is well again and every job has ended."""

    acknowledged: list = field(default_factory=list)  # ids that a submit has answered with
    jobs: dict = field(default_factory=dict)          # id: what `result --json` says
    logs: dict = field(default_factory=dict)          # (id, attempt, rank): lines of those that write numbers
    followed: dict = field(default_factory=dict)      # the same, as who followed from the beginning has it
    events: dict = field(default_factory=dict)        # id: messages
    losses: dict = field(default_factory=dict)        # (id, attempt): {step: loss} of those that train
    reference: dict = field(default_factory=dict)     # {step: loss} of such a training without any fault
    notes: dict = field(default_factory=dict)         # (id, rank): lines of the ranks' notes
    fenced: set = field(default_factory=set)          # ids of jobs with on_head_lost: stop
    stopped: list = field(default_factory=list)       # (from, to): when some process of dtrain's got no processor
    left: list = field(default_factory=list)          # processes that outlived their job


def broken(seen):
    found = []
    for check in (no_submit_is_lost, every_end_has_a_cause, no_line_is_lost, who_follows_sees_the_same, no_number_is_wrong,
                  one_attempt_is_accepted, what_is_accepted_is_kept, one_attempt_runs, nothing_is_left):
        found += [f"{check.__name__.replace('_', ' ')}: {words}" for words in check(seen)]
    return found


def no_submit_is_lost(seen):
    for job in seen.acknowledged:
        if job not in seen.jobs:
            yield f"{job} was acknowledged, and nobody knows it"
        elif seen.jobs[job]["state"] != "succeeded":
            yield f"{job} is {seen.jobs[job]['state']}: {seen.jobs[job]['reason']}"


def every_end_has_a_cause(seen):
    for job, result in seen.jobs.items():
        numbers = [attempt["attempt"] for attempt in result["attempts"]]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{job} has attempts {numbers}"
        for attempt in result["attempts"]:
            if attempt["state"] != "succeeded" and not (attempt["failure"] and attempt["reason"]):
                yield f"{job}, attempt {attempt['attempt']}: {attempt['failure']}: {attempt['reason']!r}"


def numbers(lines, attempt):
    """Of "line N in ATTEMPT", None where bytes are missing; and N of "end N in ATTEMPT", None if there is none."""
    found, ends = [], []
    for line in lines:
        if number := re.fullmatch(rf"line (\d+) in {attempt}", line):
            found.append(int(number[1]))
        elif end := re.fullmatch(rf"end (\d+) in {attempt}", line):
            ends.append(int(end[1]))
        elif re.fullmatch(r"\[dtrain: \d+ bytes of output are missing here: .+\]", line):
            found.append(None)
    return found, ends[0] if len(ends) == 1 else None


def no_line_is_lost(seen):
    wanted = set(seen.logs)
    for job in {job for job, _, _ in seen.logs}:
        for attempt in seen.jobs[job]["attempts"]:
            if attempt["state"] == "succeeded":
                wanted |= {(job, attempt["attempt"], rank) for rank in range(attempt["world_size"])}
    for job, attempt, rank in sorted(wanted):
        found, end = numbers(seen.logs.get((job, attempt, rank), []), attempt)
        of = f"{job}, attempt {attempt}, rank {rank}"
        last, gap = 0, False
        for number in found:
            if number is None:
                gap = True
                continue
            if number != last + 1 and not (gap and number > last):
                yield f"{of}: after line {last} comes line {number}"
                break
            last, gap = number, False
        else:
            # A disk may be full to the end, so that no mark has room.
            said = gap or any("output could not be written" in words for words in seen.events.get(job, ()))
            succeeded = seen.jobs[job]["attempts"][attempt - 1]["state"] == "succeeded"
            if succeeded and end != last and not (said and (end is None or end > last)):
                yield f"{of}: it has ended well after line {last}, and says {end}"


def who_follows_sees_the_same(seen):
    for key in sorted(seen.followed.keys() | seen.logs.keys()):
        followed, kept = seen.followed.get(key, []), seen.logs.get(key, [])
        if followed != kept:
            yield "{}, attempt {}, rank {}: ".format(*key) + f"{len(followed)} lines, of {len(kept)}"


def no_number_is_wrong(seen):
    for (job, attempt), losses in seen.losses.items():
        wrong = {step for step, loss in losses.items() if seen.reference.get(step) != loss}
        if wrong:
            step = min(wrong)
            yield (f"{job}, attempt {attempt}: at step {step} the loss is {losses[step]}, "
                   f"and {seen.reference.get(step)} without faults")
        if seen.jobs[job]["attempts"][attempt - 1]["state"] != "succeeded":
            continue
        # A later one may have had nothing left to train.
        first = min(map(int, losses), default=0 if attempt == 1 else float("inf"))
        missing = [step for step in seen.reference if int(step) >= first and step not in losses]
        if missing:
            yield f"{job}, attempt {attempt}: nothing is said of step {missing[0]}"


def one_attempt_is_accepted(seen):
    """By number, which is the order in which the head has taken them."""
    for job, result in seen.jobs.items():
        newest = (0, 0)
        for checkpoint in sorted(result["checkpoints"], key=lambda checkpoint: checkpoint["number"]):
            if "attempt" not in checkpoint["metrics"]:
                continue
            this = (int(checkpoint["metrics"]["attempt"]), checkpoint["step"])
            if this[0] < newest[0]:
                yield f"{job}: a checkpoint of attempt {this[0]} was taken after one of attempt {newest[0]}"
            if this[1] <= newest[1]:
                yield f"{job}: a checkpoint with count {this[1]} was taken after one with {newest[1]}"
            newest = max(newest, this)


def notes_of(lines):
    """(attempt, what, words…) of each that is whole."""
    for words in map(str.split, lines):
        if words and words[-1] == ".":
            yield int(words[0]), *words[1:-1]


def what_is_accepted_is_kept(seen):
    """An attempt goes on from what was confirmed to those before it, or from later."""
    for (job, rank), lines in seen.notes.items():
        confirmed, resumed = {}, {}
        for attempt, what, *words in notes_of(lines):
            resumed.setdefault(attempt, 0)
            if what == "accepted":
                confirmed[attempt] = max(confirmed.get(attempt, 0), int(words[0]))
            if what == "resumed":
                resumed[attempt] = int(words[0])
        for attempt, count in sorted(resumed.items()):
            before = max((count for of, count in confirmed.items() if of < attempt), default=0)
            if count < before:
                how = f"resumed from {count}" if count else "began anew"
                yield f"{job}, attempt {attempt}: it {how}, and {before} was confirmed"


def one_attempt_runs(seen):
    """Of a job with on_head_lost: stop, while its supervisors get the processor."""
    for job in seen.fenced:
        lived = {}
        for (of, _), lines in seen.notes.items():
            for attempt, _, *words in notes_of(lines) if of == job else ():
                first, last = lived.get(attempt, (float("inf"), 0.0))
                lived[attempt] = (min(first, float(words[-1])), max(last, float(words[-1])))
        for attempt, (_, last) in lived.items():
            began = min((first for later, (first, _) in lived.items() if later > attempt), default=float("inf"))
            if last > began and not any(start <= last and end + 5 >= began for start, end in seen.stopped):
                yield f"{job}: attempt {attempt} still ran {last - began:.3f} s after a later one began"


def nothing_is_left(seen):
    yield from seen.left
