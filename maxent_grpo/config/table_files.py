"""Which files a table's path names: a file, a folder, or a pattern. Looks at the machine and reads no file."""

from __future__ import annotations

import difflib
import glob
from pathlib import Path

TEXT_TABLES = {".jsonl": "", ".ndjson": "", ".csv": ",", ".tsv": "\t"}
"""Ending to the character between fields; empty where a line is a JSON object."""
PARQUET = ".parquet"
ENDINGS = (*TEXT_TABLES, PARQUET)
_INSTEAD = {
    ".json": "write one record a line into a .jsonl file",
    ".gz": "unpack it: rows are read at random places",
    ".zst": "unpack it: rows are read at random places",
    ".zip": "unpack it: rows are read at random places",
    ".xlsx": "save it as .csv",
    ".txt": "write one record a line into a .jsonl file",
    ".arrow": "a folder that `save_to_disk` wrote is read with data=hub",
}


def table_files(path: str) -> tuple[list[Path], str]:
    """The files of a table in the order of their names, and what is wrong with the path; empty when nothing is."""
    named = Path(path).expanduser()
    if named.is_dir():
        files = sorted(file for file in named.iterdir() if _is_table(file))
        return files, "" if files else f"is a folder without a table; tables end in {', '.join(ENDINGS)}"
    if named.is_file():
        files = [named]
    elif glob.has_magic(path):
        files = sorted(Path(found) for found in glob.glob(str(named), recursive=True) if Path(found).is_file())
    else:
        near = difflib.get_close_matches(named.name, _names_beside(named), n=1)
        return [], "no such file or folder" + (f"; did you mean {named.parent / near[0]}?" if near else "")
    if not files:
        return [], "no file matches this pattern"
    return files, next((_no_table(file) for file in files if file.suffix.lower() not in ENDINGS), "")


def _is_table(file: Path) -> bool:
    return file.is_file() and file.suffix.lower() in ENDINGS and not file.name.startswith((".", "_"))


def _names_beside(named: Path) -> list[str]:
    return sorted(entry.name for entry in named.parent.iterdir()) if named.parent.is_dir() else []


def _no_table(file: Path) -> str:
    ending = file.suffix.lower()
    instead = _INSTEAD.get(ending)
    found = f"ends in {ending}" if ending else "has no ending"
    return f"{file.name} {found}; tables end in {', '.join(ENDINGS)}" + (f"; {instead}" if instead else "")
