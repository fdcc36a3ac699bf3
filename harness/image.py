"""Builds the container image of container/Dockerfile without a Docker daemon, and unpacks it.

Buildah runs the file's commands by chroot. The base image is a minimal Debian that mmdebstrap
assembles from Debian's packages, so that no registry of images is needed. Both are packages of
Debian; the build needs root.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from harness.wheels import ROOT, WheelError, build_wheels

WORK = ROOT / "build" / "image"
BASE = "localhost/debian:bookworm-slim"
NAME = "localhost/pyxbroker"
SUITE, PYTHON = "bookworm", "3.11"
ARCHIVE = WORK / "pyxbroker.oci.tar"


def build_image() -> Path:
    """Build the image of this tree's wheel. Return the root directory of its file system."""
    for _ in build_wheels([PYTHON], [f"manylinux_2_28_{platform.machine()}"]):
        pass
    WORK.mkdir(parents=True, exist_ok=True)
    if BASE not in _buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        _make_base()
    options = ["--isolation", "chroot", "--format", "docker", "--tag", NAME]
    options += ["--build-arg", f"BASE={BASE}", "--file", "container/Dockerfile"]
    certificate = os.environ.get("PIP_CERT")
    if certificate:  # as pip of this machine
        options += [
            "--build-arg",
            "PIP_CERT=/run/pip.pem",
            "--volume",
            f"{certificate}:/run/pip.pem:ro",
        ]
    _buildah("bud", *options, ROOT)
    container = _buildah("from", "--pull-never", NAME).strip()
    return Path(_buildah("mount", container).strip())


def _make_base() -> None:
    """Assemble the Debian of the Dockerfile, with this machine's sources of packages."""
    root = WORK / "base.tar"
    command = ["mmdebstrap", "--variant=apt", "--mode=root"]
    # As in Debian's own slim image.
    for folder in ("doc", "info", "locale", "man"):
        command.append(f"--dpkgopt=path-exclude=/usr/share/{folder}/*")
    command += [SUITE, str(root)]
    _run(*command, *map(str, Path("/etc/apt/sources.list.d").glob("*.sources")))
    container = _buildah("from", "scratch").strip()
    _buildah("add", container, root, "/")
    _buildah("commit", "--rm", container, BASE)
    root.unlink()


def sizes(root: Path) -> tuple[int, int]:
    """Return the bytes of the image as a registry stores it, and as files on a disk."""
    ARCHIVE.unlink(missing_ok=True)
    _buildah("push", NAME, f"oci-archive:{ARCHIVE}")
    unpacked = int(_run("du", "-sx", "--block-size=1", str(root)).split()[0])
    return ARCHIVE.stat().st_size, unpacked


def _buildah(*arguments: object) -> str:
    """Run Buildah with its storage below build/."""
    options = ["--storage-driver", "vfs", "--root", WORK / "storage", "--runroot", WORK / "run"]
    return _run("buildah", *map(str, options), *map(str, arguments))


def _run(*command: str) -> str:
    """Return what a command printed on stdout. Raises RuntimeError with all that it printed."""
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build the image and print where it is and how large."""
    try:
        root = build_image()
        compressed, unpacked = sizes(root)
    except (OSError, RuntimeError, WheelError) as error:
        sys.exit(f"image: {error}")
    print(f"image: {ARCHIVE.relative_to(ROOT)}: {compressed / 1e6:.0f} MB")
    print(f"image: {root.relative_to(ROOT)}: {unpacked / 1e6:.0f} MB unpacked")


if __name__ == "__main__":
    main()
