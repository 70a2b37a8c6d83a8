"""What every benchmark shares: interleaved timing, alternating processes, facts of the machine, results as JSON.

Methods that compete are timed in turn, round after round, so that what else the machine does falls on all alike.
Libraries whose thread pools would fight inside one process are workers: processes that take turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

Samples = dict[str, dict[str, list[float]]]  # seconds of one call, by case and method

SHORTEST_SAMPLE = 1e-3  # seconds: faster calls are timed several at once


def main(
    description: str | None,
    work: Callable[[argparse.Namespace], None],
    results: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    plot: Callable[[dict[str, Any], Path], None],
    more_options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """The command line of a benchmark: measures, prints, and writes JSON and the plot made from it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results here as JSON, and their plot beside as PNG")
    parser.add_argument("--plot", type=Path, help="only draw the results in this file again")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each worker")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each method of each case in one turn")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    if more_options:
        more_options(parser)
    options = parser.parse_args()
    if options.worker:
        work(options)
    elif options.plot:
        plot(json.loads(options.plot.read_text()), options.plot.with_suffix(".png"))
    else:
        found = results(options)
        show(found)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            plot(found, options.out.with_suffix(".png"))


def interleave(methods: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Times the methods in turn for ``seconds`` each; a method that takes longer gets one sample."""
    samples: dict[str, list[float]] = {name: [] for name in methods}
    calls = {name: _calls_per_sample(method) for name, method in methods.items()}
    while pending := [name for name in methods if sum(samples[name]) * calls[name] < seconds]:
        for name in pending:
            method = methods[name]
            start = time.perf_counter()
            for _ in range(calls[name]):
                method()
            samples[name].append((time.perf_counter() - start) / calls[name])
    return samples


def _calls_per_sample(method: Callable[[], object]) -> int:
    method()
    start = time.perf_counter()
    method()
    elapsed = time.perf_counter() - start
    return max(1, int(SHORTEST_SAMPLE / max(elapsed, 1e-9)))


def emit(samples: Samples) -> None:
    """The report of a worker to :func:`alternate`."""
    json.dump(samples, sys.stdout)


def alternate(
    script: str, workers: Iterable[str], options: argparse.Namespace, pythons: Mapping[str, str] | None = None
) -> Samples:
    """Runs the workers of a script in turn, ``options.rounds`` times, and collects their samples.

    A worker runs in the Python that ``pythons`` names for it, or in this one.
    """
    collected: Samples = {}
    turns = [worker for _ in range(options.rounds) for worker in workers]
    for worker in tqdm(turns, desc=Path(script).stem, file=sys.stderr):
        command = [
            (pythons or {}).get(worker, sys.executable),
            script,
            "--worker",
            worker,
            "--seconds",
            str(options.seconds),
        ]
        process = subprocess.run([*command, "--only", options.only], stdout=subprocess.PIPE, check=True)
        for case, methods in json.loads(process.stdout).items():
            for method, seconds in methods.items():
                collected.setdefault(case, {}).setdefault(method, []).extend(seconds)
    return collected


def summary(seconds: list[float]) -> dict[str, float | int]:
    """Median, spread (10th and 90th percentile) and least, in seconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
        "least": ordered[0],
        "samples": len(ordered),
    }


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_name() -> str:
    if sys.platform == "darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True
        ).stdout.strip()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def versions(*packages: str) -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
