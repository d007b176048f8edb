"""A real etcd of one member on loopback, for tests."""

import shutil
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Final

from tests.support.harness.ports import free_port

ETCD: Final = shutil.which("etcd")
START_LIMIT_S: Final = 30.0


class EtcdServer:
    """One member, with its data below a directory; `start` may be called again after `stop`.

    Attributes:
        url: where clients ask.
    """

    def __init__(
        self, root: Path, certificates: Path | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        """Prepare.

        Args:
            root: for its data and its log.
            certificates: a directory with ca.pem, server.pem and server.key; None: plain HTTP.
            host: where it listens for clients.
        """
        self._root = root
        scheme = "http" if certificates is None else "https"
        self.url = f"{scheme}://{host}:{free_port()}"
        self._peer_url = f"http://127.0.0.1:{free_port()}"
        self._certificates = certificates
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert ETCD is not None
        command = [ETCD, "--data-dir", str(self._root / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self._peer_url]
        command += ["--initial-advertise-peer-urls", self._peer_url]
        command += ["--initial-cluster", f"default={self._peer_url}"]
        context = None
        if self._certificates is not None:
            directory = self._certificates
            command += ["--cert-file", f"{directory}/server.pem"]
            command += ["--key-file", f"{directory}/server.key", "--client-cert-auth"]
            command += ["--trusted-ca-file", f"{directory}/ca.pem"]
            context = ssl.create_default_context(cafile=directory / "ca.pem")
            context.load_cert_chain(directory / "client.pem")
        with (self._root / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._is_healthy(context):
            assert time.monotonic() < deadline_s, "etcd does not start"
            time.sleep(0.05)

    def _is_healthy(self, context: ssl.SSLContext | None) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", context=context) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def make_certificates(directory: Path) -> None:
    """Make an authority of its own, a server's and a client's certificate, for 127.0.0.1."""
    directory.mkdir()

    def openssl(*arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tests")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", "request", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem"),
        )
    with (directory / "client.pem").open("a") as file:
        file.write((directory / "client.key").read_text())
