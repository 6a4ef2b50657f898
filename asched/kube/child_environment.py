"""The environment variables of child processes: lists of those that they need.

The environment of the daemon holds secrets: the journal's URL with its password, headers for
OpenTelemetry, credentials of the machine. A child process gets none that it does not need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_SYSTEM: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_EXEC_PLUGIN: Final = (
    *_SYSTEM,
    "XDG_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "REQUESTS_CA_BUNDLE",
    # What the plugins of the cloud providers authenticate with.
    "AWS_*",
    "GOOGLE_*",
    "CLOUDSDK_*",
    "AZURE_*",
    "AAD_*",
    "ARM_*",
    "OCI_*",
    "DIGITALOCEAN_*",
)
_WORKER: Final = (
    *_SYSTEM,
    "PYTHON*",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)


def exec_plugin_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for an exec plugin of a kubeconfig, without those that its ``env`` adds."""
    return _allowed(environ, _EXEC_PLUGIN)


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for a worker process of a plugin."""
    return _allowed(environ, _WORKER)


def _allowed(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    exact = {name for name in names if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value for name, value in environ.items() if name in exact or name.startswith(prefixes)
    }
