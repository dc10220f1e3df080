"""Clusters and jobs from Python: each call is one `dtrain` command and its JSON."""

import json
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import _command
from ._command import DtrainError
from ._show import line_of, shown

_TERMINAL = ("succeeded", "failed", "stopped")
# Keys of the job YAML that `dtrain submit` has as flags, and those below others with their flag.
_FLAG_KEYS = ("name", "workdir", "setup", "nnodes", "nproc_per_node", "max_restarts", "spares", "storage_path",
              "on_head_lost", "launcher", "cpu_bind", "stop_grace_s", "timeout_s", "queue_timeout_s",
              "hang_timeout_s", "on_hang", "log_limit", "priority")
_GROUPS = {"resources": {"CPU": "cpus", "GPU": "gpus", "memory": "memory"},
           "checkpoint": {name: name for name in ("num_to_keep", "score_attribute", "score_order")}}
_MAPPINGS = ("env", "label_selector")  # --env NAME=VALUE for each entry
_FLAGS = {"after": "--after", "resume": "--resume", "from_checkpoint": "--from-checkpoint"}


@dataclass(frozen=True)
class Checkpoint:
    path: Path  # on the machine that has it; Job.pull() brings it here
    step: int
    metrics: Dict[str, float]
    number: int


@dataclass(frozen=True)
class Result:
    state: str  # succeeded, failed, stopped
    exit_code: Optional[int]  # the rank's that was the root cause, 128+n for signal n
    metrics: Dict[str, float]  # the last value of each
    step: Optional[int]
    checkpoints: List[Checkpoint]
    best_checkpoint: Optional[Checkpoint]
    error: Optional[str]  # the root cause, with what the program said of it
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)  # of `dtrain result --json`

    @property
    def ok(self):
        return self.state == "succeeded"


def submit(command=None, *, nnodes=None, nproc_per_node=None, workdir=None, env=None, cluster=None,
           local=False, wait=False, after=None, resume=None, from_checkpoint=None, **keys):
    """Queues a job and returns it. `command`: a list is a program and its arguments, a text a line
    for the shell. `keys` are those of the job YAML (docs/job_yaml.md), paths relative to the current
    folder; nothing in them is expanded. `cluster` is a name; local=True is this machine, brought up if it
    is not. `after`, `resume` and `from_checkpoint` name jobs, as the options of `dtrain submit`."""
    spec = {**keys, "nnodes": nnodes, "nproc_per_node": nproc_per_node, "env": env}
    spec = {key: value for key, value in spec.items() if value is not None}
    if command is not None and not isinstance(command, str):
        command = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in command]
    if workdir is not None or resume is None:
        spec["workdir"] = _absolute(workdir or ".")
    if "storage_path" in spec:
        spec["storage_path"] = _absolute(spec["storage_path"])
    if isinstance(spec.get("secrets"), dict):
        spec["secrets"] = {name: {**v, "file": _absolute(v["file"])} if isinstance(v, dict) and "file" in v else v
                           for name, v in spec["secrets"].items()}
    words = ["submit", "--json", "-d"] + _of(cluster)
    words += ["--local"] if local else []
    words += ["--wait"] if wait else []
    for option, value in (("after", after), ("resume", resume), ("from_checkpoint", from_checkpoint)):
        for one in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            words += [_FLAGS[option], one.id if isinstance(one, Job) else str(one)]
    if local:
        cluster = "local"
    elif cluster is None:
        cluster = os.environ.get("DTRAIN_CLUSTER") or _command.run(["status", "--json"])["cluster"]["name"]
    if resume is None:
        # The YAML's ${VAR} is for files; a value from Python is meant as it is.
        for key in {"workdir", "storage_path"} & set(spec):
            spec[key] = _literal(spec[key])
        if env is not None:
            spec["env"] = {name: _literal(value) for name, value in env.items()}
        if command is not None:
            spec["command"] = command
        with tempfile.TemporaryDirectory(prefix="dtrain-") as folder:
            path = Path(folder) / "job.json"  # JSON is YAML
            path.write_bytes(_document(spec))
            try:
                answer = _command.run([*words, str(path)])
            except DtrainError as error:
                raise _without_place(error, str(path)) from None
    else:
        # A YAML would be the whole of it; flags change what the old job had.
        words += _flags(spec)
        if isinstance(command, str):
            command = ["/bin/sh", "-c", command]
        answer = _command.run(words + (["--", *command] if command else []))
    return Job(answer["job"], cluster)


def job(name=None, cluster=None):
    """A job that there is, by id, name or beginning of an id; the newest without a name."""
    found = _command.run(["result", "--json", *_of(cluster), *([name] if name else [])])
    if cluster is None:
        cluster = os.environ.get("DTRAIN_CLUSTER") or _command.run(["status", "--json"])["cluster"]["name"]
    return Job(found["job"], cluster)


