"""What a rank says: metrics, progress, checkpoints. Under dtrain over its report socket; under
torchrun and alone rank 0 keeps checkpoints itself (configure)."""

import math
import os
from pathlib import Path

from . import _checkpoints
from ._command import DtrainError
from ._socket import Reporter, warn
from ._world import world

_reporters = {}
_step = None
_prints = True
_said_no_storage = False


def configure(storage_path=None, num_to_keep=None, score_attribute=None, score_order="max", print_metrics=True):
    """Where checkpoints go, and which are kept, when no dtrain runs the program; every rank says it,
    before resume_path(). Under dtrain the job's storage_path and checkpoint keys hold instead.
    `print_metrics`: rank 0 prints a line for each report."""
    global _prints
    _prints = print_metrics
    given = None
    if storage_path is not None:
        given = _checkpoints.Storage(storage_path, num_to_keep, score_attribute, score_order)
    elif num_to_keep is not None or score_attribute is not None:
        raise DtrainError("configure: which checkpoints are kept is told together with storage_path")
    if _reporter() is None:
        _checkpoints.set_storage(given)


def report(metrics, step=None, checkpoint=None, *, shard=None, shards=1, keep=False):
    """Metrics of a step, {name: number}; every rank may call it, rank 0's are kept. `step` absent:
    one more than last time, or than the checkpoint that was resumed from.

    With `checkpoint`, a folder, it is handed over as well and becomes the job's newest checkpoint:
    returns its path once it is committed, else raises DtrainError. The folder is moved away
    (keep=True: copied). One rank hands a whole one over, rank 0 unless it says shard=0; or each
    its own part, with shard= and shards=.
    """
    global _step
    values = _numbers(metrics)
    step = _checked_step(step)
    _step = step
    reporter = _reporter()
    if world().rank == 0 and values:
        if _prints:
            numbers = "  ".join(f"{name} {float(value):.6g}" for name, value in values.items())
            print(f"step {step}  {numbers}", flush=True)
        if reporter:
            reporter.send_quietly({"type": "metrics", "step": step, "metrics": values})
    if checkpoint is None:
        return None
    return _hand_over(checkpoint, step, values, shard, shards, keep)


def checkpoint(folder, step=None, metrics=None, *, shard=None, shards=1, keep=False):
    """Hands `folder` over as a checkpoint, see report. Returns the committed path."""
    global _step
    step = _checked_step(step)
    path = _hand_over(folder, step, _numbers(metrics or {}), shard, shards, keep)
    _step = step
    return path


def progress(step, total=None, epoch=None, message="", metrics=None):
    """Where this rank stands, for the live line; too soon after the last one it is dropped."""
    report_ = {"type": "progress", "step": _whole("step", step)}
    if total is not None:
        report_["total"] = _whole("total", total)
    if epoch is not None:
        report_["epoch"] = _whole("epoch", epoch)
    if message:
        report_["message"] = str(message)
    if metrics:
        report_["metrics"] = _numbers(metrics)
    if _reporter():
        _reporter().progress(report_)


def heartbeat(step=None, collective=None, phase=None, step_times=None):
    """Alive, and where this rank is: for long work between two reports.

    `collective` is how many collectives it has begun, or a dict with "sequence" and what else
    docs/rank_contract.md has; `step_times` a dict with "steps", "seconds" and what else is there."""
    report_ = {"type": "heartbeat"}
    if step is not None:
        report_["step"] = _whole("step", step)
    if collective is not None:
        report_["collective"] = dict(collective) if isinstance(collective, dict) else _whole("collective", collective)
    if phase is not None:
        report_["phase"] = str(phase)
    if step_times is not None:
        report_["step_times"] = dict(step_times)
    if _reporter():
        _reporter().send_quietly(report_)


def _hand_over(folder, step, values, shard, shards, keep):
    global _said_no_storage
    who = world()
    folder = Path(os.path.abspath(folder))
    if not folder.is_dir():
        raise DtrainError(f"{folder}: a checkpoint is a folder", hint="write its files into a folder of their own")
    shards = _whole("shards", shards)
    if shard is None and (who.rank != 0 or shards != 1):
        raise DtrainError(f"rank {who.rank} hands a checkpoint over and does not say which part it is",
                          hint="rank 0 alone hands a whole one over, or each rank its own: "
                               "shard=world().rank, shards=world().size")
    shard = 0 if shard is None else _whole("shard", shard)
    if shard >= shards:
        raise DtrainError(f"shard={shard}: not below shards={shards}")
    reporter = _reporter()
    if reporter:
        return Path(reporter.checkpoint({"type": "checkpoint", "step": step, "path": str(folder), "shard": shard,
                                         "shards": shards, "metrics": values, "keep": bool(keep)}))
    storage = _checkpoints.storage()
    if storage is None:
        if not _said_no_storage:
            warn(f"checkpoints stay where they are ({folder}) and a restart does not find them: "
                 "dtrain.configure(storage_path=…), or start it with dtrain submit")
        _said_no_storage = True
        return None
    if shards != 1:
        raise DtrainError("checkpoints of several shards need dtrain, which collects them",
                          hint="start it with dtrain submit, or hand a whole one over from rank 0")
    try:
        return storage.commit(step, folder, values, keep)
    except OSError as error:
        raise DtrainError(f"checkpoint of step {step} was not committed: {error}") from error


def _reporter():
    path = os.environ.get("DTRAIN_REPORT_SOCKET")
    if not path:
        return None
    if path not in _reporters:
        _reporters[path] = Reporter(path)
    return _reporters[path]


def _checked_step(step):
    if step is not None:
        return _whole("step", step)
    return (_checkpoints.resume_step() if _step is None else _step) + 1


def _whole(name, value):
    try:
        number = value.__index__()  # also numpy's and torch's whole numbers
    except (AttributeError, TypeError):
        number = -1
    if number < 0:
        raise DtrainError(f"{name}={value!r}: a whole number from 0 is needed")
    return number


def _numbers(metrics):
    """As both contracts write them: a value that is not finite is "nan", "inf" or "-inf"."""
    if len(metrics) > 256:
        raise DtrainError(f"{len(metrics)} metrics in one report: at most 256")
    values = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not 1 <= len(name) <= 128 or not name.isprintable():
            raise DtrainError(f"metric {name!r}: a name has 1 to 128 printable characters")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise DtrainError(f"metric {name}: {value!r} is not a number") from None
        values[name] = number if math.isfinite(number) else str(number)
    return values
