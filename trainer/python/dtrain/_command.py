"""The command `dtrain` and its documented JSON: docs/cli.md."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path


class DtrainError(Exception):
    """What failed (message), what to do (hint), where in a file (location); code as in docs/cli.md."""

    def __init__(self, message, hint="", location=None, code="", problems=()):
        super().__init__(message)
        self.message, self.hint, self.location, self.code = message, hint or "", location, code
        self.problems = list(problems)

    def __str__(self):
        return self.message + (f"\n  {self.hint}" if self.hint else "")


def program():
    """$DTRAIN, else in PATH, else where the wheel that brought this module put it."""
    named = os.environ.get("DTRAIN")
    if named:
        found = shutil.which(named)
        if not found:
            raise DtrainError(f"DTRAIN={named}: no such program", code="not_found")
        return found
    user = sysconfig.get_path("scripts", f"{os.name}_user")
    target = str(Path(__file__).resolve().parent.parent / "bin")  # pip install --target
    beside = os.pathsep.join([sysconfig.get_path("scripts"), user, target])
    found = shutil.which("dtrain") or shutil.which("dtrain", path=beside)
    if not found:
        raise DtrainError("the command dtrain is not in PATH", code="not_found",
                          hint="install dtrain, or say where it is: DTRAIN=/path/to/dtrain")
    return found


def start(arguments, cwd=None, with_us=False):
    """`with_us`: it ends when this process does, however that ends."""
    # In a session of its own: Ctrl-C is ours to pass on, also where a notebook sends it to a group.
    return subprocess.Popen([program(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, cwd=cwd, start_new_session=True,
                            preexec_fn=_ending_with(os.getpid()) if with_us and _prctl else None)


def _prctl_of_libc():
    try:
        # PyDLL: between fork and exec nothing may wait for the interpreter's lock.
        prctl = ctypes.PyDLL(None).prctl if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None
    if prctl:
        prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return prctl


_prctl = _prctl_of_libc()
_PR_SET_PDEATHSIG = 1


def _ending_with(parent):
    def before_exec():
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM.value, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return before_exec


def drained(stream, keep_last=False, forward=False):
    """Reads a pipe to its end on a thread; what is returned gives its text, or its last line.
    `forward`: each line goes to sys.stderr as it comes."""
    lines = []

    def read():
        for line in stream:
            if keep_last:
                lines.clear()
            lines.append(line)
            # As it is now: a notebook has its own.
            if forward and sys.stderr is not None:
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()
        stream.close()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()

    def text():
        thread.join()
        return b"".join(lines).decode("utf-8", "replace").strip()

    return text


def run(arguments, cwd=None):
    """The last JSON document that it printed; what it says on stderr, warnings, is said on ours.
    Raises DtrainError with its error."""
    child = start(arguments, cwd)
    said = drained(child.stderr, forward=True)
    try:
        out = child.stdout.read()
        child.wait()
    except BaseException:
        child.terminate()
        child.stdout.close()
        child.wait()
        raise
    child.stdout.close()
    err = said()
    documents = []
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            documents.append(json.loads(line))
        except ValueError:
            continue
    last = documents[-1] if documents else None
    if isinstance(last, dict) and isinstance(last.get("error"), dict) and "code" in last["error"]:
        raise error_of(last["error"])
    if last is None:
        raise DtrainError(f"dtrain {arguments[0]}: {err or f'exit code {child.returncode}'}", code="internal")
    return last


def error_of(error):
    context = "".join(f"\n  {line}" for line in error.get("context") or [])
    problems = [error_of(problem) for problem in error.get("problems") or []]
    message = "\n".join(p.message for p in problems) or error.get("message") or "unknown error"
    return DtrainError(message + context, error.get("hint"), error.get("location"), error.get("code") or "", problems)
