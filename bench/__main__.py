"""Run the benchmarks: `python -m bench [pytest's arguments]`, for instance `-k place`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Run all benchmarks under bench/ in order, with a line for each as it ends; then show the table."""
    return pytest.main(
        [
            str(HERE),
            "-p",
            "no:randomly",  # neighbors in the table are measured one after the other
            "--benchmark-quiet",  # the table at the end says it
            f"--benchmark-json={HERE / 'latest.json'}",
            "--timeout=600",
            "--override-ini=verbosity_test_cases=1",
            "--override-ini=console_output_style=count",
            "--override-ini=pythonpath=tests bench",  # programs that benchmarks start are also read by them
            "--no-header",
            # Benchmarks that only `record` save no data of pytest-benchmark. That is no error.
            "-Wignore::pytest_benchmark.logger.PytestBenchmarkWarning",
            *arguments,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
