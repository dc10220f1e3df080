"""A rank's reports as JSON lines on the launcher's unix socket: docs/rank_contract.md.

The same behaviour as trainer/report/reporter.hpp: metrics, progress and heartbeats are best effort,
a checkpoint that nobody confirms is an error.
"""

import json
import os
import socket
import sys
import threading
import time

from ._command import DtrainError

LONGEST_LINE = 65536  # with its newline
SEND_TIMEOUT_S = 5.0
RETRY_AFTER_S = 5.0
PROGRESS_INTERVAL_S = 0.2


def warn(message):
    print(f"warning: {message}", file=sys.stderr, flush=True)


def line_of(report):
    return json.dumps(report, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


class Reporter:
    """One connection, made at the first report. Any thread may call it."""

    def __init__(self, path):
        self._path = path
        self._lock = threading.Lock()
        self._socket = None
        self._pid = None
        self._warned = False
        self._failed_at = None
        self._progress_at = None

    def send_quietly(self, report):
        line = line_of(report)
        if len(line) > LONGEST_LINE:
            warn(f"a report of {len(line)} bytes is too long; left out")
            return
        with self._lock:
            now = time.monotonic()
            if self._failed_at is not None and now - self._failed_at < RETRY_AFTER_S:
                return
            try:
                self._deliver(line)
                self._failed_at = None
            except OSError as error:
                self._close()
                self._failed_at = now
                if not self._warned:
                    warn(f"reports are not delivered, training goes on: {self._path}: {error}")
                self._warned = True

    def progress(self, report):
        now = time.monotonic()
        last = report.get("total") is not None and report["step"] >= report["total"]
        if not last and self._progress_at is not None and now - self._progress_at < PROGRESS_INTERVAL_S:
            return
        self._progress_at = now
        self.send_quietly(report)

    def checkpoint(self, report):
        """Waits until the checkpoint is committed and returns its final path. Without a limit while the
        connection stands: the head may be away, or have no room."""
        line = line_of({**report, "ack": True})
        # A connection of its own: other threads' reports go on while this one waits.
        answers = None
        try:
            if len(line) > LONGEST_LINE:
                raise DtrainError(f"a report of {len(line)} bytes is too long")
            answers = self._connect()
            answers.sendall(line)
            answers.settimeout(None)
            with answers.makefile("rb") as stream:
                answer = stream.readline(LONGEST_LINE)
            if not answer.endswith(b"\n"):
                raise DtrainError(f"report socket {self._path} was closed")
            try:
                answer = json.loads(answer)
            except ValueError:
                answer = {}
            if isinstance(answer, dict) and answer.get("ok") is True:
                return answer.get("path") or report["path"]
            reason = answer.get("error") if isinstance(answer, dict) else None
            raise DtrainError(reason or "an answer that is not understood")
        except (OSError, DtrainError) as error:
            raise DtrainError(f"checkpoint of step {report['step']} was not committed: {error}") from None
        finally:
            if answers is not None:
                answers.close()

    def _deliver(self, line):
        if self._pid != os.getpid():
            self._socket = None  # a fork: the connection is the parent's
        if self._socket is not None:
            try:
                self._socket.sendall(line)
                return
            except socket.timeout:
                raise
            except OSError:
                pass  # the other side has closed it since the last report: once more, on a new one
        self._close()
        self._socket, self._pid = self._connect(), os.getpid()
        self._socket.sendall(line)

    def _connect(self):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(SEND_TIMEOUT_S)
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        return connection

    def _close(self):
        if self._socket is not None:
            self._socket.close()
        self._socket = None
