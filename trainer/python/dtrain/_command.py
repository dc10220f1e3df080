"""The command `dtrain` and its documented JSON: docs/cli.md."""

import json
import os
import shutil
import subprocess
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
    """$DTRAIN, else in PATH, else beside this module."""
    named = os.environ.get("DTRAIN")
    if named:
        found = shutil.which(named)
        if not found:
            raise DtrainError(f"DTRAIN={named}: no such program", code="not_found")
        return found
    beside = Path(__file__).resolve().parent / "bin" / "dtrain"
    found = shutil.which("dtrain") or (str(beside) if os.access(str(beside), os.X_OK) else None)
    if not found:
        raise DtrainError("the command dtrain is not in PATH", code="not_found",
                          hint="install dtrain, or say where it is: DTRAIN=/path/to/dtrain")
    return found


def start(arguments, cwd=None):
    # In a session of its own: Ctrl-C is ours to pass on, also where a notebook sends it to a group.
    return subprocess.Popen([program(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, cwd=cwd, start_new_session=True)


def run(arguments, cwd=None):
    """The last JSON document that it printed. Raises DtrainError with its error."""
    child = start(arguments, cwd)
    try:
        out, err = child.communicate()
    except BaseException:
        child.terminate()
        child.communicate()
        raise
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
        said = err.decode("utf-8", "replace").strip() or f"exit code {child.returncode}"
        raise DtrainError(f"dtrain {arguments[0]}: {said}", code="internal")
    return last


def error_of(error):
    context = "".join(f"\n  {line}" for line in error.get("context") or [])
    problems = [error_of(problem) for problem in error.get("problems") or []]
    message = "\n".join(p.message for p in problems) or error.get("message") or "unknown error"
    return DtrainError(message + context, error.get("hint"), error.get("location"), error.get("code") or "", problems)
