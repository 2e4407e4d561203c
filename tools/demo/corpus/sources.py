"""Public packages the corpus draws on: which, under what licence, and how they are read.

Packages are fetched with their own clients (`python -m tools.demo.corpus.sources DIR`) and
checked against the hashes below. What is read from them: WordNet, question and answer pairs,
countries, chemical elements.
"""

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """file: the package file's name. sha256 of it. client: command that downloads it."""

    name: str
    version: str
    licence: str
    file: str
    sha256: str
    client: tuple[str, ...]


_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--quiet")

SOURCES = (
    Source(
        "wordnet-base",
        "1:3.0-37 (Debian)",
        "WordNet 3.0",
        "wordnet-base_1%3a3.0-37_all.deb",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
        ("apt-get", "download", "wordnet-base=1:3.0-37"),
    ),
    Source(
        "dict-elements",
        "20001107-a-9.1 (Debian)",
        "public domain",
        "dict-elements_20001107-a-9.1_all.deb",
        "c840ae31017fca01e2d56e178b8d18ade279d24f41d7a285c6150a233f730ffa",
        ("apt-get", "download", "dict-elements=20001107-a-9.1"),
    ),
    Source(
        "chatterbot-corpus",
        "1.3.3 (PyPI)",
        "BSD-3-Clause",
        "chatterbot_corpus-1.3.3-py2.py3-none-any.whl",
        "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        (*_PIP, "chatterbot-corpus==1.3.3"),
    ),
    Source(
        "countries-list",
        "3.4.1 (npm)",
        "MIT",
        "countries-list-3.4.1.tgz",
        "572934a82137ec58a84a3e32635ec589cb9788e8df408f15677c71009d2adff2",
        ("npm", "pack", "--silent", "countries-list@3.4.1"),
    ),
)


def fetch(folder: Path) -> None:
    """Download what is missing and check all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        path = folder / source.file
        if not path.exists():
            subprocess.run(source.client, cwd=folder, check=True)
        verify(path, source)


def verify(path: Path, source: Source) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != source.sha256:
        raise ValueError(f"{path}: sha256 {found}, expected {source.sha256}")


class Packages:
    """Reads files out of the downloaded packages."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        for source in SOURCES:
            verify(folder / source.file, source)

    def deb(self, name: str) -> Path:
        """The unpacked tree of a Debian package."""
        source = next(s for s in SOURCES if s.name == name)
        target = self.work / name
        if not target.exists():
            target.mkdir(parents=True)
            subprocess.run(["dpkg", "-x", self.folder / source.file, target], check=True)
        return target

    def wordnet(self) -> Path:
        return self.deb("wordnet-base") / "usr/share/wordnet"

    def elements(self) -> list[tuple[str, str, int]]:
        """(name, symbol, atomic number)."""
        path = self.deb("dict-elements") / "usr/share/dictd/elements.dict.dz"
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        found = re.findall(r"\n\n(\w+)\nSymbol: (\w+)\nAtomic number: (\d+)\n", text)
        return [(name.lower(), symbol, int(number)) for name, symbol, number in found]

    def chatterbot(self, categories: tuple[str, ...]) -> list[tuple[str, str]]:
        """(question, answer) pairs of the English files named."""
        pairs: list[tuple[str, str]] = []
        for category in categories:
            name = f"chatterbot_corpus/data/english/{category}.yml"
            question, whole = "", False
            # The files are two-level lists of plain scalars; a YAML parser is not needed. A scalar
            # that goes on in the next line is dropped.
            for line in self._wheel("chatterbot-corpus", name).splitlines():
                if line.startswith("- - "):
                    question, whole = _scalar(line[4:]), False
                elif line.startswith("  - ") and question:
                    pairs.append((question, _scalar(line[4:])))
                    whole = True
                elif line.strip() and whole:
                    pairs.pop()
                    whole = False
        return pairs

    def countries(self) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], dict[str, Any]]:
        """countries, continents, currencies, languages, by code."""
        with tarfile.open(self.folder / "countries-list-3.4.1.tgz") as archive:
            made = []
            for name in ("countries", "continents", "currencies", "languages"):
                member = archive.extractfile(f"package/{name}.min.json")
                assert member is not None
                made.append(json.loads(member.read()))
        return tuple(made)

    def _wheel(self, name: str, member: str) -> str:
        source = next(s for s in SOURCES if s.name == name)
        with zipfile.ZipFile(self.folder / source.file) as archive:
            return archive.read(member).decode("utf-8")


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].replace("''", "'")
    return text


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