def up(cluster=None):
    """Brings a cluster up: a cluster YAML's path, or the name of a known one; nothing: the current
    one, or with none this machine. Returns what `dtrain up --json` says."""
    return _command.run(["up", "--json", *_chosen(cluster)])


def down(cluster=None, yes=False):
    """Takes it down, by its YAML's path or its name. Where jobs run or checkpoints would be lost that is
    an error, unless yes=True."""
    return _command.run(["down", "--json", *_chosen(cluster), *(["-y"] if yes else [])])


def status(cluster=None):
    return _command.run(["status", "--json", *_chosen(cluster)])


class Job:
    """One job of one cluster. Nothing is kept here: every call asks the cluster."""

    def __init__(self, job_id, cluster):
        self.id, self.cluster = job_id, cluster

    def __repr__(self):
        return f"Job({self.id!r}, cluster={self.cluster!r})"

    @property
    def state(self):
        return self._get("result", "--json", self.id)["state"]

    def follow(self, tail=None):
        """Shows what the ranks write, and where they stand, until the job's end; returns self. In a
        notebook the progress is updated in place. KeyboardInterrupt detaches: the job goes on."""
        words = ["logs", "-f", "--json", *_of(self.cluster), *_option("--tail", tail), self.id]
        child = _command.start(words, with_us=True)
        errors = _command.drained(child.stderr, forward=True)
        try:
            with shown(self.id, self._world_size) as show:
                for line in child.stdout:
                    event = json.loads(line)
                    if "type" not in event and isinstance(event.get("error"), dict):
                        raise _command.error_of(event["error"])
                    show(event)
            code = child.wait()
            if code not in (0, 1, 3):
                raise DtrainError(f"following {self.id} ended with exit code {code}: {errors()}", code="internal")
            return self
        except KeyboardInterrupt:
            print(f"{self.id} goes on. To come back: dtrain.job({self.id!r}).follow(), "
                  f"or dtrain logs -f {self.id}", flush=True)
            raise
        finally:
            _end(child)
            errors()

    def result(self, timeout=None):
        """Waits for its end. A failed job is no exception here: look at .state and .error."""
        found = self._get("result", "--json", self.id)
        if found["state"] not in _TERMINAL:
            self._wait(timeout)
            found = self._get("result", "--json", self.id)
        return _result(found)

    def metrics(self):
        """Rank 0's history: a list of {"step": …, NAME: value}, by step; pandas.DataFrame takes it. A
        value that is not finite is absent from its row."""
        names = list(self._get("result", "--json", self.id)["metrics"])
        rows = {}
        for chart in self._charts(names):
            for curve in chart["curves"]:
                for step, value in curve["points"]:
                    rows.setdefault(int(step), {"step": int(step)})[chart["metric"]] = value
        return [rows[step] for step in sorted(rows)]

    def stop(self, grace_s=None):
        """Stops it and waits for its end."""
        self._get("stop", "--json", *_option("--grace-s", grace_s), self.id)
        return self

    def logs(self, rank=None, attempt=None, tail=None):
        """What the ranks have written so far, as one text; of several ranks each line begins with
        [RANK]."""
        words = ["logs", "--json", *_of(self.cluster), *_option("--rank", rank), *_option("--attempt", attempt),
                 *_option("--tail", tail), self.id]
        child = _command.start(words)
        errors = _command.drained(child.stderr, forward=True)
        try:
            events = [json.loads(line) for line in child.stdout]
            code = child.wait()
        finally:
            _end(child)
            errors()
        if events and "type" not in events[-1] and isinstance(events[-1].get("error"), dict):
            raise _command.error_of(events[-1]["error"])
        if code != 0:
            raise DtrainError(errors() or f"dtrain logs: exit code {code}", code="internal")
        lines = [event for event in events if event.get("type") in ("log", "released")]
        several = rank is None and lines and self._world_size() > 1
        return "".join((f"[{event['rank']}] " if several else "") + line_of(event) for event in lines)

    def pull(self, folder=None, best=False, checkpoints=False, logs=False):
        """Brings checkpoints and logs here, all unless told which; returns their folder. DtrainError
        where some did not come; the others are here then."""
        words = ["--best"] if best else []
        words += ["--checkpoints"] if checkpoints else []
        words += ["--logs"] if logs else []
        target = ["-o", os.fspath(folder)] if folder is not None else []
        found = self._get("pull", "--json", *words, *target, self.id)
        if found.get("troubles"):
            raise DtrainError("\n".join(f"the head cannot read {one}" for one in found["troubles"]), code="failed",
                              hint=f"what it could read is in {found['folder']}")
        return Path(found["folder"])

    def _get(self, verb, *words):
        return _command.run([verb, *_of(self.cluster), *words])

    def _world_size(self):
        return max((a.get("world_size") or 1 for a in self._get("result", "--json", self.id)["attempts"]), default=1)

    def _charts(self, names):
        def ask(some):
            flags = [word for name in some for word in ("--metric", name)]
            return self._get("plot", "--json", self.id, *flags)["charts"]

        try:
            return ask(names) if names else []
        except DtrainError as error:
            if error.code != "not_found":
                raise
        charts = []
        for name in names:  # one that was never finite has no curve
            try:
                charts += ask([name])
            except DtrainError as error:
                if error.code != "not_found":
                    raise
        return charts

    def _wait(self, timeout):
        child = _command.start(["logs", "-f", "--json", "--tail", "0", *_of(self.cluster), self.id],
                               with_us=True)
        errors = _command.drained(child.stderr, forward=True)
        last = _command.drained(child.stdout, keep_last=True)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.id} has not ended within {timeout} s; it goes on") from None
        finally:
            _end(child)
            errors()
        if child.returncode not in (0, 1, 3):
            raise DtrainError(f"waiting for {self.id} ended with exit code {child.returncode}: {last() or errors()}",
                              code="internal")


