"""The command ``tlbprobe``: one parser, one place for errors and exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ...cores.simulated import simulated
from ...record import COMMAND_HELPS, RECORDS
from ...results.result import FileFormatError, package_version
from . import anatomy, curve, events, fault, host, pages, plot, probe, show, stat, whatif
from .output import DONE, INTERRUPTED, REFUSED, USAGE, complain

SIMULATE = (
    "measure on a simulated processor instead of this machine: one that comes with the package, such as "
    "skylake, or a TOML file of your own"
)
# Commands of probes that can do more than measure; the others follow from the record.
OWN: dict[str, Any] = {"fault": fault}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 for a result, 1 for a refusal that says why, 2 for wrong usage, 130 on Ctrl-C."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", RuntimeWarning)
        warnings.showwarning = _show_warning
        try:
            options = build_parser().parse_args(arguments)
            with contextlib.nullcontext() if options.simulate is None else simulated(options.simulate):
                status = int(options.run(options))
            if sys.stdout is not None:  # somebody may have closed it
                sys.stdout.flush()
            return status
        except SystemExit as leave:  # argparse has said why
            return leave.code if isinstance(leave.code, int) else USAGE
        except KeyboardInterrupt:
            return complain("interrupted", INTERRUPTED)
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        except FileFormatError as error:
            return complain(error, REFUSED)
        except (ValueError, TypeError) as error:
            return complain(error, USAGE)
        except (OSError, MemoryError, RuntimeError, BufferError, ImportError) as error:
            return complain(error, REFUSED)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"tlbprobe: warning: {message}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser: a command a file, and one for each record."""
    parser = argparse.ArgumentParser(
        prog="tlbprobe",
        description="Measures what address translation costs, on memory of a proved page size.",
        epilog=f"SIZE is in {COMMAND_HELPS['size']}. 'tlbprobe COMMAND --help' says more.",
    )
    parser.add_argument("--version", action="version", version=f"tlbprobe {package_version()}")
    parser.add_argument("--simulate", metavar="MACHINE", help=SIMULATE)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    curve.add(commands)
    for name, record in RECORDS.items():
        OWN.get(name, probe).add(commands, record)
    for command in (anatomy, stat, whatif, host, pages, events, show, plot):
        command.add(commands)
    return parser
