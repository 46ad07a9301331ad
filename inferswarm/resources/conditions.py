"""What a machine is busy with while something is measured on it: load and clocks, as far as they can be read."""

from __future__ import annotations

import os

import psutil


def running_conditions() -> dict[str, str]:
    """Return the load average of the last minute and the mean clock of the CPUs in MHz, each or why it is unknown.

    Keys are `load_average` and `clocks_mhz`. A virtual machine often states a clock that never changes; it is
    recorded as it is stated.
    """
    try:
        load = f"{os.getloadavg()[0]:.2f}"
    except OSError as error:
        load = f"unknown: {error}"
    try:
        frequency = psutil.cpu_freq()
    except (OSError, psutil.Error, NotImplementedError) as error:
        return {"load_average": load, "clocks_mhz": f"unknown: {error}"}
    clock = "unknown: the kernel states none" if frequency is None else f"{frequency.current:.0f}"
    return {"load_average": load, "clocks_mhz": clock}
