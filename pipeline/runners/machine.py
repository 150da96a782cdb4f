"""What doctor asks of the machine: each answer is a method, so that a test can put another machine in its place."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil


class Machine:
    """This machine. Nothing raises: what cannot be found out is None or empty."""

    def python(self) -> tuple[int, int, int]:
        return sys.version_info[0], sys.version_info[1], sys.version_info[2]

    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    def processor_flags(self) -> set[str]:
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return set()
        return set(next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), []))

    def system(self) -> str:
        return f"{platform.system()} {platform.machine()}"

    def memory_available(self) -> int:
        """Bytes that can be had now, a container's limit included."""
        free = int(psutil.virtual_memory().available)
        for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
            try:
                folder = Path("/sys/fs/cgroup")
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):
                continue
            free = min(free, max(left, 0))
        return free

    def disk_free(self, folder: Path) -> int:
        """Bytes free for us where `folder` lies or will lie."""
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def writable(self, folder: Path) -> bool:
        while not folder.exists():
            folder = folder.parent
        return os.access(folder, os.W_OK | os.X_OK)

    def package(self, name: str) -> str | None:
        """Installed version."""
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    def torch_cuda(self) -> tuple[str | None, int]:
        """The CUDA version torch was built for (None: a CPU build), and how many devices it sees."""
        import torch

        return torch.version.cuda, torch.cuda.device_count() if torch.version.cuda else 0

    def driver(self) -> str | None:
        """Version of the NVIDIA driver, None without one."""
        words = self.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        return words.strip().splitlines()[0] if words and words.strip() else None

    def run(self, *command: str, folder: Path | None = None) -> str | None:
        """Output of a short command, None when it fails or is not there."""
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def process_runs(self, pid: int) -> bool:
        """A process that ended and that nobody waited for (a container without an init) does not run."""
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