def _result(found):
    def checkpoint(one):
        return Checkpoint(Path(one["path"]), one["step"], _floats(one["metrics"]), one.get("number", -1))

    error = found.get("error")
    text = None
    if error:
        text = "\n".join(part for part in (error.get("message"), error.get("error_message")) if part)
    elif found["state"] != "succeeded":
        text = found.get("reason") or found["state"]
    best = found.get("best_checkpoint")
    return Result(state=found["state"], exit_code=found.get("exit_code"), metrics=_floats(found.get("metrics") or {}),
                  step=found.get("step"), checkpoints=[checkpoint(c) for c in found.get("checkpoints") or []],
                  best_checkpoint=checkpoint(best) if best else None, error=text, raw=found)


def _floats(metrics):
    return {name: float(value) for name, value in metrics.items()}  # "nan", "inf", "-inf" too


def _end(child):
    if child.poll() is None:
        child.send_signal(signal.SIGINT)  # as Ctrl-C: it detaches
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _chosen(cluster):
    """A file is a cluster YAML, which stands in -c's place."""
    return [os.fspath(cluster)] if cluster is not None and os.path.isfile(cluster) else _of(cluster)


def _of(cluster):
    return ["-c", os.fspath(cluster)] if cluster is not None else []


def _option(name, value):
    return [] if value is None else [name, str(value)]


def _flags(spec):
    """Keys of the job YAML as flags of `dtrain submit`. DtrainError names those that have none."""
    flat, unknown = {}, []
    for key, value in spec.items():
        if key in _GROUPS:
            for name, one in value.items():
                if name in _GROUPS[key]:
                    flat[_GROUPS[key][name]] = one
                elif key == "resources":  # a name of the cluster's own
                    flat.setdefault("resource", []).append(f"{name}={one}")
                else:
                    unknown.append(f"{key}: {name}")
        elif key in _MAPPINGS:
            flat[key] = [f"{name}={text}" for name, text in value.items()]
        elif key == "secrets":
            files = value if isinstance(value, dict) else dict.fromkeys(value)
            flat["secret"] = [name + (f"={how['file']}" if how else "") for name, how in files.items()]
        elif key in _FLAG_KEYS:
            flat[key] = value
        else:
            unknown.append(key)
    if unknown:
        raise DtrainError(f"submit(resume=…): {', '.join(unknown)}: cannot be changed in a job that goes on",
                          code="usage", hint="what can: command, secrets, "
                          + ", ".join((*_MAPPINGS, *_GROUPS, *_FLAG_KEYS)))
    return [f"--{key.replace('_', '-')}={one}" for key, value in flat.items()
            for one in (value if isinstance(value, list) else [value])]


def _document(spec):
    """As it is, not in JSON's \\u of two halves, which a reader of YAML refuses; what YAML wants no text
    to have is escaped."""
    text = re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda one: f"\\u{ord(one.group()):04x}",
                  json.dumps(spec, indent=1, ensure_ascii=False))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DtrainError(f"submit: a text that is no Unicode: {error.object[error.start:error.end]!r}",
                          code="invalid") from None


def _absolute(path):
    return os.path.abspath(os.path.expanduser(path))


def _literal(value):
    return str(value).replace("$", "$$")


def _without_place(error, path):
    """The file was ours: its name and lines say nothing."""
    location = error.location
    if isinstance(location, dict) and location.get("file") == path:
        location = None
    return DtrainError(error.message.replace(path, "submit()"), error.hint, location, error.code,
                       [_without_place(problem, path) for problem in error.problems])
