"""The command: ``python -m studies`` lists the studies, ``python -m studies NAME [--quick]`` runs one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from notsodeep.errors import NotSoDeepError

from . import _runner
from ._tables import TABLES


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data: there is no folder {options.data}; make it first")
    if options.jobs < 1:
        parser.error(f"--jobs: at least one process is needed, got {options.jobs}")
    if options.name is None:
        Console().print(_list())
        return 0
    setup = _runner.Setup(options.quick, options.data, options.device, options.jobs, options.networks, options.only)
    try:
        for name in _runner.names() if options.name == "all" else (options.name,):
            _report(name, _runner.run(name, setup, options.output / name), options.output / name)
    except (NotSoDeepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; finished points are stored, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m studies", description="Studies: numbers as JSON, and their figures.")
    known = (*_runner.names(), "all")
    parser.add_argument("name", nargs="?", choices=known, metavar="NAME", help="a study, or all; default: the list")
    parser.add_argument("--quick", action="store_true", help="small sizes and built-in data: seconds, not minutes")
    parser.add_argument("--output", type=Path, default=Path("results"), help="where NAME/full.json and figures go")
    parser.add_argument("--data", type=Path, help="folder of data sets; default NOTSODEEP_DATA, else the cache")
    parser.add_argument("--jobs", type=int, default=1, help="points computed at a time, each with one thread")
    parser.add_argument("--networks", type=Path, help="folder that keeps trained networks, where a study has it")
    parser.add_argument("--only", default="", help="a pattern: points whose keys do not contain it are left out")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for what trains")
    return parser


def _list() -> Table:
    table = Table("name", "shows", "--quick", "full", title="python -m studies NAME", title_justify="left")
    for name in _runner.names():
        found = _runner.study(name)
        table.add_row(name, found.shows, found.quick, found.full)
    return table


def _report(name: str, document: _runner.Document, folder: Path) -> None:
    seconds = sum(point["seconds"] or 0.0 for point in document["points"].values())
    figures = sum(str(figure).endswith(".svg") for figure in document.get("figures", []))
    if name in TABLES:
        heads, rows = TABLES[name](document)
        shown = Table(*heads, title=name, title_justify="left")
        for row in rows:
            shown.add_row(*row)
        Console().print(shown)
    print(f"{name}: {len(document['points'])} points, {seconds:.1f} s, {figures} figures in {folder}")


if __name__ == "__main__":
    sys.exit(main())
