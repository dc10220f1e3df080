"""A cloud that speaks AWS's API, on loopback: moto, out of the Python that scripts/setup --tests has made for it
(.deps/moto), which has botocore too."""

import contextlib
import logging
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / ".deps" / "moto" / "bin" / "python"
SKIPPED = 77
# What moto then checks as AWS does; signatures after the first three requests.
STRICT = {"MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "1", "MOTO_ENABLE_AMI_VALIDATION": "1",
          "MOTO_ENABLE_KEYPAIR_VALIDATION": "1", "INITIAL_NO_AUTH_ACTION_COUNT": "3"}


def enter():
    """Goes on in moto's Python, with nothing about AWS in its environment; where there is none the test is
    skipped. Before anything of moto's is imported."""
    if os.environ.get("DTRAIN_TEST_MOTO") == "entered":
        return
    if not PYTHON.exists():
        print("skipped: no moto here (scripts/setup --tests brings it)")
        sys.exit(SKIPPED)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith("AWS_") and name.upper() not in proxies}
    os.execve(PYTHON, [str(PYTHON), *sys.argv], {**clean, **STRICT, "DTRAIN_TEST_MOTO": "entered"})


@contextlib.contextmanager
def server():
    """Gives its URL. All of one process are one account."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - see enter()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        running.stop()
